"""Whole graphs of clnn.openvx on devices against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from openvx_tools import (
    AVG,
    CEIL,
    EVEN,
    FLOOR,
    MAX,
    RELU,
    SAT,
    WRAP,
    ZERO,
    empty,
    fails,
    integers,
    read,
    tensor,
    view,
    write,
)

from clnn import openvx as vx
from clnn.apis.openvx.builder import TensorBuilder, best_cuts
from clnn.apis.openvx.process import session_of
from clnn.arith import openvx as ax
from clnn.arith.openvx_device import VxMac
from clnn.types import I16, U8

Q78 = ax.Format(I16, 8)
LOGISTIC = vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_LOGISTIC


def windows(x, kernel, steps, pads, outs):
    """Return what each window of (c, h, w) sees as (1, 1, c, tap, outs...); padding is zeros."""
    c, h, w = x.shape
    seen = np.zeros((1, 1, c, kernel[0] * kernel[1], *outs), np.int64)
    for tap, (ky, kx) in enumerate(np.ndindex(*kernel)):
        for oy, ox in np.ndindex(*outs):
            y, z = oy * steps[0] + ky - pads[0], ox * steps[1] + kx - pads[1]
            if 0 <= y < h and 0 <= z < w:
                seen[0, 0, :, tap, oy, ox] = x[:, y, z]
    return seen


def convolved(x, w, b, steps, pads, outs, bits=32, even=True):
    """Return the specification's convolution of (c, h, w) in Q7.8, saturated."""
    rule = VxMac(Q78, 8, "even" if even else "zero", False, bits, bias_first=False, wide=True)
    columns = windows(x, w.shape[2:], steps, pads, outs)
    return rule.reference(columns, w.reshape(1, *w.shape[:2], -1), b)[0, 0]


class Digits:
    """A small network in Q7.8: split, convolved in two branches, merged, pooled, classified."""

    def __init__(self, context):
        self.arrays = {
            "w1": integers((3, 2, 3, 3), seed=1, most=150),
            "b1": integers((3,), seed=2, most=90),
            "w2": integers((2, 2, 1, 1), seed=3, most=300),
            "b2": integers((2, 6, 7), seed=4, most=90),
            "w3": integers((4, 60), seed=5, most=120),
            "b3": integers((4,), seed=6, most=99),
        }
        self.context = context
        self.x = empty(context, 7, 6, 4)
        self.y = empty(context, 4)
        self.held = {name: tensor(context, a) for name, a in self.arrays.items()}
        self.graph = vx.vxCreateGraph(context)
        self.build()

    def virtual(self, *dims):
        return vx.vxCreateVirtualTensor(self.graph, len(dims), dims, vx.VX_TYPE_INT16, 8)

    def build(self):
        g, held = self.graph, self.held
        front, back = view(self.x, (0, 0, 0), (7, 6, 2)), view(self.x, (0, 0, 2), (7, 6, 4))
        both = self.virtual(7, 6, 5)
        first, second = view(both, (0, 0, 0), (7, 6, 3)), view(both, (0, 0, 3), (7, 6, 5))
        vx.vxConvolutionLayer(g, front, held["w1"], held["b1"], 1, 1, 32, SAT, EVEN, FLOOR, first)
        vx.vxConvolutionLayer(g, back, held["w2"], held["b2"], 0, 0, 32, SAT, EVEN, FLOOR, second)
        active, small = self.virtual(7, 6, 5), self.virtual(4, 3, 5)
        vx.vxActivationLayer(g, both, RELU, 0, 0, active)
        vx.vxPoolingLayer(g, active, MAX, 2, 2, 0, 0, CEIL, small)
        scores = vx.vxCreateVirtualTensor(g, 0, None, vx.VX_TYPE_INVALID, 0)
        vx.vxFullyConnectedLayer(g, small, held["w3"], held["b3"], 0, 32, SAT, EVEN, FLOOR, scores)
        vx.vxSoftmaxLayer(g, scores, self.y)

    def expected(self, x):
        """Return the network's result with numpy."""
        a = self.arrays
        one = convolved(x[:2], a["w1"], a["b1"], (1, 1), (1, 1), (6, 7))
        two = convolved(x[2:], a["w2"], a["b2"], (1, 1), (0, 0), (6, 7))
        active = np.maximum(np.concatenate([one, two]), 0)
        wide = np.pad(active, ((0, 0), (0, 0), (0, 1)))
        small = wide.reshape(5, 3, 2, 4, 2).max((2, 4))
        scores = convolved(
            small.reshape(60, 1, 1), a["w3"].reshape(4, 60, 1, 1), a["b3"], (1, 1), (0, 0), (1, 1)
        )
        return ax.softmax(scores.reshape(4), 0, Q78, Q78, False)


