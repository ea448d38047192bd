"""Constants of every kind, and nodes that fold because their inputs are constants."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx import helper as make
from onnx_models import BOOL, FLOAT, ints, model, run, tensor, value

from clnn.importers.onnx.importer import import_onnx

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def test_shape_arithmetic_folds_away():
    """reshape(x, (x.shape[0], -1)), the way exporters write it."""
    nodes = [
        make.make_node("Shape", ["x"], ["s"]),
        make.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        make.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        make.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        make.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [tensor("zero", np.int64(0)), ints("axes", 0), ints("rest", -1)]
    graph = import_onnx(model(nodes, [value("x", (3, 4, 5))], initializers=weights))
    assert graph.types[graph.outputs["y"]].shape == (3, 20)
    assert len(graph.nodes) == 1


CONSTANT_NODES = {
    "slice of a shape": ([make.make_node("Shape", ["x"], ["y"], start=1, end=-1)], [3, 4]),
    "size": ([make.make_node("Size", ["x"], ["y"])], 120),
    "range": ([make.make_node("Range", ["a", "b", "c"], ["y"])], [2, 5, 8]),
    "constant of shape": (
        [make.make_node("ConstantOfShape", ["v"], ["y"], value=ints("v", 7))],
        [[7, 7, 7]] * 1,
    ),
    "integer division": ([make.make_node("Div", ["n", "c"], ["y"])], [-2, 3]),
    "remainder": ([make.make_node("Mod", ["n", "c"], ["y"])], [2, 1]),
    "largest integer": ([make.make_node("Identity", ["big"], ["y"])], [2**63 - 1]),
}


@pytest.mark.parametrize("case", CONSTANT_NODES)
def test_integer_constants_are_exact(case):
    nodes, want = CONSTANT_NODES[case]
    weights = [
        tensor("a", np.int64(2)),
        tensor("b", np.int64(9)),
        tensor("c", np.int64(3)),
        ints("v", 1, 3),
        ints("n", -7, 10),
        ints("big", 2**63 - 1),
    ]
    graph = import_onnx(model(nodes, [value("x", (2, 3, 4, 5))], initializers=weights))
    got = graph.consts[graph.outputs["y"]]
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
    assert not graph.nodes


CONSTANT_FORMS = {
    "value_float": (1.5, np.float32(1.5)),
    "value_floats": ([1.0, 2.0], np.array([1, 2], np.float32)),
    "value_int": (3, np.int64(3)),
    "value_ints": ([3, 4], np.array([3, 4])),
    "value": (tensor("", np.array([[5]], np.int32)), np.array([[5]], np.int32)),
}


@pytest.mark.parametrize("form", CONSTANT_FORMS)
def test_every_form_of_constant(form):
    given, want = CONSTANT_FORMS[form]
    graph = import_onnx(model([make.make_node("Constant", [], ["y"], **{form: given})]))
    got = graph.consts[graph.outputs["y"]]
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_constants_of_types_without_tensors_fold_through_casts():
    """Weights stored as bfloat16, float16 or float8 and cast to float32 at once."""
    for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN):
        stored = make.make_tensor("w", kind, [2], [1.5, -0.5])
        nodes = [
            make.make_node("Cast", ["w"], ["f"], to=FLOAT),
            make.make_node("Add", ["x", "f"], ["y"]),
        ]
        graph = import_onnx(model(nodes, [value("x", (2,))], initializers=[stored]))
        np.testing.assert_array_equal(run(graph, x=np.zeros(2, np.float32))["y"], [1.5, -0.5])


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_quantised_constants_fold(opset):
    nodes = [
        make.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        make.make_node("Add", ["x", "f"], ["y"]),
    ]
    weights = [
        tensor("w", np.array([3, 130], np.uint8)),
        tensor("s", np.float32(0.5)),
        tensor("z", np.uint8(128)),
    ]
    graph = import_onnx(model(nodes, [value("x", (2,))], initializers=weights, opset=opset))
    np.testing.assert_array_equal(run(graph, x=np.zeros(2, np.float32))["y"], [-62.5, 1])


def test_sparse_initializers_are_made_dense():
    for indices in ([[0, 1], [2, 3]], None):
        places = np.array(indices if indices else [1, 11], np.int64)
        sparse = make.make_sparse_tensor(
            tensor("w", np.array([5, 7], np.float32)), tensor("", places), [3, 4]
        )
        proto = model([make.make_node("Add", ["x", "w"], ["y"])], [value("x", (3, 4))])
        proto.graph.sparse_initializer.append(sparse)
        want = np.zeros((3, 4))
        want[0, 1], want[2, 3] = 5, 7
        np.testing.assert_array_equal(
            run(import_onnx(proto), x=np.zeros((3, 4), np.float32))["y"], want
        )


TYPED = [
    np.float32,
    np.float64,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    np.int64,
    np.uint64,
    np.bool_,
]


@pytest.mark.parametrize("dtype", TYPED, ids=lambda d: d.__name__)
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_every_type_and_storage(dtype, raw):
    array = np.array([[0, 1, 1], [1, 0, 100]]).astype(dtype)
    kind = make.np_dtype_to_tensor_dtype(array.dtype)
    data = array.tobytes() if raw else array.reshape(-1).tolist()
    proto = model([], [], ["w"], [make.make_tensor("w", kind, array.shape, data, raw=raw)])
    got = import_onnx(proto).consts["w"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_true_is_true_whatever_byte_it_is_stored_as():
    proto = model([], [], ["w"], [make.make_tensor("w", BOOL, [3], bytes([0, 2, 255]), raw=True)])
    np.testing.assert_array_equal(import_onnx(proto).consts["w"], [False, True, True])


def test_constants_expanded_and_written_by_tuples_fold():
    """Tables of positions that a model makes at each call: an Expand that does nothing is no larger."""
    x, size = np.arange(2 * 200 * 200, dtype=np.float32).reshape(2, 200, 200), 200
    places = np.stack(np.meshgrid(range(2), range(size), [3, -1], indexing="ij"), -1)
    nodes = [
        make.make_node("Expand", ["x", "shape"], ["e"]),
        make.make_node("ScatterND", ["e", "i", "u"], ["s"]),
        make.make_node("ScatterND", ["s", "i", "u"], ["y"], reduction="add"),
    ]
    updates = np.arange(2 * size * 2, dtype=np.float32).reshape(2, size, 2)
    weights = [tensor("x", x), ints("shape", 1, size, 1), tensor("i", places), tensor("u", updates)]
    graph = import_onnx(model(nodes, [value("z", (1,))], initializers=weights, opset=18))
    want = x.copy()
    want[..., [3, -1]] = updates * 2
    assert not graph.nodes
    np.testing.assert_array_equal(graph.consts[graph.outputs["y"]], want)
