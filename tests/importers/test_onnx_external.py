"""External data: read from inside the model's folder, and from nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as make
from onnx_models import model, run, value

from clnn.errors import ModelError
from clnn.importers.onnx.importer import import_onnx

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
SECRET = np.full(12, 42, np.float32).tobytes()


def external(**entries: object) -> TensorProto:
    proto = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHTS.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        proto.external_data.add(key=key, value=str(text))
    return proto


def save(folder: Path, weights: TensorProto) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    node = make.make_node("Add", ["x", "w"], ["y"], name="add")
    path = folder / "net.onnx"
    path.write_bytes(
        model([node], [value("x", (3, 4))], initializers=[weights]).SerializeToString()
    )
    return path


def loaded(path: Path) -> np.ndarray:
    return run(import_onnx(path), x=np.zeros((3, 4), np.float32))["y"]


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "sub/w.bin", "sub/deep/w.bin", "w x.bin"])
@pytest.mark.parametrize("offset", [None, 0, 8, 4096])
def test_data_below_the_folder_is_read(location, offset, tmp_path):
    file = tmp_path / location
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(offset or 0) + WEIGHTS.tobytes() + b"more")
    keys = {"location": location} if offset is None else {"location": location, "offset": offset}
    path = save(tmp_path, external(**keys, length=WEIGHTS.nbytes))
    np.testing.assert_array_equal(loaded(path), WEIGHTS)


def test_model_that_onnx_saved_with_external_data_is_read(tmp_path):
    node = make.make_node("Add", ["x", "w"], ["y"])
    weights = onnx.numpy_helper.from_array(WEIGHTS, "w")
    proto = model([node], [value("x", (3, 4))], initializers=[weights])
    onnx.save(
        proto,
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="net.data",
        size_threshold=0,
    )
    np.testing.assert_array_equal(loaded(tmp_path / "net.onnx"), WEIGHTS)


def test_folder_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "w.bin").write_bytes(WEIGHTS.tobytes())
    save(tmp_path / "real", external(location="w.bin"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    np.testing.assert_array_equal(loaded(tmp_path / "link" / "net.onnx"), WEIGHTS)


def test_model_in_the_working_folder_is_read(tmp_path, monkeypatch):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    save(tmp_path, external(location="w.bin"))
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(loaded(Path("net.onnx")), WEIGHTS)


def _file(path: Path) -> None:
    path.write_bytes(SECRET)


def _link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "secret.bin")


def _inner_link(path: Path) -> None:
    (path.parent / "own.bin").write_bytes(SECRET)
    path.symlink_to("own.bin")


def _hard_link(path: Path) -> None:
    os.link(path.parents[1] / "secret.bin", path)


def _folder_link(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to(path.parents[2])
    (path.parents[2] / "w.bin").write_bytes(SECRET)


def _nothing(path: Path) -> None:
    pass


# Name of the case -> (location, what lies there, part of the message).
ESCAPES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "parent": ("../secret.bin", _nothing, "not a plain path"),
    "parent inside": ("sub/../../secret.bin", _nothing, "not a plain path"),
    "parent that comes back": ("sub/../w.bin", _nothing, "not a plain path"),
    "nested parents": ("a/b/../../../secret.bin", _nothing, "not a plain path"),
    "only parent": ("..", _nothing, "not a plain path"),
    "folder itself": (".", _nothing, "not a plain path"),
    "absolute": ("/etc/passwd", _nothing, "not a plain path"),
    "absolute device": ("/dev/zero", _nothing, "not a plain path"),
    "double slash": ("//etc/passwd", _nothing, "not a plain path"),
    "windows parent": ("..\\secret.bin", _nothing, "not a plain path"),
    "windows drive": ("C:secret.bin", _nothing, "not a plain path"),
    "windows share": ("\\\\host\\share", _nothing, "not a plain path"),
    "empty": ("", _nothing, "not a plain path"),
    "zero byte": ("w.bin\0.txt", _nothing, "not a plain path"),
    "link": ("w.bin", _link, "links are not followed"),
    "link inside the folder": ("w.bin", _inner_link, "links are not followed"),
    "link to a folder": ("sub/w.bin", _folder_link, "links are not followed"),
    "hard link": ("w.bin", _hard_link, "has other (hard) links"),
    "fifo": ("w.bin", os.mkfifo, "no regular file"),
    "folder": ("w.bin", Path.mkdir, "no regular file"),
    "file used as a folder": ("sub.bin/w.bin", lambda p: None, "cannot be opened"),
    "absent": ("none.bin", _nothing, "cannot be opened"),
    "long name": ("n" * 5000, _nothing, "cannot be opened"),
    "scheme": ("file:///etc/passwd", _nothing, "cannot be opened"),
    "home": ("~/secret.bin", _nothing, "cannot be opened"),
    "variable": ("$HOME/secret.bin", _nothing, "cannot be opened"),
}


@pytest.mark.parametrize("case", ESCAPES)
def test_every_way_out_of_the_folder_is_refused(case, tmp_path):
    location, prepare, words = ESCAPES[case]
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub.bin").write_bytes(SECRET)
    _file(tmp_path / "secret.bin")
    path = save(folder, external(location=location))
    if "\0" not in location and len(location) < 200:
        prepare(folder / location)
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert words in str(caught.value)
    assert "tensor 'w'" in str(caught.value)


# Keys -> part of the message. The file has 48 bytes, which is what the tensor wants.
RANGES = {
    "offset beyond": ({"offset": 48}, "bytes 48 to 96 of a file of 48"),
    "offset partly beyond": ({"offset": 4}, "bytes 4 to 52 of a file of 48"),
    "offset that wraps": ({"offset": 2**64 - 16}, "must be a whole number"),
    "offset of 2**63": ({"offset": 2**63 - 1}, "of a file of 48"),
    "negative offset": ({"offset": -4}, "must be a whole number"),
    "offset in words": ({"offset": "four"}, "must be a whole number"),
    "offset in other digits": ({"offset": "\u0664"}, "must be a whole number"),
    "offset with spaces": ({"offset": " 4 "}, "must be a whole number"),
    "length too small": ({"length": 44}, "has length 44; its shape and type want 48"),
    "length too large": ({"length": 2**62}, "want 48 bytes"),
    "negative length": ({"length": -1}, "must be a whole number"),
    "empty length": ({"length": ""}, "must be a whole number"),
}


@pytest.mark.parametrize("case", RANGES)
def test_range_must_lie_in_the_file(case, tmp_path):
    keys, words = RANGES[case]
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    path = save(tmp_path, external(location="w.bin", **keys))
    with pytest.raises(ModelError) as caught:
        import_onnx(path)
    assert words in str(caught.value)


def test_key_given_twice_is_refused(tmp_path):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    weights = external(location="w.bin")
    weights.external_data.add(key="location", value="../w.bin")
    with pytest.raises(ModelError, match="gives a key twice"):
        import_onnx(save(tmp_path, weights))


@pytest.mark.parametrize("key", ["location", "offset", "length"])
def test_text_that_is_not_utf_8_is_refused(key, tmp_path):
    """Protobuf hands it over as bytes."""
    _file(tmp_path / "w.bin")
    path = save(tmp_path, external(**{"location": "w.bin", key: "x" * 100}))
    path.write_bytes(path.read_bytes().replace(b"x" * 100, b"\xff" * 100))
    with pytest.raises(ModelError, match="not UTF-8"):
        import_onnx(path)


def test_the_name_of_a_tensor_that_is_not_utf_8_is_shown_escaped(tmp_path):
    """No name of a tensor in an attribute is needed, so that such a one is found in messages alone."""
    node = onnx.NodeProto(op_type="Constant", output=["c"])
    weights = external(location="../w")
    weights.name = "x" * 100
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=weights)
    made = make.make_tensor_value_info("c", 1, None)
    model = make.make_model(make.make_graph([node], "g", [], [made]))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString().replace(b"x" * 100, b"\xff" * 100))
    with pytest.raises(ModelError, match="not a plain path"):
        import_onnx(path)


def test_unknown_keys_change_nothing(tmp_path):
    """Keys become no attributes of any object, whatever they are called."""
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    keys = {"__class__": "x", "checksum": "0", "basepath": "/etc", "__init__": "y"}
    path = save(tmp_path, external(location="w.bin", **keys))
    np.testing.assert_array_equal(loaded(path), WEIGHTS)


def test_shape_is_checked_before_the_file_is_read(tmp_path):
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(1 << 40)
    weights = external(location="w.bin")
    del weights.dims[:]
    weights.dims.extend([2**31 - 1, 2**31 - 1, 2**31 - 1])
    with pytest.raises(ModelError, match=r"wants \d+ bytes.* the limit is"):
        import_onnx(save(tmp_path, weights))


def test_external_data_without_a_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    monkeypatch.chdir(tmp_path)
    data = save(tmp_path, external(location="w.bin")).read_bytes()
    for given in (data, onnx.load_model_from_string(data)):
        with pytest.raises(ModelError, match="no folder to find it in"):
            import_onnx(given)


def test_external_data_of_an_attribute_obeys_the_same_rules(tmp_path):
    node = make.make_node("Constant", [], ["w"], name="constant")
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=external(location="../w"))
    nodes = [node, make.make_node("Add", ["x", "w"], ["y"])]
    (tmp_path / "net.onnx").write_bytes(model(nodes, [value("x", (3, 4))]).SerializeToString())
    with pytest.raises(ModelError, match="not a plain path"):
        import_onnx(tmp_path / "net.onnx")
