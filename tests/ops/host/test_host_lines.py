"""Operators as lines of Python: what they make is what the registry's functions make, or they deviate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clnn.ops.host.lines import DeviatesError, Form, Lines, single, written
from clnn.ops.host.registry import HostNode, compute

WHOLE = (0, 1, -1, 7, 127, -128, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 1.0, -2.5, 1 / 3, 3e38, 1e-45, np.inf, -np.inf, np.nan, 16777217.0)
KINDS = [np.dtype(k) for k in ("bool", "int8", "int32", "int64", "uint8", "float32", "float64")]


def numbers(kind):
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(REAL, kind)
    return np.unique(np.array(WHOLE, np.int64).astype(kind))


def run(node, given, consts=()):
    """Return what the lines make of arrays, None where there are none or they deviate, and what numpy makes."""
    with np.errstate(all="ignore"):
        (want,) = compute(node, given)
        lines, forms = Lines(), []
        for k, array in enumerate(given):
            known = array if k in consts else None
            forms.append(Form(f"x{k}", array.dtype, array.shape, array=known))
        found = written(node, forms, Form("", want.dtype, want.shape), lines)
        if found is None:
            return None, want
        text = lines.whole(found)
        scope = {**lines.objects, **{f"x{k}": a for k, a in enumerate(given)}}
        scope |= {"Deviates": DeviatesError, "single": single, "array": np.array, "full": np.full}
        try:
            exec("\n".join([*(line for _, line in lines.lines), f"result = {text}"]), scope)
        except (DeviatesError, OverflowError, ValueError):
            return None, want
        return scope["result"], want


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    if want.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    "op", ["Add", "Sub", "Mul", "Min", "Max", "Equal", "Greater", "Less", "LessOrEqual"]
)
def test_of_two_numbers(op, kind):
    if kind.kind == "b" and op in ("Sub", "Mul"):
        pytest.skip("of whole and real numbers")
    taken = 0
    for left, right in itertools.product(numbers(kind), repeat=2):
        for shapes in (((), ()), ((1,), ()), ((1, 1), (1,))):
            given = [np.full(s, v, kind) for s, v in zip(shapes, (left, right), strict=True)]
            got, want = run(HostNode(op, 17), given)
            if got is not None:
                taken += 1
                same(got, want)
    assert taken or op in ("Min", "Max") or kind.kind == "b"


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_of_two_truths(op):
    for left, right in itertools.product((False, True), repeat=2):
        got, want = run(HostNode(op, 17), [np.array(left), np.array([right])])
        same(got, want)
        got, want = run(HostNode("Not", 17), [np.array([left])])
        same(got, want)


@pytest.mark.parametrize("to", KINDS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_casts(kind, to):
    taken = 0
    for value in numbers(kind):
        got, want = run(HostNode("Cast", 17, {"to": to}), [np.full((1,), value, kind)])
        if got is not None:
            taken += 1
            same(got, want)
    assert taken


def test_views_and_repeats_of_one_number():
    x = np.array([[3.5]], np.float32)
    for op, other in [
        ("Reshape", [1, 1, -1]),
        ("Squeeze", [0]),
        ("Unsqueeze", [0]),
        ("Expand", [4, 5]),
        ("Tile", [2, 3]),
    ]:
        got, want = run(HostNode(op, 17), [x, np.array(other)], consts=(1,))
        same(got, want)
    got, want = run(HostNode("Reshape", 17), [np.arange(6.0), np.array([2, -1])], consts=(1,))
    same(got, want)
    assert run(HostNode("Reshape", 17), [np.arange(6.0), np.array([2, -1])])[0] is None


@pytest.mark.parametrize("begin", [0, 3, 9, 10, -1, -30])
@pytest.mark.parametrize("end", [0, 4, 10, 2**40, -1, -30])
def test_slices(begin, end):
    x = np.arange(60).reshape(2, 10, 3)
    given = [x, np.array([begin]), np.array([end]), np.array([1]), np.array([1])]
    same(*run(HostNode("Slice", 17), given, consts=(3, 4)))
    same(*run(HostNode("Slice", 17), given[:4], consts=(3,)))


def test_a_slice_that_is_longer_deviates():
    lines, x = Lines(), np.arange(10)
    forms = [
        Form("x", x.dtype, x.shape),
        Form("a", x.dtype, (1,), True),
        Form("b", x.dtype, (1,), True),
    ]
    forms.append(Form("c", x.dtype, (1,), array=np.array([0])))
    written(HostNode("Slice", 17), forms, Form("", x.dtype, (1,)), lines)
    with pytest.raises(DeviatesError):
        exec(
            "\n".join(line for _, line in lines.lines),
            {"x": x, "a": 3, "b": 5, "Deviates": DeviatesError},
        )


@pytest.mark.parametrize("first, step", [(3, 1), (3, -2), (-4, 4)])
def test_ranges_of_one(first, step):
    given = [np.array(first), np.array(first + step), np.array(step)]
    same(*run(HostNode("Range", 17), given))
    given[1] = np.array(first + 2 * step)
    assert run(HostNode("Range", 17), given)[0] is None


@pytest.mark.parametrize("place", [0, 4, -1, -5])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_row_is_written_and_the_table_stays(axis, place):
    table = np.random.default_rng(0).standard_normal((5, 5, 5)).astype(np.float32)
    begun = table.copy()
    shape = [4, 5, 3]
    shape[axis] = 1
    places = np.full(shape, place)
    updates = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    lines = Lines()
    forms = [
        Form("table", table.dtype, table.shape),
        Form("at", places.dtype, places.shape, True),
        Form("updates", updates.dtype, updates.shape),
    ]
    node = HostNode("ScatterElements", 17, {"axis": axis})
    found = written(node, forms, forms[0], lines)
    scope = {"table": table, "at": place, "updates": updates, "Deviates": DeviatesError}
    exec("\n".join(line for _, line in lines.lines), scope)
    (want,) = compute(node, [table, places, updates])
    same(scope[found.text], want)
    np.testing.assert_array_equal(table, begun)
    scope["at"] = 5
    with pytest.raises(DeviatesError):
        exec("\n".join(line for _, line in lines.lines), scope)
