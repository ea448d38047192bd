"""TreeEnsembleRegressor and TreeEnsembleClassifier as sums over trees and what is done with them.

What the kernel's tables do not hold is walked on the host (clnn.ops.host.ml).
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from clnn.ops.composed.learned import picked, transformed
from clnn.ops.composed.values import Value, concat
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.logic import Logic
from clnn.ops.host.ml.trees import LEAF, Trees, nodes_by_id
from clnn.ops.host.registry import HostNode
from clnn.ops.onnx_registry import Attributes, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.rows.arg import ArgExtreme
from clnn.ops.trees.packed import Ensemble, NotPackedError, Packed, packed
from clnn.ops.trees.spec import TreeSums
from clnn.records import dataclass
from clnn.types import F32, F64, I64, Array

_TESTS = dict(enumerate(("<=", "<", ">=", ">", "==", "!=")))
_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")
_KINDS = {"TreeEnsembleRegressor": "target", "TreeEnsembleClassifier": "class"}
MOST_KEPT = 2**26  # bytes of tables that are kept for the import of another shape
_reads: dict[bytes, Read] = {}  # by what a node says, the one used last at the end
_digests: dict[int, tuple[weakref.ref[Any], bytes]] = {}  # of attributes, by their identity
_COLUMNS = {"target": "n_targets", "class": "classlabels_int64s"}


@dataclass(frozen=True)
class Read:
    """A node's trees: an op and its tables, base values (None: it has none), weights and their columns."""

    spec: TreeSums
    packed: Packed
    base: Array | None
    weights: Array
    columns: Array

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self.packed.nbytes + self.weights.nbytes + self.columns.nbytes


