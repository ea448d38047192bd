from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng

from clnn.graph.ir import Graph, Node, check
from clnn.ops.elementwise.cast import Cast
from clnn.ops.onnx_registry import Emit, OnnxNode, Unsupported, onnx_importers
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8, U32, TensorType, dtype_of

EDGES = [
    0,
    -0.0,
    0.9,
    -0.9,
    1.5,
    -1.5,
    2.5,
    127.7,
    128,
    -128.5,
    -129,
    200,
    255.9,
    256,
    300,
    -1,
    -300,
    32768,
    65504,
    65520,
    65536,
    1e9,
    2**31,
    -(2.0**31),
    -(2.0**31) - 4096,
    3e9,
    5e9,
    -3e9,
    2.0**63,
    -(2.0**63),
    1e19,
    1.8446744e19,
    2.0**64,
    1e38,
    1e-40,
    6e-8,
    1e-8,
    np.nan,
    np.inf,
    -np.inf,
]


def values(dtype, count=37):
    """Edge cases of a type, and numbers from all of its range."""
    if dtype == BOOL:
        return rng(1).integers(0, 2, count).astype(bool)
    with np.errstate(over="ignore"):
        if dtype.is_float:
            return np.array(EDGES).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    drawn = rng(2).integers(limits.min, limits.max, count, dtype.numpy, endpoint=True)
    return np.concatenate([drawn, [limits.min, limits.max, 0, 1]]).astype(dtype.numpy)


def casts(source, targets):
    """A graph that casts one input to several types."""
    types = {"x": TensorType(values(source).shape, source)}
    nodes, outs = [], {}
    for target in targets:
        name = f"to_{target.name}"
        types[name] = Cast(target).infer([types["x"]])[0]
        nodes.append(Node(name, Cast(target), ("x",), (name,)))
        outs[name] = name
    return check(Graph(tuple(nodes), types, {}, ("x",), outs))


def check_casts(device, source, targets):
    x = values(source)
    with Session(casts(source, targets), select(device), Options()) as session:
        got = session({"x": x})
    for target in targets:
        np.testing.assert_array_equal(got[f"to_{target.name}"], Cast(target).reference(x)[0])


@pytest.mark.parametrize("source", [F32, F16, F64], ids=repr)
def test_real_numbers_to_every_type(device, source):
    check_casts(device, source, [t for t in DTYPES if t != source])


@pytest.mark.parametrize("source", [I8, U8, U32, I64, BOOL], ids=repr)
def test_integers_to_typical_types(device, source):
    check_casts(device, source, [t for t in (F32, F16, I32, U8, BOOL) if t != source])


@pytest.mark.exhaustive
@pytest.mark.parametrize("source", DTYPES, ids=repr)
def test_every_type_to_every_type(device, source):
    check_casts(device, source, [t for t in DTYPES if t != source])


@pytest.mark.parametrize(
    "source,target", [(F32, U8), (F32, I64), (F16, I32), (F64, U32), (I32, F32)]
)
def test_layouts_that_have_no_vectors(device, source, target):
    x = np.resize(values(source), (2, 5, 4, 3))
    check_op(device, Cast(target), [x], orders={"i0": (0, 2, 3, 1)}, border=1, tolerance=0)


def onnx_cast(**attrs):
    node = OnnxNode("Cast", 21, attrs, (TensorType((2, 3)),), {})
    return onnx_importers()["Cast"](node)


def test_a_cast_to_the_same_type_is_an_alias():
    assert onnx_cast(to=1) == 0


def test_import_names_types_that_clnn_has_not():
    assert onnx_cast(to=7).spec == Cast(I64)
    with pytest.raises(Unsupported, match="float8e8m0"):
        onnx_cast(to=24)
    with pytest.raises(Unsupported, match="string"):
        onnx_cast(to=8)


def test_cast_like_takes_the_type_of_its_second_input():
    types = (TensorType((2,)), TensorType((5,), U8))
    emitted = onnx_importers()["CastLike"](OnnxNode("CastLike", 19, {}, types, {}))
    assert isinstance(emitted, Emit) and emitted.spec == Cast(U8)


@pytest.mark.parametrize("source", [F32, F64], ids=repr)
@pytest.mark.parametrize(
    "target", [d for d in DTYPES if d.name not in ("uint32", "uint64")], ids=repr
)
def test_reference_agrees_with_onnxruntime(source, target):
    """Also outside of the target's range, but for types whose result there depends on vector lanes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    import onnx

    x = values(source)
    number = onnx.helper.np_dtype_to_tensor_dtype(target.numpy)
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=number)
    given = onnx.helper.make_tensor_value_info(
        "x", onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
    )
    graph = onnx.helper.make_graph([node], "g", [given], [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    want = session.run(None, {"x": x})[0]
    assert dtype_of(want.dtype) == target
    np.testing.assert_array_equal(Cast(target).reference(x)[0], want)