@pytest.fixture(scope="module")
def contexts():
    """Contexts by device, kept so that sessions of equal graphs are shared."""
    made = {}
    yield lambda device: made.setdefault(device, vx.vxCreateContext(device))
    for context in made.values():
        vx.vxReleaseContext(context)


@pytest.fixture
def context(contexts, device):
    return contexts(device)


def image(seed):
    return integers((4, 6, 7), seed=seed, most=500)


def test_a_network_with_views_and_virtual_tensors(context, tmp_path):
    """Verified, run, exported, imported, run again; weights changed between runs."""
    net = Digits(context)
    assert vx.vxVerifyGraph(net.graph) == vx.VX_SUCCESS
    for seed in (10, 11):
        write(net.x, image(seed))
        vx.vxProcessGraph(net.graph)
        np.testing.assert_array_equal(read(net.y), net.expected(image(seed)))
    known = read(net.y)
    vx.vxExportBinary(net.graph, tmp_path / "net.vx", {"x": net.x, "y": net.y})
    imported = vx.vxImportBinary(context, tmp_path / "net.vx")
    graph = vx.vxGetImportReferenceByIndex(imported, 0)
    x, y = (vx.vxGetImportReferenceByName(imported, name) for name in "xy")
    np.testing.assert_array_equal(read(x), image(11))
    assert read(y).any() == np.False_
    sessions = len(context.sessions)
    vx.vxProcessGraph(graph)
    np.testing.assert_array_equal(read(y), known)
    assert len(context.sessions) == sessions, "an equal graph was compiled again"
    net.arrays["b3"] = net.arrays["b3"] + np.int16(77) * np.arange(4, dtype=np.int16)
    write(net.held["b3"], net.arrays["b3"])
    vx.vxProcessGraph(net.graph)
    np.testing.assert_array_equal(read(net.y), net.expected(image(11)))
    assert (read(net.y) != known).any()
    vx.vxProcessGraph(graph)
    np.testing.assert_array_equal(read(y), known)


def test_one_session_runs_the_whole_graph_and_virtual_tensors_stay_inside(context):
    net = Digits(context)
    vx.vxProcessGraph(net.graph)
    assert set(net.graph.lowered.outputs.values()) == {net.y}
    session = session_of(context, net.graph.lowered)
    rows = [(row["op"], row["variant"]) for row in session.placement.nodes]
    assert [op for op, _ in rows].count("conv2d") == 3
    assert ("concat", "view") in rows, "the merged tensor was copied together"


def test_weights_that_another_node_makes(context):
    """Weights are a product of two tensors, biases a sum: results follow the tensors."""
    graph = vx.vxCreateGraph(context)
    x, y = empty(context, 5, 4, 2), empty(context, 4, 3, 3)
    base, gain = (
        tensor(context, integers((3, 2, 2, 2), seed=1, most=400)),
        empty(context, 1, 1, 1, 1),
    )
    b = tensor(context, integers((3,), seed=2, most=400))
    w = vx.vxCreateVirtualTensor(graph, 4, (2, 2, 2, 3), vx.VX_TYPE_INT16, 8)
    bias = vx.vxCreateVirtualTensor(graph, 1, (3,), vx.VX_TYPE_INT16, 8)
    vx.vxTensorMultiplyNode(graph, base, gain, 1.0, SAT, EVEN, w)
    vx.vxTensorAddNode(graph, b, b, SAT, bias)
    vx.vxConvolutionLayer(graph, x, w, bias, 0, 0, 32, SAT, EVEN, FLOOR, y)
    image = integers((2, 4, 5), seed=3, most=900)
    write(x, image)
    for factor in (256, -640):
        write(gain, np.full((1, 1, 1, 1), factor, np.int16))
        vx.vxProcessGraph(graph)
        held = ax.multiply(read(base), np.array(factor), ax.Scale.of(1), Q78, 8, False, True, 0)
        want = convolved(image, held, 2 * read(b), (1, 1), (0, 0), (3, 4))
        np.testing.assert_array_equal(read(y), want)


