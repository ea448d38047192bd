from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engines import onnxruntime_result
from together import check_together, evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.ops.elementwise.logic import RULES, Logic
from clnn.ops.onnx_registry import Unsupported
from clnn.types import BOOL, F32, I32, TensorType

COMPARISONS = ("equal", "greater", "greater_or_equal", "less", "less_or_equal")
TYPES = ("float32", "int8", "uint8", "int32", "int64", "uint64", "float16", "float64", "int16")
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, np.nan, np.inf, -np.inf, 2.5]


def numbers(dtype, shape, seed=0, low=-4, high=5):
    """Small numbers, so that equal ones are frequent, with the extremes of the type."""
    kind = np.dtype(dtype).kind
    drawn = rng(seed).integers(0 if kind == "u" else low, high, shape).astype(dtype)
    flat = drawn.reshape(-1)
    if kind == "f":
        with np.errstate(over="ignore"):
            flat[: len(EDGES)] = np.roll(np.array(EDGES), seed).astype(dtype)[: flat.size]
    elif kind in "iu" and flat.size > 3:
        flat[0], flat[1] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return drawn


def truths(shape, seed=0):
    return rng(seed).integers(0, 2, shape).astype(bool)


@pytest.mark.parametrize("dtype", TYPES)
def test_comparisons(device, dtype):
    a, b = numbers(dtype, (3, 47), 1), numbers(dtype, (3, 47), 2)
    check_together(device, {fn: Logic(fn) for fn in COMPARISONS}, [a, b])


def test_truth_values(device):
    check_together(
        device,
        {fn: Logic(fn) for fn in ("equal", "and", "or", "xor")},
        [truths((5, 33), 1), truths((5, 33), 2)],
    )
    check_together(device, {"not": Logic("not")}, [truths((5, 33))])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_nan_and_infinity(device, dtype):
    specs = {fn: Logic(fn) for fn in ("is_nan", "is_inf", "is_inf_positive", "is_inf_negative")}
    check_together(device, specs, [numbers(dtype, (40,))])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_shifts(device, dtype):
    by = np.arange(70).astype(dtype)
    specs = {fn: Logic(fn) for fn in ("shift_left", "shift_right")}
    check_together(device, specs, [numbers(dtype, (70,), high=100), by])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint32"])
def test_bits_and_remainders(device, dtype):
    """Zero divisors and the one overflowing quotient must not stop the device."""
    a, b = numbers(dtype, (64, 3), 1, -120, 120), numbers(dtype, (64, 3), 2)
    a[4:8], b[4:8] = np.iinfo(dtype).min, np.array(-1).astype(dtype)
    specs = {fn: Logic(fn) for fn in ("and", "or", "xor", "mod", "rest")}
    check_together(device, specs, [a, b])
    check_together(device, {"complement": Logic("complement")}, [a])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_remainder(device, dtype):
    a = rng(3).standard_normal((7, 19)).astype(dtype) * 100
    b = rng(4).standard_normal((7, 19)).astype(dtype)
    a[0, :3], b[0, :3] = [np.inf, 1, np.nan], [1, 0, 1]
    check_together(device, {"fmod": Logic("fmod")}, [a, b])


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bool", "int64", "uint8", "float64", "int16"]
)
def test_where(device, dtype):
    make = truths if dtype == "bool" else lambda shape, seed: numbers(dtype, shape, seed)
    condition, b, c = truths((2, 9, 17), 3), make((2, 9, 17), 4), make((2, 9, 17), 5)
    check_op(device, Logic("where"), [condition, b, c], tolerance=0)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 5, 4, 6), (5, 1, 1)],
        [(6,), (2, 5, 4, 6)],
        [(2, 1, 4, 1), (1, 5, 1, 6)],
        [(), (3, 4)],
        [(1,), (1,)],
        [(), ()],
        [(0, 3), (1, 3)],
    ],
)
def test_broadcasting(device, shapes):
    a, b = (numbers("float32", s, k) for k, s in enumerate(shapes))
    check_op(device, Logic("less"), [a, b])


ORDERS = [
    {},
    {"i0": (0, 2, 3, 1)},
    {"i0": (0, 2, 3, 1), "i1": (3, 2, 1, 0)},
    {"i0": (0, 2, 3, 1), "i1": (0, 2, 3, 1), "o0": (0, 2, 3, 1)},
    {"o0": (1, 0, 3, 2)},
]


