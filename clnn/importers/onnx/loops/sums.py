"""Sums of products by constants: what a gate of a cell adds up, and constants that bodies cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto

from clnn.importers.onnx.loops.names import Names, attribute
from clnn.importers.onnx.loops.walk import Walk
from clnn.records import dataclass
from clnn.types import Array

Columns = tuple[int, int]
MOST = 32  # terms of a sum
CUTS = ("Identity", "Split", "Slice", "Squeeze", "Unsqueeze", "Transpose", "Reshape")


@dataclass(frozen=True)
class Term:
    """A part of a sum: a value times columns of a constant.

    factor: the value, "" of a constant alone. weights: the constant, "" of any other value. columns: of the
    constant, None for all. part: whether the factor is all that is multiplied (0), or the first (1) or second
    (2) of two side by side. flat: the product has lost the axis of its one sequence.
    """

    factor: str
    weights: str
    columns: Columns | None = None
    part: int = 0
    flat: bool = False


class Constants:
    """Which values of a loop's body are constants of floats, and of what shape."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a constant, which may be cut and turned in the body; None of other values."""
        found = self._empty(name, self.walk.body)
        return None if found is None else found.shape

    def _empty(self, name: str, names: Names) -> Array | None:
        """Return an array of a constant's shape, that takes no memory."""
        inside = names is self.walk.body
        if inside:
            outside = self.walk.outside(name)
            if outside:
                return self._empty(outside, self.walk.outer)
        name = names.source(name)
        tensor, node = names.tensors.get(name), names.makers.get(name)
        if tensor is not None:
            fits = tensor.data_type == TensorProto.FLOAT
            return np.broadcast_to(np.float32(0), tuple(tensor.dims)) if fits else None
        if node is None or node.op_type not in CUTS:
            return None
        given = self._empty(node.input[0], names)
        return None if given is None else _cut(given, node, name, names)


def _cut(given: Array, node: onnx.NodeProto, name: str, names: Names) -> Array | None:
    """Return what a node makes of a constant; None where the node's other inputs are no constants."""
    if node.op_type == "Split":
        return _split(given, node, name, names)
    if node.op_type == "Slice":
        cut = names.cut(node)
        places = [slice(None)] * given.ndim
        for axis, begin, end in cut or ():
            places[axis] = slice(begin, end)
        return None if cut is None else given[tuple(places)]
    if node.op_type in ("Squeeze", "Unsqueeze"):
        axes = names.axes(node)
        if axes is None:
            return None
        change = np.squeeze if node.op_type == "Squeeze" else np.expand_dims
        found: Array = change(given, tuple(axes))
        return found
    if node.op_type == "Transpose":
        perm = attribute(node, "perm")
        return given.transpose([int(a) for a in perm] if isinstance(perm, list) else None)
    wanted = names.small(node.input[1])
    if wanted is None or (wanted == 0).any():
        return None
    return np.broadcast_to(np.float32(0), np.empty(given.shape, np.bool_).reshape(wanted).shape)


def _split(given: Array, node: onnx.NodeProto, name: str, names: Names) -> Array | None:
    axis = int(str(attribute(node, "axis", 0))) % given.ndim
    columns = split_columns(node, name, given.shape[axis], names)
    if columns is None:
        return None
    return np.take(given, range(*columns), axis)


