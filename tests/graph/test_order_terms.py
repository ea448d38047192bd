"""Axes that a transpose and a reshape join to the terms of a product."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder, agrees

from clnn.graph.passes import optimise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.rows.softmax import Softmax

SHAPE = (2, 3, 7, 4)  # images, heads, tokens, numbers of a head


def heads_last(perm, joined, trans_b=False, twice=False):
    """Return a product of softmax(x), transposed, with its last axes joined to rows of `joined` elements."""
    b = Builder(x=SHAPE)
    turned = b.add(Transpose(perm), b.add(Softmax((3,)), "x"))
    rows = b.add(Reshape((int(np.prod(SHAPE)) // joined, joined)), turned)
    weights = b.const(*((5, joined) if trans_b else (joined, 5)))
    made = b.add(Gemm(trans_b=trans_b), rows, weights)
    return b.graph(made, *([b.post_ops("relu", turned)] if twice else []))


def perms(graph):
    return [n.spec.perm for n in graph.nodes if isinstance(n.spec, Transpose)]


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(
    "perm, joined, kept",
    [
        ((0, 2, 3, 1), 12, (0, 2, 1, 3)),  # heads innermost
        ((0, 3, 2, 1), 84, None),  # all of them: in order, so nothing is turned
        ((0, 2, 1, 3), 12, (0, 2, 1, 3)),
        ((1, 0, 3, 2), 28, (1, 0, 2, 3)),
    ],
)
def test_terms_have_the_order_of_memory(device, perm, joined, kept, trans_b):
    graph = heads_last(perm, joined, trans_b)
    found = [p for p in perms(optimise(graph, fixed=True)) if p != tuple(range(4))]
    assert found == ([kept] if kept else [])
    agrees(graph, device)


def test_what_others_read_stays(device):
    graph = heads_last((0, 2, 3, 1), 12, twice=True)
    assert (0, 2, 3, 1) in perms(optimise(graph, fixed=True))
    agrees(graph, device)


def test_parts_of_axes_and_open_extents_stay(device):
    graph = heads_last((0, 2, 3, 1), 6)
    assert perms(optimise(graph, fixed=True)) == [(0, 2, 3, 1)]
    agrees(graph, device)
    assert perms(optimise(heads_last((0, 2, 3, 1), 12))) == [(0, 2, 3, 1)]
