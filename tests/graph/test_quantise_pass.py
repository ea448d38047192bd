"""What is computed and stored in bytes, at which scales, and that whole networks stay accurate."""

from __future__ import annotations

import json

import numpy as np
import pytest
from byte_graphs import stored_values
from harness import normal
from small_graphs import GRAPHS, Builder

import clnn
from clnn.api import prepare
from clnn.errors import SettingError
from clnn.graph.passes import optimise
from clnn.graph.passes.quantise import observed, quantise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt  # kernels that are slow to build

INT8 = clnn.Options(dtype="int8")


def kinds(graph) -> list[str]:
    """Return what each node is, convolutions with their arithmetic."""
    return [n.spec.arith.name if n.spec.kind == "conv2d" else n.spec.kind for n in graph.nodes]


def scale(graph, name) -> float:
    """Return the scale of a value in bytes, 0 of others."""
    return graph.stored[name].scale if name in graph.stored else 0.0


def ones(graph, **given: float) -> dict[str, float]:
    """Return ranges: 1 for each value, or what is given."""
    return dict.fromkeys(observed(graph), 1.0) | given


def network() -> Builder:
    """A residual block, a depthwise layer, a pool, two branches joined, and a linear layer."""
    b = Builder(x=(1, 3, 16, 16))
    first = b.post_ops("relu", b.conv("x", 16))
    second = b.post_ops("relu", b.conv(first, 16))
    sums = b.post_ops("relu", b.post_ops("add", b.conv(second, 16), first))
    deep = b.post_ops("relu", b.conv(sums, 16, group=16))
    small = b.add(Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "max"), deep)
    joined = b.add(Concat(1), small, b.conv(small, 24, 1))
    last = b.add(Eltwise((PostOp("leaky_relu", (0.1,)),)), b.conv(joined, 20, 3, 2))
    row = b.add(Reshape((1, 20)), b.add(Reduce("mean", (2, 3), True), last))
    b.add(Softmax((1,)), b.add(Gemm(), row, b.const(20, 10), b.const(10)))
    return b


def made(b: Builder):
    """Return the graph of a builder, its last value the output."""
    return b.graph(b.nodes[-1].outputs[0])


def test_bytes_go_from_the_first_layer_to_the_last():
    graph = optimise(made(network()))
    small = quantise(graph, ones(graph))
    assert "convert" not in kinds(small)
    assert kinds(small) == [
        "f32",
        "s8",
        "s8",
        "s8",
        "pool",
        "s8",
        "concat",
        "s8",
        "reduce",
        "reshape",
        "reshape",
        "transpose",
        "s8",
        "transpose",
        "reshape",
        "softmax",
    ]
    assert not {*small.inputs, *small.outputs.values()} & set(small.stored)


def test_weights_have_a_scale_per_channel_and_bias_steps_of_the_sum():
    b = Builder(x=(1, 8, 4, 4))
    weights = np.zeros((3, 8, 1, 1), np.float32)
    weights[0, 0], weights[0, 1], weights[1, 0] = 12.7, 0.05, -0.001
    bias = np.array([1.0, 2.0, 3.0], np.float32)
    point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    b.add(Conv2d(point), "x", b.fixed(weights), b.fixed(bias))
    graph = quantise(made(b), {"x": 254.0})
    node = graph.nodes[-1]
    steps = node.spec.arith.w_scale
    assert steps[:2] == pytest.approx((0.1, 0.001 / 127)) and scale(graph, "x:s8") == 2
    assert graph.consts[node.inputs[1]][:, :2, 0, 0].tolist() == [[127, 0], [-127, 0], [0, 0]]
    exact = node.spec.arith.steps(3, bias) * node.spec.arith.factors
    assert exact == pytest.approx(bias, abs=float(max(node.spec.arith.factors)) / 2)


def test_values_that_only_move_share_a_scale():
    b = Builder(x=(1, 8, 8, 8))
    one, two = b.conv("x", 8), b.conv("x", 12)
    part = b.add(Concat(1), one, two)
    b.conv(part, 4, 1)
    graph = optimise(made(b))
    small = quantise(graph, ones(graph, **{one: 2.0, two: 5.0, part: 3.0}))
    assert scale(small, one) == scale(small, two) == scale(small, part) == np.float32(5 / 127)


def test_a_value_is_converted_once_each_way():
    b = Builder(x=(1, 8, 6, 6))
    both = b.conv("x", 8)
    first, second = b.conv(both, 8), b.conv(both, 8)
    soft = b.add(Softmax((1,)), both)
    more = b.add(Softmax((2,)), both)
    graph = quantise(b.graph(first, second, soft, more, both), ones(b.graph(first)))
    assert kinds(graph).count("convert") == 2, "the input, and what softmax and an output read"
    assert f"{both}:f32" in graph.types and scale(graph, both)


def test_what_nothing_in_bytes_reads_stays_float32():
    b = Builder(x=(1, 8, 6, 6))
    last = b.post_ops("sigmoid", b.conv("x", 8))
    graph = quantise(optimise(b.graph(last)), {"x": 1.0})
    assert kinds(graph) == ["convert", "s8"] and set(graph.stored) == {"x:s8"}


