from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engines import onnxruntime_result
from together import chain, evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.gather import Gather, GatherElements, GatherND
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import F32, I64, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def indices(extent, shape, dtype="int64", seed=0):
    """Indices from both ends of an axis."""
    return rng(seed).integers(-extent, extent, shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("fed", [True, False], ids=["fed", "constant"])
def test_gather_along_every_axis(device, axis, fed):
    x = normal((3, 18, 5, 6))
    i = indices(x.shape[axis], (2, 3))
    check_op(device, Gather(axis), [x, i], consts=() if fed else (1,), tolerance=0)


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("orders", [NHWC, {"i0": (0, 2, 3, 1)}, {"o0": (3, 2, 1, 0)}])
def test_gather_between_memory_orders(device, axis, orders):
    x = normal((2, 19, 3, 4))
    i = indices(x.shape[axis], (7,), "int32")
    check_op(device, Gather(axis), [x, i], orders=orders, border=1, tolerance=0)


@pytest.mark.parametrize("dtype", ["float16", "int64", "uint8", "bool", "float64"])
def test_gather_of_any_type(device, dtype):
    x = rng().integers(0, 2, (5, 33)).astype(dtype)
    check_op(device, Gather(0), [x, indices(5, (4,), "uint8") % 5], tolerance=0)
    check_op(device, Gather(1), [x, indices(33, (9,), "int32")], tolerance=0)


def test_a_table_of_words(device):
    """Rows of a large constant table by indices that are fed."""
    table, words = normal((50, 37)), indices(50, (2, 11))
    check_op(device, Gather(0), [table, words], consts=(0,), tolerance=0)


@pytest.mark.parametrize(
    "shape,index_shape,axis",
    [
        ((5,), (), 0),
        ((2, 3), (0,), 1),
        ((0, 3), (2,), 1),
        ((1,), (4,), 0),
        ((3, 0), (0, 2), 1),
    ],
)
def test_small_shapes(device, shape, index_shape, axis):
    i = np.zeros(index_shape, np.int64)
    check_op(device, Gather(axis), [normal(shape), i], tolerance=0)


def test_indices_out_of_range_read_inside_the_tensor(device):
    """Fed indices are not known in advance: the nearest valid element is read, never other memory."""
    x, i = normal((4,)), np.array([0, 9, -9, 2**40, -(2**40)], np.int64)
    types = {"x": TensorType((4,)), "i": TensorType((5,), I64), "y": TensorType((5,))}
    graph = check(
        Graph((Node("g", Gather(0), ("x", "i"), ("y",)),), types, {}, ("x", "i"), {"y": "y"})
    )
    with Session(graph, select(device), Options()) as session:
        np.testing.assert_array_equal(session({"x": x, "i": i})["y"], x[[0, 3, 0, 3, 0]])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(device, axis):
    x = normal((4, 18, 5))
    i = indices(x.shape[axis], (4, 17, 5) if axis != 1 else (3, 40, 5))
    check_op(device, GatherElements(axis), [x, i], orders={"i0": (0, 2, 1)}, tolerance=0)


@pytest.mark.parametrize(
    "batch,index_shape",
    [
        (0, (4, 1)),
        (0, (2, 3, 2)),
        (0, (5, 4)),
        (1, (3, 6, 1)),
        (1, (3, 2, 2)),
        (2, (3, 4, 2)),
        (0, (3,)),
    ],
)
def test_gather_nd(device, batch, index_shape):
    x = normal((3, 4, 5, 17))
    extents = x.shape[batch : batch + index_shape[-1]]
    i = np.stack([indices(d, index_shape[:-1], seed=k) for k, d in enumerate(extents)], -1)
    check_op(device, GatherND(batch), [x, i], tolerance=0)


@settings(max_examples=4, deadline=None)
@given(st.data())
def test_gather_of_any_shape(device, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=2)))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    i = indices(shape[axis], index_shape)
    check_op(device, Gather(axis), [normal(shape), i], orders={"i0": order}, tolerance=0)


AS_VIEWS = [
    ([0], ["slice"]),
    (3, ["slice", "reshape"]),
    ([1, 2, 3], ["slice"]),
    ([4, 2, 0], ["slice"]),
    ([-1, -2], ["slice"]),
    ([[0, 1], [2, 3]], ["slice", "reshape"]),
    ([2, 2, 2], ["slice", "expand"]),
    ([[1], [1]], ["slice", "expand", "reshape"]),
    ([], ["slice"]),
    ([-5, 1], ["slice"]),
    ([0, 2, 3], ["gather"]),
    ([3, 0, 1], ["gather"]),
]


@pytest.mark.parametrize("given_indices,kinds", AS_VIEWS)
def test_evenly_spaced_constants_become_views(given_indices, kinds):
    inputs = [normal((2, 5, 3)), np.array(given_indices, np.int64)]
    made = imported("Gather", inputs, {"axis": 1}, 13, consts=(1,))
    assert chain(made) == kinds
    np.testing.assert_array_equal(evaluate(made, inputs), np.take(inputs[0], inputs[1], axis=1))