def test_scalars_and_tables_are_read_at_each_run(context):
    graph = vx.vxCreateGraph(context)
    array = integers((8,), seed=4)
    x, middle, y = tensor(context, array), empty(context, 8), tensor(context, integers((8,)))
    scale = vx.vxCreateScalar(context, vx.VX_TYPE_FLOAT32, 0.25)
    lut = vx.vxCreateLUT(context, vx.VX_TYPE_INT16, 2000)
    vx.vxTensorMultiplyNode(graph, x, x, scale, WRAP, ZERO, middle)
    vx.vxTensorTableLookupNode(graph, middle, lut, y)
    for factor, seed in ((0.25, 1), (0.001, 2)):
        vx.vxCopyScalar(scale, factor)
        entries = integers((2000,), seed=seed)
        vx.vxCopyLUT(lut, entries, vx.VX_WRITE_ONLY)
        before = read(y)
        vx.vxProcessGraph(graph)
        product = ax.multiply(array, array, ax.Scale.of(factor), Q78, 8, True, False, 0)
        np.testing.assert_array_equal(read(middle), product)
        np.testing.assert_array_equal(read(y), ax.lookup(product, entries, -1000, before))


def test_signed_padding_of_maxima_differs_with_conformance(context, device):
    """Zeros of the padding are larger than negative elements, unless as the suite has it."""
    array = integers((1, 2, 2), seed=1, most=100) - np.int16(500)
    for conformance, want in ((False, 0), (True, array.max())):
        with vx.vxCreateContext(device, conformance) as other:
            graph = vx.vxCreateGraph(other)
            y = empty(other, 1, 1, 1)
            vx.vxPoolingLayer(graph, tensor(other, array), MAX, 4, 4, 1, 1, FLOOR, y)
            vx.vxProcessGraph(graph)
            assert read(y).item() == want


def test_average_cuts_towards_zero_over_the_whole_window(context):
    graph = vx.vxCreateGraph(context)
    array = np.array([[[-5, -6], [-7, 9]]], np.int16)
    y, large = empty(context, 3, 3, 1), empty(context, 1, 1, 1)
    x = tensor(context, array)
    vx.vxPoolingLayer(graph, x, AVG, 2, 2, 1, 1, FLOOR, y)
    vx.vxPoolingLayer(graph, x, AVG, 10, 8, 4, 3, FLOOR, large)
    vx.vxProcessGraph(graph)
    np.testing.assert_array_equal(read(y), [[[-1, -2, -1], [-3, -2, 0], [-1, 0, 2]]])
    assert read(large).item() == 0


def test_padded_fully_connected_input_with_a_batch(context):
    """pad adds zeros, whose weights do not matter; the batch has two dimensions."""
    graph = vx.vxCreateGraph(context)
    x, w = integers((2, 3, 2, 4), seed=1, most=300), integers((5, 4, 6), seed=2, most=300)
    y = empty(context, 5, 3, 2)
    vx.vxFullyConnectedLayer(
        graph, tensor(context, x), tensor(context, w), None, 1, 32, SAT, EVEN, FLOOR, y
    )
    vx.vxProcessGraph(graph)
    inner = w[:, 1:-1, 1:-1].reshape(5, 8).astype(np.int64)
    products = x.reshape(2, 3, 1, 8) * inner
    want = Q78.convert(ax.shifted(products, 8, "even").sum(-1), False)
    np.testing.assert_array_equal(read(y), want)


