"""`clnn quantize`: the file it writes is valid, runs on two engines alike, and is near the float32 model."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from cli_models import normal, save
from onnx import helper
from reference_engines import exact_session

import clnn as engine
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx

onnxruntime = pytest.importorskip("onnxruntime")

SHAPE = (1, 3, 12, 10)


@pytest.fixture
def network(tmp_path):
    """A network with batch normalisation, a residual sum, pooling and products."""
    weights = {
        "w0": normal(8, 3, 3, 3, seed=1) / 5,
        "gamma": 1 + normal(8, seed=2) / 5,
        "beta": normal(8, seed=3) / 5,
        "mean": normal(8, seed=4) / 5,
        "var": np.abs(normal(8, seed=5)) + np.float32(0.5),
        "w1": normal(8, 1, 3, 3, seed=6) / 3,
        "b1": normal(8, seed=7) / 5,
        "six": np.array(6, np.float32),
        "zero": np.array(0, np.float32),
        "w2": normal(5, 8, seed=8) / 2,
        "b2": normal(5, seed=9),
        "w3": normal(5, 4, seed=10),
        "offset": normal(1, 8, 1, 1, seed=11),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "w1", "b1"], ["d"], pads=[1, 1, 1, 1], group=8),
        node("Clip", ["d", "zero", "six"], ["e"]),
        node("Add", ["e", "r"], ["f"]),
        node("Mul", ["f", "offset"], ["g"]),
        node("MaxPool", ["g"], ["h"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["h"], ["i"]),
        node("Flatten", ["i"], ["j"]),
        node("Gemm", ["j", "w2", "b2"], ["k"], transB=1),
        node("MatMul", ["k", "w3"], ["l"]),
        node("Softmax", ["l"], ["y"]),
    ]
    return save(
        tmp_path / "net.onnx", nodes, {"x": list(SHAPE)}, {"y": [1, 4], "l": [1, 4]}, weights
    )


@pytest.fixture
def samples(tmp_path):
    folder = tmp_path / "samples"
    folder.mkdir()
    for k in range(4):
        np.savez(folder / f"{k}.npz", x=normal(*SHAPE, seed=k))
    return folder


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_the_file_runs_on_both_engines(clnn, any_device, network, samples, tmp_path, method):
    out, more = tmp_path / "q.onnx", ["--per-tensor"] if method == "mse" else []
    result = clnn(
        "quantize",
        network,
        "-d",
        any_device,
        "--samples",
        samples,
        "--method",
        method,
        "--out",
        out,
        *more,
    )
    assert result.code == 0, result.err
    assert "4 samples" in result.out
    made = onnx.load(out)
    onnx.checker.check_model(made, full_check=True)
    steps = {n.input[1] for n in made.graph.node if n.op_type == "QuantizeLinear"}
    assert all(not t.dims for t in made.graph.initializer if t.name in steps)
    x = normal(*SHAPE, seed=2)
    real = exact_session(network.read_bytes()).run(["l"], {"x": x})[0]
    other = exact_session(out.read_bytes()).run(["l"], {"x": x})[0]
    got = engine.compile_model(out, any_device)({"x": x})["l"]
    np.testing.assert_array_equal(got, other)
    limit = 1.0 if method == "entropy" else 0.15
    assert np.abs(got - real).max() <= limit * np.abs(real).max()


def test_what_is_written_is_fused(clnn, any_device, network, samples, tmp_path):
    out = tmp_path / "q.onnx"
    assert clnn("quantize", network, "-d", any_device, "--samples", samples, "--out", out).code == 0
    kinds = [n.spec.kind for n in optimise(import_onnx(out)).nodes]
    assert kinds.count("conv2d") == 4 and "gemm" not in kinds and "eltwise" not in kinds


def test_joined_values_share_steps_and_normalisations_stay_real(
    clnn, any_device, samples, tmp_path
):
    """As in DenseNet: what Concat alone reads is rounded once; a normalisation and its clipping are one step."""
    weights = {f"w{k}": normal(4, ic, 1, 1, seed=k) for k, ic in enumerate((3, 4, 11))}
    weights |= {k: normal(11, seed=9) for k in ("gamma", "beta", "mean")}
    weights["var"] = np.abs(normal(11, seed=8)) + np.float32(0.5)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["a"]),
        node("Conv", ["a", "w1"], ["b"]),
        node("Concat", ["x", "a", "b"], ["c"], axis=1),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "w2"], ["y"]),
    ]
    path = save(tmp_path / "net.onnx", nodes, {"x": list(SHAPE)}, {"y": [1, 4, 12, 10]}, weights)
    out, x = tmp_path / "q.onnx", normal(*SHAPE, seed=2)
    assert clnn("quantize", path, "-d", any_device, "--samples", samples, "--out", out).code == 0
    made = onnx.load(out)
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    assert scales["b:scale"] == scales["c:scale"] != scales["a:scale"]
    assert "n:scale" not in scales and "r:scale" in scales
    functions = [getattr(n.spec, "function", None) for n in optimise(import_onnx(out)).nodes]
    assert "written_steps" in [f.name for f in functions if f is not None]
    want = exact_session(out.read_bytes()).run(["y"], {"x": x})[0]
    np.testing.assert_array_equal(engine.compile_model(out, any_device)({"x": x})["y"], want)


def test_averages_run_on_both_engines(clnn, any_device, samples, tmp_path):
    """ONNX Runtime's average pooling takes scales of no axes alone."""
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2])]
    path = save(tmp_path / "net.onnx", nodes, {"x": list(SHAPE)}, {"y": [1, 3, 11, 9]})
    out, x = tmp_path / "q.onnx", normal(*SHAPE, seed=2)
    assert clnn("quantize", path, "-d", any_device, "--samples", samples, "--out", out).code == 0
    (want,) = onnxruntime.InferenceSession(out.read_bytes()).run(["y"], {"x": x})
    np.testing.assert_array_equal(engine.compile_model(out, any_device)({"x": x})["y"], want)


