"""Trees as tables in which the two nodes that a branch leads to stand side by side."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from clnn.records import dataclass
from clnn.types import Array

LEAF = -(2**31)  # in place of where a branch leads
BITS = 8  # of a feature, or twice as many ...
MOST_WEIGHTS = 2**24  # of leaves that have one for each column
_STEPS = 1.3  # of a walk through a tree of so many leaves, times the logarithm


class NotPackedError(Exception):
    """Why trees have no such tables."""


@dataclass(frozen=True)
class Ensemble:
    """Trees as lists of nodes.

    roots: a node of each tree. yes, no: where a branch leads; a leaf leads to itself. features, splits, missing: of
    each node. owners, columns, weights: of each weight the leaf, the column that it is added to, and what is added.
    """

    roots: Array
    yes: Array
    no: Array
    features: Array
    splits: Array
    missing: Array
    owners: Array
    columns: Array
    weights: Array


@dataclass(frozen=True)
class Packed:
    """Tables, as TreeSums has them, with its shift, missing, spread and steps.

    reached: which columns leaves add to, whatever the row. highest: the highest feature.
    """

    nodes: Array
    roots: Array
    weights: Array
    shift: int
    missing: bool
    spread: bool
    steps: int
    reached: Array
    highest: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self.nodes.nbytes + self.roots.nbytes + self.weights.nbytes


def packed(trees: Ensemble, columns: int) -> Packed:
    """Return the tables of trees. Raises NotPackedError where there are none."""
    places = [_in_order(trees, root) for root in trees.roots.tolist()]
    if not places:
        raise NotPackedError("there are no trees")
    highest = int(trees.features.max(initial=0))
    has_missing = bool(trees.missing.any())
    bits = _bits(highest, max(len(nodes) for nodes, _ in places), has_missing)
    shift = bits + has_missing
    nodes = np.concatenate([n for n, _ in places])
    left = np.concatenate([firsts for _, firsts in places])
    starts = np.cumsum([0, *(len(n) for n, _ in places)])
    low = trees.features[nodes] | (trees.missing[nodes].astype(np.int64) << bits)
    second = np.where(left < 0, LEAF, (left << shift) | low)
    number, own, weights = _weights(trees, nodes, starts, columns)
    first = np.where(left < 0, number, np.ascontiguousarray(trees.splits[nodes]).view(np.int32))
    column = np.zeros(len(places), np.int64) if own is None else own
    return Packed(
        np.stack([first, second], 1).astype(np.int32),
        np.stack([starts[:-1], column], 1).astype(np.int32),
        weights,
        shift,
        has_missing,
        own is None,
        _steps(np.add.reduceat(left < 0, starts[:-1])),
        _reached(trees, nodes, left, starts, columns),
        highest,
    )


def _bits(highest: int, longest: int, has_missing: bool) -> int:
    """Return the bits of a feature: a few different numbers, so that ensembles share kernels."""
    least = max(highest.bit_length(), 1)
    room = 31 - longest.bit_length() - has_missing
    if least > room:
        raise NotPackedError(f"a tree of {longest} nodes over {highest + 1} features")
    return min(-(-least // BITS) * BITS, room)


def _steps(leaves: Array) -> int:
    return int(np.ceil(_STEPS * np.log2(leaves)).sum()) + len(leaves)


def _in_order(trees: Ensemble, root: int) -> tuple[Array, Array]:
    """Return a tree's nodes, level by level, and where the yes-node of each stands; -1 of leaves."""
    nodes, firsts, count = [], [], 0
    front = np.array([root])
    while front.size:
        count += len(front)
        if count > 2 * len(trees.yes):
            raise NotPackedError("branches lead to nodes that others lead to")
        inner = trees.yes[front] != front
        first = np.full(len(front), -1)
        first[inner] = count + 2 * np.arange(np.count_nonzero(inner))
        nodes.append(front)
        firsts.append(first)
        branches = front[inner]
        front = np.stack([trees.yes[branches], trees.no[branches]], 1).reshape(-1)
    return np.concatenate(nodes), np.concatenate(firsts)


def _weights(
    trees: Ensemble, nodes: Array, starts: Array, columns: int
) -> tuple[Array, Array | None, Array]:
    """Return the number of each node that is a leaf, the column of each tree, and weights.

    The columns are None where leaves have a row of weights each.
    """
    own = _own_columns(trees, nodes, starts)
    if own is not None:
        single = np.zeros(len(trees.yes), np.float32)
        single[trees.owners] = trees.weights
        return single.view(np.int32)[nodes], own, np.zeros((1, 1), np.float32)
    leaves, number = np.unique(trees.owners, return_inverse=True)
    if (len(leaves) + 1) * columns > MOST_WEIGHTS:
        raise NotPackedError(f"{len(leaves)} leaves with weights for {columns} columns")
    table = np.zeros((len(leaves) + 1, columns), np.float32)
    np.add.at(table, (number, trees.columns), trees.weights)
    rows = np.full(len(trees.yes), len(leaves))  # of zeros, where a leaf has no weight
    rows[leaves] = np.arange(len(leaves))
    return rows[nodes], None, table


def _own_columns(trees: Ensemble, nodes: Array, starts: Array) -> Array | None:
    """Return the one column of each tree, None where a leaf has several weights, or a tree has columns."""
    if np.bincount(trees.owners, minlength=1).max() > 1:
        return None
    column = np.full(len(trees.yes), -1)
    column[trees.owners] = trees.columns
    own = np.zeros(len(starts) - 1, np.int64)
    for tree, part in enumerate(_parts(nodes, starts)):
        found = column[part]
        found = found[found >= 0]
        if len(found) and found.min() < found.max():
            return None
        own[tree] = found[0] if len(found) else 0
    return own


def _parts(nodes: Array, starts: Array) -> Iterator[Array]:
    return (nodes[a:b] for a, b in pairwise(starts.tolist()))


def _reached(trees: Ensemble, nodes: Array, left: Array, starts: Array, columns: int) -> Array:
    """Return the columns to which a leaf of some tree adds whatever the row. Raises NotPackedError."""
    weighs = [np.zeros(len(trees.yes), bool) for _ in range(columns)]
    for column in range(columns):
        weighs[column][trees.owners[trees.columns == column]] = True
    found = np.zeros(columns, bool)
    for column, has in enumerate(weighs):
        placed = has[nodes] | (left >= 0)
        always = bool(np.logical_and.reduceat(placed, starts[:-1]).any())
        if not always and bool((has[nodes] & (left < 0)).any()):
            raise NotPackedError(f"rows decide whether leaves add to column {column}")
        found[column] = always
    return found
