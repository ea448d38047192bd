from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from harness import check_op, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from reference_engines import one_node, onnxruntime_result
from together import chain, evaluate, imported

from clnn.api import compile_model
from clnn.errors import DTypeError, ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.importers.onnx.importer import import_onnx
from clnn.layout import TensorLayout
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import (
    Concat,
    Copy,
    Expand,
    Reshape,
    Slice,
    Transpose,
    refine,
    slice_of,
)
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.types import F32, I32, TensorType, dtype_of

RELU = Eltwise((PostOp("relu"),))


def network(inputs, nodes, outputs):
    """A graph of (output, spec, inputs) rows, types inferred."""
    types = {n: TensorType(a.shape, dtype_of(a.dtype)) for n, a in inputs.items()}
    made = []
    for out, spec, feeds in nodes:
        types[out] = spec.infer([types[n] for n in feeds])[0]
        made.append(Node(out, spec, tuple(feeds), (out,)))
    return check(Graph(tuple(made), types, {}, tuple(inputs), {n: n for n in outputs}))


def run(device, graph, feeds):
    """Outputs on a device with and without shared memory, and the bytes that views copied."""
    found = []
    for arena in ("separate", "shared"):
        with Session(graph, select(device), Options(arena=arena, guard=128)) as session:
            found.append(session(feeds))
            copied = session.plan.copied_bytes
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
    return found[0], copied


def reference(graph, feeds):
    """Values of all outputs with numpy."""
    values = dict(feeds)
    for node in graph.nodes:
        values[node.outputs[0]] = node.spec.reference(*[values[n] for n in node.inputs])[0]
    return {name: values[name] for name in graph.outputs}


def check_network(device, inputs, nodes, outputs, copied=None):
    graph = network(inputs, nodes, outputs)
    found, moved = run(device, graph, inputs)
    for name, want in reference(graph, inputs).items():
        np.testing.assert_array_equal(found[name], want)
    if copied is not None:
        assert moved == copied


VIEWS = {
    "transpose": (Transpose((2, 0, 3, 1)), (2, 3, 4, 5)),
    "reshape": (Reshape((6, 20)), (2, 3, 4, 5)),
    "reshape that does not nest": (Reshape((5, 24)), (2, 3, 4, 5)),
    "slice": (Slice((0, 2, 3, 4), (2, 1, 2, 5), (1, 1, -2, -1)), (2, 3, 4, 5)),
    "slice of nothing": (Slice((0, 0), (0, 3), (1, 1)), (2, 3)),
    "expand": (Expand((3, 2, 17, 4)), (2, 1, 4)),
    "expand a scalar": (Expand((3, 5)), ()),
    "split channels": (slice_of((2, 35, 3, 4), 1, 3, 17), (2, 35, 3, 4)),
    "copy": (Copy(), (3, 5, 7)),
}


@pytest.mark.parametrize("spec,shape", VIEWS.values(), ids=VIEWS)
def test_copies_of_constants(device, spec, shape):
    """A constant has no views, so the op must move its data."""
    x = normal(shape)
    ran = check_op(device, spec, [x], consts=(0,), tolerance=0)
    assert ran != ["view"] or not math.prod(spec.infer([TensorType(shape)])[0].shape)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float16", "float64", "bool", "int16"])
def test_copies_of_any_type(device, dtype):
    x = rng().integers(0, 2, (3, 4, 5)).astype(dtype)
    for spec in (Transpose((2, 1, 0)), Slice((2, 0, 0), (3, 2, 5), (-1, 2, 1))):
        check_op(device, spec, [x], consts=(0,), tolerance=0)


ORDERS = [{"i0": (0, 2, 3, 1)}, {"o0": (3, 1, 0, 2)}, {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}]


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("name", ["transpose", "split channels", "copy"])
def test_copies_between_memory_orders(device, orders, name):
    shape = (2, 35, 3, 4)
    spec = {"transpose": Transpose((1, 0, 3, 2)), "copy": Copy()}.get(name, VIEWS[name][0])
    check_op(device, spec, [normal(shape)], consts=(0,), orders=orders, tolerance=0)


