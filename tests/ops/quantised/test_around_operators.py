"""Real operators between DequantizeLinear and QuantizeLinear give onnxruntime's integers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import helper, numpy_helper
from reference_engines import exact_session

import clnn

pytest.importorskip("onnxruntime")

F = np.float32


def integers(shape, dtype, seed):
    info = np.iinfo(dtype)
    return rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def around(op, x, scales, inputs=(), **attrs):
    """Return the bytes of a model of one real operator between DequantizeLinear and QuantizeLinear."""
    consts = {
        "xs": scales[0],
        "ys": scales[1],
        "z": np.asarray(np.iinfo(x.dtype).max // 2 + 1, x.dtype),
    }
    consts |= {f"c{k}": a for k, a in enumerate(inputs)}
    names = [f"c{k}" if a.size else "" for k, a in enumerate(inputs)]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "z"], ["real"]),
        helper.make_node(op, ["real", *names], ["made"], **attrs),
        helper.make_node("QuantizeLinear", ["made", "ys", "z"], ["y"]),
    ]
    return network(x, nodes, {n: a for n, a in consts.items() if np.asarray(a).size})


def network(x, nodes, consts):
    """Return the bytes of a model of nodes with input x and output y."""
    graph = helper.make_graph(
        nodes,
        "around",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def check_around(device, x, made):
    """Compare to the bit with onnxruntime's fused run."""
    session = exact_session(made)
    want = session.run(None, {"x": x})[0]
    with clnn.compile_model(made, device) as mine:
        np.testing.assert_array_equal(mine({"x": x})["y"], want)


@pytest.mark.parametrize("scales", [(2, 2), (2, 0.5), (1.5, 2)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_resizing_of_what_bytes_were(device, dtype, scales):
    """Between two bytes the last digit of a sum decides, so each is rounded as there."""
    x = integers((2, 4, 9, 11), dtype, 5)
    more = [np.zeros(0, F), np.array([1, 1, *scales], F)]
    check_around(device, x, around("Resize", x, (F(0.0188), F(0.0188)), more, mode="linear"))


@pytest.mark.parametrize("size", [(1, 11), (11, 1)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_resizing_of_one_row(device, dtype, size):
    """Its only element counts twice at half weight, which decides at ties of the other axis."""
    x = integers((1, 8, *size), dtype, 5)
    scales = [2, 0.5] if size[0] == 1 else [0.5, 2]
    more = [np.zeros(0, F), np.array([1, 1, *scales], F)]
    check_around(device, x, around("Resize", x, (F(0.015686275),) * 2, more, mode="linear"))


@pytest.mark.parametrize("op", ["Tanh", "Sigmoid"])
def test_tables_of_functions_that_onnxruntime_has_as_rational_ones(device, op):
    """At steps of 0.0157 the tanh of -127 of them lies at a tie."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for step in (F(0.007556622), F(0.0039)):
        check_around(device, x, around(op, x, (F(0.015686275), step)))


@pytest.mark.parametrize("step", [0.0017, 1e-3, 1e-5])
def test_softmax_in_steps_so_small_that_most_results_saturate(device, step):
    x = np.array([[193, 120, 161], [0, 255, 7]], np.uint8)
    check_around(device, x, around("Softmax", x, (F(0.007843137), F(step))))


def transposed(seed, dtype):
    """Return the input and a model of a quantised transposed convolution of any geometry."""
    g, info = rng(seed), np.iinfo(dtype)
    group = 2 if seed % 5 == 4 else 1
    channels = group * int(g.choice([1, 3, 7, 16, 130]))
    per = int(g.choice([1, 2, 4, 9]))
    size = (1, 1) if seed % 4 == 3 else g.integers(1, 9, 2)  # of one pixel sums are others
    kernel = g.integers(1, 5, 2)
    x = integers((2, channels, *map(int, size)), dtype, seed)
    consts = {
        "w": g.integers(-127, 128, (channels, per, *kernel)).astype(np.int8),
        "xs": F(g.uniform(0.001, 0.1)),
        "xz": np.array(g.integers(info.min, info.max), dtype),
        "ws": g.uniform(0.001, 0.02, () if seed % 2 else per).astype(F),
        "yz": np.array(g.integers(info.min, info.max), dtype),
        "b": g.normal(0, 1, per * group).astype(F),
    }
    consts["wz"] = np.zeros(consts["ws"].shape, np.int8)
    consts["ys"] = F(consts["xs"] * consts["ws"].mean() * g.choice([512, 3000, 20000]))
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["real"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["weights"], axis=1),
        helper.make_node(
            "ConvTranspose",
            ["real", "weights", *(["b"] if seed % 3 else [])],
            ["made"],
            group=group,
            strides=g.integers(1, 4, 2).tolist(),
            dilations=g.integers(1, 3, 2).tolist(),
            output_padding=[0, 0],
        ),
        helper.make_node("Relu", ["made"], ["positive"]),
        helper.make_node("QuantizeLinear", ["positive", "ys", "yz"], ["y"]),
    ]
    if seed % 2:
        del nodes[3]
        nodes[-1].input[0] = "made"
    return x, network(x, nodes, consts)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("seed", range(10))
def test_transposed_convolutions_sum_in_the_same_order(device, seed, dtype):
    """Channels, at most 128 at a time, then taps, then the bias; of one pixel four products at a time."""
    check_around(device, *transposed(seed, dtype))


def test_softmax_in_front_of_an_operator_of_bytes(device):
    """Its result stays int8, for no DequantizeLinear reads it, and so onnxruntime computes in float32."""
    x = rng(3).uniform(0, 2, (8, 16, 4, 7)).astype(F)
    consts = {"xs": F(0.007843138), "xz": np.int8(-128), "ps": F(0.003234963), "pz": np.int8(0)}
    consts |= {"ys": F(0.0016111383), "yz": np.int8(-128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["real"]),
        helper.make_node("Softmax", ["real"], ["made"]),
        helper.make_node("QuantizeLinear", ["made", "ps", "pz"], ["p"]),
        helper.make_node(
            "QLinearGlobalAveragePool",
            ["p", "ps", "pz", "ys", "yz"],
            ["y"],
            domain="com.microsoft",
            channels_last=0,
        ),
    ]
    check_around(device, x, network(x, nodes, consts))


def of_real_weights(op, seed):
    """Return the input and a model of a product of bytes with float32 weights."""
    g = rng(seed)
    shape = {"Conv": (12, 8, 3, 3), "ConvTranspose": (8, 12, 2, 2), "Gemm": (12, 8)}[op]
    x = integers((2, 8) if op == "Gemm" else (1, 8, 5, 6), np.uint8, seed)
    consts = {
        "w": (g.normal(0.01, 0.1, shape) + 0.3 * (seed == 1)).astype(F),
        "xs": F(0.031),
        "xz": np.uint8(g.integers(0, 255)),
        "ys": F(0.05),
        "yz": np.uint8(120),
        "b": g.normal(0, 1, 12).astype(F),
    }
    attrs = {"transB": 1} if op == "Gemm" else {"strides": [2, 2]}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["real"]),
        helper.make_node(op, ["real", "w", *(["b"] if seed else [])], ["made"], **attrs),
        helper.make_node("QuantizeLinear", ["made", "ys", "yz"], ["y"]),
    ]
    return x, network(x, nodes, consts)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("seed", range(3))
def test_float32_weights_between_bytes_become_bytes(device, op, seed):
    """One scale and zero point for all of them, and the bias in steps of the sums."""
    check_around(device, *of_real_weights(op, seed))
