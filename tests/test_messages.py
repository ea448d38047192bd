"""Every user error: the whole message, from Python and on the command line.

Form: what happened (with values). Why. What to do.
"""

from __future__ import annotations

import numpy as np
import pytest

import clnn
from clnn.cli.main import main
from clnn.compile import compile_fixed
from clnn.errors import (
    ClnnError,
    DTypeError,
    InputNameError,
    ModelFileError,
    NoDeviceError,
    OpenShapeError,
    SettingError,
    ShapeError,
    UnsupportedOpError,
)
from clnn.runtime.device import device
from clnn.settings import setting, warn_unknown


def model(path, nodes, inputs, outputs, opset=17):
    from onnx import TensorProto, helper, save

    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
    )
    save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)]), path
    )
    return path


@pytest.fixture(scope="module")
def adder(tmp_path_factory):
    """image [1, 3] + offset [1, 3] -> sum."""
    from onnx.helper import make_node

    return model(
        tmp_path_factory.mktemp("m") / "adder.onnx",
        [make_node("Add", ["image", "offset"], ["sum"], "add")],
        {"image": [1, 3], "offset": [1, 3]},
        {"sum": [1, 3]},
    )


@pytest.fixture(scope="module")
def session(adder, any_device):
    with clnn.compile_model(adder, any_device) as made:
        yield made


def feeds(**changes):
    made = {n: np.zeros((1, 3), np.float32) for n in ("image", "offset")}
    made.update(changes)
    return {name: array for name, array in made.items() if array is not None}


def message(kind, call, *args, **kwargs) -> str:
    """Return the message of the error of class `kind` that a call raises; check what all share."""
    with pytest.raises(ClnnError) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is kind
    assert caught.value.code.startswith("CLNN-E")
    text = str(caught.value)
    assert text == text.strip()
    assert text[:1] not in "'\"" or text[-1:] != text[:1], "a repr in place of the message"
    return text


def on_the_command_line(capsys, *words) -> tuple[int, str]:
    """Return exit status and standard error of `clnn`, which must not be a traceback."""
    code = main([str(word) for word in words])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return code, err


def test_wrong_extent(session):
    wrong = feeds(image=np.zeros((1, 4), np.float32))
    assert message(ShapeError, session, wrong) == (
        "input 'image' is (1, 4), model wants (1, 3): axis 1 is 4, must be 3."
    )


def test_wrong_extents_of_several_axes(session):
    wrong = feeds(image=np.zeros((2, 5), np.float32))
    assert message(ShapeError, session, wrong) == (
        "input 'image' is (2, 5), model wants (1, 3): axis 0 is 2, must be 1;"
        " axis 1 is 5, must be 3."
    )


def test_wrong_rank(session):
    wrong = feeds(image=np.zeros(3, np.float32))
    assert message(ShapeError, session, wrong) == (
        "input 'image' is (3,), model wants (1, 3): it has 1 axes, must have 2."
    )


def test_wrong_element_type(session):
    assert message(DTypeError, session, feeds(offset=np.zeros((1, 3)))) == (
        "input 'offset' is float64, model wants float32. Pass x.astype(np.float32)."
    )


def test_missing_input(session):
    assert message(InputNameError, session, feeds(offset=None)) == (
        "input 'offset' is missing. The model's inputs are: 'image', 'offset'."
    )


def test_misspelt_input(session):
    wrong = feeds(image=None, imgae=np.zeros((1, 3), np.float32))
    assert message(InputNameError, session, wrong) == (
        "no input is named 'imgae'; input 'image' is missing. The model's inputs are: 'image',"
        " 'offset'. Did you mean 'image' for 'imgae'?"
    )


def test_extra_input(session):
    wrong = feeds(zebra=np.zeros(1, np.float32))
    assert message(InputNameError, session, wrong) == (
        "no input is named 'zebra'. The model's inputs are: 'image', 'offset'."
    )


def test_misspelt_output(session):
    assert message(InputNameError, session.run, ["sun"], feeds()) == (
        "no output is named 'sun'. The model's outputs are: 'sum'. Did you mean 'sum' for 'sun'?"
    )


@pytest.mark.usefixtures("any_device")
def test_unsupported_operators_are_all_listed(tmp_path, capsys):
    from onnx.helper import make_node

    path = model(
        tmp_path / "net.onnx",
        [
            make_node("ImageDecoder", ["x"], ["a"], "words"),
            make_node("Relu", ["x"], ["r"], "fine"),
            make_node("GlobalLpPool", ["r"], ["b"], "search", domain="org.example"),
            make_node("ImageDecoder", ["r"], ["c"], "names"),
        ],
        {"x": [1, 4]},
        {"a": [1, 4], "b": [1, 4], "c": [1, 4]},
    )
    text = message(UnsupportedOpError, clnn.compile_model, path)
    head, *rows, last = text.splitlines()
    assert head == "3 node(s) cannot run on clnn:"
    for word in (
        "words",
        "names",
        "search",
        "ImageDecoder",
        "GlobalLpPool",
        "opset 17",
        "float32[1x4]",
    ):
        assert any(word in row for row in rows), f"{word} is not in {rows}"
    assert "fine" not in text
    assert last == "Supported operators are listed in docs/operators.md."
    code, err = on_the_command_line(capsys, "bench", path)
    assert (code, err) == (2, f"UnsupportedOpError: {text}\n")


