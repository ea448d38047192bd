"""tools/benchmarks/compare_engines.py: engines in turns, in processes of their own; what it reports."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import pytest
from common import ROOT
from onnx import helper
from onnx_models import model, value

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

from about import NO_PLOT, About, plain, shown
from engines import (
    EngineError,
    Setup,
    drawing,
    dtype_of,
    engine_clnn,
    name_of,
    options_of,
    refusal,
    worker,
)
from engines.process import Hosts, Running
from engines.report import markdown, table
from engines.rounds import Options, Pace, Result, Row, compare

MODEL = ROOT / "tools" / "examples" / "models" / "digits.onnx"


def run(*args):
    command = [
        sys.executable,
        str(ROOT / "tools" / "benchmarks" / "compare_engines.py"),
        *map(str, args),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def setup(work, **changes):
    return {
        "model": str(MODEL),
        "shapes": {"image": [1, 1, 8, 8]},
        "outputs": ["x"],
        "threads": 1,
        "device": None,
        "work": str(work),
        **changes,
    }


@pytest.mark.usefixtures("any_device")
def test_clnn_beside_onnxruntime(tmp_path):
    report, picture, page = (tmp_path / f"all.{kind}" for kind in ("json", "png", "md"))
    pytest.importorskip("onnxruntime")
    done = run(
        MODEL,
        "--engines",
        "clnn,onnxruntime",
        "--time",
        0.1,
        "--json",
        report,
        "--plot",
        picture,
        "--markdown",
        page,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "best peer / clnn" in done.stdout and "of the measured peak" in done.stdout
    assert picture.exists() == _has("matplotlib") != (NO_PLOT in done.stderr)
    assert "| digits |" in page.read_text() and "compare_engines.py" in page.read_text()
    (result,) = json.loads(report.read_text())["results"]
    mine, peer = result["rows"]
    assert (mine["engine"], peer["engine"]) == ("clnn", "onnxruntime")
    for row in (mine, peer):
        assert row["error"] < 1e-4 and row["missing"] == ""
        assert row["median"] >= row["best"] > 0 and row["runs"] >= 5
        assert row["memory"] > 2**20 and min(row["cold_first"], row["warm_first"]) > 0


def test_networks_of_stages_are_timed(any_device, tmp_path):
    """Those whose values decide shapes have no one plan, but a time of their launches."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])]
    path = tmp_path / "staged.onnx"
    onnx.save(model(nodes, [value("x", (3, 4))]), path)
    given = Setup(path, {"x": (3, 4)}, ("y",), 1, any_device, tmp_path)
    loaded = engine_clnn.open_model(given)
    x = np.float32(np.arange(12) % 3 - 1).reshape(3, 4)
    (places,) = loaded.call({"x": x})
    np.testing.assert_array_equal(places, np.nonzero(np.maximum(x, 0)))
    assert loaded.finish({"x": x})["device_s"] >= 0
    loaded.close()


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
        Running("tinygrad", setup(tmp_path), 0)
    text = table([Result("net", {}, [Row("tinygrad", missing="not installed: x")])])
    assert "tinygrad" in text and "left out: not installed: x" in text


