"""tools/compare_engines.py: engines in turns, in processes of their own; what it reports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from common import ROOT, usable_devices

sys.path.insert(0, str(ROOT / "tools"))

from engines import EngineError
from engines.report import table
from engines.rounds import Process, Result, Row

MODEL = ROOT / "tools" / "models" / "digits.onnx"


def run(*args):
    command = [sys.executable, str(ROOT / "tools" / "compare_engines.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def setup(work, **changes):
    return {"model": str(MODEL), "shapes": {"image": [1, 1, 8, 8]}, "outputs": ["x"], "threads": 1,
            "device": None, "work": str(work), **changes}  # fmt: skip


@pytest.mark.skipif(not usable_devices(), reason="no usable OpenCL device")
def test_clnn_beside_onnxruntime(tmp_path):
    report, picture = tmp_path / "all.json", tmp_path / "all.png"
    pytest.importorskip("onnxruntime")
    drawn = ["--plot", picture] if _has("matplotlib") else []
    done = run(MODEL, "--engines", "clnn,onnxruntime", "--time", 0.1, "--json", report, *drawn)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "best peer / clnn" in done.stdout and "of the measured peak" in done.stdout
    assert picture.exists() == bool(drawn)
    (result,) = json.loads(report.read_text())["results"]
    mine, peer = result["rows"]
    assert (mine["engine"], peer["engine"]) == ("clnn", "onnxruntime")
    for row in (mine, peer):
        assert row["error"] < 1e-4 and row["missing"] == ""
        assert row["median"] >= row["best"] > 0 and row["runs"] >= 5
        assert row["memory"] > 2**20 and min(row["cold_first"], row["warm_first"]) > 0


def _has(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_an_engine_that_is_not_installed_is_left_out_and_said_so(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("raise ImportError('there is no tinygrad')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="not installed: there is no tinygrad"):
        Process("tinygrad", setup(tmp_path), 0)
    text = table([Result("net", {}, [Row("tinygrad", missing="not installed: x")])])
    assert "tinygrad" in text and "left out: not installed: x" in text


def test_an_engine_whose_process_dies_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="ended with status 7"):
        Process("tinygrad", setup(tmp_path), 0)


def test_the_ratio_counts_peers_with_right_answers_only():
    rows = [Row("clnn", median=2.0, error=1e-6), Row("ncnn", median=1.0, error=0.5),
            Row("openvino", median=3.0, error=1e-6), Row("onnxruntime", median=4.0, error=0.0),
            Row("mnn", missing="not installed")]  # fmt: skip
    result = Result("net", {"x": (1, 3)}, rows)
    assert result.ratio == 1.5 and result.agrees
    assert "geometric mean of 2 ratios (best peer / clnn): 1.500" in table(
        [result] * 2, summary=True
    )
    rows[0].error = 0.1
    assert not Result("net", {}, rows).agrees


def test_wrong_use_is_one_line(tmp_path):
    done = run("nothing.onnx")
    assert done.returncode != 0 and "there is no file nothing.onnx" in done.stderr
    done = run(MODEL, "--engines", "clnn,other")
    assert done.returncode == 2 and "no engine is named other" in done.stderr