def test_constant_indices_count_from_the_front_as_int32():
    made = imported("Gather", [normal((4, 5)), np.array([-1, 0, 2])], {"axis": -1}, 13, consts=(1,))
    np.testing.assert_array_equal(made.inputs[1], [4, 0, 2])
    assert made.inputs[1].dtype == np.int32


def channel_shuffle():
    """Two halves of interleaved channels, as gathers of a turned tensor."""
    x = TensorType((1, 8, 5, 5))
    relu = Eltwise((PostOp("relu"),))
    rows = [
        ("a", relu, "x"),
        (
            "b",
            imported(
                "Reshape",
                [np.zeros((1, 8, 5, 5), np.float32), np.array([4, 2, 25])],
                {},
                11,
                consts=(1,),
            ).spec,
            "a",
        ),
    ]
    turned = imported("Transpose", [np.zeros((4, 2, 25), np.float32)], {"perm": [1, 0, 2]}).spec
    rows.append(("c", turned, "b"))
    blank = np.zeros((2, 4, 25), np.float32)
    for k in range(2):
        source = imported("Gather", [blank, np.array(k)], {"axis": 0}, 11, consts=(1,))
        rows.append((f"s{k}", source.inputs[0].spec, "c"))
        rows.append((f"g{k}", source.spec, f"s{k}"))
        rows.append((f"y{k}", relu, f"g{k}"))
    types, nodes = {"x": x}, []
    for out, spec, feed in rows:
        types[out] = spec.infer([types[feed]])[0]
        nodes.append(Node(out, spec, (feed,), (out,)))
    return check(Graph(tuple(nodes), types, {}, ("x",), {"y0": "y0", "y1": "y1"}))


def test_a_channel_shuffle_moves_no_data(device):
    x = normal((1, 8, 5, 5))
    with Session(channel_shuffle(), select(device), Options()) as session:
        got = session({"x": x})
        assert session.plan.copied_bytes == 0
    want = np.maximum(x, 0).reshape(4, 2, 25)
    np.testing.assert_array_equal(got["y0"], want[:, 0])
    np.testing.assert_array_equal(got["y1"], want[:, 1])


@pytest.mark.parametrize(
    "op,shape,index,attrs",
    [
        ("Gather", (4, 5), [[0, -1], [2, 1]], {"axis": 1}),
        ("Gather", (4, 5), 2, {}),
        ("GatherElements", (3, 4), [[0, -1], [2, 1]], {"axis": 1}),
        ("GatherElements", (3, 4), [[0, 1, 2, -3]], {}),
        ("GatherND", (2, 3, 4), [[0, 1], [1, -1]], {}),
        ("GatherND", (2, 3, 4), [[[0]], [[2]]], {"batch_dims": 1}),
    ],
)
@pytest.mark.parametrize("fed", [True, False], ids=["fed", "constant"])
def test_imports_agree_with_onnxruntime(op, shape, index, attrs, fed):
    inputs = [normal(shape), np.array(index, np.int64)]
    want = onnxruntime_result(op, inputs, attrs, 13)[0]
    made = imported(op, inputs, attrs, 13, consts=() if fed else (1,))
    np.testing.assert_array_equal(evaluate(made, inputs), want)


@pytest.mark.parametrize(
    "op,index,attrs",
    [
        ("Gather", [0, 5], {"axis": 1}),
        ("Gather", 5, {"axis": 1}),
        ("Gather", [-1, 5], {"axis": 1}),
        ("Gather", [-6], {"axis": 1}),
        ("GatherND", [[0, 5]], {}),
        ("GatherElements", [[5]], {"axis": 1}),
    ],
)
def test_constant_indices_out_of_range_are_named(op, index, attrs):
    with pytest.raises(ShapeError, match=r"index (5|-6) is outside of extent.*5"):
        imported(op, [normal((4, 5)), np.array(index)], attrs, 13, consts=(1,))


@pytest.mark.parametrize(
    "spec,types,error,words",
    [
        (Gather(0), [TensorType((3,)), TensorType((2,), F32)], DTypeError, "float32"),
        (Gather(2), [TensorType((3, 4)), TensorType((2,), I64)], ShapeError, r"axis 2 of \(3, 4\)"),
        (
            Gather(0),
            [TensorType((0, 4)), TensorType((2,), I64)],
            ShapeError,
            r"empty axis of \(0, 4\)",
        ),
        (GatherElements(0), [TensorType((3, 4)), TensorType((2, 5), I64)], ShapeError, r"\(2, 5\)"),
        (GatherND(0), [TensorType((3, 4)), TensorType((2, 3), I64)], ShapeError, r"\(2, 3\)"),
        (GatherND(1), [TensorType((3, 4)), TensorType((2, 1), I64)], ShapeError, "1 batch axes"),
    ],
)
def test_operands_that_do_not_fit_are_named(spec, types, error, words):
    with pytest.raises(error, match=words):
        spec.infer(types)