def test_transposed_convolutions_have_weights_of_bytes(clnn, any_device, samples, tmp_path):
    """A scale per output channel; groups share one, and the bias is in steps of the sums."""
    weights = {"w": normal(3, 8, 2, 2, seed=1), "b": normal(8, seed=2)}
    weights |= {"v": normal(8, 3, 3, 3, seed=3), "c": normal(6, seed=4)}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["m"], strides=[2, 2]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "v", "c"], ["y"], strides=[2, 1], group=2),
    ]
    path = save(tmp_path / "net.onnx", nodes, {"x": list(SHAPE)}, {"y": [1, 6, 49, 22]}, weights)
    out, x = tmp_path / "q.onnx", normal(*SHAPE, seed=2)
    assert clnn("quantize", path, "-d", any_device, "--samples", samples, "--out", out).code == 0
    made = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    shapes = {n: made[f"{n}:weights:scale"].shape for n in "my"}
    assert shapes == {"m": (8,), "y": ()} and made["y:bias:integers"].shape == (6,)
    real = exact_session(path.read_bytes()).run(["y"], {"x": x})[0]
    want = exact_session(out.read_bytes()).run(["y"], {"x": x})[0]
    got = engine.compile_model(out, any_device)({"x": x})["y"]
    np.testing.assert_array_equal(got, want)
    assert np.abs(got - real).max() <= 0.05 * np.abs(real).max()


def test_a_folder_without_samples(clnn, any_device, network, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    result = clnn(
        "quantize", network, "-d", any_device, "--samples", empty, "--out", tmp_path / "q"
    )
    assert result.code == 2 and "has no .npz or .npy files" in result.err


def test_models_that_cannot_be_quantised(clnn, any_device, samples, tmp_path):
    plain = save(
        tmp_path / "plain.onnx",
        [helper.make_node("Exp", ["x"], ["y"])],
        {"x": [1, 4]},
        {"y": [1, 4]},
    )
    result = clnn(
        "quantize", plain, "-d", any_device, "--samples", samples, "--out", tmp_path / "q"
    )
    assert result.code == 2 and "no operator that is quantised" in result.err
    old = save(
        tmp_path / "old.onnx",
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Upsample", ["x"], ["z"], scales=[1.0, 1.0]),  # taken out in 10
        ],
        {"x": [1, 4]},
        {"y": [1, 4]},
        opset=11,
    )
    result = clnn("quantize", old, "-d", any_device, "--samples", samples, "--out", tmp_path / "q")
    assert result.code == 2 and "operator set is 11" in result.err