def test_what_is_not_fit_stays_float32():
    few = Builder(x=(1, 3, 6, 6))
    few.conv("x", 8)
    wild = Builder(x=(1, 8, 6, 6))
    wild.conv("x", 8)
    next(iter(wild.consts.values()))[0] = np.inf
    given = Builder(x=(8, 20), y=(20, 5))
    given.add(Gemm(), "x", "y")
    turned = Builder(x=(20, 8))
    turned.add(Gemm(trans_a=True), "x", turned.const(20, 5))
    for b in (few, wild, given, turned):
        graph = quantise(made(b), {})
        assert not graph.stored and "s8" not in kinds(graph), b.nodes


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
    want = reference_values(graph, feeds)[b.nodes[-1].outputs[0]]
    with clnn.compile_model(graph, device, INT8, calibration=[feeds]) as session:
        got = session(feeds)["out0"]
        small = session.plan.graph
        assert [n.spec.arith.name for n in small.nodes if n.spec.kind == "conv2d"] == ["s8"]
        exact = stored_values(quantise(graph, {"x": float(np.abs(feeds["x"]).max())}), feeds)
    assert np.abs(got - want).max() / np.abs(want).max() < 0.02
    np.testing.assert_array_equal(got, exact[next(iter(graph.outputs.values()))])


def test_a_network_is_exact_to_the_bit(device):
    """What the device gives is what numpy gives that rounds where the graph stores."""
    b = network()
    b.nodes.pop()  # softmax, whose exponentials differ
    graph = optimise(made(b))
    feeds = {"x": normal((1, 3, 16, 16))}
    ranges = clnn.calibrate(graph, [feeds], device, clnn.Options(fuse=False))
    small = quantise(graph, ranges)
    options = clnn.Options(dtype="int8", fuse=False)
    with clnn.compile_model(graph, device, options, calibration=ranges) as session:
        got = session(feeds)["out0"]
    want = stored_values(small, feeds)
    right = reference_values(graph, feeds)[graph.outputs["out0"]]
    np.testing.assert_array_equal(got, want[small.outputs["out0"]])
    assert np.abs(got - right).max() <= 0.05 * np.abs(right).max()


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


def test_calibration_takes_the_largest_of_all_samples(device, tmp_path):
    b = Builder(x=(1, 4, 3, 3))
    graph = b.graph(b.conv(b.post_ops("relu", b.conv("x", 8)), 8))
    samples = [{"x": normal((1, 4, 3, 3), k) * (k + 1)} for k in range(3)]
    ranges = clnn.calibrate(graph, iter(samples), device)
    fused = optimise(graph)
    want = {
        n: max(float(np.abs(reference_values(fused, s)[n]).max()) for s in samples) for n in ranges
    }
    assert ranges == pytest.approx(want, rel=1e-5) and set(ranges) == set(observed(fused))
    clipped = clnn.calibrate(graph, samples, device, method="percentile")
    assert all(clipped[n] <= ranges[n] for n in ranges) and clipped != ranges
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


def test_wrong_calibration_is_told(tmp_path, device):
    b = Builder(x=(1, 8, 6, 6))
    graph = b.graph(b.conv("x", 8))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("{")
    for given, words in (
        (None, "needs to know the ranges of values"),
        ({}, "calibration says nothing of value 'x'"),
        ({"y": 1.0}, "Calibrate this one"),
        ({"x": -1.0}, "range of 'x' is -1.0, must be a number of 0 or more"),
        ({"x": np.ones((1, 8, 6, 6))}, "an array of shape"),
        ([], "calibration got no samples"),
        ([{"x": np.full((1, 8, 6, 6), np.nan, np.float32)}], "has NaN or infinity with sample 1"),
        (tmp_path / "none.json", "no calibration file"),
        (tmp_path / "list.json", "no JSON object"),
        (tmp_path / "text.json", "no JSON file of ranges"),
    ):
        with pytest.raises(SettingError, match=words):
            prepare(graph, INT8, given, device)
    with pytest.raises(SettingError, match="of no use with"):
        prepare(graph, clnn.Options(), {"x": 1.0})
    with pytest.raises(SettingError, match="of no use with"):
        clnn.Options(calibration="ranges.json")
    with pytest.raises(SettingError, match="method is 'mean'"):
        clnn.calibrate(graph, [], device, method="mean")
    with pytest.raises(SettingError, match=r"give \[feed\]"):
        clnn.calibrate(graph, {"x": normal((1, 8, 6, 6))}, device)


def test_a_range_of_zero_and_a_tiny_one():
    b = Builder(x=(1, 8, 6, 6))
    graph = b.graph(b.conv("x", 8))
    assert scale(quantise(graph, {"x": 0.0}), "x:s8") == 1.0
    tiny = quantise(graph, {"x": 1e-42})
    assert 0 < scale(tiny, "x:s8") < 1e-29 and np.isfinite(tiny.nodes[-1].spec.arith.factors).all()


def test_tuning_measures_problems_in_bytes():
    from clnn.plan.schedule import make_plan
    from clnn.target import Target
    from clnn.tune.task import tasks_of

    graph = optimise(made(network()))
    small = make_plan(quantise(graph, ones(graph)), Target())
    tuned = {name for task in tasks_of(small) for name in task.nodes}
    products = {step.node.name for step in small.scheduled if step.node.spec.kind == "conv2d"}
    assert products and products <= tuned


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


def test_layers_of_a_perceptron_hand_on_bytes(device):
    """Products after one another, with their own activations: one conversion, at the input."""
    b = Builder(x=(5, 24))
    at = b.post_ops("relu", b.add(Gemm(), "x", b.const(24, 40), b.const(40)))
    at = b.post_ops("relu", b.add(Gemm(trans_b=True), at, b.const(36, 40), b.const(36)))
    graph = b.graph(b.add(Gemm(), at, b.const(36, 10)))
    feeds = {"x": normal((5, 24))}
    with clnn.compile_model(graph, device, INT8, calibration=[feeds]) as session:
        got, small = session(feeds)["out0"], session.plan.graph
    assert kinds(small).count("s8") == 3 and kinds(small).count("convert") == 1
    right = reference_values(graph, feeds)[graph.outputs["out0"]]
    assert np.abs(got - right).max() <= 0.04 * np.abs(right).max()
