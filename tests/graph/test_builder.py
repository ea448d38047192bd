"""The builder of graphs."""

from __future__ import annotations

import numpy as np
import pytest

from clnn.errors import DTypeError, ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.movement.views import Concat
from clnn.ops.rows.topk import TopK
from clnn.types import F32, I64, TensorType


def test_values_are_known_by_names_of_their_own():
    build = GraphBuilder()
    x = build.input("x", TensorType((2, 3)))
    other = build.input("x", TensorType((2, 3)))
    both = build.add(Concat(0), x, other)
    again = build.add(Concat(0), both, both)
    assert len({x, other, both, again}) == 4
    graph = build.graph({"y": again}, "net")
    assert graph.inputs == (x, other) and graph.name == "net"
    assert graph.types[again] == TensorType((8, 3))
    assert graph.outputs == {"y": again}


def test_a_reshaped_constant_is_a_constant():
    build = GraphBuilder()
    array = np.arange(6, dtype=np.float32)
    weights = build.const(array, "w")
    assert build.reshape(weights, (6,)) == weights
    matrix = build.reshape(weights, (2, 3))
    np.testing.assert_array_equal(build.consts[matrix], array.reshape(2, 3))
    x = build.input("x", TensorType((2, 3)))
    assert build.reshape(x, (2, 3)) == x
    turned = build.transpose(build.reshape(x, (3, 2)), (1, 0))
    assert build.shape(turned) == (2, 3) and len(build.nodes) == 2


def test_a_node_has_all_outputs_of_its_op():
    build = GraphBuilder()
    node = build.node(TopK(2, 1), (build.input("x", TensorType((2, 3))),), "top", "TopK")
    assert [build.type(v) for v in node.outputs] == [TensorType((2, 2), t) for t in (F32, I64)]
    assert node.name == "top" and len(set(node.outputs)) == 2


def test_what_does_not_fit_is_refused_and_adds_nothing():
    build = GraphBuilder()
    x, y = (build.input("x", TensorType(s)) for s in ((2, 3), (2, 4)))
    with pytest.raises(ShapeError):
        build.add(Concat(0), x, y)
    with pytest.raises(DTypeError):
        build.const(np.zeros(1, np.complex64))
    assert not build.nodes and not build.consts
