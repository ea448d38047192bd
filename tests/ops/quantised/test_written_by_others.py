"""Forms that other tools' quantisers write, or that onnxruntime computes in another type than the model's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import rng
from onnx import helper, numpy_helper
from reference_engines import exact_session

import clnn

onnxruntime = pytest.importorskip("onnxruntime")

F = np.float32
MICROSOFT = "com.microsoft"
TIES = [0.1, 0.2, 0.3, 0.6, 0.7, 0.15, 0.05, 0.9, 0.02]  # quotients near ties


class Net:
    """A network that is written node by node."""

    def __init__(self, dtype=np.int8, **inputs):
        self.dtype, self.inputs = dtype, inputs
        self.nodes, self.consts = [], {}

    def const(self, array):
        name = f"c{len(self.consts)}"
        self.consts[name] = np.asarray(array)
        return name

    def node(self, op, *inputs, domain="", **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attrs))
        return name

    def real(self, value, scale, zero, domain="", **attrs):
        """Return integers as real numbers."""
        given = self.const(np.asarray(scale, F)), self.const(zero)
        return self.node("DequantizeLinear", value, *given, domain=domain, **attrs)

    def rounded(self, value, scale, zero):
        """Return real numbers as they are in steps of a scale."""
        given = self.const(F(scale)), self.const(self.dtype(zero))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, *given), *given)

    def model(self, output, opset=21):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info(output)],
            [numpy_helper.from_array(a, n) for n, a in self.consts.items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def check(self, device, output, within=0.0, opset=21, session=exact_session):
        """Compare with onnxruntime's fused run, to the bit or within a share of the largest result.

        Returns the result and how many nodes clnn has.
        """
        made = self.model(output, opset)
        (want,) = session(made).run(None, self.inputs)
        with clnn.compile_model(made, device) as mine:
            got, count = mine(self.inputs)[output], len(mine.plan.graph.nodes)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0, atol=within * np.abs(want).max(initial=0))
        return got, count


def normal(shape, seed):
    return rng(seed).normal(0, 2, shape).astype(F)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["Add", "Mul", "AveragePool"])
def test_int8_that_is_read_once_is_uint8_there(device, op, seed):
    """Sums and zero points are 128 more, and float32 numbers coarser, which decides near ties."""
    steps = rng(seed).choice(TIES, 3)
    net = Net(x=normal((1, 24, 24, 20), seed) * F(8))
    a = net.rounded("x", steps[0], 3 - seed)
    if op == "AveragePool":
        made = net.node(op, a, kernel_shape=[3, 3], strides=[1, 2])
    else:
        net.inputs["o"] = normal((1, 24, 24, 20), seed + 9) * F(8)
        made = net.node(op, a, net.rounded("o", steps[1], 7 * seed - 20))
    net.check(device, net.rounded(made, steps[0 if op == "AveragePool" else 2], seed - 3))


KINDS = {"s": (np.int8, 0), "u": (np.uint8, 128)}
STEPS = {"Add": (0.1, 0.05, 0.1), "Mul": (0.3, 0.3, 1.5)}  # of operands and result


@pytest.mark.parametrize("kinds", ["ssu", "sus", "uss", "uus", "suu"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_operands_and_results_of_two_types_are_uint8_there(device, op, kinds):
    """int8 that is read once becomes uint8, and all bytes are of one type then."""
    net, given = Net(), []
    for k, kind in enumerate(kinds[:2]):
        net.inputs[f"x{k}"] = normal((1, 24, 24, 20), k) * F(8)
        net.dtype, middle = KINDS[kind]
        given.append(net.rounded(f"x{k}", STEPS[op][k], middle - 3 - k))
    net.dtype, middle = KINDS[kinds[2]]
    net.check(device, net.rounded(net.node(op, *given), STEPS[op][2], middle + 4))


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kinds", ["su", "us"])
@pytest.mark.parametrize("windows", [{"kernel_shape": [4, 3]}, {"kernel_shape": [13, 16]}, {}])
def test_averages_of_another_type(device, windows, kinds, written):
    """Of uint8; written: the integers are a result, and where they are int8, averages are of float32 there."""
    net = Net(KINDS[kinds[0]][0], x=normal((2, 650, 13, 16), 5) * F(8))
    x = net.rounded("x", 0.1, KINDS[kinds[0]][1] - 3)
    net.dtype, middle = KINDS[kinds[1]]
    made = net.node("AveragePool" if windows else "GlobalAveragePool", x, **windows)
    y = net.rounded(made, 0.1, middle + 4)
    net.check(device, net.nodes[-2].output[0] if written else y, session=usual_session)


VIEWS = {
    "": (24, 24, 20),
    "Reshape": (576, 20),
    "Transpose": (24, 20, 24),
}  # of constants of these shapes


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_constants_of_int8_stay_int8_there(device, op, view, swapped):
    """Views of them, too. The other operand becomes uint8, so that the operator is one of real numbers."""
    net = Net(x=normal((1, 24, 24, 20), 5) * F(8))
    known = net.const(rng(1).integers(-128, 128, VIEWS[view], np.int8))
    pair = [net.rounded("x", STEPS[op][0], -3), net.real(known, STEPS[op][1], np.int8(7))]
    if view == "Reshape":
        pair[1] = net.node(view, pair[1], net.const(np.int64([24, 24, 20])))
    elif view:
        pair[1] = net.node(view, pair[1], perm=[0, 2, 1])
    made = net.node(op, *(pair[::-1] if swapped else pair))
    net.check(device, net.rounded(made, STEPS[op][2], 4), session=usual_session)


AVERAGES = {
    "windows": {"kernel_shape": [3, 2], "strides": [2, 2]},
    "far apart": {"kernel_shape": [3, 2], "strides": [1, 3]},
    "padded": {"kernel_shape": [2, 5], "pads": [1, 2, 1, 1], "count_include_pad": 1},
    "image": {"kernel_shape": [5, 6]},
    "global": {},
}


def usual_session(model):
    """Return onnxruntime's session without products of bytes, which makes operators of int8 ones of uint8."""
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("channels", [650, 640])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("windows", AVERAGES)
def test_averages_near_ties(device, windows, kind, written, channels, opset):
    """Of one scale, so that every few lie at ties; written: int8 is a result, and averages are float32 there."""
    attrs, middle = AVERAGES[windows], 0 if kind == np.int8 else 128
    net = Net(kind, x=normal((1, channels, 5, 6), opset) * F(8))
    x = net.rounded("x", 0.3, middle - 20)
    made = net.node("AveragePool" if attrs else "GlobalAveragePool", x, **attrs)
    y = net.rounded(made, 0.3, middle - 20)
    last = net.nodes[-2].output[0] if written else y
    out, _ = net.check(device, last, opset=opset, session=usual_session)
    assert len(np.unique(out)) > 9


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 2)])
def test_averages_of_whole_images_and_volumes_near_ties(device, shape, kind):
    net = Net(kind, x=normal((1, 650, *shape), 1) * F(8))
    made = net.node("GlobalAveragePool", net.rounded("x", 0.3, 20))
    net.check(device, net.rounded(made, 0.3, 20), session=usual_session)