@pytest.mark.parametrize(
    "shape,new",
    [
        ((2, 6, 4, 4), (2, 96)),
        ((2, 6, 4, 4), (2, 3, 2, 16)),
        ((2, 6, 4, 4), (8, 24)),
        ((2, 3, 5, 7), (7, 30)),
        ((1, 1, 1, 1), ()),
        ((4, 1, 3), (1, 12, 1)),
        ((0, 3), (3, 0, 2)),
    ],
)
def test_reshape_beside_a_border(device, shape, new):
    """Padding between rows keeps a reshape from being a view; channels innermost as well."""
    x = normal(shape)
    check_op(device, Reshape(new), [x], border=2, tolerance=0)
    if len(shape) == 4:
        check_op(device, Reshape(new), [x], orders={"i0": (0, 2, 3, 1)}, tolerance=0)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_any_reshape_of_any_order(device, data):
    factors = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=5))
    shape = tuple(factors)
    mixed = data.draw(st.permutations(factors))
    cut = data.draw(st.integers(0, len(mixed)))
    new = (math.prod(mixed[:cut]), *mixed[cut:])
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    check_op(device, Reshape(new), [normal(shape)], orders={"i0": order}, tolerance=0)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_any_slice(device, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    starts, extents, steps = [], [], []
    for d in shape:
        start, stop = data.draw(st.integers(0, d - 1)), data.draw(st.integers(-1, d))
        step = data.draw(st.sampled_from([1, 2, -1, -3]))
        extents.append(len(range(start, stop, step)))
        starts.append(start if extents[-1] else 0)
        steps.append(step)
    spec = Slice(tuple(starts), tuple(extents), tuple(steps))
    check_op(device, spec, [normal(shape)], consts=(0,), tolerance=0)


REFINED = [
    ((2, 3, 4), (6, 4), (2, 3, 4)),
    ((6, 4), (2, 3, 4), (2, 3, 4)),
    ((6, 4), (4, 6), None),
    ((12,), (3, 4), (3, 4)),
    ((2, 6), (4, 3), (2, 2, 3)),
    ((1, 5), (5,), (5,)),
    ((0, 3), (3, 0), None),
    ((8, 9), (2, 4, 3, 3), (2, 4, 3, 3)),
    ((2, 3), (3, 2), None),
    ((), (), ()),
]


@pytest.mark.parametrize("old,new,fine", REFINED)
def test_common_refinement_of_two_shapes(old, new, fine):
    found = refine(old, new)
    moving = None if found is None else tuple(d for d in found if d != 1)
    assert moving == (None if fine is None else tuple(d for d in fine if d != 1))


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5), st.data())
def test_refinement_splits_both_shapes(factors, data):
    new = data.draw(st.permutations(factors))
    found = refine(tuple(factors), tuple(new))
    if found is not None:
        for shape in (factors, new):
            assert TensorLayout.make(found).reshape(shape) is not None
            runs = {math.prod(shape[k:]) for k in range(len(shape))}
            assert runs <= {math.prod(found[k:]) for k in range(len(found) + 1)}


def test_a_chain_of_views_copies_nothing(device):
    x = normal((2, 6, 4, 4))
    nodes = [
        ("a", RELU, ["x"]),
        ("b", Reshape((2, 3, 2, 16)), ["a"]),
        ("c", Transpose((0, 2, 1, 3)), ["b"]),
        ("d", Slice((0, 1, 2, 0), (2, 1, 2, 8), (1, 1, -1, 2)), ["c"]),
        ("e", Expand((2, 5, 2, 8)), ["d"]),
        ("y", RELU, ["e"]),
    ]
    check_network(device, {"x": x}, nodes, ["y"], copied=0)