def test_float_layers(context):
    """float32: policies do not matter; every layer in one graph."""
    rng = np.random.default_rng(3)
    x, w = (
        rng.standard_normal((3, 6, 5)).astype("f4"),
        rng.standard_normal((4, 3, 3, 3)).astype("f4"),
    )
    b, dense = rng.standard_normal(4).astype("f4"), rng.standard_normal((6, 24)).astype("f4")
    graph = vx.vxCreateGraph(context)

    def made(*dims):
        return vx.vxCreateVirtualTensor(graph, len(dims), dims, vx.VX_TYPE_FLOAT32, 0)

    conv, norm, same, pooled, scores = (
        made(5, 6, 4),
        made(5, 6, 4),
        made(5, 6, 4),
        made(2, 3, 4),
        made(6),
    )
    y = empty(context, 6, kind="f4")
    held = [tensor(context, a) for a in (x, w, b, dense)]
    vx.vxConvolutionLayer(graph, *held[:3], 1, 1, 32, SAT, ZERO, FLOOR, conv)
    across = vx.VX_CONVOLUTIONAL_NETWORK_NORM_ACROSS_MAPS
    vx.vxNormalizationLayer(graph, conv, across, 3, 0.5, 0.75, norm)
    one_map = vx.VX_CONVOLUTIONAL_NETWORK_NORM_SAME_MAP
    vx.vxNormalizationLayer(graph, norm, one_map, 3, 0.5, 0.5, same)
    vx.vxPoolingLayer(graph, same, AVG, 2, 2, 0, 0, FLOOR, pooled)
    vx.vxFullyConnectedLayer(graph, pooled, held[3], None, 0, 32, SAT, ZERO, FLOOR, scores)
    vx.vxSoftmaxLayer(graph, scores, y)
    vx.vxProcessGraph(graph)
    wide = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
    value = np.einsum("cyxkl,ockl->oyx", seen, w) + b[:, None, None]
    value = value / (1 + 0.5 / 3 * ax.window_sums(value[None] ** 2, 3, True)[0]) ** 0.75
    value = value / (1 + 0.5 / 9 * ax.window_sums(value[None] ** 2, 3, False)[0]) ** 0.5
    small = value[:, :, :4].reshape(4, 3, 2, 2, 2).mean((2, 4))
    scores = dense @ small.reshape(-1)
    want = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    np.testing.assert_allclose(read(y), want, rtol=2e-4, atol=1e-6)


def test_fixed_point_positions_differ(context):
    """Q11.4 images, Q1.14 weights, Q5.10 results; then bytes."""
    graph = vx.vxCreateGraph(context)
    x, w = integers((1, 3, 3), seed=1, most=400), integers((2, 1, 2, 2), seed=2)
    y, bytes_ = empty(context, 2, 2, 2, position=10), empty(context, 2, 2, 2, kind="u1")
    vx.vxConvolutionLayer(
        graph, tensor(context, x, 4), tensor(context, w, 14), None, 0, 0, 48, SAT, EVEN, FLOOR, y
    )
    vx.vxActivationLayer(graph, y, LOGISTIC, 0, 0, empty(context, 2, 2, 2, position=15))
    vx.vxTensorConvertDepthNode(graph, y, SAT, 0.5, -3.0, bytes_)
    vx.vxProcessGraph(graph)
    rule = VxMac(ax.Format(I16, 10), 8, "even", False, 48, bias_first=False, wide=True)
    want = rule.reference(windows(x, (2, 2), (1, 1), (0, 0), (2, 2)), w.reshape(1, 2, 1, 4), None)
    np.testing.assert_array_equal(read(y), want[0, 0])
    real = np.clip(np.trunc((read(y) / 1024 + 3) / 0.5), 0, 255)
    np.testing.assert_array_equal(read(bytes_), real.astype(np.uint8))


