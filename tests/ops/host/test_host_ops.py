"""What numpy computes between plans equals what onnxruntime computes, to the bit, ties included."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from overlapping import boxes, special_boxes
from reference_engines import onnxruntime_result

from clnn.errors import ModelError
from clnn.importers.onnx.fold import fold
from clnn.importers.onnx.limits import Budget
from clnn.ops.host.registry import HostNode, compute

RNG = np.random.default_rng(11)
F, WHOLES = TensorProto.FLOAT, TensorProto.INT64
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
WHOLE = RNG.integers(-5, 6, (3, 4, 5))
NONZERO = np.where(WHOLE == 0, 2, WHOLE)[1]
TIES = RNG.integers(0, 4, (6, 9)).astype(np.float32)
MASK = RNG.random((3, 4, 5)) < 0.4
NO_ROWS = np.zeros((0, 4), np.float32)


def ints(*values):
    return np.array(values, np.int64)


def scalar(value, dtype=np.int64):
    return np.array(value, dtype)


# (operator, inputs, attributes, types of the outputs)
CASES = [
    ("Add", [WHOLE, WHOLE[1]], {}, (WHOLES,)),
    ("Sub", [X, X[0]], {}, (F,)),
    ("Mul", [X, X[:, :1]], {}, (F,)),
    ("Div", [WHOLE, NONZERO], {}, (WHOLES,)),
    ("Div", [X, X[0]], {}, (F,)),
    ("Mod", [WHOLE, NONZERO], {}, (WHOLES,)),
    ("Mod", [WHOLE, NONZERO], {"fmod": 1}, (WHOLES,)),
    ("Pow", [np.abs(X), scalar(2, np.float32)], {}, (F,)),
    ("Max", [X, X[0], X[1]], {}, (F,)),
    ("Min", [X, X[0], X[1]], {}, (F,)),
    ("Sum", [X, X[0], X[1]], {}, (F,)),
    ("Mean", [X, X[0], X[1]], {}, (F,)),
    ("Clip", [X, scalar(-0.5, np.float32), scalar(0.7, np.float32)], {}, (F,)),
    ("Where", [MASK, X, X[1]], {}, (F,)),
    ("Not", [MASK], {}, (TensorProto.BOOL,)),
    ("Sqrt", [np.abs(X)], {}, (F,)),
    ("Floor", [X], {}, (F,)),
    ("Round", [np.round(X * 2) / 2], {}, (F,)),
    ("Sign", [X], {}, (F,)),
    ("Relu", [np.array([np.nan, -1, 0, 2], np.float32)], {}, (F,)),
    ("Reciprocal", [X], {}, (F,)),
    *((op, [X, X[1]], {}, (TensorProto.BOOL,)) for op in ("Greater", "Less", "Equal")),
    *((op, [WHOLE, WHOLE[1]], {}, (TensorProto.BOOL,)) for op in ("GreaterOrEqual", "LessOrEqual")),
    *((op, [MASK, MASK[1]], {}, (TensorProto.BOOL,)) for op in ("And", "Or", "Xor")),
    *((op, [WHOLE, ints(1)], {"keepdims": 0}, (WHOLES,)) for op in ("ReduceMax", "ReduceMin")),
    *((op, [WHOLE, ints(0, 2)], {}, (WHOLES,)) for op in ("ReduceSum", "ReduceProd")),
    ("ReduceSum", [NO_ROWS, ints(0)], {}, (F,)),
    ("ReduceSum", [WHOLE], {"noop_with_empty_axes": 1}, (WHOLES,)),
    ("ArgMax", [TIES], {"axis": 1}, (WHOLES,)),
    ("ArgMax", [TIES], {"axis": 0, "select_last_index": 1, "keepdims": 0}, (WHOLES,)),
    ("ArgMin", [TIES], {"axis": -1}, (WHOLES,)),
    ("CumSum", [WHOLE, scalar(1)], {}, (WHOLES,)),
    ("CumSum", [WHOLE, scalar(-1)], {"exclusive": 1, "reverse": 1}, (WHOLES,)),
    ("Shape", [X], {"start": 1}, (WHOLES,)),
    ("Size", [X], {}, (WHOLES,)),
    ("Reshape", [X, ints(0, -1)], {}, (F,)),
    ("Reshape", [NO_ROWS, ints(0, 2, 2)], {"allowzero": 1}, (F,)),
    ("Flatten", [X], {"axis": 2}, (F,)),
    ("Squeeze", [X[:, :1], ints(1)], {}, (F,)),
    ("Squeeze", [X[:1, :, :1]], {}, (F,)),
    ("Unsqueeze", [X, ints(0, -1)], {}, (F,)),
    ("Transpose", [X], {"perm": [2, 0, 1]}, (F,)),
    ("Expand", [X[:, :1], ints(2, 1, 4, 1)], {}, (F,)),
    ("Tile", [X, ints(1, 2, 3)], {}, (F,)),
    ("Concat", [X, X[:, :2]], {"axis": 1}, (F,)),
    ("Concat", [NO_ROWS, X[0][:, :4]], {"axis": 0}, (F,)),
    ("Split", [X, ints(1, 0, 4)], {"axis": 2}, (F, F, F)),
    ("Slice", [X, ints(-1, 3), ints(-9, 1), ints(0, 1), ints(-1, -2)], {}, (F,)),
    ("Slice", [X, ints(2), ints(1), ints(1)], {}, (F,)),
    ("Slice", [X, ints(1), ints(2**62)], {}, (F,)),
    ("Gather", [X, np.array([[1, -1], [0, 2]])], {"axis": 1}, (F,)),
    ("Gather", [X, ints()], {"axis": 0}, (F,)),
    ("GatherElements", [X, RNG.integers(-4, 4, (2, 3, 5))], {"axis": 1}, (F,)),
    ("GatherND", [X, RNG.integers(-3, 3, (7, 2))], {}, (F,)),
    ("GatherND", [X, RNG.integers(0, 4, (3, 6, 1))], {"batch_dims": 1}, (F,)),
    ("GatherND", [X, np.zeros((0, 3), np.int64)], {}, (F,)),
    ("ScatterElements", [X, ints(1, -1).reshape(1, 2, 1), X[:1, :2, :1]], {"axis": 1}, (F,)),
    (
        "ScatterElements",
        [WHOLE, np.zeros((2, 4, 5), np.int64), WHOLE[:2]],
        {"reduction": "add"},
        (WHOLES,),
    ),
    ("ScatterND", [X, np.array([[1], [-1]]), X[:2] * 2], {}, (F,)),
    (
        "ScatterND",
        [WHOLE, np.array([[0, 1], [0, 1]]), WHOLE[0, :2]],
        {"reduction": "max"},
        (WHOLES,),
    ),
    ("Pad", [X, ints(0, 1, 2, 1, 0, 0), scalar(7, np.float32)], {}, (F,)),
    ("Pad", [X, ints(0, -1, 0, 1, 0, -2)], {}, (F,)),
    ("Pad", [X, ints(0, 1, 1, 0, 2, 1)], {"mode": "reflect"}, (F,)),
    ("Pad", [X, ints(1, 1), None, ints(-1)], {"mode": "edge"}, (F,)),
    ("OneHot", [np.array([[0, -1], [9, 2]]), scalar(4), ints(5, 8)], {"axis": 0}, (WHOLES,)),
    ("NonZero", [np.where(MASK, X, 0)], {}, (WHOLES,)),
    ("NonZero", [np.zeros((2, 3), np.float32)], {}, (WHOLES,)),
    ("NonZero", [MASK], {}, (WHOLES,)),
    ("Compress", [X, np.array([True, False, True])], {"axis": 1}, (F,)),
    ("Compress", [X, MASK.reshape(-1)], {}, (F,)),
    ("Compress", [X, np.array([False] * 3)], {"axis": 0}, (F,)),
    ("Unique", [TIES], {}, (F, WHOLES, WHOLES, WHOLES)),
    ("Unique", [TIES], {"sorted": 0}, (F, WHOLES, WHOLES, WHOLES)),
    ("Unique", [TIES[:, :2]], {"axis": 0}, (F, WHOLES, WHOLES, WHOLES)),
    ("Unique", [TIES[:, :2]], {"axis": 0, "sorted": 0}, (F, WHOLES, WHOLES, WHOLES)),
    ("TopK", [TIES, ints(4)], {"axis": 1}, (F, WHOLES)),
    ("TopK", [TIES, ints(6)], {"axis": 0, "largest": 0}, (F, WHOLES)),
    ("TopK", [WHOLE, ints(0)], {}, (WHOLES, WHOLES)),
    ("Range", [scalar(3), scalar(-4), scalar(-2)], {}, (WHOLES,)),
    ("Range", [scalar(0), scalar(0), scalar(1)], {}, (WHOLES,)),
    ("Range", [scalar(0.1, np.float32), scalar(2, np.float32), scalar(0.3, np.float32)], {}, (F,)),
    ("ConstantOfShape", [ints(2, 0)], {}, (F,)),
    ("Resize", [X[None], None, None, ints(1, 3, 7, 2)], {"mode": "linear"}, (F,)),
]


@pytest.mark.parametrize(
    "op,inputs,attrs,types", CASES, ids=[f"{k}-{c[0]}" for k, c in enumerate(CASES)]
)
def test_as_onnxruntime_has_it(op, inputs, attrs, types):
    want = onnxruntime_result(op, inputs, attrs, 18, n_outputs=len(types), out_types=types)
    got = compute(HostNode(op, 18, attrs, len(types)), inputs)
    exact = op not in ("Resize", "Pow", "CumSum", "Mean")
    for a, b in zip(want, got, strict=True):
        assert b.dtype == a.dtype
        np.testing.assert_allclose(b, a, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)
        assert b.shape == a.shape


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("count,spread", [(1, 1), (60, 5), (700, 9), (700, 400)])
@pytest.mark.parametrize("overlap,lowest", [(0.0, None), (0.5, 0.3), (1.0, 0.9), (0.3, 2.0)])
def test_boxes_that_are_kept(center, count, spread, overlap, lowest):
    found, scores = boxes(count, spread, count)
    inputs = [found, scores, scalar(50), scalar(overlap, np.float32)]
    inputs += [] if lowest is None else [scalar(lowest, np.float32)]
    attrs = {"center_point_box": center}
    (want,) = onnxruntime_result("NonMaxSuppression", inputs, attrs, 18, out_types=(WHOLES,))
    (got,) = compute(HostNode("NonMaxSuppression", 18, attrs), inputs)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize("at_once", [1, 130, 1 << 20])
def test_classes_are_chosen_for_apart_or_together(at_once, few, monkeypatch):
    """And boxes that cannot meet."""
    monkeypatch.setattr("clnn.ops.host.boxes.AT_ONCE", at_once)
    monkeypatch.setattr("clnn.ops.host.boxes.FEW", few)
    inputs = [*boxes(60, 5, 2), scalar(50), scalar(0.4, np.float32)]
    (want,) = onnxruntime_result("NonMaxSuppression", inputs, {}, 18, out_types=(WHOLES,))
    (got,) = compute(HostNode("NonMaxSuppression", 18), inputs)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("few", [0, 1 << 20])
@pytest.mark.parametrize("center", [0, 1])
def test_boxes_of_infinities_and_nan_hide_none(center, few, monkeypatch):
    monkeypatch.setattr("clnn.ops.host.boxes.FEW", few)
    found, scores = special_boxes(300, 9, 5)
    inputs = [found, scores, scalar(200), scalar(0.4, np.float32)]
    attrs = {"center_point_box": center}
    (want,) = onnxruntime_result("NonMaxSuppression", inputs, attrs, 18, out_types=(WHOLES,))
    (got,) = compute(HostNode("NonMaxSuppression", 18, attrs), inputs)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add"])
def test_lines_of_places_that_were_expanded(axis, reduction):
    """Expand makes views without strides, whose slices are read and written at once."""
    line = np.array([2, -1, 1], np.int64).reshape([3 if a == axis % 3 else 1 for a in range(3)])
    shape = [3 if a == axis % 3 else 2 for a in range(3)]
    places = np.broadcast_to(line, shape)
    updates = RNG.standard_normal(shape).astype(np.float32)
    attrs = {"axis": axis, "reduction": reduction}
    for op, inputs in (
        ("ScatterElements", [X, places, updates]),
        ("GatherElements", [X, places]),
    ):
        kept = attrs if op == "ScatterElements" else {"axis": axis}
        whole = [np.ascontiguousarray(a) for a in inputs]
        (want,) = onnxruntime_result(op, whole, kept, 18, out_types=(F,))
        (got,) = compute(HostNode(op, 18, kept), inputs)
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("number,count", [(3, 1), (0, 0)])
def test_places_of_a_scalar_have_no_coordinates_folded_or_not(number, count):
    """As ONNX says it; onnxruntime gives them one."""
    x = scalar(number, np.float32)
    (got,) = compute(HostNode("NonZero", 18), [x])
    node = onnx.helper.make_node("NonZero", ["x"], ["y"])
    (reference,) = ReferenceEvaluator(node).run(None, {"x": x})
    (folded,) = fold("NonZero", 18, [], {}, [x], 1, Budget())
    for made in (got, folded):
        np.testing.assert_array_equal(made, reference, strict=True)
    assert got.shape == (0, count)


def test_no_boxes_and_no_places():
    none = np.zeros((1, 0, 4), np.float32), np.zeros((1, 1, 0), np.float32)
    for inputs in ([*none, scalar(5)], [*boxes(9, 1, 0)], [*boxes(9, 1, 0), scalar(0)]):
        (got,) = compute(HostNode("NonMaxSuppression", 18), inputs)
        assert got.shape == (0, 3)
        assert got.dtype == np.int64


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("wanted", [1, 100, 300, 2900])
@pytest.mark.parametrize("kind", ["apart", "equal", "nan", "whole"])
def test_the_best_of_long_lines_are_the_first_of_a_stable_sort(kind, wanted, largest, axis):
    rng = np.random.default_rng(wanted)
    x = rng.standard_normal((3, 3000)).astype(np.float32)
    if kind == "equal":
        x = np.round(x)
    elif kind == "nan":
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.1] = -np.inf
    elif kind == "whole":
        x = rng.integers(-400, 400, x.shape)
    want = []
    for line in x:  # pairs in Python: NaN above all numbers, then values, then places
        keys = [(v == v, -v, k) if largest else (v != v, v, k) for k, v in enumerate(line)]
        keys = [(n, 0 if line[k] != line[k] else v, k) for n, v, k in keys]
        want.append([k for _, _, k in sorted(keys)][:wanted])
    node = HostNode("TopK", 18, {"axis": axis, "largest": largest}, 2)
    values, places = compute(node, [x if axis else x.T.copy(), ints(wanted)])
    np.testing.assert_array_equal(places if axis else places.T, want)
    np.testing.assert_array_equal(
        values if axis else values.T, np.take_along_axis(x, np.array(want), 1)
    )


@pytest.mark.parametrize(
    "op,inputs,attrs,words",
    [
        ("Gather", [X, ints(3)], {"axis": 0}, "index 3 is outside of extent 3"),
        ("Div", [WHOLE, WHOLE * 0], {}, "division of integers by zero"),
        ("TopK", [TIES, ints(10)], {}, "top 10 of 9"),
        ("Range", [scalar(0), scalar(9), scalar(0)], {}, "steps of 0"),
        ("Reshape", [X, ints(7, -1)], {}, "-1"),
        ("Split", [X, ints(1, 1)], {"axis": 2}, "do not add up to 5"),
        ("SequenceAt", [[X], scalar(1)], {}, "sequence of 1"),
        ("SequenceErase", [[], scalar(0)], {}, "sequence of 0"),
        ("OptionalGetElement", [None], {}, "not there"),
        ("NonMaxSuppression", [*boxes(2, 1, 0), scalar(1), scalar(2.0)], {}, "from 0 to 1"),
    ],
)
def test_values_that_make_no_sense_are_one_clear_error(op, inputs, attrs, words):
    with pytest.raises(ModelError, match=f"node 'n' \\({op}\\).*{words}"):
        compute(HostNode(op, 18, attrs, 2, "n"), inputs)


def test_inputs_are_left_as_they_are():
    for op, inputs, attrs, types in CASES:
        before = [None if a is None else a.copy() for a in inputs]
        compute(HostNode(op, 18, attrs, len(types)), inputs)
        for a, b in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(a, b)
