"""Keys and values that are repeated for the heads of a group are read where they lie."""

from __future__ import annotations

import pytest
from small_graphs import Builder, agrees

import clnn
from clnn.compile import prepare
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Expand, Reshape, Transpose
from clnn.ops.rows.softmax import Softmax
from clnn.ops.transformer.attend import Attention

GROUPS, EACH, QUERIES, KEYS, SIZE = 2, 3, 9, 21, 16
HEADS = GROUPS * EACH


def repeated(b, x, each=EACH):
    """Each head of x `each` times."""
    batch, groups, rows, columns = b.types[x].shape
    one = b.add(Reshape((batch, groups, 1, rows, columns)), x)
    return b.add(Expand((batch, groups, each, rows, columns)), one)


def heads(b, x, each=EACH):
    batch, groups, *rest = b.types[x].shape
    return b.add(Reshape((batch, groups * each, *rest)), repeated(b, x, each))


def transposed_by_matrices(b, x):
    """Heads as a batch of matrices alone, as newer exporters transpose them."""
    batch = b.types[x].shape[0]
    flat = b.add(Reshape((batch * HEADS, KEYS, SIZE)), repeated(b, x))
    turned = b.add(Transpose((0, 2, 1)), flat)
    return b.add(Reshape((batch, HEADS, SIZE, KEYS)), turned)


def transposed(b, x):
    return b.add(Transpose((0, 1, 3, 2)), heads(b, x))


def builder(batch=2, queries=QUERIES, **more):
    shape = (batch, GROUPS, KEYS, SIZE)
    return Builder(q=(batch, queries, HEADS, SIZE), k=shape, v=shape, **more)


def network(b, keys, values, mask=None, turned=True):
    query = b.add(Transpose((0, 2, 1, 3)), "q")
    raw = b.add(Gemm(), query, keys)
    raw = raw if mask is None else b.post_ops("add", raw, mask)
    mixed = b.add(Gemm(), b.add(Softmax((3,)), raw), values)
    if not turned:
        return b.graph(mixed)
    batch, _, queries, size = b.types[mixed].shape
    tokens = b.add(Transpose((0, 2, 1, 3)), mixed)
    return b.graph(b.add(Reshape((batch, queries, HEADS * size)), tokens))


def found(graph, device):
    return prepare(graph, clnn.Options(), device=device).nodes


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("queries", [1, 3, QUERIES])
@pytest.mark.parametrize("keys", [transposed, transposed_by_matrices])
def test_nothing_is_repeated(device, keys, queries, turned):
    b = builder(queries=queries)
    graph = network(b, keys(b, "k"), heads(b, "v"), turned=turned)
    nodes = found(graph, device)
    (spec,) = [n.spec for n in nodes if isinstance(n.spec, Attention)]
    assert spec.turned == 2 * turned
    assert not any(isinstance(n.spec, Expand) for n in nodes)
    agrees(graph, device, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [(KEYS,), (QUERIES, KEYS), (1, QUERIES, KEYS), (HEADS, 1, KEYS), (2, HEADS, QUERIES, 1)],
)
@pytest.mark.parametrize("fed", [False, True], ids=["constant", "fed"])
def test_masks_follow(device, shape, fed):
    b = builder(**({"mask": shape} if fed else {}))
    graph = network(b, transposed(b, "k"), heads(b, "v"), "mask" if fed else b.const(*shape))
    assert not any(isinstance(n.spec, Expand) for n in found(graph, device))
    agrees(graph, device, rtol=1e-4, atol=1e-5)


def _values_are_not(b):
    return transposed(b, "k"), b.const(2, HEADS, KEYS, SIZE)


def _in_other_numbers(b):
    b.types["k"] = type(b.types["k"])((2, EACH, KEYS, SIZE))
    one = b.add(Reshape((2, HEADS, KEYS, SIZE)), repeated(b, "k", GROUPS))
    return b.add(Transpose((0, 1, 3, 2)), one), heads(b, "v")


def _the_other_way(b):
    """Heads that go round all groups, one after the other."""
    one = b.add(Transpose((0, 2, 1, 3, 4)), repeated(b, "k"))
    turned = b.add(Reshape((2, HEADS, KEYS, SIZE)), one)
    return b.add(Transpose((0, 1, 3, 2)), turned), heads(b, "v")


@pytest.mark.parametrize("build", [_values_are_not, _in_other_numbers, _the_other_way])
def test_what_is_something_else_stays(device, build):
    b = builder()
    graph = network(b, *build(b))
    nodes = found(graph, device)
    assert [n.spec.turned for n in nodes if isinstance(n.spec, Attention)] == [1]
    assert any(isinstance(n.spec, Expand) for n in nodes)
    agrees(graph, device, rtol=1e-4, atol=1e-5)