def test_deconvolution_and_matrices(context):
    graph = vx.vxCreateGraph(context)
    x, w = integers((2, 2, 3), seed=1, most=200), integers((3, 2, 3, 3), seed=2, most=300)
    y = empty(context, 7, 5, 3)
    vx.vxDeconvolutionLayer(
        graph, tensor(context, x), tensor(context, w), None, 0, 0, SAT, EVEN, 0, 0, y
    )
    a, b, c = (integers(s, seed=k, most=900) for k, s in enumerate([(4, 5), (3, 5), (3, 4)]))
    z = empty(context, 3, 4)
    held = [tensor(context, m) for m in (a, b, c)]
    vx.vxTensorMatrixMultiplyNode(graph, *held, z, False, True, True)
    vx.vxProcessGraph(graph)
    wide = np.zeros((2, 3, 5), np.int64)
    wide[:, ::2, ::2] = x
    want = convolved(wide, w, None, (1, 1), (2, 2), (5, 7))
    np.testing.assert_array_equal(read(y), want)
    np.testing.assert_array_equal(read(z), ax.matmul(a, b.T, c.T, Q78, 8))


def test_errors_while_running_change_nothing(context):
    graph = vx.vxCreateGraph(context)
    y = tensor(context, integers((4,)))
    with vx.vxCreateContext("no such device") as other:
        broken = vx.vxCreateGraph(other)
        kept = tensor(other, integers((4,)))
        vx.vxActivationLayer(broken, empty(other, 4), RELU, 0, 0, kept)
        vx.vxVerifyGraph(broken)
        with pytest.raises(Exception, match="no such device"):
            vx.vxProcessGraph(broken)
        np.testing.assert_array_equal(read(kept), integers((4,)))
    vx.vxActivationLayer(graph, empty(context, 3), RELU, 0, 0, y)
    with fails("VX_ERROR_INVALID_DIMENSION"):
        vx.vxProcessGraph(graph)
    np.testing.assert_array_equal(read(y), integers((4,)))


def test_pieces_that_no_straight_cut_separates_are_joined():
    """A pinwheel of four written parts around a part that was there before."""
    with vx.vxCreateContext() as context:
        whole = tensor(context, integers((3, 3)))
        boxes = [((0, 2), (0, 1)), ((2, 3), (0, 2)), ((1, 3), (2, 3)), ((0, 1), (1, 3))]
        builder, feeds = TensorBuilder(), {}
        for box in boxes:
            part = view(whole, *zip(*box, strict=True))
            name = builder.const(np.full(part.dims[::-1], 100 + len(feeds), np.int16))
            feeds[name] = box
            builder.write(part, name)
        out = builder.read(whole)
        values = dict(builder.consts)
        for name, (store, box) in builder.sources.items():
            values[name] = store.part(box)
        for node in builder.nodes:
            values[node.outputs[0]] = node.spec.reference(*(values[n] for n in node.inputs))[0]
        want = integers((3, 3))
        for number, box in enumerate(boxes):
            want[box[1][0] : box[1][1], box[0][0] : box[0][1]] = 100 + number
        np.testing.assert_array_equal(values[out], want)
        assert best_cuts(((0, 4), (0, 4)), [((0, 2), (0, 4)), ((2, 3), (0, 4))]) == (0, [2, 3])


def test_bytes_saturate_and_wrap(context):
    graph = vx.vxCreateGraph(context)
    x, y = integers((6,), "u1", 1), integers((6,), "u1", 2)
    outs = [empty(context, 6, kind="u1") for _ in range(3)]
    one, two = tensor(context, x), tensor(context, y)
    vx.vxTensorAddNode(graph, one, two, SAT, outs[0])
    vx.vxTensorSubtractNode(graph, one, two, WRAP, outs[1])
    vx.vxTensorMultiplyNode(graph, one, two, 1 / 255, SAT, EVEN, outs[2])
    vx.vxProcessGraph(graph)
    wide = x.astype(int), y.astype(int)
    np.testing.assert_array_equal(read(outs[0]), np.minimum(wide[0] + wide[1], 255))
    np.testing.assert_array_equal(read(outs[1]), x - y)
    exact = ax.multiply(x, y, ax.Scale.of(1 / 255), ax.Format(U8), 0, False, True, 0)
    np.testing.assert_array_equal(read(outs[2]), exact)


