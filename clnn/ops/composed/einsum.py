"""Einsum: products of tensors, two at a time, each a batch of matrix products where it has sums.

A label is a letter of the equation, or ".k" for the k-th axis from the right of those that an ellipsis
stands for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import prod

from clnn.errors import DTypeError, ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.gemm.spec import Gemm
from clnn.ops.onnx_registry import OnnxNode, Source, Unsupported, onnx_op
from clnn.records import dataclass
from clnn.types import F64, I32, U32

Labels = tuple[str, ...]
MOST_AXES = 8
_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@dataclass(frozen=True, eq=False)
class Piece:
    """A value with a label for each axis."""

    value: Value
    labels: Labels

    def ordered(self, labels: Labels) -> Piece:
        """Return it with its axes in this order, which names all of them."""
        return Piece(self.value.transpose([self.labels.index(n) for n in labels]), labels)

    def grouped(self, *groups: Sequence[str]) -> Value:
        """Return it with one axis for each group of labels; those of a group are merged."""
        order = self.ordered(tuple(name for group in groups for name in group))
        extents = dict(zip(order.labels, order.value.shape, strict=True))
        return order.value.reshape([prod(extents[n] for n in group) for group in groups])

    def summed(self, keep: Collection[str]) -> Piece:
        """Return it with the axes that are not to be kept summed up."""
        axes = [axis for axis, name in enumerate(self.labels) if name not in keep]
        return Piece(self.value.sum(axes), tuple(n for n in self.labels if n in keep))


@onnx_op("Einsum")
def _einsum(node: OnnxNode) -> Source:
    values = [Value.of(node, k) for k in range(len(node.inputs))]
    kind = values[0].type.dtype
    if any(v.type.dtype != kind for v in values):
        raise DTypeError(
            f"einsum of {', '.join(v.type.dtype.name for v in values)}: must be equal."
        )
    terms, out = _parsed(str(node.attrs["equation"]), [v.type.rank for v in values])
    extents = _extents(values, terms)
    if not kind.is_float and kind.itemsize < 4:  # sums of wider integers wrap alike
        values = [v.cast(I32 if kind.numpy.kind == "i" else U32) for v in values]
    pieces = [_plain(v, labels, extents) for v, labels in zip(values, terms, strict=True)]
    for k, piece in enumerate(pieces):
        others = {name for p in (*pieces[:k], *pieces[k + 1 :]) for name in p.labels}
        pieces[k] = piece.summed(others | set(out))
    while len(pieces) > 1:
        i, j = min(combinations(range(len(pieces)), 2), key=lambda pair: _cost(pieces, pair, out))
        rest = [p for k, p in enumerate(pieces) if k not in (i, j)]
        pieces = [*rest, _product(pieces[i], pieces[j], _kept(rest, out), out)]
    return pieces[0].ordered(out).value.cast(kind).source


def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Return the labels of each operand's axes, and those of the output."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ShapeError(f"equation {equation!r} has {len(terms)} terms for {len(ranks)} inputs.")
    labels = [_labels(equation, t, rank) for t, rank in zip(terms, ranks, strict=True)]
    counts = Counter(name for term in labels for name in term)
    dots = sorted((n for n in counts if n[0] == "."), key=lambda n: -int(n[1:]))
    if not arrow:
        return labels, (*dots, *sorted(n for n, c in counts.items() if n[0] != "." and c == 1))
    letters = len(right.replace(".", ""))
    out = _labels(equation, right, letters + (len(dots) if "..." in right else 0))
    if dots and "..." not in right:
        raise ShapeError(f"equation {equation!r}: the output lacks the ellipsis of the inputs.")
    wrong = [n for n in out if n not in counts or out.count(n) > 1]
    if wrong:
        raise ShapeError(f"equation {equation!r}: {wrong[0]!r} cannot stand so in the output.")
    return labels, out


def _labels(equation: str, term: str, rank: int) -> Labels:
    found = _TERM.fullmatch(term)
    if found is None:
        raise ShapeError(f"equation {equation!r}: {term!r} is no term.")
    before, dots, after = found.groups()
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(f"equation {equation!r}: {term!r} does not name the axes of rank {rank}.")
    return (*before, *(f".{k}" for k in reversed(range(hidden))), *after)


def _extents(values: Sequence[Value], terms: Sequence[Labels]) -> dict[str, int]:
    """Return the extent of each label; an axis of 1 is stretched to that of others."""
    extents: dict[str, int] = {}
    for value, term in zip(values, terms, strict=True):
        named = dict(zip(term, value.shape, strict=True))
        if any(named[n] != d for n, d in zip(term, value.shape, strict=True)):
            raise ShapeError(f"einsum: a diagonal of {value.shape} needs equal extents.")
        for name, extent in zip(term, value.shape, strict=True):
            known = extents.get(name, 1)
            if known != 1 and extent not in (1, known):
                raise ShapeError(f"einsum: {name!r} is {known} and {extent}, must be equal or 1.")
            extents[name] = extent if known == 1 else known
    return extents


def _plain(value: Value, labels: Labels, extents: Mapping[str, int]) -> Piece:
    """Return an operand without axes of 1 that others stretch, and each label once."""
    short = [extents[n] != 1 and d == 1 for n, d in zip(labels, value.shape, strict=True)]
    if any(short):
        value = value.reshape([d for d, s in zip(value.shape, short, strict=True) if not s])
        labels = tuple(n for n, s in zip(labels, short, strict=True) if not s)
    while len(set(labels)) < len(labels):
        name = next(n for n in labels if labels.count(n) > 1)
        first = labels.index(name)
        second = labels.index(name, first + 1)
        rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
        value, d = value.transpose([*rest, first, second]), extents[name]
        outer = value.shape[:-2]
        value = value.reshape([*outer, d * d]).part(len(outer), 0, d, d + 1)
        labels = (*(labels[axis] for axis in rest), name)
    return Piece(value, labels)


def _kept(rest: Sequence[Piece], out: Labels) -> set[str]:
    return {*out, *(name for piece in rest for name in piece.labels)}


def _cost(pieces: Sequence[Piece], pair: tuple[int, int], out: Labels) -> tuple[int, int]:
    """Return the multiplications of a product, and the elements of its result."""
    extents = {
        n: d for k in pair for n, d in zip(pieces[k].labels, pieces[k].value.shape, strict=True)
    }
    keep = _kept([p for k, p in enumerate(pieces) if k not in pair], out)
    return prod(extents.values()), prod(d for n, d in extents.items() if n in keep)


def _product(a: Piece, b: Piece, keep: Collection[str], out: Labels) -> Piece:
    """Return the product of two pieces, summed over the labels of both that are not to be kept."""

    def place(name: str) -> int:
        return out.index(name) if name in out else len(out)

    last_a = max((place(n) for n in a.labels if n not in b.labels), default=-1)
    last_b = max((place(n) for n in b.labels if n not in a.labels), default=-1)
    if last_b >= 0 and last_a > last_b:  # the output's last axis shall be that of columns
        a, b = b, a
    both = [n for n in a.labels if n in b.labels]
    batch = sorted((n for n in both if n in keep), key=place)
    along = [n for n in (b if a.value.is_const else a).labels if n in both and n not in keep]
    rows = [n for n in a.labels if n not in both]
    columns = [n for n in b.labels if n not in both]
    labels = (*batch, *rows, *columns)
    if len(labels) > MOST_AXES:
        raise Unsupported(f"a product of two of its operands has more than {MOST_AXES} axes")
    if not along:
        return _outer(a, b, tuple(sorted(labels, key=place)))
    extents = dict(zip(a.labels, a.value.shape, strict=True))
    extents |= dict(zip(b.labels, b.value.shape, strict=True))
    single = [[n] for n in batch] if len(batch) + 3 <= MOST_AXES else [batch]
    left, right = a.grouped(*single, rows, along), b.grouped(*single, along, columns)
    return Piece(matrix_product(left, right).reshape([extents[n] for n in labels]), labels)


def matrix_product(left: Value, right: Value) -> Value:
    """Return the product of (..., m, k) and (..., k, n); one of float64 is made of sums."""
    if left.type.dtype != F64:
        return left.apply(Gemm(), right, None)
    outer, (m, k), n = left.shape[:-2], left.shape[-2:], right.shape[-1]
    columns = right.reshape([*right.shape[:-2], 1, k, n])
    wide = left.reshape([*outer, m, k, 1]).binary("mul", columns)
    return wide.sum([len(outer) + 1])


def _outer(a: Piece, b: Piece, labels: Labels) -> Piece:
    """Return the product without sums, with these labels; what one lacks is broadcast."""
    values = []
    for piece in (a, b):
        turned = piece.ordered(tuple(n for n in labels if n in piece.labels))
        extents = dict(zip(turned.labels, turned.value.shape, strict=True))
        values.append(turned.value.reshape([extents.get(n, 1) for n in labels]))
    return Piece(values[0].binary("mul", values[1]), labels)
