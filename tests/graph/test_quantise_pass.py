"""What of a Graph becomes quantised, at which steps, and that whole networks stay accurate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from harness import normal
from small_graphs import GRAPHS, Builder

import clnn
from clnn.api import prepare
from clnn.arith.quantised import Requantised
from clnn.errors import SettingError
from clnn.graph.passes import optimise
from clnn.graph.passes.apart import steps_apart
from clnn.graph.passes.quantise import observed, quantise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, U8
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt  # kernels that are slow to build

INT8 = clnn.Options(dtype="int8")
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def products(graph) -> list[str]:
    """Return the arithmetic of each convolution."""
    return [n.spec.arith.name for n in graph.nodes if n.spec.kind == "conv2d"]


def ends(graph, **given: tuple[float, float]) -> dict[str, tuple[float, float]]:
    """Return ranges: -1 to 1 for each value, or what is given."""
    return dict.fromkeys(observed(graph), (-1.0, 1.0)) | given


def scale(graph, name) -> tuple[float, int]:
    """Return the scale and zero point of a value's bytes."""
    node = graph.producers()[f"{name}:integers"]
    step, zero = (graph.consts[n] for n in node.inputs[1:])
    return float(step), int(zero)


def network() -> Builder:
    """A residual block, a depthwise layer, a pool, two branches joined, and a linear layer."""
    b = Builder(x=(1, 3, 16, 16))
    first = b.post_ops("relu", b.conv("x", 16))
    second = b.post_ops("relu", b.conv(first, 16))
    sums = b.post_ops("relu", b.post_ops("add", b.conv(second, 16), first))
    deep = b.post_ops("relu", b.conv(sums, 16, group=16))
    small = b.add(Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "max"), deep)
    joined = b.add(Concat(1), small, b.conv(small, 24, 1))
    last = b.add(Eltwise((PostOp("leaky_relu", (0.1,)),)), b.conv(joined, 20, 8, 8))
    row = b.add(Reshape((1, 20 * 4)), last)
    b.add(Gemm(), row, b.const(20 * 4, 10), b.const(10))
    return b


def made(b: Builder):
    """Return the graph of a builder, its last value the output."""
    return b.graph(b.nodes[-1].outputs[0])


def test_bytes_go_from_the_input_to_the_output():
    graph = optimise(quantise(made(network()), ends(made(network()))))
    assert set(products(graph)) == {"q_u8"} and len(products(graph)) == 7
    real = [n for n in graph.nodes if F32 in {graph.types[v].dtype for v in n.outputs}]
    assert len(real) == 1, "the output alone"


def test_weights_have_a_scale_per_channel_and_bias_steps_of_the_sum():
    b = Builder(x=(1, 8, 4, 4))
    weights = np.zeros((3, 8, 1, 1), np.float32)
    weights[0, 0], weights[0, 1], weights[1, 0] = 12.7, 0.05, -0.001
    bias = np.array([1.0, 2.0, 3.0], np.float32)
    out = b.add(Conv2d(POINT), "x", b.fixed(weights), b.fixed(bias))
    graph = quantise(made(b), {"x": (-127.0, 128.0), out: (-1.0, 254.0)})
    assert scale(graph, "x") == (1.0, 127) and scale(graph, out) == (1.0, 1)
    integers = graph.consts[f"{out}:weights:integers"]
    assert integers[:, :2, 0, 0].tolist() == [[127, 0], [-127, 0], [0, 0]]
    node = next(n for n in optimise(graph).nodes if n.spec.kind == "conv2d")
    assert isinstance(node.spec.arith, Requantised)
    assert node.spec.arith.factors[:2] == pytest.approx((0.1, 0.001 / 127))
    whole = graph.consts[f"{out}:bias:integers"] * np.array(node.spec.arith.factors)
    assert whole == pytest.approx(bias, abs=0.05)


def test_values_that_only_concat_reads_share_its_steps():
    b = Builder(x=(1, 8, 8, 8))
    one, two = b.conv("x", 8), b.conv("x", 12)
    part = b.add(Concat(1), one, two)
    b.conv(part, 4, 1)
    graph = made(b)
    small = quantise(graph, ends(graph, **{one: (-2.0, 0.0), two: (0.0, 3.0)}))
    assert scale(small, one) == scale(small, two) == scale(small, part)
    assert scale(small, part)[0] == np.float32(5 / 255)


def test_a_value_is_quantised_once():
    b = Builder(x=(1, 8, 6, 6))
    both = b.conv("x", 8)
    first, second = b.conv(both, 8), b.conv(both, 8)
    soft = b.add(Softmax((1,)), both)
    graph = b.graph(first, second, soft, both)
    small = quantise(graph, ends(graph))
    quantised = [n for n in small.nodes if n.outputs[0] == f"{both}:integers"]
    assert len(quantised) == 1 and small.types[f"{both}:integers"].dtype == U8
    assert set(small.outputs) == set(graph.outputs)


