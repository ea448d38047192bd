"""tools/check_models.py: what it says of right, wrong, unsupported and incomplete models."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

TOOL = Path(__file__).parents[2] / "tools" / "check_models.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_models", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_models"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_models"]


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def add(folder: Path, name: str, op: str = "Neg", right: float = 1.0, **arrays: np.ndarray) -> None:
    """Add a model y = op(x), "rows" being open, whose recorded output is `right` times -x."""
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y:0"], "node")],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y:0", TensorProto.FLOAT, ["rows", 4])],
    )
    place = folder / name
    place.mkdir()
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, ir_version=8, opset_imports=[opset]), place / "model.onnx")
    np.savez(place / "expected.npz", **(arrays or {"in:x": X, "out:y:0": -X * np.float32(right)}))


@pytest.fixture
def models(tmp_path):
    add(tmp_path, "a_right")
    add(tmp_path, "b_suspect", right=1.0005)
    add(tmp_path, "c_wrong", right=1.01)
    add(tmp_path, "d_unsupported", op="ImageDecoder")
    add(tmp_path, "e_keys", x=X)
    add(tmp_path, "f_no_outputs", **{"in:x": X})
    add(tmp_path, "g_lost_output", **{"in:x": X, "out:z": X})
    (tmp_path / "h_empty").mkdir()
    (tmp_path / "i_file.txt").write_text("not a folder")
    add(tmp_path, "j_wrong_input", **{"in:x": X.astype(np.float64), "out:y:0": -X})
    return tmp_path


@pytest.fixture
def check(tool, monkeypatch, capsys, any_device):
    def run(*words: object) -> tuple[int, str]:
        argv = ["check_models.py", "--device", any_device, *map(str, words)]
        monkeypatch.setattr(sys, "argv", argv)
        code = tool.main()
        return code, capsys.readouterr().out

    return run


def test_every_model_gets_its_line_and_the_count_closes(check, models):
    code, out = check(models)
    *lines, last = out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "a_right",
        "b_suspect",
        "c_wrong",
        "d_unsupported",
        "e_keys",
        "f_no_outputs",
        "g_lost_output",
        "h_empty",
        "j_wrong_input",
    ]
    state = {line.split()[0]: line.split(maxsplit=2)[2] for line in lines}
    assert state["a_right"] == "passed"
    assert state["b_suspect"] == "passed  LOOK: over 1e-4"
    assert state["c_wrong"].startswith("failed  output y:0 ")
    assert state["d_unsupported"] == "unsupported  1 ImageDecoder"
    assert "keys must be in:NAME or out:NAME" in state["e_keys"]
    assert state["f_no_outputs"].startswith("skipped")
    assert "outputs ['z'] are missing" in state["g_lost_output"]
    assert state["h_empty"] == "skipped  no model.onnx and no expected.npz"
    assert "DTypeError" in state["j_wrong_input"]
    assert last == "2 passed, 4 failed, 3 skipped (1 of them unsupported)"
    assert code == 1


def test_status_counts_failures_only_unless_strict(check, models):
    assert check(models, "--only", "[ab]_*")[0] == 0
    assert check(models, "--only", "d_*")[0] == 0
    assert check(models, "--only", "d_*", "--strict")[0] == 1
    assert check(models, "--only", "c_*")[0] == 1


def test_nothing_to_check_is_wrong_use(check, models, tmp_path):
    assert check(models, "--only", "nothing")[0] == 2
    assert check(tmp_path / "nowhere")[0] == 2


def test_json(check, models):
    code, out = check(models, "--only", "[abcg]_*", "--json")
    report = json.loads(out)
    assert code == 1
    assert report["count"] == {"passed": 2, "failed": 2}
    errors = {model["name"]: model["error"] for model in report["models"]}
    assert errors["a_right"] == 0
    assert errors["b_suspect"] == pytest.approx(5e-4, rel=0.01)
    assert errors["c_wrong"] == pytest.approx(0.01, rel=0.02)
    assert errors["g_lost_output"] is None


def test_no_device_is_status_3(tool, monkeypatch, capsys, models):
    monkeypatch.setattr(sys, "argv", ["check_models.py", str(models), "--device", "abacus"])
    assert tool.main() == 3
    assert "NoDeviceError" in capsys.readouterr().err