def test_a_reshape_after_a_transpose_copies_once(device):
    x = normal((4, 6))
    nodes = [
        ("a", RELU, ["x"]),
        ("b", Transpose((1, 0)), ["a"]),
        ("c", Reshape((24,)), ["b"]),
        ("y", RELU, ["c"]),
    ]
    check_network(device, {"x": x}, nodes, ["y"], copied=24 * 4)


def test_members_made_inside_a_concat_are_not_copied(device):
    x, y = normal((2, 3, 4, 5)), normal((2, 4, 4, 5), 1)
    nodes = [
        ("a", RELU, ["x"]),
        ("b", RELU, ["y"]),
        ("c", Concat(1), ["a", "b"]),
        ("z", RELU, ["c"]),
    ]
    check_network(device, {"x": x, "y": y}, nodes, ["z"], copied=0)


def test_a_member_used_twice_is_copied_once(device):
    x = normal((2, 3, 5))
    nodes = [("a", RELU, ["x"]), ("c", Concat(1), ["a", "a"]), ("z", RELU, ["c"])]
    check_network(device, {"x": x}, nodes, ["z"], copied=2 * 3 * 5 * 4)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "float16"])
def test_concat_of_network_inputs(device, axis, dtype):
    shapes = [[2, 3, 5], [2, 3, 5], [2, 3, 5]]
    for k, shape in enumerate(shapes):
        shape[axis] = k
    inputs = [rng(k).integers(0, 9, s).astype(dtype) for k, s in enumerate(shapes)]
    check_op(device, Concat(axis), inputs, tolerance=0)


def test_parts_of_a_split_are_views(device):
    x = normal((2, 9, 4, 4))
    parts = imported("Split", [x, np.array([4, 2, 3])], {"axis": 1}, 13, consts=(1,), n_outputs=3)
    nodes = [("a", RELU, ["x"])]
    nodes += [(f"p{k}", part.spec, ["a"]) for k, part in enumerate(parts)]
    nodes += [(f"y{k}", RELU, [f"p{k}"]) for k in range(3)]
    check_network(device, {"x": x}, nodes, ["y0", "y1", "y2"], copied=0)


@pytest.mark.parametrize(
    "op,shape,attrs",
    [
        ("DepthToSpace", (2, 12, 3, 5), {"blocksize": 2}),
        ("DepthToSpace", (1, 18, 2, 3), {"blocksize": 3, "mode": "CRD"}),
        ("SpaceToDepth", (2, 3, 4, 6), {"blocksize": 2}),
    ],
)
def test_depth_and_space(device, op, shape, attrs):
    """Rearranging channels and pixels moves the data once."""
    x = normal(shape)
    source = imported(op, [x], attrs, 13)
    assert chain(source) == ["reshape", "transpose", "reshape"]
    want = onnxruntime_result(op, [x], attrs, 13)[0]
    np.testing.assert_array_equal(evaluate(source, [x]), want)
    specs = [source.inputs[0].inputs[0].spec, source.inputs[0].spec, source.spec]
    nodes = [
        ("a", RELU, ["x"]),
        ("b", specs[0], ["a"]),
        ("c", specs[1], ["b"]),
        ("d", specs[2], ["c"]),
        ("y", RELU, ["d"]),
    ]
    check_network(device, {"x": x}, nodes, ["y"], copied=x.nbytes)


def test_views_of_views_of_a_network_input(device):
    x = normal((4, 6))
    nodes = [("a", Transpose((1, 0)), ["x"]), ("b", slice_of((6, 4), 0, 1, 3), ["a"])]
    check_network(device, {"x": x}, nodes, ["a", "b"], copied=0)


@pytest.mark.parametrize("repeats", [(1, 1, 1), (2, 1, 3), (1, 2, 1), (3, 1, 1), (0, 1, 1)])
def test_tile(device, repeats):
    x = normal((2, 3, 4))
    inputs = [x, np.array(repeats, np.int64)]
    source = imported("Tile", inputs, consts=(1,))
    want = np.tile(x, repeats)
    np.testing.assert_array_equal(evaluate(source, inputs), want)
    if source != 0:
        specs = [source.inputs[0].inputs[0].spec, source.inputs[0].spec, source.spec]
        nodes = [("a", specs[0], ["x"]), ("b", specs[1], ["a"]), ("y", specs[2], ["b"])]
        check_network(
            device, {"x": x}, nodes, ["y"], copied=min(x.nbytes * 100, want.nbytes) or None
        )


