"""Models with tensors of 16-bit floats and of small types run, and give what onnxruntime gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clnn

ort = pytest.importorskip("onnxruntime")
SERIAL = {"opset_imports": [helper.make_opsetid("", 21)], "ir_version": 10}


def half(array):
    return np.asarray(array).astype(np.float16)


def network():
    """Return a convolutional network in float16 whose middle is float32, and its input."""
    r = rng(0)
    weights = [
        r.normal(0, 0.3, (8, 3, 3, 3)),
        r.normal(0, 0.3, (8, 8, 1, 1)),
        r.normal(size=(8, 5)),
    ]
    consts = {f"w{k}": half(w) for k, w in enumerate(weights)}
    consts |= {"b0": half(r.normal(size=8)), "b2": half(r.normal(size=5)), "c": half(0.3)}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w1"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["e"]),
        helper.make_node("Cast", ["e"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("GlobalAveragePool", ["wide"], ["p"]),
        helper.make_node("CastLike", ["p", "c"], ["n"]),
        helper.make_node("Mul", ["n", "c"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    kinds = [TensorProto.FLOAT16] * 2
    ports = [("x", [2, 3, 9, 7]), ("y", [2, 5])]
    x, y = (helper.make_tensor_value_info(n, k, s) for (n, s), k in zip(ports, kinds, strict=True))
    wide = helper.make_tensor_value_info("wide", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(a, n) for n, a in consts.items()]
    graph = helper.make_graph(nodes, "half", [x], [y, wide], stored)
    made = helper.make_model(graph, **SERIAL).SerializeToString()
    return made, {"x": half(r.normal(size=(2, 3, 9, 7)))}


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_float16_network(device, dtype):
    made, feeds = network()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    want = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    with clnn.compile_model(made, device, clnn.Options(dtype=dtype)) as session:
        got = session(feeds)
    assert [got[n].dtype for n in ("y", "wide")] == [np.float16, np.float32]
    for name, array in zip(("y", "wide"), want, strict=True):
        limit = 2e-3 if dtype == "f16" else 1e-3  # a step of float16
        np.testing.assert_allclose(got[name], array, rtol=0, atol=limit * np.abs(array).max())


def test_values_are_rounded_where_they_leave_the_network_or_are_cast(device):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["big"]),
        helper.make_node("Sub", ["big", "x"], ["y"]),
        helper.make_node("Cast", ["big"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["z"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["narrow"], ["back"], to=TensorProto.FLOAT),
    ]
    ports = {"x": TensorProto.FLOAT16, "z": TensorProto.FLOAT}
    results = {"y": TensorProto.FLOAT16, "wide": 1, "narrow": TensorProto.BFLOAT16, "back": 1}
    graph = helper.make_graph(
        nodes,
        "casts",
        [helper.make_tensor_value_info(n, k, [3]) for n, k in ports.items()],
        [helper.make_tensor_value_info(n, k, [3]) for n, k in results.items()],
    )
    x, z = half([1.001, 300, -2]), np.array([1.01, 3.4e38, np.nan], np.float32)
    with clnn.compile_model(helper.make_model(graph, **SERIAL), device) as session:
        got = session({"x": x, "z": z})
    wide = x.astype(np.float32) ** 2
    np.testing.assert_array_equal(got["y"], half(wide - x.astype(np.float32)))
    np.testing.assert_array_equal(got["wide"], wide)
    assert got["narrow"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got["back"], z.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("block", [0, 4])
def test_weights_and_values_of_few_bits(device, kind, block):
    dtype = np.dtype(getattr(ml_dtypes, kind))
    info, r = ml_dtypes.iinfo(dtype), rng(3)
    shape = (3, 8) if not block else (3, 8 // block)
    scale = r.uniform(0.05, 0.2, () if not block else shape).astype(np.float32)
    zero = np.full(scale.shape, 1).astype(dtype)
    weights = r.integers(info.min, info.max, (3, 8), endpoint=True).astype(dtype)
    blocks = {"block_size": block, "axis": 1} if block else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], **blocks),
        helper.make_node("Mul", ["x", "d"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["q"], **blocks),
        helper.make_node("Transpose", ["q"], ["t"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **blocks),
    ]
    number = helper.np_dtype_to_tensor_dtype(dtype)
    stored = {"w": weights, "s": scale, "z": zero}
    graph = helper.make_graph(
        nodes,
        "few",
        [helper.make_tensor_value_info("x", 1, [3, 8])],
        [
            helper.make_tensor_value_info("t", number, [8, 3]),
            helper.make_tensor_value_info("y", 1, [3, 8]),
        ],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    feeds = {"x": r.normal(0, 2, (3, 8)).astype(np.float32)}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    with clnn.compile_model(model, device) as session:
        got = session(feeds)
    want = ReferenceEvaluator(model).run(None, feeds)
    assert got["t"].dtype == dtype
    np.testing.assert_array_equal(got["t"].astype(np.int8), want[0].astype(np.int8))
    np.testing.assert_array_equal(got["y"], want[1])