def split_columns(node: onnx.NodeProto, name: str, width: int, names: Names) -> Columns | None:
    """Return begin and end of a part that Split makes of an axis."""
    sizes = attribute(node, "split")
    if not isinstance(sizes, list) and len(node.input) > 1 and node.input[1]:
        given = names.small(node.input[1])
        if given is None:
            return None
        sizes = given.ravel().tolist()
    place, parts = list(node.output).index(name), len(node.output)
    if not isinstance(sizes, list):
        each = -(-width // parts)
        sizes = [min(each, width - k * each) for k in range(parts)]
    begin = sum(int(s) for s in sizes[:place])
    end = begin + int(sizes[place])
    return (begin, end) if 0 <= begin <= end <= width else None


class Sums:
    """Values of a loop's body as sums of terms, over rows of two axes."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.constants = walk, Constants(walk)
        self._known: dict[str, list[Term]] = {}

    def terms(self, name: str) -> list[Term]:
        """Return the terms of a value; one without weights where it is no sum that is known, or one of many."""
        if name not in self._known:
            found = self._terms(name)
            self._known[name] = found if len(found) <= MOST else [Term(name, "")]
        return self._known[name]

    def _terms(self, name: str) -> list[Term]:
        body = self.walk.body
        name = body.source(name)
        node = body.makers.get(name)
        if self.constants.shape(name) is not None:
            return [Term("", name)]
        if node is None:
            return [Term(name, "")]
        if node.op_type == "Add":
            return [term for n in node.input for term in self.terms(n)]
        found = None
        if node.op_type in ("Split", "Slice"):
            found = self._part(node, name)
        elif node.op_type == "Squeeze":
            found = self._squeezed(node)
        elif node.op_type == "MatMul":
            found = self._product(*node.input)
        elif node.op_type == "Gemm" and _is_plain(node):
            found = self._product(*node.input[:2])
            found = found and [*found, *(t for n in node.input[2:] if n for t in self.terms(n))]
        return found or [Term(name, "")]

    def _squeezed(self, node: onnx.NodeProto) -> list[Term] | None:
        """Return the terms of a sum over one row, that loses its first axis: it is added to such a sum all the same."""
        terms = self.terms(node.input[0])
        first = self.walk.body.axes(node) == [0] or (len(node.input) == 1 and not node.attribute)
        wide = all(t.weights and self.width(t) != 1 for t in terms)
        return [replace(t, flat=True) for t in terms] if first and wide else None

    def width(self, term: Term) -> int:
        """Return the columns of a term, 1 where it is one number for all, 0 where that is not known."""
        if term.columns is not None:
            return term.columns[1] - term.columns[0]
        shape = self.constants.shape(term.weights) if term.weights else (0,)
        return 0 if shape is None else shape[-1] if shape else 1

    def _product(self, left: str, right: str) -> list[Term] | None:
        shape = self.constants.shape(right)
        if shape is None or len(shape) != 2:
            return None
        node = self.walk.body.made_by(left, "Concat")
        if node is None or len(node.input) != 2 or attribute(node, "axis") not in (1, -1):
            return [Term(self.walk.body.source(left), right)]
        return [
            Term(self.walk.body.source(n), right, None, k + 1) for k, n in enumerate(node.input)
        ]

    def _part(self, node: onnx.NodeProto, name: str) -> list[Term] | None:
        """Return the terms of some columns of a sum."""
        terms = self.terms(node.input[0])
        widths = {self.width(t) for t in terms} - {1}
        if len(widths) != 1 or not all(t.weights for t in terms):
            return None
        width = widths.pop()
        columns = self._columns(node, name, width)
        return columns and [self._cut(t, columns) for t in terms]

    def _columns(self, node: onnx.NodeProto, name: str, width: int) -> Columns | None:
        names = self.walk.body
        if node.op_type == "Split":
            last = attribute(node, "axis", 0) in (1, -1)
            return split_columns(node, name, width, names) if last else None
        found = (0, width)
        for axis, begin, end in names.cut(node) or [(0, 1, 0)]:
            if axis not in (1, -1):
                if begin or end < 2**31 - 1:
                    return None
                continue
            found = slice(begin, end).indices(width)[:2]
        return found

    def _cut(self, term: Term, columns: Columns) -> Term:
        if self.width(term) == 1:
            return term
        first = term.columns[0] if term.columns else 0
        return replace(term, columns=(first + columns[0], first + columns[1]))


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether Gemm is a product and a sum, nothing turned or scaled."""
    usual: Sequence[tuple[str, float]] = (("alpha", 1), ("beta", 1), ("transA", 0), ("transB", 0))
    return all(attribute(node, name, value) == value for name, value in usual)