FORMULAS = (
    lambda x, a, b: 1 / (1 + np.exp(-x)),
    lambda x, a, b: a * np.tanh(b * x),
    lambda x, a, b: np.maximum(x, 0),
    lambda x, a, b: np.minimum(a, np.maximum(x, 0)),
    lambda x, a, b: np.log1p(np.exp(x)),
    lambda x, a, b: np.abs(x),
    lambda x, a, b: x * x,
    lambda x, a, b: np.sqrt(np.maximum(x, 0)),
    lambda x, a, b: a * x + b,
)


def test_all_activations(context):
    """Nine functions in float32 and in Q7.8, in one graph."""
    a, b = 3, -2
    raw = np.arange(-1500, 1500, 13).astype(np.int16)
    real = raw / 256
    graph, outs = vx.vxCreateGraph(context), []
    x, fixed = tensor(context, real.astype("f4")), tensor(context, raw)
    for func in vx.enums.Activation:
        outs.append((empty(context, raw.size, kind="f4"), empty(context, raw.size)))
        vx.vxActivationLayer(graph, x, func, a, b, outs[-1][0])
        vx.vxActivationLayer(graph, fixed, func, a, b, outs[-1][1])
    vx.vxProcessGraph(graph)
    for formula, (floats, integers_) in zip(FORMULAS, outs, strict=True):
        want = formula(real, a, b)
        seen = read(floats)
        known = ~np.isnan(seen)  # the root of a negative number
        np.testing.assert_allclose(seen[known], want[known], rtol=2e-5, atol=2e-6)
        scaled = np.clip(want * 256, -32768, 32767)
        assert np.abs(read(integers_) - np.trunc(scaled)).max() <= 1
        assert (read(integers_) != np.trunc(scaled)).mean() < 0.02


def test_conversions_with_float32(context):
    graph = vx.vxCreateGraph(context)
    real = np.array([-300.0, -1.26, 0.0, 0.999, 1.5, 127.9, 200.0], "f4")
    raw = np.array([-32768, -3, 0, 7, 32767], np.int16)
    x, fixed = tensor(context, real), tensor(context, raw)
    outs = [
        empty(context, 7),
        empty(context, 7),
        empty(context, 5, kind="f4"),
        empty(context, 7, kind="f4"),
    ]
    vx.vxTensorConvertDepthNode(graph, x, SAT, 1.0, 0.0, outs[0])
    vx.vxTensorConvertDepthNode(graph, x, WRAP, 1.0, 0.0, outs[1])
    vx.vxTensorConvertDepthNode(graph, fixed, SAT, 2.0, 1.0, outs[2])
    vx.vxTensorConvertDepthNode(graph, x, SAT, 2.0, 1.0, outs[3])
    vx.vxProcessGraph(graph)
    scaled = np.trunc(real.astype(np.float64) * 256)
    np.testing.assert_array_equal(read(outs[0]), np.clip(scaled, -32768, 32767))
    np.testing.assert_array_equal(read(outs[1]), scaled.astype(np.int64).astype(np.int16))
    np.testing.assert_allclose(read(outs[2]), (raw / 256 - 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(read(outs[3]), (real - 1) / 2, rtol=1e-6)


def test_dilation_is_as_the_context_says(device):
    """The conformance suite moves taps on by the dilation."""
    image, w = integers((1, 5, 6), seed=1, most=900), integers((2, 1, 2, 2), seed=2, most=500)
    wide = np.zeros((2, 1, 3, 3), np.int16)
    wide[:, :, ::2, ::2] = w
    for conformance, pads in ((False, (1, 1)), (True, (0, 0))):
        with vx.vxCreateContext(device, conformance) as context:
            graph = vx.vxCreateGraph(context)
            y = empty(context, 6, 5, 2)
            vx.vxConvolutionLayer(
                graph,
                tensor(context, image),
                tensor(context, w),
                None,
                1,
                1,
                32,
                SAT,
                ZERO,
                FLOOR,
                y,
                1,
                1,
            )
            vx.vxProcessGraph(graph)
            want = convolved(image, wide, None, (1, 1), pads, (5, 6), even=False)
            np.testing.assert_array_equal(read(y), want)
