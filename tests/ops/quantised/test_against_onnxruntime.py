"""Quantised ONNX operators give onnxruntime's integers, with and without its graph optimisations."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper, numpy_helper
from reference_engines import exact_session

import clnn
from clnn.arith.quantised import Quantisation
from clnn.ops.quantised import build
from clnn.types import U8

pytest.importorskip("onnxruntime")

F = np.float32
MICROSOFT = "com.microsoft"
STEPS = [0.1, 0.2, 0.3, 0.6, 0.7, 0.15, 0.05, 0.9, 0.02, 0.06, 0.14]  # quotients near ties


def model(op, feeds, consts, order, domain="", outputs=1, **attrs):
    """Return the bytes of a model of one node; order: names of its inputs, "" for left out."""
    known = feeds | consts
    node = helper.make_node(op, order, [f"y{k}" for k in range(outputs)], domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape)
            )
            for n, a in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(n) for n in node.output],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()],
    )
    assert all(n in known or not n for n in order)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def check(device, op, feeds, consts, order, exact=True, **attrs):
    """Run one node on both engines and compare to the bit (exact) or to 1e-6."""
    made = model(op, feeds, consts, order, **attrs)
    session = exact_session(made)
    want = session.run(None, feeds)
    with clnn.compile_model(made, device) as mine:
        got = mine(feeds)
    for k, array in enumerate(want):
        assert got[f"y{k}"].dtype == array.dtype
        if exact:
            np.testing.assert_array_equal(got[f"y{k}"], array, err_msg=f"{op} {attrs}")
        else:
            most = np.abs(array).max()
            np.testing.assert_allclose(got[f"y{k}"], array, rtol=0, atol=1e-6 * most)


def integers(shape, dtype, seed):
    info = np.iinfo(dtype)
    return rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def pair(dtype, seed, count=None):
    """Return a scale and a zero point."""
    return rng(seed).choice(STEPS, count).astype(F), integers(
        () if count is None else count, dtype, seed
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products(device, op, dtype, seed):
    feeds = {"a": integers((3, 7, 11), dtype, seed), "b": integers((3, 7, 11), dtype, seed + 9)}
    parts = zip(("a", "b", "y"), (20, 30, 40), strict=True)
    consts = {}
    for name, first in parts:
        consts[f"{name}s"], consts[f"{name}z"] = pair(dtype, first + seed)
    order = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    check(device, op, feeds, consts, order, domain=MICROSOFT)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "y"), [("u1", "i1", "u1"), ("u1", "u1", "u1"), ("i1", "i1", "i1")]
)
def test_convolutions(device, x, w, y, per_channel):
    count = 12 if per_channel else None
    consts = {
        "w": integers((12, 8, 3, 3), w, 1),
        "b": rng(2).integers(-(2**14), 2**14, 12, np.int32),
    }
    consts["xs"], consts["xz"] = pair(x, 3)
    consts["ws"], consts["wz"] = pair(w, 4, count)
    if w == "i1":
        consts["wz"] = np.zeros_like(consts["wz"])
    elif per_channel:  # onnxruntime wants equal zero points
        consts["wz"] = np.full_like(consts["wz"], 131)
    consts["ys"], consts["yz"] = np.array(51.3, F), pair(y, 6)[1]
    order = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    feeds = {"x": integers((1, 8, 9, 7), x, 7)}
    check(device, "QLinearConv", feeds, consts, order, pads=[1, 1, 0, 1], strides=[2, 1])


def test_a_depthwise_convolution(device):
    consts = {"w": integers((16, 1, 3, 3), "u1", 1), "b": rng(2).integers(-999, 999, 16, np.int32)}
    for name, dtype in (("x", "u1"), ("w", "u1"), ("y", "u1")):
        consts[f"{name}s"], consts[f"{name}z"] = pair(dtype, ord(name))
    consts["ys"] = np.array(7.7, F)
    order = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    feeds = {"x": integers((2, 16, 9, 7), "u1", 7)}
    check(device, "QLinearConv", feeds, consts, order, pads=[1, 1, 1, 1], group=16)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("shape", [(5, 33), (2, 3, 33)])
@pytest.mark.parametrize(("a", "b"), [("u1", "i1"), ("u1", "u1"), ("i1", "i1")])
def test_matrix_products(device, a, b, shape, constant):
    left, right = integers(shape, a, 1), integers((33, 18), b, 2)
    feeds, consts = {"a": left}, {}
    (consts if constant else feeds)["b"] = right
    for name, dtype in (("a", a), ("b", b), ("y", a)):
        consts[f"{name}s"], consts[f"{name}z"] = pair(dtype, ord(name))
    consts["ys"] = np.array(19.7, F)
    order = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    check(device, "QLinearMatMul", feeds, consts, order)
    check(
        device,
        "MatMulInteger",
        feeds,
        {k: v for k, v in consts.items() if k in ("az", "bz", "b")},
        ["a", "b", "az", "bz"],
    )


@pytest.mark.parametrize("terms", [258, 259, 3001])
def test_largest_sums_of_computed_matrices(device, terms):
    """Of up to 258 products of bytes float32 holds every sum, of more it does not."""
    feeds = {"a": np.full((3, terms), 255, np.uint8), "b": np.full((terms, 5), 255, np.uint8)}
    feeds["a"][1, ::2] = feeds["b"][::3, 2] = 254
    check(device, "MatMulInteger", feeds, {}, ["a", "b"])
    assert build.float_holds(*[Quantisation(U8, (1.0,), (0,))] * 2, terms) == (terms <= 258)


@pytest.mark.parametrize("shape", [(0, 33), (0, 3, 33), (2, 0, 33)])
def test_products_of_no_rows(device, shape):
    consts = {"b": integers((33, 18), "i1", 2)}
    for name, dtype in (("a", "u1"), ("b", "i1"), ("y", "u1")):
        consts[f"{name}s"], consts[f"{name}z"] = pair(dtype, ord(name))
    feeds = {"a": integers(shape, "u1", 1)}
    check(device, "QLinearMatMul", feeds, consts, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"])
    order = ["a", "b", "as", "bs", "az", "bz"]
    few = {name: consts[name] for name in order[1:]}
    check(device, "MatMulIntegerToFloat", feeds, few, order, domain=MICROSOFT)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("real", [False, True])
def test_gemm(device, turned, real):
    b = integers((18, 33) if turned else (33, 18), "i1", 2)
    consts = {"b": b, "c": rng(3).integers(-(2**13), 2**13, 18, np.int32)}
    for name, dtype in (("a", "u1"), ("b", "i1"), ("y", "u1")):
        consts[f"{name}s"], consts[f"{name}z"] = pair(dtype, ord(name))
    consts["ys"] = np.array(23.1, F)
    order = ["a", "as", "az", "b", "bs", "bz", "c", *(() if real else ("ys", "yz"))]
    consts = {k: v for k, v in consts.items() if k in order}
    feeds = {"a": integers((5, 33), "u1", 7)}
    check(
        device, "QGemm", feeds, consts, order, not real, domain=MICROSOFT, transB=turned, alpha=0.5
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("size", [(7, 7), (4, 4)])
def test_pooling(device, dtype, size):
    feeds, consts = {"x": integers((2, 19, *size), dtype, 1)}, {}
    for seed in range(3):
        consts["xs"], consts["xz"] = pair(dtype, seed)
        consts["ys"], consts["yz"] = pair(dtype, seed + 50)
        order = ["x", "xs", "xz", "ys", "yz"]
        check(
            device,
            "QLinearGlobalAveragePool",
            feeds,
            consts,
            order,
            domain=MICROSOFT,
            channels_last=0,
        )
        window = {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}
        for counted in (0, 1):
            check(
                device,
                "QLinearAveragePool",
                feeds,
                consts,
                order,
                domain=MICROSOFT,
                count_include_pad=counted,
                **window,
            )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_images_with_channels_last(device, dtype):
    """As onnxruntime writes quantised networks for itself.

    Weights have 7 bits: with more, its sums of pairs leave 16 bits on processors without VNNI, and are cut off there.
    """
    feeds, consts = {"x": integers((2, 7, 9, 6), dtype, 1)}, {}
    names = ("x", "w", "y")
    for name, kind in zip(names, (dtype, np.int8, dtype), strict=True):
        consts[f"{name}s"], consts[f"{name}z"] = pair(kind, ord(name))
    consts |= {"w": integers((8, 3, 3, 2), np.int8, 2) // 2, "wz": np.zeros((), np.int8)}
    consts |= {"ys": np.array(37.5, F), "b": rng(3).integers(-9999, 9999, 8, np.int32)}
    window = {"strides": [2, 1], "pads": [1, 0, 1, 1], "domain": MICROSOFT}
    order = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    check(device, "QLinearConv", feeds, consts, order, group=2, channels_last=1, **window)
    order = ["x", "xs", "xz", "ys", "yz"]
    consts = {name: consts[name] for name in order[1:]} | {"ys": np.array(0.3, F)}
    last = {"channels_last": 1, "domain": MICROSOFT}
    check(device, "QLinearGlobalAveragePool", feeds, consts, order, **last)
    window["kernel_shape"] = [3, 2]
    check(device, "QLinearAveragePool", feeds, consts, order, channels_last=1, **window)
    check(device, "NhwcMaxPool", feeds, {}, ["x"], ceil_mode=1, **window)


@pytest.mark.parametrize("size", [(9, 8), (3, 2)])
def test_averages_that_count_pads_divide_by_all_of_a_window(device, size):
    """Of one that ends outside (ceil_mode), or exceeds the image, too."""
    feeds, consts = {"x": integers((1, 3, *size), np.uint8, 1)}, {}
    consts["xs"], consts["xz"] = pair(np.uint8, 3)
    consts["ys"], consts["yz"] = pair(np.uint8, 53)
    order, counted = ["x", "xs", "xz", "ys", "yz"], {"count_include_pad": 1, "domain": MICROSOFT}
    for kernel, stride, ceil in [(4, 3, 1), (5, 2, 1), (4, 3, 0), (5, 4, 0)]:
        if min(size) > kernel - stride:
            window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "ceil_mode": ceil}
            check(device, "QLinearAveragePool", feeds, consts, order, **window, **counted)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_activations_and_concatenation(device, dtype):
    feeds, consts = {"x": np.arange(256, dtype=np.uint8).view(dtype).reshape(4, 64)}, {}
    for seed in range(4):
        consts["xs"], consts["xz"] = pair(dtype, seed)
        consts["ys"], consts["yz"] = pair(dtype, seed + 50)
        order = ["x", "xs", "xz", "ys", "yz"]
        check(device, "QLinearLeakyRelu", feeds, consts, order, domain=MICROSOFT, alpha=0.3)
        near = consts | {"ys": np.array(1 / 256, F)}
        check(device, "QLinearSigmoid", feeds, near, order, domain=MICROSOFT)
        joined = ["ys", "yz", "x", "xs", "xz", "x", "ys", "yz"]
        check(device, "QLinearConcat", feeds, consts, joined, domain=MICROSOFT, axis=1)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_softmax(device, dtype, axis):
    feeds = {"x": integers((3, 10, 40), dtype, 1) // 4}
    for step in (0.02, 0.11):
        consts = {"xs": np.array(step, F), "xz": np.array(3, dtype), "ys": np.array(1 / 256, F)}
        consts["yz"] = np.array(np.iinfo(dtype).min, dtype)
        order = ["x", "xs", "xz", "ys", "yz"]
        check(device, "QLinearSoftmax", feeds, consts, order, domain=MICROSOFT, axis=axis, opset=13)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("length", [1, 2, 6, 10, 33, 300])
def test_softmax_at_ties_and_where_products_leave_float32(device, dtype, length):
    """Rows of few values: their shares, times an odd number of steps, lie between two bytes."""
    low = np.iinfo(dtype).min
    for odd, step in ((1, 0.0151), (3, 0.0018), (29, 0.2)):
        steps = max(length * odd // 2, 1)
        consts = {"xs": np.array(step, F), "xz": np.array(3, dtype), "yz": np.array(low, dtype)}
        consts["ys"] = np.array(1 / (steps + 0.25), F)
        feeds = {"x": rng(odd).integers(low + 90, low + 94, (60, length)).astype(dtype)}
        order = ["x", "xs", "xz", "ys", "yz"]
        check(device, "QLinearSoftmax", feeds, consts, order, domain=MICROSOFT, axis=-1, opset=13)


@pytest.mark.parametrize("case", [1, 2, 3])
def test_dynamic_quantisation(device, case):
    x = rng(case).normal(0, 3, (6, 40)).astype(F)
    x = {1: x, 2: np.abs(x) + 1, 3: np.zeros_like(x)}[case]
    check(device, "DynamicQuantizeLinear", {"x": x}, {}, ["x"], outputs=3)
    consts = {"b": integers((40, 24), "u1", 2), "bs": np.array(0.02, F), "bz": np.array(120, "u1")}
    consts["bias"] = rng(4).normal(0, 1, 24).astype(F)
    order = ["x", "b", "bs", "bz", "bias"]
    check(device, "DynamicQuantizeMatMul", {"x": x}, consts, order, False, domain=MICROSOFT)


def test_products_of_computed_zero_points(device):
    feeds = {"a": integers((6, 40), "u1", 1), "as": np.array(0.03, F), "az": np.array(77, "u1")}
    consts = {"b": integers((40, 24), "i1", 2), "bs": rng(3).uniform(0.01, 0.1, 24).astype(F)}
    order = ["a", "b", "as", "bs", "az"]
    check(device, "MatMulIntegerToFloat", feeds, consts, order, False, domain=MICROSOFT)
    check(
        device,
        "MatMulInteger",
        {k: feeds[k] for k in ("a", "az")},
        {"b": consts["b"]},
        ["a", "b", "az"],
    )
    filters = {"w": integers((9, 4, 3, 3), "u1", 4), "wz": np.array(99, "u1")}
    image = {"x": integers((1, 4, 6, 5), "u1", 5), "az": feeds["az"]}
    check(device, "ConvInteger", image, filters, ["x", "w", "az", "wz"], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(device, bits, zeros):
    k, n, block = 70, 24, 32
    blocks = -(-k // block)
    consts = {
        "b": integers((n, blocks, block * bits // 8), "u1", 1),
        "s": rng(2).uniform(0.01, 0.1, (n, blocks)).astype(F),
    }
    order = ["a", "b", "s"]
    if zeros:
        consts["z"] = integers((n, -(-blocks * bits // 8)), "u1", 3)
        order.append("z")
    feeds = {"a": rng(4).normal(0, 1, (5, k)).astype(F)}
    check(
        device,
        "MatMulNBits",
        feeds,
        consts,
        order,
        False,
        domain=MICROSOFT,
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("block", [0, 4])
def test_quantise_and_dequantise(device, dtype, block):
    shape, wide = (3, 8, 5), (3, 2, 5) if block else (8,)
    consts = {"s": rng(1).choice(STEPS, wide).astype(F), "z": integers(wide, dtype, 2)}
    attrs = {"axis": 1, "block_size": block} if block else {"axis": 1}
    values = (rng(3).integers(-400, 400, shape) / 4).astype(F)
    check(device, "QuantizeLinear", {"x": values}, consts, ["x", "s", "z"], **attrs)
    check(
        device,
        "DequantizeLinear",
        {"x": integers(shape, dtype, 4)},
        consts,
        ["x", "s", "z"],
        **attrs,
    )
    check(device, "QuantizeLinear", {"x": values}, {"s": np.array(0.05, F)}, ["x", "s"])
    assert TensorProto.UINT8


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_sums_go_on_in_the_same_kernel(device, op, kind):
    """What stands behind them in int32: a bias of each channel, a maximum; then float32."""
    is_conv = op == "ConvInteger"
    x = integers((2, 7, 9, 11), np.uint8, 1)
    w = integers((24, 7, 3, 3) if is_conv else (11, 24), kind, 2)
    bias = integers((24, 1, 1) if is_conv else (24,), np.int32, 3) // 1000
    consts = {"w": w, "bias": bias, "low": np.int32(-3), "scale": F(0.01)}
    nodes = [
        helper.make_node(op, ["x", "w"], ["sums"]),
        helper.make_node("Add", ["sums", "bias"], ["biased"]),
        helper.make_node("Max", ["biased", "low"], ["y0"]),
        helper.make_node("Cast", ["y0"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["y1"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_empty_tensor_value_info(n) for n in ("y0", "y1")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    session = exact_session(made)
    with clnn.compile_model(made, device) as mine:
        got = mine({"x": x})
    for name, array in zip(("y0", "y1"), session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("value", [0, 7, 128])
def test_a_border_of_another_number_is_not_the_zero_point(device, value):
    """Pad in front of a convolution that has a border of its own, of its zero point 128."""
    x = integers((1, 5, 6, 7), np.uint8, 1)
    consts = {
        "sx": F(0.02),
        "zx": np.uint8(128),
        "w": integers((16, 5, 3, 3), np.int8, 2),
        "sw": F(0.01),
        "zw": np.int8(0),
        "sy": F(0.2),
        "zy": np.uint8(100),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]),
        "value": np.uint8(value),
    }
    order = ["padded", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"], ["padded"]),
        helper.make_node("QLinearConv", order, ["y"], pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    (want,) = exact_session(made).run(None, {"x": x})
    with clnn.compile_model(made, device) as mine:
        np.testing.assert_array_equal(mine({"x": x})["y"], want)


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("size", [(9, 23), (20, 11), (17, 23)])
def test_linear_resizing_of_bytes_weights_an_axis_that_is_kept(device, size, dtype, mode):
    feeds = {"x": integers((1, 3, 9, 11), dtype, 4)}
    consts = {"s": np.array([1, 3, *size], np.int64)}
    how = {"mode": "linear", "coordinate_transformation_mode": mode}
    check(device, "Resize", feeds, consts, ["x", "", "", "s"], **how)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_resizing_of_bytes_whose_channels_are_last(device, dtype, seed):
    """Weights are integers there: scales and sizes, up and down, along one axis or two, with crops."""
    g = rng(seed)
    feeds = {"x": integers((2, *g.integers(1, 12, 2), int(g.integers(1, 20))), dtype, seed)}
    shape, order = feeds["x"].shape, ["x", "", "", "s"]
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    consts = {"s": np.array([2, shape[1] + 1, *g.integers(1, 30, 1), shape[3]], np.int64)}
    if seed % 3 == 1:
        how["coordinate_transformation_mode"] = "align_corners"
    if seed % 3 == 2:
        consts["s"] = np.array([1, g.choice([0.6, 1.5, 2.7]), g.choice([0.5, 2.1]), 1], F)
        consts["r"] = np.array([0, -0.1, 0.2, 0, 1, 1.2, 0.9, 1], F)
        order = ["x", "r", "s"]
        how["coordinate_transformation_mode"] = "tf_crop_and_resize"
        how["extrapolation_value"] = 7.0
    check(device, "Resize", feeds, consts, order, **how)