MANY_AXES = [
    ((2, 1, 3, 2, 2), (2, 3, 2, 2, 2)),
    ((2, 2, 2, 2, 2), (1, 1, 2, 1, 1)),
    ((2, 3, 1, 2, 1, 2), (1, 2, 3, 1, 2, 2)),
    ((1, 2, 1, 2, 1, 2, 1, 2), (2,) * 8),
    ((2, 3, 1, 2, 2), (2, 0, 1, 2, 2)),
]


@pytest.mark.parametrize("shape,repeats", MANY_AXES)
def test_tile_of_many_axes(any_device, shape, repeats):
    """No value between has more axes than a network may have."""
    x = normal(shape)
    model = one_node("Tile", [x, np.array(repeats, np.int64)], consts=(1,))
    graph = import_onnx(model)
    assert max(kind.rank for kind in graph.types.values()) <= 8
    with Session(graph, select(any_device), Options()) as session:
        (got,) = session({"i0": x}).values()
    np.testing.assert_array_equal(got, np.tile(x, repeats))


IMPORTS = [
    ("Reshape", [(2, 3, 4), [0, -1]], {}, 13),
    ("Reshape", [(2, 3, 4), [4, 6]], {}, 13),
    ("Reshape", [(2, 3, 4), [-1]], {}, 5),
    ("Reshape", [(0, 3), [3, 0]], {"allowzero": 1}, 14),
    ("Transpose", [(2, 3, 4)], {}, 13),
    ("Transpose", [(2, 3, 4)], {"perm": [1, 2, 0]}, 13),
    ("Flatten", [(2, 3, 4)], {"axis": 2}, 13),
    ("Flatten", [(2, 3, 4)], {"axis": -1}, 13),
    ("Flatten", [(2, 3, 4)], {"axis": 0}, 13),
    ("Squeeze", [(1, 3, 1)], {}, 11),
    ("Squeeze", [(1, 3, 1)], {"axes": [0]}, 11),
    ("Squeeze", [(1, 3, 1), [-1]], {}, 13),
    ("Unsqueeze", [(3, 4)], {"axes": [0, 2]}, 11),
    ("Unsqueeze", [(3, 4), [1, -1]], {}, 13),
    ("Expand", [(3, 1), [2, 1, 4]], {}, 13),
    ("Expand", [(3, 4), [1]], {}, 13),
    ("Slice", [(5, 6)], {"starts": [1], "ends": [4], "axes": [1]}, 9),
    ("Slice", [(5, 6)], {"starts": [1, 0], "ends": [-1, 1000]}, 9),
    ("Slice", [(5, 6), [4, -1], [-1000, 0], [0, 1], [-1, -2]], {}, 13),
    ("Slice", [(5, 6), [3], [1], [0]], {}, 13),
    ("Slice", [(5, 6), [1], [2**62], [-2], [3]], {}, 13),
    ("Tile", [(2, 3), [2, 2]], {}, 13),
]


@pytest.mark.parametrize("op,inputs,attrs,opset", IMPORTS)
def test_imports_agree_with_onnxruntime(op, inputs, attrs, opset):
    arrays = [normal(inputs[0]), *(np.array(v, np.int64) for v in inputs[1:])]
    consts = tuple(range(1, len(arrays)))
    want = onnxruntime_result(op, arrays, attrs, opset, consts=consts)[0]
    got = evaluate(imported(op, arrays, attrs, opset, consts=consts), arrays)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