@pytest.mark.parametrize("suffix", [".html", ".md", ".json"])
def test_a_report_is_written(clnn, any_device, network, samples, tmp_path, suffix):
    out, report = tmp_path / "q.onnx", tmp_path / f"report{suffix}"
    words = ["quantize", network, "-d", any_device, "--samples", samples, "--out", out]
    result = clnn(*words, "--report", report, "--exclude", "l", "--no-equalise")
    assert result.code == 0, result.err
    assert "report of 9 nodes in" in result.out and "Left in float32: MatMul_11" in result.out
    text = report.read_text("utf-8")
    assert "MatMul_11" in text and "by name" in text and "Conv+Relu" in text
    if suffix == ".json":
        nodes = json.loads(text)["nodes"]
        assert [n["excluded"] for n in nodes if n["name"] == "MatMul_11"] == ["by name"]


def test_nodes_are_left_out_by_what_they_cost(clnn, any_device, network, samples, tmp_path):
    """The table is printed where no file is named, and is part of what --json gives."""
    out = tmp_path / "q.onnx"
    words = ["quantize", network, "-d", any_device, "--samples", samples, "--out", out]
    result = clnn(*words, "--exclude-worst", 2)
    assert result.code == 0 and "float32: one of 2 that cost most" in result.out, result.err
    x = normal(*SHAPE, seed=2)
    before = clnn(*words, "--report", "-", "--json").data["report"]["after"]
    assert clnn(*words, "--exclude-worst", 2, "--json").data["report"]["after"] > before
    least = before + 2
    result = clnn(*words, "--least-sqnr", least, "--json")
    assert result.data["report"]["after"] >= least
    assert any(n["excluded"] == f"for {least:g} dB" for n in result.data["report"]["nodes"])
    want = exact_session(out.read_bytes()).run(["l"], {"x": x})[0]
    got = engine.compile_model(out, any_device)({"x": x})["l"]
    np.testing.assert_allclose(got, want, atol=0.02 * np.abs(want).max())


def test_without_equalisation_and_correction_weights_are_rounded_to_nearest(
    clnn, any_device, network, samples, tmp_path
):
    out = tmp_path / "q.onnx"
    words = ["quantize", network, "-d", any_device, "--samples", samples, "--out", out]
    assert clnn(*words, "--no-equalise", "--no-bias-correction").code == 0
    made = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    weights = onnx.numpy_helper.to_array(
        next(t for t in onnx.load(network).graph.initializer if t.name == "w1")
    )
    bias = normal(8, seed=7) / 5
    scale = np.abs(weights).max((1, 2, 3)) / 127
    np.testing.assert_allclose(made["d:weights:scale"], scale, rtol=1e-6)
    nearest = np.rint(weights / made["d:weights:scale"].reshape(-1, 1, 1, 1))
    np.testing.assert_array_equal(made["d:weights:integers"], nearest)
    np.testing.assert_array_equal(
        made["d:bias:integers"], np.rint(bias.astype(np.float64) / made["d:bias:scale"])
    )


def test_options_that_do_not_fit(clnn, any_device, network, samples, tmp_path):
    words = ["quantize", network, "-d", any_device, "--samples", samples]
    out = ["--out", tmp_path / "q.onnx"]
    for more, said in (
        ([], "give --out"),
        ([*out, "--per-channel"], "give --out"),
        ([*out, "--report", "r.txt"], "must end with .html, .md or .json"),
        ([*out, "--exclude", "Cnv_0"], "'Cnv_0' is no node that is quantised. Did you mean"),
        ([*out, "--least-sqnr", 300], "300 dB are not reached"),
        (["--target", "mli-sa8", "--exclude-worst", 1], "of no use with --target"),
        (["--target", "mli-sa8", "--report", "r.json"], "must end with .html or .md"),
    ):
        result = clnn(*words, *more)
        assert result.code == 2 and said in result.err, more
    assert not (tmp_path / "q.onnx").exists()


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    from clnn.cli._progress import Counting

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Counting() as tell:
        tell("measuring values", 1, 2)
    shown = capsys.readouterr().err
    assert "measuring values [###############---------------] 1/2" in shown
    assert shown.endswith("\r\x1b[K")