def test_an_engine_whose_process_dies_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("import os; os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match="ended with status 7"):
        Running("tinygrad", setup(tmp_path), 0)


def test_the_ratio_counts_peers_with_right_answers_only():
    rows = [
        Row("clnn", median=2.0, error=1e-6),
        Row("ncnn", median=1.0, error=0.5),
        Row("openvino", median=3.0, error=1e-6),
        Row("onnxruntime", median=4.0, error=0.0),
        Row("mnn", missing="not installed"),
    ]
    result = Result("net", {"x": (1, 3)}, rows)
    assert result.ratio == 1.5 and result.agrees
    assert "geometric mean of 2 ratios (best peer / clnn): 1.500" in table(
        [result] * 2, summary=True
    )
    rows[0].error = 0.1
    assert not Result("net", {}, rows).agrees


@pytest.mark.parametrize(("busy", "looks"), [([0, 0], 1), ([9, 9, 3, 0], 4), ([9] * 80, 50)])
def test_an_engine_comes_to_rest_before_the_next_turn(monkeypatch, busy, looks):
    """busy: ms of processor time that its threads take in each pause; in the end it waits no longer."""
    clock, spent, left = [0.0], [0.0], iter(busy)

    def pause(seconds):
        clock[0] += seconds
        spent[0] += next(left) / 1e3

    for name, fake in (("perf_counter", lambda: clock[0]), ("process_time", lambda: spent[0])):
        monkeypatch.setattr(worker, name, fake)
    monkeypatch.setattr(worker, "sleep", pause)
    worker.Worker().rest("any")
    assert round(clock[0] / worker.PAUSE) in (looks, looks + 1)  # the last look by rounding


def test_ratios_are_taken_within_rounds():
    """A machine that slows down in the second half slows both; the medians of all would say 2."""
    mine = Row("clnn", median=1.0, turns=[1.0, 1.0, 1.0, 2.0, 2.0])
    peer = Row("ncnn", median=2.0, turns=[1.1, 1.2, 1.2, 2.4, 2.4])
    assert Result("net", {}, [mine, peer]).ratio == pytest.approx(1.2)
    assert peer.over(Row("clnn", median=1.0)) == 2.0 == peer.over(replace(mine, turns=[1.0]))


def test_wrong_use_is_one_line(tmp_path):
    done = run("nothing.onnx")
    assert done.returncode != 0 and "there is no file nothing.onnx" in done.stderr
    done = run(MODEL, "--engines", "clnn,other")
    assert done.returncode == 2 and "no engine is named other" in done.stderr


def test_variants_share_a_process_and_each_is_held_to_its_own_precision(tmp_path, any_device):
    pytest.importorskip("onnxruntime")
    report = tmp_path / "all.json"
    done = run(
        MODEL,
        "--shared",
        "--engines",
        "clnn:f16,onnxruntime,torch:int8",
        "--time",
        0.1,
        "--json",
        report,
        "--device",
        any_device,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (result,) = json.loads(report.read_text())["results"]
    plain, half, peer, left = result["rows"]
    assert left["missing"] and "left out" in done.stdout
    assert peer["error"] == 0 and result["reference"] == "onnxruntime"
    assert plain["error"] < 1e-5 < half["error"] < 1e-2
    assert half["device"] > 0 and half["cold_load"] == half["memory"] == 0


def test_engines_have_options():
    assert name_of("torch:cuda+f16") == "torch" and options_of("torch:cuda+f16") == ("cuda", "f16")
    assert [dtype_of(e) for e in ("clnn", "clnn:f16", "torch:cuda+tf32")] == ["f32", "f16", "tf32"]
    assert not refusal("torch:cuda+bf16+channels_last+graphs") and not refusal("mnn")
    assert "no option graphs" in refusal("clnn:graphs")
    assert "it has none" in refusal("mnn:f16")
    assert "several kinds of numbers" in refusal("clnn:f16+bf16")


def test_one_that_does_not_answer_is_killed_and_the_next_gets_a_new_process(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Hosts(limit=5.0) as hosts:
        host = hosts.of("tinygrad", setup(tmp_path))
        with pytest.raises(EngineError, match="no answer to 'load' within 5 s"):
            Running("tinygrad", setup(tmp_path), 0, host)
        assert not host.alive and hosts.of("tinygrad", setup(tmp_path)) is not host


def test_nothing_is_waited_for_beyond_the_deadline(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = Options(
        ("tinygrad", "mnn"), 1, None, 0.01, 0, Pace(0.001, 0.0, 2), perf_counter() + 1
    )
    with Hosts(600.0, options.deadline) as hosts:
        result = compare(MODEL, {"image": (1, 1, 8, 8)}, options, tmp_path / "work", hosts)
    late, cut = result.rows
    assert "no answer to 'load'" in late.missing and cut.missing == "the time was up"
    assert "Nothing was measured." in markdown([result], About())


def test_a_process_whose_context_is_spoilt_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "tinygrad.py").write_text("raise RuntimeError('CUDA error: an illegal address')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Hosts(limit=120.0) as hosts:
        host = hosts.of("tinygrad", setup(tmp_path))
        with pytest.raises(EngineError, match="illegal address"):
            Running("tinygrad", setup(tmp_path), 0, host)
        assert not host.alive
        (tmp_path / "tinygrad.py").write_text("raise RuntimeError('another error')")
        other = hosts.of("tinygrad", setup(tmp_path))
        with pytest.raises(EngineError, match="another error"):
            Running("tinygrad", setup(tmp_path), 0, other)
        assert other.alive and hosts.of("tinygrad", setup(tmp_path)) is other


def test_one_that_dies_and_one_that_is_absent_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, text in FAKES.items():
        (tmp_path / f"{name}.py").write_text(text)
    options = Options(("mnn", "tinygrad"), 1, None, 0.01, 0, Pace(0.001, 0.0, 2))
    result = compare(MODEL, {"image": (1, 1, 8, 8)}, options, tmp_path / "work")
    broken, absent = result.rows
    assert "ended with status 3" in broken.missing and broken.median == 0.0
    assert "not installed" in absent.missing and not result.agrees


# Stand-ins for packages: one that dies when it first runs, and one that is not there.
FAKES = {
    "MNN": """
import os, types
expr = types.SimpleNamespace(const=lambda *a: os._exit(3), NCHW=0, NC4HW4=1, convert=lambda *a: a)
nn = types.SimpleNamespace(create_runtime_manager=lambda *a: 0,
                           load_module_from_file=lambda *a, **k: None)
version = lambda: "0"
""",
    "_tools": "mnnconvert = lambda argv: None\n",
    "tinygrad": "raise ImportError('no tinygrad')\n",
}


def test_ratios_are_among_equal_numbers_and_on_the_device_too():
    rows = [
        Row("clnn", median=2.0, device=1.0),
        Row("clnn:f16", median=1.0, device=0.5),
        Row("torch:cuda+f16", median=3.0, device=0.25, error=1e-2),
        Row("torch:cuda+f16+graphs", median=0.1, device=0.1, error=0.5),
    ]
    result = Result("net", {"x": (8, 3)}, rows, 8)
    assert result.ratio is None and result.ratio_of("f16") == 3.0
    assert result.ratio_of("f16", device=True) == 0.5
    text = markdown([result], About("GPU", "1.2", "today", ("compare",)))
    assert "| net b8 | 2000.0 | 1000.0 | 3000.0 | 100.0 | 3.000 |" in text
    assert "on the device alone" in text and "- Driver: 1.2" in text
    assert "torch:cuda+f16+graphs, error 5.0e-01" in text


def test_a_shown_command_has_no_folder_of_the_machine(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "x.py"), f"{tmp_path}/a.json", "--all"]
    assert shown(command, {str(tmp_path): "OUT"}) == "python tools/x.py OUT/a.json --all"
    assert plain(f"in {ROOT}, {ROOT}/tools") == "in ., tools"
    other = Path(tempfile.gettempdir(), "report-1", "x")
    assert plain(f"{other} {sys.prefix}/bin/x") == "TMP/x ENV/bin/x"


def test_networks_become_modules_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    import numpy as np
    from engines.torch_net import build
    from make_bench_models import Net

    net = Net("all", (2, 4, 8, 8))
    left, right = net.conv("x", 6, 3), net.relu6(net.conv("x", 6, 1, group=2))
    joined = net.concat(net.swish(left), net.pool(right, 3, 1, 1))
    w = net.random(12, 5, 2, 2)
    up = net.add("ConvTranspose", [joined, w], 5, kernel_shape=[2, 2], strides=[2, 2])
    five = [net.const(np.full(5, v, np.float32)) for v in (2, 1, 0.5, 3)]
    up = net.add("BatchNormalization", [net.pool(net.upsample(up), 2, 2, op="AveragePool"), *five])
    moved = net.add("Transpose", [up], 5, perm=[0, 1, 3, 2])
    flat = net.add("Reshape", [moved, net.const(np.array([0, -1], np.int64))])
    path = tmp_path / "all.onnx"
    onnx.save(net.model(net.head(up, 3), flat), path)
    feed = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
        None, {"x": feed}
    )
    with torch.inference_mode():
        found = build(path).eval()(torch.from_numpy(feed))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_folder_of_networks_by_kind(tmp_path):
    """Tokens are rows of the table that they pick from, a mask is 1; means are told by kind."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    import numpy as np

    of = onnx.helper.make_tensor_value_info
    table = onnx.numpy_helper.from_array(np.eye(5, 3, dtype=np.float32), "table")
    nodes = [
        onnx.helper.make_node("Cast", ["tokens"], ["rows"], to=onnx.TensorProto.INT32),
        onnx.helper.make_node("Gather", ["table", "rows"], ["picked"]),
        onnx.helper.make_node("Cast", ["mask"], ["floats"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["picked", "floats"], ["y"]),
    ]
    tokens = of("tokens", onnx.TensorProto.INT64, ["batch", 7])
    mask = of("mask", onnx.TensorProto.INT64, [1, 7, 1])
    y = of("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "text", [tokens, mask], [y], [table])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    folder = tmp_path / "zoo"
    folder.mkdir()
    onnx.save(model, folder / "text-small.onnx")
    onnx.save(model, folder / "other.onnx")
    given = drawing.draws(folder / "other.onnx")
    assert given == {"tokens": ("int64", 5), "mask": ("int64", 0)}
    made = drawing.arrays({"tokens": (40, 7), "mask": (1, 7, 1), "x": (2,)}, given, 0)
    assert set(made["tokens"].flat) == set(range(5)) and made["tokens"].dtype == np.int64
    assert made["mask"].all() and made["x"].dtype == np.float32
    assert "input s is str" in drawing.refusal({"s": ("str", 0)})
    done = run(folder, "--engines", "clnn,onnxruntime", "--time", 0.1)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "geometric mean of 2 ratios" in done.stdout and "\ntext: " in done.stdout


def test_networks_that_fall_short_are_told_with_their_layers():
    layer = {"node": "fc", "seconds": 0.5, "of_peak": 0.25, "of_bandwidth": 0.125}
    mine = Row("clnn", median=2.0, facts={"short": [layer]})
    results = [
        Result("plain-a", {}, [mine, Row("mnn", median=1.0)]),
        Result("plain-b", {}, [mine, Row("mnn", median=8.0)]),
        Result("video-a", {}, [mine, Row("mnn", median=3.0)]),
        Result("c", {}, [mine, Row("mnn", median=3.0)]),
    ]
    text = table(results, summary=True)
    assert "plain: 1.414 (2)\nvideo: 1.500 (1)\nbehind: plain-a 0.500\n" in text
    assert "fc, 500.0 ms, 25% of the measured peak, 12% of the bandwidth" in text
    assert text.count("behind:") == 1
