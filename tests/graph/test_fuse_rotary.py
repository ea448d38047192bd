"""Rotary positions spelled out: which spellings become one node, and which must stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder, agrees

import clnn
from clnn.compile import prepare
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat, Reshape, Slice, slice_of
from clnn.ops.transformer.rotate import Rotate

SHAPE, HALF = (1, 3, 5, 16), 8


def part(b, x, start, step=1):
    return b.add(slice_of(b.types[x].shape, 3, start, HALF, step), x)


def turned(b, x, beside, minus="first"):
    """(-b, a) for each pair (a, b) of x."""
    first, second = part(b, x, 1, 2) if beside else part(b, x, HALF), part(b, x, 0, 1 + beside)
    if minus == "first":
        first = b.post_ops("neg", first)
    else:
        second = b.post_ops("neg", second)
    if not beside:
        return b.add(Concat(3), first, second)
    wide = (*SHAPE[:-1], HALF, 1)
    joined = b.add(Concat(4), b.add(Reshape(wide), first), b.add(Reshape(wide), second))
    return b.add(Reshape(SHAPE), joined)


def tables(b, size, fed):
    return ("cos", "sin") if fed else (b.const(5, size), b.const(5, size))


def written(b, x, beside=False, fed=False, order="cos_first", minus="first"):
    cos, sin = tables(b, 16, fed)
    one = b.post_ops("mul", x, cos)
    two = b.post_ops("mul", sin, turned(b, x, beside, minus))
    return b.post_ops("add", *((one, two) if order == "cos_first" else (two, one)))


def by_pairs(b, x, fed=False, minus="real"):
    """Each half on its own, with one cosine and one sine for both."""
    cos, sin = tables(b, HALF, fed)
    one, two = part(b, x, 0), part(b, x, HALF)
    real = b.post_ops(
        "sub" if minus == "real" else "add",
        b.post_ops("mul", one, cos),
        b.post_ops("mul", two, sin),
    )
    other = b.post_ops("add", b.post_ops("mul", two, cos), b.post_ops("mul", one, sin))
    return b.add(Concat(3), real, other)


def builder(fed=False, size=16):
    more = {"cos": (1, 1, 5, size), "sin": (5, size)} if fed else {}
    return Builder(x=SHAPE, **more)


def specs(graph, device, options=None):
    return [n.spec for n in prepare(graph, options or clnn.Options(), device=device).nodes]


@pytest.mark.parametrize("fed", [False, True], ids=["constant", "fed"])
@pytest.mark.parametrize("order", ["cos_first", "sin_first"])
@pytest.mark.parametrize("beside", [False, True], ids=["halves", "pairs"])
def test_spellings_become_one_node(device, beside, order, fed):
    b = builder(fed)
    graph = b.graph(written(b, "x", beside, fed, order))
    assert specs(graph, device) == [Rotate(beside)]
    agrees(graph, device)


@pytest.mark.parametrize("fed", [False, True], ids=["constant", "fed"])
def test_halves_with_a_number_for_both(device, fed):
    b = builder(fed, HALF)
    graph = b.graph(by_pairs(b, "x", fed))
    assert specs(graph, device) == [Rotate()]
    agrees(graph, device)


@pytest.mark.parametrize("fed", [False, True], ids=["constant", "fed"])
def test_a_factor_goes_into_constant_tables(device, fed):
    b = builder(fed)
    graph = b.graph(b.post_ops("mul", written(b, "x", fed=fed), b.fixed(np.float32(0.5))))
    kinds = [type(s) for s in specs(graph, device)]
    assert kinds == ([Rotate, Eltwise] if fed else [Rotate])
    agrees(graph, device)


def test_steps_behind_stay_behind(device):
    b = builder()
    graph = b.graph(b.post_ops("relu", b.post_ops("mul", written(b, "x"), b.const(5, 16))))
    assert [type(s) for s in specs(graph, device)] == [Rotate, Eltwise]
    agrees(graph, device)


def test_half_of_a_head_is_turned(device):
    b = Builder(x=(1, 3, 5, 24))
    front = b.add(slice_of((1, 3, 5, 24), 3, 0, 16), "x")
    rest = b.add(slice_of((1, 3, 5, 24), 3, 16, 8), "x")
    graph = b.graph(b.add(Concat(3), written(b, front), rest))
    assert [type(s) for s in specs(graph, device)].count(Rotate) == 1
    agrees(graph, device)


def _minus_behind(b):
    return written(b, "x", minus="second")


def _minus_beside(b):
    return written(b, "x", True, minus="second")


def _another_value(b):
    cos, sin = tables(b, 16, False)
    two = b.post_ops("mul", turned(b, "x", False), sin)
    return b.post_ops("add", b.post_ops("mul", b.post_ops("relu", "x"), cos), two)


def _no_difference(b):
    return by_pairs(b, "x", minus="none")


def _a_difference(b):
    cos, sin = tables(b, 16, False)
    two = b.post_ops("mul", turned(b, "x", False), sin)
    return b.post_ops("sub", b.post_ops("mul", "x", cos), two)


def _halves_of_two(b):
    cos, sin = tables(b, HALF, False)
    one, two = part(b, "x", 0), part(b, b.post_ops("relu", "x"), HALF)
    real = b.post_ops("sub", b.post_ops("mul", one, cos), b.post_ops("mul", two, sin))
    other = b.post_ops("add", b.post_ops("mul", two, cos), b.post_ops("mul", one, sin))
    return b.add(Concat(3), real, other)


@pytest.mark.parametrize(
    "build",
    [_minus_behind, _minus_beside, _another_value, _no_difference, _a_difference, _halves_of_two],
)
def test_what_is_something_else_stays(device, build):
    b = builder()
    graph = b.graph(build(b))
    assert not any(isinstance(s, Rotate) for s in specs(graph, device))
    agrees(graph, device)


def test_other_types_in_memory_keep_the_steps(device):
    b = builder()
    found = specs(b.graph(written(b, "x")), device, clnn.Options(dtype="f16"))
    assert any(isinstance(s, Slice) for s in found)