@pytest.mark.parametrize("orders", ORDERS)
def test_layouts(device, orders):
    a, b = numbers("float32", (2, 7, 5, 4), 1), numbers("float32", (2, 7, 5, 4), 2)
    check_op(device, Logic("greater"), [a, b], orders=orders, border=1)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_where_of_any_shapes(device, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    shapes = [tuple(d if data.draw(st.booleans()) else 1 for d in shape) for _ in range(3)]
    condition = truths(shapes[0])
    check_op(device, Logic("where"), [condition, *(numbers("int32", s, 1) for s in shapes[1:])])


def test_powers_of_integers_with_real_exponents(device):
    base = np.array([1, 2, 3, -2, 7, 7, 10, -1, -1, 0, 3, 46340, 5], np.int32)
    exponent = np.array([4, 5, 6, 3, 0.5, 2.5, -1, -2, -3, 0, 19, 2, 0.999], np.float32)
    check_op(device, Logic("pow_real"), [base, exponent])


@pytest.mark.parametrize(
    "op,dtype,attrs",
    [
        ("Equal", "float32", {}),
        ("Greater", "int64", {}),
        ("GreaterOrEqual", "float32", {}),
        ("Less", "float64", {}),
        ("LessOrEqual", "int32", {}),
        ("Mod", "int32", {}),
        ("Mod", "int64", {"fmod": 1}),
        ("Mod", "float32", {"fmod": 1}),
        ("Mod", "uint8", {}),
        ("BitShift", "uint32", {"direction": "LEFT"}),
        ("BitShift", "uint8", {"direction": "RIGHT"}),
        ("BitwiseAnd", "int16", {}),
        ("BitwiseOr", "uint8", {}),
        ("BitwiseXor", "int64", {}),
    ],
)
def test_reference_agrees_with_onnxruntime(op, dtype, attrs):
    a, b = numbers(dtype, (5, 9), 1), numbers(dtype, (5, 9), 2)
    if op == "Mod":
        b = np.where(b == 0, 3, b).astype(dtype)
        if np.dtype(dtype).kind == "f":
            a, b = np.nan_to_num(a), np.nan_to_num(b)
    if op == "BitShift":
        b %= 8
    want = onnxruntime_result(op, [a, b], attrs)[0]
    got = evaluate(imported(op, [a, b], attrs), [a, b])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("attrs", [{}, {"detect_negative": 0}, {"detect_positive": 0}])
def test_infinity_agrees_with_onnxruntime(attrs):
    x = numbers("float32", (40,))
    np.testing.assert_array_equal(
        evaluate(imported("IsInf", [x], attrs), [x]), onnxruntime_result("IsInf", [x], attrs)[0]
    )


def test_infinity_that_is_not_looked_for():
    attrs = {"detect_negative": 0, "detect_positive": 0}
    x = numbers("float32", (40,))
    assert not evaluate(imported("IsInf", [x], attrs), [x]).any()


def test_import_refuses_real_remainders_with_the_sign_of_the_divisor():
    x = numbers("float32", (3,))
    with pytest.raises(Unsupported, match="fmod = 1"):
        imported("Mod", [x, x])


@pytest.mark.parametrize(
    "fn,types,error,words",
    [
        ("and", [F32, F32], DTypeError, "float32"),
        ("equal", [F32, I32], DTypeError, "one type"),
        ("where", [I32, F32, F32], DTypeError, "must be bool"),
        ("greater", [BOOL, BOOL], DTypeError, "bool"),
        ("where", [BOOL, F32, I32], DTypeError, "float32, int32"),
        ("is_nan", [I32], DTypeError, "int32"),
    ],
)
def test_wrong_types_are_named(fn, types, error, words):
    with pytest.raises(error, match=words):
        Logic(fn).infer([TensorType((2, 3), t) for t in types])


def test_wrong_shapes_are_named():
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        Logic("equal").infer([TensorType((2, 3)), TensorType((4, 3))])


def test_every_function_is_imported_by_some_operator():
    """A rule that no ONNX operator reaches would never be used."""
    x = {"f": numbers("float32", (2,)), "u": numbers("uint8", (2,)), "b": truths((2,))}
    cases = [
        ("Equal", "f", {}),
        ("Greater", "f", {}),
        ("GreaterOrEqual", "f", {}),
        ("Less", "f", {}),
        ("LessOrEqual", "f", {}),
        ("And", "b", {}),
        ("Or", "b", {}),
        ("Xor", "b", {}),
        ("Not", "b", {}),
        ("BitwiseNot", "u", {}),
        ("IsNaN", "f", {}),
        ("IsInf", "f", {}),
        ("IsInf", "f", {"detect_negative": 0}),
        ("IsInf", "f", {"detect_positive": 0}),
        ("BitShift", "u", {"direction": "LEFT"}),
        ("BitShift", "u", {"direction": "RIGHT"}),
        ("Mod", "u", {}),
        ("Mod", "u", {"fmod": 1}),
        ("Mod", "f", {"fmod": 1}),
    ]
    found = {imported(op, [x[k], x[k], x[k]], attrs).spec.fn for op, k, attrs in cases}
    found.add(imported("Where", [x["b"], x["f"], x["f"]]).spec.fn)
    base = np.array([2, 3], np.int32)
    found.add(imported("Pow", [base, x["f"]], opset=15).spec.fn)
    assert found == set(RULES)
