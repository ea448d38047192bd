"""Functions of volumes that are images side by side join the convolutions that make the images."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.ops.conv.volumes import JoinDepth, SplitDepth
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Reshape
from clnn.ops.shared.functions import PostOp

DEPTH = 3
VOLUME = (2, 4, DEPTH, 5, 6)


def volumes(b: Builder, *names: str) -> list[str]:
    """Add a convolution of each image, and views that make volumes of what they make."""
    return [b.add(SplitDepth(DEPTH), b.conv(name, 4)) for name in names]


def kinds(graph: Graph) -> list[str]:
    return [node.spec.kind for node in graph.nodes]


def require_equal(graph: Graph, made: Graph) -> None:
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(graph.types[n].shape, np.float32) for n in graph.inputs}
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, atol=1e-6)


def test_a_residual_sum_and_a_function_join_the_convolution():
    b = Builder(x=(6, 3, 5, 6), z=(6, 3, 5, 6))
    first, second = volumes(b, "x", "z")
    graph = b.graph(b.post_ops("relu", b.post_ops("add", first, second)))
    made = optimise(graph)
    assert kinds(made) == ["conv2d", "conv2d", "split_depth"]
    assert [step.fn for step in made.nodes[1].spec.post_ops] == ["add", "relu"]
    require_equal(graph, made)


def test_what_is_read_twice_is_computed_once():
    b = Builder(x=(6, 4, 5, 6))
    (volume,) = volumes(b, "x")
    active = b.post_ops("relu", volume)
    again = b.add(SplitDepth(DEPTH), b.conv(b.add(JoinDepth(), active), 4))
    graph = b.graph(b.post_ops("add", again, active))
    made = optimise(graph)
    assert "eltwise" not in kinds(made)
    require_equal(graph, made)


@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1, 1), (1, 4, 1, 1, 1), (1,) * 5])
def test_numbers_and_channels_go_along(shape):
    b = Builder(x=(6, 4, 5, 6))
    (volume,) = volumes(b, "x")
    steps = (PostOp("relu"), PostOp("mul", operand=1), PostOp("tanh"))
    graph = b.graph(b.add(Eltwise(steps), volume, b.const(*shape)))
    made = optimise(graph)
    assert kinds(made) == ["conv2d", "split_depth"]
    require_equal(graph, made)


@pytest.mark.parametrize("shape", [(DEPTH, 1, 1), (5, 1), VOLUME, (2, 1, 1, 1, 1)])
def test_constants_along_other_axes_stay(shape):
    b = Builder(x=(6, 4, 5, 6))
    (volume,) = volumes(b, "x")
    graph = b.graph(b.add(Eltwise((PostOp("mul", operand=1),)), volume, b.const(*shape)))
    made = optimise(graph)
    assert kinds(made) == ["conv2d", "split_depth", "eltwise"]
    require_equal(graph, made)


def test_other_computed_operands_stay():
    b = Builder(x=(6, 4, 5, 6), z=VOLUME)
    (volume,) = volumes(b, "x")
    graph = b.graph(b.post_ops("add", volume, "z"))
    assert kinds(optimise(graph))[-1] == "eltwise"
    require_equal(graph, optimise(graph))


def test_volumes_of_volumes():
    """Both views of four spatial axes change places with the function."""
    b = Builder(x=(12, 4, 5, 6))
    inner = b.add(SplitDepth(3), b.conv("x", 4))
    outer = b.add(SplitDepth(2), inner)
    graph = b.graph(b.add(Reshape((2, 4, 6, 30)), b.post_ops("relu", outer)))
    made = optimise(graph)
    assert "eltwise" not in kinds(made)
    require_equal(graph, made)