def test_what_is_not_fit_stays_float32():
    wild = Builder(x=(1, 8, 6, 6))
    wild.conv("x", 8)
    next(iter(wild.consts.values()))[0] = np.inf
    given = Builder(x=(8, 20), y=(20, 5))
    given.add(Gemm(), "x", "y")
    turned = Builder(x=(20, 8))
    turned.add(Gemm(trans_a=True), "x", turned.const(20, 5))
    for b in (wild, given, turned):
        graph = made(b)
        assert not observed(graph) and quantise(graph, {}).nodes == graph.nodes, b.nodes


def test_fused_steps_come_apart():
    """A graph that was fused already has the same nodes again."""
    b = Builder(x=(2, 8, 6, 6), y=(2, 12, 6, 6))
    steps = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))
    spec = Conv2d(POINT, post_ops=steps)
    out = b.add(spec, "x", b.const(12, 8, 1, 1), b.const(12), "y", b.const(12, 1, 1))
    b.add(Eltwise((PostOp("clip", (0.0, 6.0)), PostOp("add", operand=1))), out, "y")
    graph = made(b)
    apart = steps_apart(graph)
    assert [n.spec.kind for n in apart.nodes] == ["conv2d"] + ["eltwise"] * 5
    assert all(len(getattr(n.spec, "post_ops", ())) <= 1 for n in apart.nodes)
    feeds = {"x": normal((2, 8, 6, 6)), "y": normal((2, 12, 6, 6), 1)}
    last = b.nodes[-1].outputs[0]
    want, got = (reference_values(g, feeds)[last] for g in (graph, apart))
    np.testing.assert_array_equal(got, want)
    small = optimise(quantise(graph, ends(graph)))
    assert products(small) == ["q_u8"]


@pytest.mark.parametrize("shape", [(7, 20), (3, 7, 20), (2, 3, 7, 20)])
def test_products_of_matrices(device, shape):
    """alpha, beta, a transposed constant, an addend, and operands in steps, of every rank."""
    b = Builder(x=shape, y=(*shape[:-1], 12))
    spec = Gemm(
        0.5, 2.0, trans_b=True, post_ops=(PostOp("add", operand=3), PostOp("mul", operand=4))
    )
    b.add(spec, "x", b.const(12, 20), b.const(12), "y", b.const(shape[-2], 1))
    graph = made(b)
    feeds = {"x": normal(shape), "y": normal(b.types["y"].shape, 1)}
    out = b.nodes[-1].outputs[0]
    want = reference_values(graph, feeds)[out]
    with clnn.compile_model(graph, device, INT8, calibration=[feeds]) as session:
        got = session(feeds)["out0"]
    small = prepare(graph, INT8, [feeds], device)
    assert products(small) == ["q_u8"]
    assert np.abs(got - want).max() / np.abs(want).max() < 0.03
    exact = reference_values(small, feeds)[small.outputs["out0"]]
    np.testing.assert_array_equal(got, exact.astype(np.float32))


def test_a_network_is_exact_to_the_bit(device):
    """What the device gives is what numpy gives of the integers."""
    graph = made(network())
    feeds = {"x": normal((1, 3, 16, 16))}
    ranges = clnn.calibrate(graph, [feeds], device)
    small = prepare(graph, INT8, ranges, device)
    with clnn.compile_model(graph, device, INT8, calibration=ranges) as session:
        got = session(feeds)["out0"]
    want = reference_values(small, feeds)[small.outputs["out0"]]
    right = reference_values(graph, feeds)[graph.outputs["out0"]]
    np.testing.assert_array_equal(got, want.astype(np.float32))
    assert np.abs(got - right).max() <= 0.05 * np.abs(right).max()


def test_transposed_convolutions_in_groups(device):
    b = Builder(x=(1, 8, 5, 5))
    spec = ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (10, 10), 2)
    b.add(spec, b.conv("x", 8), b.const(8, 3, 2, 2), b.const(6))
    graph, feeds = made(b), {"x": normal((1, 8, 5, 5))}
    with clnn.compile_model(graph, device, INT8, calibration=[feeds]) as session:
        got = session(feeds)["out0"]
    right = reference_values(graph, feeds)[graph.outputs["out0"]]
    assert np.abs(got - right).max() <= 0.04 * np.abs(right).max()


@pytest.mark.parametrize("name", GRAPHS)
def test_small_networks(device, name):
    graph = GRAPHS[name]()
    x = normal(graph.types["x"].shape, 3)
    right = reference_values(graph, {"x": x})
    with clnn.compile_model(graph, device, INT8, calibration=[{"x": x}]) as session:
        got = session({"x": x})
        for public, value in graph.outputs.items():
            assert got[public].dtype == graph.types[value].dtype.numpy
            if got[public].dtype.kind == "f":
                worst = np.abs(got[public] - right[value]).max() / np.abs(right[value]).max()
                assert worst <= 0.1, f"{name}: {worst}"