def test_garbage_file(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\xff\xfe\xfdnot a model")
    text = message(ModelFileError, clnn.compile_model, path)
    assert "is not an ONNX model" in text
    assert "14 bytes" in text
    assert r"b'\xff\xfe\xfdnot a model'" in text
    assert on_the_command_line(capsys, "inspect", path) == (2, f"ModelFileError: {text}\n")


def test_git_lfs_pointer(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    text = message(ModelFileError, clnn.compile_model, path)
    assert "Git-LFS pointer" in text
    assert "git lfs pull" in text


def test_empty_file(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    assert "It is empty" in message(ModelFileError, clnn.compile_model, path)


def test_missing_file(tmp_path, capsys):
    path = tmp_path / "nowhere" / "net.onnx"
    text = message(ModelFileError, clnn.compile_model, path)
    assert repr(str(path)) in text
    assert text.endswith("Check the path.")
    assert on_the_command_line(capsys, "run", path)[0] == 2


def test_folder_in_place_of_a_file(tmp_path):
    assert "the .onnx file in it." in message(ModelFileError, clnn.compile_model, tmp_path)


def test_open_dimensions(tmp_path, capsys):
    from onnx.helper import make_node

    path = model(
        tmp_path / "net.onnx",
        [make_node("Relu", ["x"], ["y"], "act")],
        {"x": ["batch", 3, "height"]},
        {"y": ["batch", 3, "height"]},
    )
    text = message(OpenShapeError, compile_fixed, path)
    for word in ("batch", "height", "axis 0", "axis 2", "shapes="):
        assert word in text
    code, err = on_the_command_line(capsys, "profile", path)
    assert code == 2
    assert err == f"OpenShapeError: {text}\nHere: --shape NAME:1,3,224,224 or --shape DIMENSION:4\n"


@pytest.mark.usefixtures("any_device")
def test_unknown_device(adder, capsys, monkeypatch):
    text = message(NoDeviceError, clnn.compile_model, adder, device="abacus")
    assert "No OpenCL device answers to 'abacus'" in text
    assert "auto, cpu, gpu, an index or part of a name" in text
    assert on_the_command_line(capsys, "bench", adder, "-d", "abacus")[0] == 3
    monkeypatch.setenv("CLNN_DEVICE", "abacus")
    assert "(from CLNN_DEVICE)" in message(NoDeviceError, clnn.compile_model, adder)


def test_no_device_at_all(adder, capsys, monkeypatch):
    monkeypatch.setattr(device, "list_unprobed", lambda: ())
    text = message(NoDeviceError, clnn.compile_model, adder)
    head, *_, driver, last = text.splitlines()
    assert head == "No OpenCL device was found on this machine."
    assert driver.startswith("To get a driver: ") and last == "Run `clnn doctor` for all checks."
    assert on_the_command_line(capsys, "bench", adder) == (3, f"NoDeviceError: {text}\n")


def test_broken_option(adder, capsys):
    text = message(SettingError, clnn.Options, tune="fast")
    assert text.startswith("Options(tune='fast') is not allowed. Use one of off, cached")
    code, err = on_the_command_line(capsys, "bench", adder, "-o", "tune=fast")
    assert (code, err) == (2, f"SettingError: {text}\n")
    assert "states=0" in message(SettingError, clnn.Options, states=0)


def test_broken_variable(adder, capsys, monkeypatch):
    monkeypatch.setenv("CLNN_ARENA", "shraed")
    text = message(SettingError, setting, "CLNN_ARENA")
    assert text.startswith("CLNN_ARENA is 'shraed': must be one of shared, separate.")
    assert on_the_command_line(capsys, "inspect", adder, "--plan") == (2, f"SettingError: {text}\n")


def test_broken_debug_variable_is_an_error_and_no_traceback(adder, capsys, monkeypatch):
    monkeypatch.setenv("CLNN_DEBUG", "loud")
    code, err = on_the_command_line(capsys, "inspect", adder)
    assert code == 2
    assert err.startswith("SettingError: CLNN_DEBUG is 'loud'")


def test_unknown_variable_warns_with_the_nearest_one(adder, capsys, monkeypatch):
    monkeypatch.setenv("CLNN_AREAN", "separate")
    wanted = "environment variable CLNN_AREAN is not one of clnn's. Did you mean CLNN_ARENA?"
    with pytest.warns(UserWarning, match="CLNN_AREAN") as told:
        assert warn_unknown() == ["CLNN_AREAN"]
    assert str(told[0].message) == wanted
    code, err = on_the_command_line(capsys, "inspect", adder)
    assert (code, err) == (0, f"warning: {wanted}\n")