SPLITS = [
    ((6, 4), {"axis": 0}, 11, None, 3),
    ((7, 4), {"axis": 0, "num_outputs": 3}, 18, None, 3),
    ((6, 4), {"axis": -1, "split": [1, 3]}, 11, None, 2),
    ((6, 4), {}, 13, [2, 4], 2),
]


@pytest.mark.parametrize("shape,attrs,opset,sizes,count", SPLITS)
def test_splits_agree_with_onnxruntime(shape, attrs, opset, sizes, count):
    arrays = [normal(shape)] + ([] if sizes is None else [np.array(sizes)])
    want = onnxruntime_result("Split", arrays, attrs, opset, consts=(1,), n_outputs=count)
    made = imported("Split", arrays, attrs, opset, consts=(1,), n_outputs=count)
    for part, expected in zip(made, want, strict=True):
        np.testing.assert_array_equal(evaluate(part, arrays), expected)


def test_a_concat_of_one_is_an_alias():
    assert imported("Concat", [normal((2, 3))], {"axis": 0}) == 0


@pytest.mark.parametrize(
    "op,inputs,error,words",
    [
        ("Reshape", [(2, 3), [4, 2]], ShapeError, "counts differ"),
        ("Reshape", [(2, 3), [-1, -1]], ShapeError, "more than one"),
        ("Reshape", [(2, 3), [4, -1]], ShapeError, r"\[4, -1\]"),
        ("Reshape", [(2, 3), [2, 3, 0]], ShapeError, "one too many"),
        ("Squeeze", [(2, 3), [0]], ShapeError, "not 1"),
        ("Unsqueeze", [(2, 3), [0, 0]], ShapeError, "twice"),
        ("Expand", [(2, 3), [4, 3]], ShapeError, r"\(4, 3\)"),
        ("Tile", [(2, 3), [2]], ShapeError, r"\[2\]"),
        ("Split", [(6, 4), [4, 3]], ShapeError, "does not add up to 6"),
    ],
)
def test_wrong_arguments_are_named(op, inputs, error, words):
    arrays = [normal(inputs[0]), *(np.array(v, np.int64) for v in inputs[1:])]
    with pytest.raises(error, match=words):
        evaluate_types(imported(op, arrays, {}, 13, consts=(1,), n_outputs=len(inputs[1])), arrays)


def evaluate_types(source, arrays):
    source.spec.infer([TensorType(arrays[0].shape)])


def test_shapes_that_are_fed_are_refused_with_a_reason():
    with pytest.raises(Unsupported, match="shape"):
        imported("Reshape", [normal((2, 3)), np.array([3, 2])], {}, 13)


def test_concat_of_unlike_members_is_refused():
    with pytest.raises(ShapeError, match=r"\(2, 4\).*\(3, 3\)"):
        Concat(1).infer([TensorType((3, 3)), TensorType((2, 4))])
    with pytest.raises(DTypeError, match="float32 and int32"):
        Concat(0).infer([TensorType((3,), F32), TensorType((2,), I32)])


def test_shapes_computed_from_shapes(device):
    """Reshape and Expand whose shape the model computes from the input's are known at import."""
    value = helper.make_tensor_value_info
    numbers = {"two": [2], "zero": [0], "one": [1], "minus": [-1]}
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Gather", ["s", "one"], ["c"]),
        helper.make_node("Mul", ["c", "two"], ["c2"]),
        helper.make_node("Concat", ["n", "c2", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["r"]),
        helper.make_node("Concat", ["two", "n", "c2", "one"], ["large"], axis=0),
        helper.make_node("Expand", ["r", "large"], ["y"]),
    ]
    fixed = [onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in numbers.items()]
    graph = helper.make_graph(
        nodes, "shapes", [value("x", 1, ["n", 4, 6])], [value("y", 1, None)], fixed
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = normal((3, 4, 6))
    with compile_model(model, device, shapes={"n": 3}) as session:
        got = session({"x": x})["y"]
    np.testing.assert_array_equal(got, np.broadcast_to(x.reshape(3, 8, 3), (2, 3, 8, 3)))