def test_calibration_takes_the_ends_of_all_samples(device, tmp_path):
    b = Builder(x=(1, 4, 3, 3))
    graph = b.graph(b.conv(b.post_ops("relu", b.conv("x", 8)), 8))
    samples = [{"x": normal((1, 4, 3, 3), k) * (k + 1)} for k in range(3)]
    ranges = clnn.calibrate(graph, iter(samples), device)
    seen = [reference_values(graph, s) for s in samples]
    for name, (low, high) in ranges.items():
        assert low == pytest.approx(min(0.0, *(float(v[name].min()) for v in seen)), rel=1e-5)
        assert high == pytest.approx(max(0.0, *(float(v[name].max()) for v in seen)), rel=1e-5)
    assert list(ranges) == observed(graph)
    clipped = clnn.calibrate(graph, samples, device, method="mse")
    assert all(ranges[n][0] <= low <= high <= ranges[n][1] for n, (low, high) in clipped.items())
    assert set(clipped) == set(ranges)
    (tmp_path / "ranges.json").write_text(json.dumps(ranges))
    file = clnn.Options(dtype="int8", calibration=str(tmp_path / "ranges.json"))
    outs = []
    for options, given in (
        (INT8, samples),
        (INT8, ranges),
        (INT8, tmp_path / "ranges.json"),
        (file, None),
    ):
        with clnn.compile_model(graph, device, options, calibration=given) as session:
            outs.append(session(samples[0])["out0"].tobytes())
    assert len(set(outs)) == 1


def test_wrong_calibration_is_told(device):
    b = Builder(x=(1, 8, 6, 6))
    graph = b.graph(b.conv("x", 8))
    for given, words in (
        (None, "needs to know the ranges of values"),
        ({}, "calibration says nothing of value 'x'"),
        ({"y": (0.0, 1.0)}, "Calibrate this one"),
        ([], "calibration got no samples"),
        ([{"x": np.full((1, 8, 6, 6), np.nan, np.float32)}], "has NaN or infinity with sample 1"),
    ):
        with pytest.raises(SettingError, match=words):
            prepare(graph, INT8, given, device)
    with pytest.raises(SettingError, match="of no use with"):
        prepare(graph, clnn.Options(), {"x": (0.0, 1.0)})


def test_a_range_of_zero_and_a_tiny_one():
    b = Builder(x=(1, 8, 6, 6))
    out = b.conv("x", 8)
    graph = b.graph(out)
    assert scale(quantise(graph, {"x": (0.0, 0.0), out: (0.0, 1.0)}), "x") == (1.0, 0)
    tiny = quantise(graph, {"x": (0.0, 1e-42), out: (0.0, 1.0)})
    assert scale(tiny, "x")[0] == np.finfo(np.float32).tiny
    factors = next(n.spec.arith.factors for n in optimise(tiny).nodes if n.spec.kind == "conv2d")
    assert np.isfinite(factors).all()


def test_tuning_measures_problems_in_bytes():
    from clnn.plan.schedule import make_plan
    from clnn.target import Target
    from clnn.tune.task import tasks_of

    graph = made(network())
    small = make_plan(optimise(quantise(graph, ends(graph))), Target())
    tuned = {name for task in tasks_of(small) for name in task.nodes}
    measured = {step.node.name for step in small.scheduled if step.node.spec.kind == "conv2d"}
    assert measured and measured <= tuned


def snr(got, want) -> float:
    """Return the ratio of signal to noise in dB."""
    noise = float(((got.astype(np.float64) - want) ** 2).sum())
    return 10 * float(np.log10((want.astype(np.float64) ** 2).sum() / max(noise, 1e-30)))


@pytest.mark.parametrize(
    "name,least", [("mlperf_resnet8_float", 25.0), ("mobilenet_v1_025_128_float", 10.0)]
)
def test_trained_networks(device, shared_folder, name, least):
    """Calibrated with one image, wider by its mirror image; probabilities of that image."""
    folder = shared_folder / "models" / name
    if not folder.exists():
        pytest.skip(f"the model {name} is not there")
    expected = np.load(folder / "expected.npz")
    x, want = expected["in:input"], expected["out:output"]
    samples = [{"input": x}, {"input": np.ascontiguousarray(x[..., ::-1])}]
    with clnn.compile_model(folder / "model.onnx", device, INT8, calibration=samples) as session:
        got = session({"input": x})["output"]
    assert got.argmax() == want.argmax() and snr(got, want) >= least
