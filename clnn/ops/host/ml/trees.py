"""Ensembles of decision trees as tables, and walks through all trees of all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode
from clnn.records import dataclass
from clnn.types import Array

MODES: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("BRANCH_LEQ", np.less_equal),
    ("BRANCH_LT", np.less),
    ("BRANCH_GTE", np.greater_equal),
    ("BRANCH_GT", np.greater),
    ("BRANCH_EQ", np.equal),
    ("BRANCH_NEQ", np.not_equal),
)
MEMBER, LEAF = len(MODES), len(MODES) + 1
NUMBERS = {**{name: k for k, (name, _) in enumerate(MODES)}, "BRANCH_MEMBER": MEMBER, "LEAF": LEAF}
BLOCK = (
    1 << 14
)  # pairs of rows and trees that are walked at a time, for what they need to stay close
SPAN = 4  # steps between looks for pairs that are at a leaf
FEWER = 0.75  # of the pairs, which go on alone


@dataclass(frozen=True)
class Trees:
    """All nodes of an ensemble, and what its leaves add to which column.

    roots: the first node of each tree. modes, features, splits, missing: of each node; missing: whether
    NaN goes the way of yes. ways: the nodes that no and yes lead to, by turns; a leaf's are itself.
    members: of a node that asks for membership, its values. starts: entries of node k are starts[k] to
    starts[k + 1] of columns and weights. kinds: the modes of all branches.
    """

    roots: Array
    modes: Array
    features: Array
    splits: Array
    ways: Array
    missing: Array
    members: dict[int, Array]
    starts: Array
    columns: Array
    weights: Array
    kinds: tuple[int, ...]


def made(
    roots: Array,
    fields: Sequence[Array],
    members: dict[int, Array],
    entries: Sequence[Array],
) -> Trees:
    """Return checked trees. fields: modes, features, splits, yes, no, missing. entries: node, column,
    weight of each.

    Raises ValueError for a node that two others, or none, lead to, and for a cycle.
    """
    modes, features, splits, yes, no, missing = fields
    count = len(modes)
    leaf = modes == LEAF
    inner = np.flatnonzero(~leaf)
    for ways in (yes, no):
        if inner.size and (ways[inner].min() < 0 or ways[inner].max() >= count):
            raise ValueError("a branch leads to a node that is not there")
    if inner.size and features[inner].min() < 0:
        raise ValueError("a branch asks for a feature below 0")
    own = np.arange(count)
    yes, no = np.where(leaf, own, yes), np.where(leaf, own, no)
    _refuse_cycles(roots, yes, no, leaf)
    places, columns, weights = entries
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(count + 1))
    return Trees(
        roots,
        modes,
        np.where(leaf, 0, features),
        splits,
        np.stack([no, yes], 1).reshape(-1),
        missing,
        members,
        starts,
        columns[order],
        weights[order],
        tuple(distinct(modes[inner]).tolist()),
    )


def _refuse_cycles(roots: Array, yes: Array, no: Array, leaf: Array) -> None:
    """Raise ValueError where a walk would not come to an end."""
    front, depth = distinct(roots), 0
    while front.size:
        front = front[~leaf[front]]
        front = distinct(np.concatenate([yes[front], no[front]]))
        depth += 1
        if depth > len(leaf):
            raise ValueError("a tree has a cycle")


def distinct(values: Array) -> Array:
    """Return the values that there are, in their order: numpy's unique takes several times as long for many."""
    ordered = np.sort(values)
    is_new = ordered[1:] != ordered[:-1]
    return np.concatenate([ordered[:1], ordered[1:][is_new]])


