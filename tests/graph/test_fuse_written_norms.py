"""Normalisations spelled out: which spellings become one node, and which must stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp

EPSILON = 1e-3


def mean(b, x, axes, keepdims=True):
    return b.add(Reduce("mean", axes, keepdims), x)


def square(b, d, how):
    if how == "times":
        return b.post_ops("mul", d, d)
    if how == "pow":
        return b.post_ops("pow", d, b.fixed(np.float32(2)))
    return b.post_ops("square", d)


def divided(b, d, power, how):
    """d over the root of `power` and epsilon, as exporters write it."""
    one, half = b.fixed(np.float32(1)), b.fixed(np.float32(-0.5 if how == "pow" else 0.5))
    added = b.post_ops("add", power, b.fixed(np.float32(EPSILON)))
    if how == "pow":
        return b.post_ops("mul", b.post_ops("pow", added, half), d)
    root = b.post_ops("pow", added, half) if how == "half" else b.post_ops("sqrt", added)
    if how in ("div", "half"):
        return b.post_ops("div", d, root)
    inverse = b.post_ops("div", one, root) if how == "one_over" else b.post_ops("reciprocal", root)
    return b.post_ops("mul", d, inverse) if how == "one_over" else b.post_ops("mul", inverse, d)


def written(b, x, axes=(2,), centre=True, apart=False, squared="square", ends="div"):
    """A normalisation; apart: the distance from the mean is computed twice."""
    d = e = x
    if centre:
        d = e = b.post_ops("sub", x, mean(b, x, axes))
        e = b.post_ops("sub", x, mean(b, x, axes)) if apart else d
    return divided(b, e, mean(b, square(b, d, squared), axes), ends)


def specs(graph):
    return [n.spec for n in optimise(graph).nodes]


def agree(graph, device, shape):
    x = normal(shape) + 3
    made = []
    for options in (clnn.Options(), clnn.Options(fuse=False)):
        with clnn.compile_model(graph, device, options) as session:
            made.append(session({"x": x})["out0"])
    np.testing.assert_allclose(*made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("squared", ["square", "times", "pow"])
@pytest.mark.parametrize("ends", ["div", "half", "one_over", "reciprocal", "pow"])
@pytest.mark.parametrize("form", ["layer", "apart", "rms"])
def test_spellings_become_one_node(device, form, ends, squared):
    b = Builder(x=(2, 5, 24))
    made = written(b, "x", (2,), form != "rms", form == "apart", squared, ends)
    graph = b.graph(b.post_ops("add", b.post_ops("mul", made, b.const(24)), b.const(24)))
    (spec,) = specs(graph)
    assert isinstance(spec, Normalise)
    assert (spec.axes, spec.centre) == ((2,), form != "rms")
    assert spec.epsilon == pytest.approx(EPSILON)
    assert [p.fn for p in spec.post_ops] == ["mul", "add"]
    agree(graph, device, (2, 5, 24))


@pytest.mark.parametrize("axes", [(1,), (1, 2, 3), (3,)])
def test_any_axes(device, axes):
    b = Builder(x=(2, 6, 5, 7))
    graph = b.graph(b.post_ops("relu", written(b, "x", axes)))
    (spec,) = specs(graph)
    assert isinstance(spec, Normalise) and spec.axes == axes
    agree(graph, device, (2, 6, 5, 7))


def test_weights_in_front_are_a_step_of_the_result(device):
    b = Builder(x=(2, 5, 24))
    graph = b.graph(b.post_ops("mul", b.const(24), written(b, "x", centre=False, ends="one_over")))
    (spec,) = specs(graph)
    assert isinstance(spec, Normalise) and [p.fn for p in spec.post_ops] == ["mul"]
    agree(graph, device, (2, 5, 24))


def _read_elsewhere(b):
    d = b.post_ops("sub", "x", mean(b, "x", (2,)))
    return divided(b, d, mean(b, b.post_ops("square", d), (2,)), "div"), b.post_ops("relu", d)


def _root_is_an_output(b):
    power = mean(b, b.post_ops("square", "x"), (2,))
    root = b.post_ops("sqrt", b.post_ops("add", power, b.fixed(np.float32(EPSILON))))
    return b.post_ops("div", "x", root), root


def _other_mean(b):
    d = b.post_ops("sub", "x", mean(b, "x", (1,)))
    return (divided(b, d, mean(b, b.post_ops("square", d), (2,)), "div"),)


def _other_value(b):
    power = mean(b, b.post_ops("square", b.post_ops("relu", "x")), (2,))
    return (divided(b, "x", power, "div"),)


def _divides_by_it(b):
    power = mean(b, b.post_ops("square", "x"), (2,))
    root = b.post_ops("sqrt", b.post_ops("add", power, b.fixed(np.float32(EPSILON))))
    return (b.post_ops("div", root, "x"),)


def _no_root(b):
    power = mean(b, b.post_ops("square", "x"), (2,))
    return (b.post_ops("div", "x", b.post_ops("add", power, b.fixed(np.float32(EPSILON)))),)


def _less_than_nothing(b):
    power = mean(b, b.post_ops("square", "x"), (2,))
    root = b.post_ops("sqrt", b.post_ops("add", power, b.fixed(np.float32(-1))))
    return (b.post_ops("div", "x", root),)


def _a_cube(b):
    power = mean(b, b.post_ops("pow", "x", b.fixed(np.float32(3))), (2,))
    return (divided(b, "x", power, "div"),)


@pytest.mark.parametrize(
    "build",
    [
        _root_is_an_output,
        _other_value,
        _divides_by_it,
        _no_root,
        _less_than_nothing,
        _a_cube,
    ],
)
def test_what_is_something_else_stays(build):
    b = Builder(x=(2, 5, 24))
    assert not any(isinstance(s, Normalise) for s in specs(b.graph(*build(b))))


@pytest.mark.parametrize("build", [_other_mean, _read_elsewhere])
def test_distances_that_stay_leave_the_root_of_squares(device, build):
    b = Builder(x=(2, 5, 24))
    graph = b.graph(*build(b))
    found = specs(graph)
    assert [s.centre for s in found if isinstance(s, Normalise)] == [False]
    assert any(isinstance(s, Eltwise) and s.post_ops == (PostOp("sub", operand=1),) for s in found)
    agree(graph, device, (2, 5, 24))