CONVOLUTIONS = {  # images, outputs, groups, windows and strides
    "pixels": ((2, 40, 13, 9), 48, 1, (1, 1), 1),
    "many channels": ((1, 320, 17, 9), 24, 1, (1, 1), 1),
    "groups": ((2, 48, 13, 9), 36, 4, (1, 1), 1),
    "strided": ((2, 40, 14, 13), 24, 1, (1, 1), 2),
    "line": ((2, 40, 131), 20, 1, (1,), 3),
    "single outputs": ((4, 300, 13, 9), 20, 20, (1, 1), 1),
    "one output": ((9, 64, 31, 29), 1, 1, (1, 1), 1),
    "depthwise": ((2, 40, 14, 13), 40, 40, (3, 3), 1),
    "depthwise, odd": ((2, 37, 14, 13), 37, 37, (5, 3), 2),
    "depthwise pixels": ((2, 37, 14, 13), 37, 37, (1, 1), 1),
    "depthwise line": ((2, 40, 131), 40, 40, (7,), 1),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.uint8, np.int8), (np.int8, np.uint8)])
@pytest.mark.parametrize("which", CONVOLUTIONS)
def test_convolutions_in_float32_near_ties(device, which, kinds, biased):
    """The result is int8, and sums are real numbers there; or it is uint8, as the input becomes, and they are whole."""
    (shape, count, group, window, stride), at = CONVOLUTIONS[which], rng(7)
    net = Net(kinds[0], x=normal(shape, 7) * F(8))
    x = net.rounded("x", 0.3, 120 if kinds[0] == np.uint8 else -5)
    weights = at.integers(-63, 64, (count, shape[1] // group, *window), np.int8)
    scales = at.choice([0.1, 0.2, 0.3, 0.05, 0.15], count).astype(F)
    given = [x, net.real(net.const(weights), scales, np.zeros(count, np.int8), axis=0)]
    if biased:
        bias, zeros = at.integers(-500, 500, count).astype(np.int32), np.zeros(count, np.int32)
        given.append(net.real(net.const(bias), scales * F(0.3), zeros, axis=0))
    attrs = {"group": group, "kernel_shape": window, "strides": [stride] * len(window)}
    net.dtype = kinds[1]
    step = 0.6 * 2.0 ** round(np.log2(3 * weights[0].size ** 0.5))
    net.rounded(net.node("Conv", *given, **attrs), step, 130 if kinds[1] == np.uint8 else 3)
    out, _ = net.check(device, net.nodes[-2].output[0], session=usual_session)
    assert len(np.unique(out)) > 50


@pytest.mark.parametrize("shift", [0, 1.7])
@pytest.mark.parametrize("value", [0.5, 0.0, -40.0, np.inf])
@pytest.mark.parametrize("given", ["scalar", "dequantised", "both", MICROSOFT])
def test_a_border_of_any_number_is_one_pad_of_integers(device, given, value, shift):
    net = Net(np.uint8, x=normal((2, 3, 5, 6), 1))
    x, pads = net.rounded("x", 0.05, 120), net.const(np.array([0, 0, 1, 2, 0, 0, 2, 0]))
    number = net.const(F(value))
    if given == "both":
        number = net.rounded(number, 0.01, 3)
    elif given != "scalar":
        domain = given if given == MICROSOFT else ""
        stored = net.const(np.array([255], np.uint8))
        number = net.real(
            stored, abs(value) / 255 if np.isfinite(value) else 1, np.uint8(0), domain
        )
    made = net.node("Pad", x, pads, number)
    out, count = net.check(device, net.rounded(made, 0.05 + shift, 120))
    assert count <= (3 if shift == 0 else 4)
    assert np.ptp(out) > 0


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("shape", [(), (1,), (12,), (1, 12), (12, 1), (1, 1), (12, 12)])
def test_biases_of_gemm_of_all_shapes(device, shape, turned, kind):
    """As many rows as columns, so that no extent tells a column of biases from a row."""
    net = Net(kind, x=normal((12, 20), 1))
    zero = int(np.iinfo(kind).max // 2 - 5)
    x = net.rounded("x", 0.05, zero)
    stored = rng(2).integers(-127, 128, (12, 20) if turned else (20, 12), np.int8)
    w = net.real(net.const(stored), 0.011, np.int8(0))
    steps = np.float32(0.05) * np.float32(0.011)
    bias = rng(3).integers(-4000, 4000, shape, np.int32)
    c = net.real(net.const(np.asarray(bias)), steps, np.int32(0))
    made = net.node("Gemm", x, w, c, transB=turned)
    net.check(device, net.rounded(made, 0.13, zero))


@pytest.mark.parametrize("shape", [(), (1,), (12,), (1, 12), (12, 1), (1, 1), (12, 12)])
def test_biases_of_qgemm_of_all_shapes(device, shape):
    net = Net(np.uint8, x=rng(1).integers(0, 256, (12, 20), np.uint8))
    one = (net.const(F(0.05)), net.const(np.uint8(117)))
    w = net.const(rng(2).integers(-127, 128, (20, 12), np.int8))
    scales = net.const(rng(3).uniform(0.005, 0.02, 12).astype(F)), net.const(np.zeros(12, np.int8))
    c = net.const(np.asarray(rng(4).integers(-4000, 4000, shape, np.int32)))
    end = net.const(F(0.4)), net.const(np.uint8(99))
    net.check(device, net.node("QGemm", "x", *one, w, *scales, c, *end, domain=MICROSOFT))


@pytest.mark.parametrize("rows", [1, 4])
def test_scales_of_a_bias_of_two_axes_are_those_of_columns(device, rows):
    """onnxruntime's quantiser says axis 0, and its fused run never looks."""
    net = Net(np.uint8, x=normal((4, 20), 1))
    x, scales = net.rounded("x", 0.05, 117), rng(3).uniform(0.005, 0.02, 12).astype(F)
    stored = net.const(rng(2).integers(0, 256, (20, 12), np.uint8))
    w = net.real(stored, scales, np.full(12, 128, np.uint8), axis=1)
    bias = net.const(rng(4).integers(-4000, 4000, (rows, 12), np.int32))
    c = net.real(bias, F(0.05) * scales, np.zeros(12, np.int32), axis=0)
    net.check(device, net.rounded(net.node("Gemm", x, w, c), 0.4, 99))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_where_of_bytes(device, kind, constant):
    """All bytes of both operands, which have other scales than the result, as a condition takes them."""
    info = np.iinfo(kind)
    every = np.arange(info.min, info.max + 1, dtype=kind).reshape(1, 256)
    net = Net(kind, c=rng(1).integers(0, 2, (16, 256)) > 0, x=every)
    ends = [net.const(v) for v in (F(0.3), kind(5), F(0.7), kind(-0), F(0.4), kind(9))]
    y = every[:, ::-1].copy()
    if constant:
        name = net.const(y)
    else:
        name, net.inputs["y"] = "y", y
    net.check(
        device, net.node("QLinearWhere", "c", "x", *ends[:2], name, *ends[2:], domain=MICROSOFT)
    )


@pytest.mark.parametrize("other", ["bytes", "real", "computed"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_where_of_what_bytes_were(device, kind, other):
    net = Net(kind, c=rng(1).integers(0, 2, (16, 20)) > 0, x=normal((16, 20), 2))
    x = net.rounded("x", 0.03, 7)
    if other == "bytes":
        net.inputs["o"] = normal((1, 20), 3)
        o = net.rounded("o", 0.05, 11)
    elif other == "real":
        o = net.const(F(0.26))
    else:
        o = net.node("Relu", x)
    net.check(device, net.rounded(net.node("Where", "c", x, o), 0.04, 3))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("k", "n", "block"), [(32, 6, 16), (21, 5, 64), (7, 9, 16)])
def test_weights_of_four_bits_that_are_floats(device, which, k, n, block):
    """With the unit matrix the result is the weights."""
    net = Net(a=np.eye(k, dtype=F))
    b = net.const(rng(1).integers(0, 256, (n * k + 1) // 2, np.uint8))
    largest = net.const(rng(2).uniform(0.1, 2, -(-n * k // block)).astype(F))
    attrs = {"K": k, "N": n, "block_size": block, "quant_type": which}
    net.check(device, net.node("MatMulBnb4", "a", b, largest, domain=MICROSOFT, **attrs))


@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric"])
def test_linear_resizing_of_what_floats_of_8_bits_were(device, mode):
    """Eight of such floats lie between a number and its double, so that sums often lie between two."""
    net = Net(x=normal((1, 3, 9, 11), 1))
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    given = net.const(F(0.013)), net.const(zero)
    x = net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *given), *given)
    size = net.const(np.array([1, 3, 18, 17]))
    made = net.node("Resize", x, "", "", size, mode="linear", coordinate_transformation_mode=mode)
    net.check(
        device, net.node("DequantizeLinear", net.node("QuantizeLinear", made, *given), *given)
    )


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["int4", "uint4", "4 bits", "8 bits"])
def test_rows_of_quantised_tables(device, kind, zeros, constant):
    """Blocks of 16 of 40 columns; indices from the end, and outside, which give zeros."""
    net = Net(x=np.array([[3, -1, 0], [8, -9, 2]], np.int32))
    stored, blocks = rng(1).integers(0, 16, (9, 40)), rng(2).integers(0, 16, (9, 3))
    attrs = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    if kind.endswith("bits"):
        bits = attrs["bits"] = int(kind[0])
        packed = [
            a if bits == 8 else a[:, ::2] | np.pad(a[:, 1::2], [(0, 0), (0, a.shape[1] % 2)]) << 4
            for a in (stored, blocks)
        ]
        data, zero = (a.astype(np.uint8) for a in packed)
    else:
        element = getattr(ml_dtypes, kind)
        data, zero = ((a - 8 * (kind == "int4")).astype(element) for a in (stored, blocks))
    if constant:
        index, net.inputs = net.const(net.inputs["x"]), {"x": np.zeros(1, np.int32)}
    else:
        index = "x"
    names = [net.const(data), index, net.const(rng(3).uniform(0.1, 1, (9, 3)).astype(F))]
    names += [net.const(zero)] if zeros else []
    made = net.node("GatherBlockQuantized", *names, domain=MICROSOFT, **attrs)
    net.check(device, made)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_weights_of_bytes(device, per_column, masked, causal):
    net = Net(x=normal((2, 5, 16), 1))
    parts = ["x0", "scale", "zero"]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], parts))
    w = net.const(rng(2).integers(-128, 128, (16, 48), np.int8))
    steps = rng(3).uniform(0.005, 0.02, 48 if per_column else ()).astype(F)
    zero = np.zeros(steps.shape, np.int8)
    names = ["x0", w, net.const(normal(48, 4)), "scale", net.const(steps)]
    names.append(net.const(np.array([5, 3], np.int32)) if masked else "")
    names += ["zero", net.const(zero)]
    made = net.node("QAttention", *names, domain=MICROSOFT, num_heads=4, unidirectional=causal)
    net.check(device, made, within=1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_quantisation_for_each_reader(device, kind, shared):
    """They are one where their parameters are; int8 is read twice then, and computed with in float32."""
    net, zero = Net(kind, x=normal((2, 8, 9, 7), 1)), int(np.iinfo(kind).max // 2 - 5)
    pairs = [(net.const(F(0.05)), net.const(kind(zero))) for _ in range(2)]
    first, second = (
        net.node("DequantizeLinear", net.node("QuantizeLinear", "x", *pair), *pair)
        for pair in (pairs[0], pairs[not shared])
    )
    weights = rng(2).integers(-127, 128, (8, 8, 3, 3), np.int8)
    w = net.real(net.const(weights), 0.003, np.int8(0))
    left = net.rounded(net.node("Conv", first, w, pads=[1] * 4), 0.09, zero)
    net.check(device, net.rounded(net.node("Add", left, second), 0.1, zero))
