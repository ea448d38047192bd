"""TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.ops.host.ml.features import as_rows
from clnn.ops.host.ml.scores import (
    BY_NUMBER,
    COMPLEMENT,
    MIRRORED,
    labels_of,
    picked,
    transformed,
    two_columns,
)
from clnn.ops.host.ml.trees import BLOCK, LEAF, MEMBER, MODES, Trees, leaves, made, nodes_by_id
from clnn.ops.host.registry import HostNode, host_op
from clnn.records import dataclass
from clnn.types import Array

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_LARGEST_TABLE = 1 << 22  # elements of a table of all leaves by all columns
_MODES = (0, 1, 2, 3, 4, 5, MEMBER)  # of TreeEnsemble, by number


@dataclass(frozen=True)
class Ensemble:
    """Trees and how their leaves make columns. has: whether any weight of a node is for a column."""

    trees: Trees
    columns: int
    base: Array | None
    sums: Array | None
    has: Array | None


def _ensemble(trees: Trees, columns: int, base: Array | None) -> Ensemble:
    if trees.columns.size and not 0 <= trees.columns.min() <= trees.columns.max() < columns:
        raise ValueError(
            f"weights for columns {trees.columns.min()} to {trees.columns.max()} of {columns}"
        )
    if base is not None and len(base) != columns and (len(base), columns) != (1, 2):
        raise ValueError(f"{len(base)} base values for {columns} columns")
    count = len(trees.modes)
    if count * columns > _LARGEST_TABLE:
        return Ensemble(trees, columns, base, None, None)
    table, has = np.zeros((count, columns), trees.weights.dtype), np.zeros((count, columns), bool)
    owners = np.repeat(np.arange(count), np.diff(trees.starts))
    np.add.at(table, (owners, trees.columns), trees.weights)
    has[owners, trees.columns] = True
    return Ensemble(trees, columns, base, table, has)


def _folded(ensemble: Ensemble, x: Array, how: str) -> tuple[Array, Array]:
    """Return the columns (n, columns) of rows, and which of them any leaf has a weight for."""
    trees, found = ensemble.trees, leaves(ensemble.trees, x)
    out = np.zeros((len(x), ensemble.columns), trees.weights.dtype)
    seen = np.zeros(out.shape, bool)
    fold = {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add)
    for tree in range(found.shape[1]):
        value, has = _leaf_rows(ensemble, found[:, tree])
        joined = np.where(seen, fold(out, value), value)
        out, seen = np.where(has, joined, out), seen | has
    return out, seen


def _summed(ensemble: Ensemble, x: Array) -> tuple[Array, Array]:
    """Return the sums (n, columns) of rows, and which of them any leaf has a weight for."""
    trees, columns = ensemble.trees, ensemble.columns
    if int(np.diff(trees.starts).max(initial=0)) <= 1:
        return _counted(trees, leaves(trees, x), columns)
    if ensemble.sums is None or ensemble.has is None:
        return _folded(ensemble, x, "SUM")
    found = leaves(trees, x)
    out, seen = np.empty((len(x), columns), ensemble.sums.dtype), np.empty((len(x), columns), bool)
    rows = max(1, BLOCK // max(1, found.shape[1] * columns))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        out[part] = ensemble.sums.take(found[part], 0).sum(1)
        seen[part] = ensemble.has.take(found[part], 0).any(1)
    return out, seen


def _counted(trees: Trees, found: Array, columns: int) -> tuple[Array, Array]:
    """Return the sums where no leaf has more than one weight."""
    rows, size = np.repeat(np.arange(len(found)), found.shape[1]), len(found) * columns
    nodes = found.reshape(-1)
    entries = trees.starts.take(nodes)
    weighs = trees.starts.take(nodes + 1) > entries
    if not weighs.all():
        rows, entries = rows[weighs], entries[weighs]
    places = rows * columns + trees.columns.take(entries)
    sums = np.bincount(places, trees.weights.take(entries), size)
    seen = np.bincount(places, minlength=size) > 0
    shape = (len(found), columns)
    return sums.astype(trees.weights.dtype).reshape(shape), seen.reshape(shape)


def _leaf_rows(ensemble: Ensemble, nodes: Array) -> tuple[Array, Array]:
    """Return what leaves (n) add to the columns, and to which."""
    if ensemble.sums is not None and ensemble.has is not None:
        return ensemble.sums[nodes], ensemble.has[nodes]
    trees = ensemble.trees
    value = np.zeros((len(nodes), ensemble.columns), trees.weights.dtype)
    has = np.zeros(value.shape, bool)
    for row, node in enumerate(nodes.tolist()):
        entries = slice(trees.starts[node], trees.starts[node + 1])
        np.add.at(value[row], trees.columns[entries], trees.weights[entries])
        has[row, trees.columns[entries]] = True
    return value, has


def _real(x: Array) -> type:
    return np.float64 if x.dtype == np.float64 else np.float32


@host_op("ai.onnx.ml::TreeEnsembleRegressor")
def _regressor(node: HostNode, x: Array) -> Array:
    dtype, columns = _real(x), int(node.attr("n_targets", 1))

    def read() -> Ensemble:
        trees, base = nodes_by_id(node, "target", dtype)
        return _ensemble(trees, columns, base)

    ensemble = node.once(f"trees {dtype.__name__}", read)
    how = node.attr("aggregate_function", "SUM")
    found = _aggregated(ensemble, as_rows(x, dtype), how, node.attr("post_transform", "NONE"))
    return found.astype(np.float32)


def _aggregated(ensemble: Ensemble, x: Array, how: str, name: str) -> Array:
    """Return the targets of rows, in the element type of the trees."""
    if how not in _AGGREGATES:
        raise ValueError(f"there is no aggregate function {how!r}")
    sums, seen = _summed(ensemble, x) if how in ("SUM", "AVERAGE") else _folded(ensemble, x, how)
    if how == "AVERAGE":
        sums = sums / sums.dtype.type(len(ensemble.trees.roots))
    if ensemble.base is not None:
        based = sums + ensemble.base
        sums = based if ensemble.columns == 1 else np.where(seen, based, sums)
    return transformed(sums, name)


@host_op("ai.onnx.ml::TreeEnsembleClassifier")
def _classifier(node: HostNode, x: Array) -> tuple[Array, Array]:
    dtype, labels = _real(x), labels_of(node, "classlabels_int64s")

    def read() -> Ensemble:
        trees, base = nodes_by_id(node, "class", dtype)
        return _ensemble(trees, len(labels), base)

    ensemble = node.once(f"trees {dtype.__name__}", read)
    sums, seen = _summed(ensemble, as_rows(x, dtype))
    name = node.attr("post_transform", "NONE")
    if len(labels) == 1:
        found, scores = _one(ensemble, sums, labels, name)
    else:
        several = _many if len(labels) > 2 else _two
        found, scores = several(ensemble, sums, seen, labels, name)
    return found, scores.astype(np.float32)


def _many(
    ensemble: Ensemble, sums: Array, seen: Array, labels: Sequence[Any], name: str
) -> tuple[Array, Array]:
    if ensemble.base is not None:
        sums, seen = sums + ensemble.base, np.ones_like(seen)
    places = np.argmax(np.where(seen, sums, -np.inf), 1)
    return picked(labels, places), transformed(sums, name)


def _two(
    ensemble: Ensemble, sums: Array, seen: Array, labels: Sequence[Any], name: str
) -> tuple[Array, Array]:
    """Return labels and scores where leaves tell two labels apart, as onnxruntime does.

    Without base values, or with one, rows that no leaf gives a second sum have one, which stands for both
    labels. With two, a second sum is the first and its base value, and the first its negative. What decides
    is the last sum; where all leaves are of one column and add nothing negative, whether it is above a half.
    """
    base = ensemble.base
    if base is not None:
        sums, seen = (
            _based(base, sums, seen)
            if len(base) == 2
            else (sums + np.array([base[0], 0], sums.dtype), seen)
        )
    last = np.where(seen[:, 1], sums[:, 1], np.where(seen[:, 0], sums[:, 0], 0))
    columns = ensemble.trees.columns
    is_one = not columns.size or columns.min() == columns.max()
    positive = is_one and bool((ensemble.trees.weights >= 0).all())
    places = (last > (0.5 if positive else 0)).astype(np.int64)
    found = picked(labels, places) if is_one or isinstance(labels[0], str) else places
    single = ~seen[:, 1] if base is None or len(base) == 1 else np.zeros(len(sums), bool)
    scores = transformed(np.where(seen, sums, 0), name)
    if single.any():
        way = COMPLEMENT if positive else MIRRORED
        pair = two_columns(sums[:, :1], way, name)
        scores = np.where(single[:, None], pair, scores)
    return found, scores


def _based(base: Array, sums: Array, seen: Array) -> tuple[Array, Array]:
    second = sums[:, 0] + base[1]
    both = np.stack([-second, second], 1)
    alone = np.stack([sums[:, 0] + base[0], np.zeros_like(second)], 1)
    has = seen[:, 1:]
    return np.where(has, both, alone), np.where(has, seen, np.array([[True, False]]))


def _one(ensemble: Ensemble, sums: Array, labels: Sequence[Any], name: str) -> tuple[Array, Array]:
    """Return whether the sums of the only label are positive, and these, as onnxruntime does."""
    if isinstance(labels[0], str):
        raise ValueError("one label of text is no choice")
    if ensemble.base is not None:
        sums = sums + ensemble.base
    return (sums[:, 0] > 0).astype(np.int64), transformed(sums, name)


@host_op("ai.onnx.ml::TreeEnsemble")
def _tree_ensemble(node: HostNode, x: Array) -> Array:
    dtype = x.dtype.type
    how = _AGGREGATES[int(node.attr("aggregate_function", 1))]
    name = BY_NUMBER[int(node.attr("post_transform", 0))]
    ensemble = node.once("trees", lambda: _read(node, dtype))
    return _aggregated(ensemble, as_rows(x, dtype), how, name).astype(dtype)


def _read(node: HostNode, dtype: type) -> Ensemble:
    """Return the ensemble of a node whose branches and leaves are lists of their own."""
    modes = np.array(node.attrs["nodes_modes"]).reshape(-1).astype(np.int64)
    branches, weights = len(modes), _flat(node, "leaf_weights", dtype)
    if modes.size and not 0 <= modes.min() <= modes.max() <= MEMBER:
        raise ValueError(f"modes {modes.min()} to {modes.max()} of {len(MODES) + 1}")
    fields = {
        what: _of_length(node, f"nodes_{what}", branches)
        for what in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    }
    missing = node.attr("nodes_missing_value_tracks_true") or [0] * branches
    splits = _flat(node, "nodes_splits", dtype)
    if len(splits) != branches or len(missing) != branches:
        raise ValueError(
            f"{len(splits)} splits and {len(missing)} ways of NaN for {branches} branches"
        )
    yes = fields["truenodeids"] + np.where(fields["trueleafs"] != 0, branches, 0)
    no = fields["falsenodeids"] + np.where(fields["falseleafs"] != 0, branches, 0)
    pad = np.zeros(len(weights), np.int64)
    own = branches + np.arange(len(weights))
    columns = _of_length(node, "leaf_targetids", len(weights))
    trees = made(
        np.array(node.attrs["tree_roots"], np.int64),
        (
            np.concatenate([modes, np.full(len(weights), LEAF)]),
            np.concatenate([fields["featureids"], pad]),
            np.concatenate([splits, pad.astype(dtype)]),
            np.concatenate([yes, own]),
            np.concatenate([no, own]),
            np.concatenate([np.array(missing) != 0, pad != 0]),
        ),
        _members(node, modes, dtype),
        (own, columns, weights),
    )
    return _ensemble(trees, int(node.attr("n_targets", 1)), None)


def _flat(node: HostNode, name: str, dtype: type) -> Array:
    values: Array = np.array(node.attrs[name], dtype)
    return values.reshape(-1)


def _of_length(node: HostNode, name: str, count: int) -> Array:
    found = np.array(node.attrs.get(name) or [], np.int64)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} entries for {count}")
    return found


def _members(node: HostNode, modes: Array, dtype: type) -> dict[int, Array]:
    """Return the values of each node that asks for membership; NaN ends each one's list."""
    asking = np.flatnonzero(modes == MEMBER)
    if not asking.size:
        return {}
    values = _flat(node, "membership_values", dtype)
    ends = np.flatnonzero(np.isnan(values))
    parts = np.split(values, ends + 1)
    if len(parts) < len(asking):
        raise ValueError(f"{len(parts)} lists of members for {len(asking)} nodes")
    return {int(k): part[~np.isnan(part)] for k, part in zip(asking, parts, strict=False)}