def has_tables(op_type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether a kernel computes a node of domain ai.onnx.ml, of float32 or whole numbers."""
    try:
        return op_type in _KINDS and _kept(op_type, attrs) is not None
    except (NotPackedError, ValueError, LookupError, TypeError):
        return False


def _read(op_type: str, attrs: Mapping[str, Any]) -> Read:
    """Return what a node says. Raises NotPackedError or ValueError for what is left to the host."""
    what = _KINDS[op_type]
    node = HostNode(op_type, 0, attrs)
    transform = node.attr("post_transform", "NONE")
    if transform not in _TRANSFORMS:
        raise NotPackedError(f"post transform {transform!r}")
    if node.attr("aggregate_function", "SUM") not in ("SUM", "AVERAGE"):
        raise NotPackedError("an aggregate other than sum and average")
    labels = node.attr(_COLUMNS[what])
    if what == "class" and (not labels or len(labels) < 2 or node.attr("classlabels_strings")):
        raise NotPackedError("labels of text, or fewer than two")
    columns = int(labels or 1) if what == "target" else len(labels)
    trees, base = nodes_by_id(node, what, np.float32)
    if len(trees.kinds) > 1 or not set(trees.kinds) <= set(_TESTS):
        raise NotPackedError("branches of several kinds")
    if trees.columns.size and not 0 <= trees.columns.min() <= trees.columns.max() < columns:
        raise NotPackedError("weights of columns that are not there")
    if base is not None and len(base) not in _bases(what, columns):
        raise NotPackedError(f"{len(base)} base values for {columns} columns")
    found = packed(_ensemble(trees), columns)
    if what == "class" and columns > 2 and base is None and not found.reached.all():
        raise NotPackedError("columns without weights")
    spec = TreeSums.of(found, columns, _TESTS[trees.kinds[0] if trees.kinds else 0])
    return Read(spec, found, base, trees.weights, trees.columns)


def _bases(what: str, columns: int) -> tuple[int, ...]:
    """Return how many base values the kernel's form takes."""
    return (1,) if what == "class" and columns == 2 else (columns,)


def _ensemble(trees: Trees) -> Ensemble:
    owners = np.repeat(np.arange(len(trees.modes)), np.diff(trees.starts))
    leaf = trees.modes == LEAF
    at_leaf = leaf[owners]
    return Ensemble(
        trees.roots,
        trees.ways[1::2],
        trees.ways[::2],
        trees.features,
        trees.splits,
        trees.missing & ~leaf,
        owners[at_leaf],
        trees.columns[at_leaf],
        trees.weights[at_leaf],
    )


def _kept(op_type: str, attrs: Mapping[str, Any]) -> Read:
    """Return what a node says, once for all shapes of its model, and all who ask."""
    key = op_type.encode() + _said(attrs)
    found = _reads.pop(key, None) or _read(op_type, attrs)
    _reads[key] = found
    room = MOST_KEPT
    for other, read in reversed(list(_reads.items())):
        room -= read.nbytes
        if room < 0 and other != key:
            _reads.pop(other, None)
    return found


def _said(attrs: Mapping[str, Any]) -> bytes:
    """Return a digest of attributes. Attributes that can be known again are read once."""
    known = _digests.get(id(attrs))
    if known is not None and known[0]() is attrs:
        return known[1]
    digest = sha256()
    for name in sorted(attrs):
        value = attrs[name]
        digest.update(f"{name} {type(value).__name__} ".encode())
        digest.update(_bytes_of(value))
    if isinstance(attrs, Attributes):
        place = id(attrs)
        _digests[place] = weakref.ref(attrs, lambda _: _digests.pop(place, None)), digest.digest()
    return digest.digest()


def _bytes_of(value: Any) -> bytes:
    """Return bytes that no other value of its kind has."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    kinds = {*map(type, value)} if isinstance(value, list) else set()
    if kinds in ({int}, {float}):
        code = "q" if kinds == {int} else "d"
        return f"{code} {len(value)} ".encode() + array(code, value).tobytes()
    return repr(value).encode()


def _sums(node: OnnxNode) -> tuple[Value, Read]:
    """Return the sums of a node's rows, and what else it says. Raises Unsupported."""
    try:
        read = _kept(node.op_type, node.attrs)
    except (NotPackedError, ValueError, LookupError, TypeError) as err:
        raise Unsupported(f"trees without a kernel: {err}") from err
    x = Value.of(node, 0)
    if x.type.dtype == F64:
        raise Unsupported("trees over doubles are walked on the host")
    if x.type.rank == 1:
        x = x.reshape((1, x.shape[0]))
    if x.type.rank != 2 or x.shape[1] <= read.packed.highest:
        raise Unsupported(f"trees over features {x.shape}")
    tables = (read.packed.nodes, read.packed.roots, read.packed.weights)
    sums = x.cast(F32).apply(read.spec, *map(Value.const, tables))
    return sums, read


def _number(value: float) -> Value:
    return Value.const(np.array(value, np.float32))


@onnx_op("ai.onnx.ml::TreeEnsembleRegressor")
def _regressor(node: OnnxNode) -> Source:
    sums, read = _sums(node)
    if node.attr("aggregate_function", "SUM") == "AVERAGE":
        sums = sums.binary("div", _number(len(read.packed.roots)))
    if read.base is not None:
        reached = read.packed.reached if sums.shape[1] > 1 else True
        sums = sums.binary("add", Value.const(np.where(reached, read.base, np.float32(0))))
    return transformed(sums, node.attr("post_transform", "NONE")).source


@onnx_op("ai.onnx.ml::TreeEnsembleClassifier")
def _classifier(node: OnnxNode) -> Sequence[Source]:
    sums, read = _sums(node)
    labels, name = (
        np.array(node.attrs["classlabels_int64s"], np.int64),
        node.attr("post_transform", "NONE"),
    )
    if len(labels) == 2:
        found, scores = _two(sums, read, labels, name)
    else:
        if read.base is not None:
            sums = sums.binary("add", Value.const(read.base))
        places = sums.apply(ArgExtreme(True, 1, False))
        found, scores = picked(labels, places), transformed(sums, name)
    return [found.source, scores.source][: node.n_outputs]


def _two(sums: Value, read: Read, labels: Array, name: str) -> tuple[Value, Value]:
    """Return labels and scores where leaves tell two labels apart, as clnn.ops.host.ml.ensembles does."""
    first, second = read.packed.reached.tolist()
    if read.base is not None:
        sums = sums.binary("add", Value.const(np.array([read.base[0], 0], np.float32)))
    is_one = not read.columns.size or bool(read.columns.min() == read.columns.max())
    positive = is_one and bool((read.weights >= 0).all())
    last = sums.part(1, 1 if second else 0, 1)
    if not first and not second:
        last = last.binary("mul", _number(0))
    above = last.apply(
        Logic("greater"), Value.const(np.full((1, 1), 0.5 if positive else 0, np.float32))
    )
    places = above.apply(Cast(I64)).reshape((sums.shape[0],))
    found = picked(labels, places) if is_one else places
    if second:
        return found, transformed(sums if first else _only_second(sums), name)
    score = sums.part(1, 0, 1)
    if name == "LOGISTIC" or not positive:
        both = concat([score.unary("neg"), score], 1)
        return found, both.unary("sigmoid") if name == "LOGISTIC" else both
    return found, concat([_number(1).binary("sub", score), score], 1)


def _only_second(sums: Value) -> Value:
    return sums.binary("mul", Value.const(np.array([[0, 1]], np.float32)))