def leaves(trees: Trees, x: Array) -> Array:
    """Return the leaf (n, trees) that each row of x (n, features) reaches. Raises IndexError."""
    most = int(trees.features.max(initial=-1)) if trees.kinds else -1
    if most >= x.shape[1]:
        raise IndexError(f"a tree asks for feature {most} of {x.shape[1]}")
    found = np.empty((len(x), len(trees.roots)), np.int64)
    rows = max(1, BLOCK // max(1, len(trees.roots)))
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        found[start : start + rows] = _walked(trees, part).reshape(len(part), -1)
    return found


def _walked(trees: Trees, x: Array) -> Array:
    """Return the leaves of all pairs of rows and trees. Pairs at a leaf stand still until they are dropped."""
    at = np.tile(trees.roots, len(x))
    if not trees.kinds:
        return at
    starts = np.repeat(np.arange(len(x)) * x.shape[1], len(trees.roots))
    found, pairs = at.copy(), np.arange(len(at))
    cells, has_missing = x.reshape(-1), bool(trees.missing.any() and np.isnan(x).any())
    while at.size:
        for _ in range(SPAN):
            values = cells.take(starts + trees.features.take(at))
            taken = _answers(trees, at, values)
            if has_missing:
                taken |= np.isnan(values) & trees.missing.take(at)
            at = trees.ways.take(2 * at + taken)
        going = trees.modes.take(at) != LEAF
        if going.mean() < FEWER:
            found[pairs] = at
            at, starts, pairs = at[going], starts[going], pairs[going]
    return found


def _answers(trees: Trees, at: Array, values: Array) -> Array:
    """Return which pairs go the way of yes."""
    if len(trees.kinds) == 1 and trees.kinds[0] != MEMBER:
        return np.asarray(MODES[trees.kinds[0]][1](values, trees.splits.take(at)))
    modes, splits = trees.modes.take(at), trees.splits.take(at)
    taken = np.zeros(at.shape, bool)
    for kind in trees.kinds:
        here = modes == kind
        if kind != MEMBER:
            taken[here] = MODES[kind][1](values[here], splits[here])
            continue
        for node in np.unique(at[here]).tolist():
            asked = here & (at == node)
            taken[asked] = np.isin(values[asked], trees.members[node])
    return taken


def nodes_by_id(node: HostNode, what: str, dtype: type) -> tuple[Trees, Array | None]:
    """Return the trees of an operator whose nodes have ids, and its base values.

    what: "class" or "target", whose weights leaves add.
    """
    tree_ids = _ints(node, "nodes_treeids")
    count = len(tree_ids)
    ids = _ints(node, "nodes_nodeids", count)
    place = _Places(tree_ids, ids)
    names = node.attr("nodes_modes") or []
    unknown = sorted({n for n in names if n not in NUMBERS or NUMBERS[n] == MEMBER})
    if len(names) != count or unknown:
        raise ValueError(f"{len(names)} modes for {count} nodes, of which {unknown} are unknown")
    modes = np.array([NUMBERS[n] for n in names], np.int8)
    yes = _followed(place, tree_ids, _ints(node, "nodes_truenodeids", count), modes)
    no = _followed(place, tree_ids, _ints(node, "nodes_falsenodeids", count), modes)
    features = _ints(node, "nodes_featureids", count)
    splits = _reals(node, "nodes_values", count, dtype)
    missing = _ints(node, "nodes_missing_value_tracks_true", count, 0) != 0
    entries = _entries(node, what, place, dtype)
    roots = (
        np.flatnonzero(np.concatenate([[True], tree_ids[1:] != tree_ids[:-1]]))
        if count
        else tree_ids
    )
    base = _reals(node, "base_values", None, dtype)
    trees = made(roots, (modes, features, splits, yes, no, missing), {}, entries)
    return trees, base if base.size else None


def _ints(node: HostNode, name: str, count: int | None = None, default: int | None = None) -> Array:
    values = node.attr(name)
    if not values and default is not None:
        return np.full(count or 0, default, np.int64)
    found = np.array(values or [], np.int64)
    if count is not None and len(found) != count:
        raise ValueError(f"{name} has {len(found)} entries for {count}")
    return found


def _reals(node: HostNode, name: str, count: int | None, dtype: type) -> Array:
    tensor = node.attr(f"{name}_as_tensor")
    values = node.attr(name) or [] if tensor is None else tensor.reshape(-1)
    found: Array = np.array(values, dtype)
    if count is not None and len(found) != count:
        raise ValueError(f"{name} has {len(found)} entries for {count}")
    return found


class _Places:
    """Where the nodes stand that trees and ids name. Raises ValueError for two of one name."""

    def __init__(self, tree_ids: Array, ids: Array) -> None:
        self._trees, self._ids = distinct(tree_ids), distinct(ids)
        keys, _ = self._keys(tree_ids, ids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        if (self._sorted[1:] == self._sorted[:-1]).any():
            raise ValueError("two nodes of a tree have one id")

    def __call__(self, tree_ids: Array, ids: Array) -> Array:
        """Return the places of nodes, -1 of those that are not there."""
        if not self._sorted.size:
            return np.full(len(ids), -1)
        keys, known = self._keys(tree_ids, ids)
        at = np.minimum(np.searchsorted(self._sorted, keys), self._sorted.size - 1)
        return np.where(known & (self._sorted[at] == keys), self._order[at], -1)

    def _keys(self, tree_ids: Array, ids: Array) -> tuple[Array, Array]:
        """Return a number for each pair, and whether there are nodes of both."""
        (tree, is_tree), (own, is_own) = (
            _ranked(self._trees, tree_ids),
            _ranked(self._ids, ids),
        )
        return tree * self._ids.size + own, is_tree & is_own


def _ranked(known: Array, values: Array) -> tuple[Array, Array]:
    """Return where values stand among those known, and whether they are there."""
    at = np.minimum(np.searchsorted(known, values), max(known.size - 1, 0))
    return at, known[at] == values if known.size else np.zeros(len(values), bool)


def _followed(place: _Places, tree_ids: Array, ids: Array, modes: Array) -> Array:
    """Return the nodes that branches lead to; -1 where there is none."""
    return np.where(modes == LEAF, -1, place(tree_ids, ids))


def _entries(node: HostNode, what: str, place: _Places, dtype: type) -> tuple[Array, Array, Array]:
    trees = _ints(node, f"{what}_treeids")
    ids = _ints(node, f"{what}_nodeids", len(trees))
    found = place(trees, ids)
    if (found < 0).any():
        raise ValueError("a weight belongs to a node that is not there")
    weights = _reals(node, f"{what}_weights", len(trees), dtype)
    return found, _ints(node, f"{what}_ids", len(trees)), weights
