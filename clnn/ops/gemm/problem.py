"""A matrix product as its kernels see it: operands as matrices, what becomes of the sums, a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from typing import Any

import numpy as np

from clnn.ops.launch import Arg, In, Out, Scratch
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.matrices import (
    Panels,
    Product,
    Tile,
    Views,
    flip,
    folded,
    gemm_tiles,
    insert_axis,
    packed_view,
    product,
)
from clnn.ops.shared.pairs import operands_of, pairs_of
from clnn.ops.shared.workgroup_tiles import GemmShape
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import alike, is_one, is_open
from clnn.types import F32, STORED_BF16, Array

FEW_ROWS = 4  # which are not worth making floats of first
L2_BYTES = 256 * 1024  # what stays close to a core while a product walks over it
# The same of a packed b where a core has AVX-512: such have a second cache of 1 MB or more, and a core that
# takes all columns of its rows finds these rows in its own cache again in the next product.
WIDE_L2_BYTES = 640 * 1024
# The same of constants whose panels are read ahead while tiles of rows walk the panel before, where all rows of a
# stay in that cache.
AHEAD_BYTES = 100 * 1024
WIDEST = 16  # floats of a vector with AVX-512


@dataclass(frozen=True)
class GemmProblem:
    """post_ops(a b) for every matrix of a batch, in one of two orientations.

    In the node's own orientation a is its input 0 and b its input 1; in the other one the transposed
    result is computed, as b transposed times a transposed. transposed: whether inputs 0 and 1 lie as
    transposed matrices. post_ops: all that is applied to the sums. scales: input -> factor of an
    operand of the post-ops.
    """

    node: Problem
    views: Views
    transposed: tuple[bool, bool]
    post_ops: tuple[PostOp, ...]
    scales: Mapping[int, float]

    @property
    def target(self) -> Target:
        """What the kernels are for."""
        return self.node.target

    @property
    def a(self) -> Operand:
        """The input that gives the rows."""
        return self.node.input(self.views.inputs[0])

    @property
    def b(self) -> Operand:
        """The input that gives the columns."""
        return self.node.input(self.views.inputs[1])

    @property
    def dst(self) -> Operand:
        """The output."""
        return self.node.outputs[0]

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.views.m

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.views.n

    @property
    def k(self) -> int:
        """Terms of each sum."""
        return self.views.k

    @property
    def matrices(self) -> int:
        """Products of the batch."""
        return self.product.matrices

    @cached_property
    def product(self) -> Product:
        """Extents, pitches and batch loops."""
        return product(self.views)

    def batch_pitches(self) -> list[tuple[int, ...]]:
        """Return the pitches of a, b, dst and extras on the batch loops that do move."""
        batch = self.product.batch
        moving = [
            axis for axis, extent in enumerate(batch.extents) if is_open(extent) or extent > 1
        ]
        return [tuple(pitches[axis] for axis in moving) for pitches in batch.pitches]

    @property
    def shape(self) -> GemmShape:
        """The extents, as tiles of work-groups and of tensor cores are ranked by."""
        return GemmShape(self.m, self.n, self.k, self.matrices)

    def tiles(self, rows: int, columns: int) -> tuple[int, int]:
        """Return how many tiles of so many rows, and blocks of so many columns, a result has."""
        return -(-self.m // rows), -(-self.n // columns)

    def register_tiles(self, widest: float = inf) -> list[tuple[float, Tile]]:
        """Return (estimated cycles for each term, tile of at most `widest` columns), best first."""
        return gemm_tiles(
            self.m, self.n, self.matrices, self.target, widest, operands_of(self.pairs)
        )

    @cached_property
    def pairs(self) -> str:
        """The `dot` of _common/dot.cl.mako for packed panels of pairs of bfloat16, "" for other products."""
        stored = self.a.memory == self.b.memory == STORED_BF16
        if not stored or is_open(self.k) or self.k < 2 or not is_one(self.product.a[1]):
            return ""
        return pairs_of(self.target, self.k if self.m > FEW_ROWS else 0)

    @property
    def fits_fast(self) -> bool:
        """Whether kernels besides the reference take it: sums of float32, of one term at least."""
        return self.dst.type.dtype == F32 and self.k > 0

    @property
    def b_is_near(self) -> bool:
        """Whether a matrix b stays in a core's cache from one row of tiles to the next."""
        return self.k * self.n * F32.itemsize <= L2_BYTES

    @property
    def b_stays(self) -> bool:
        """Whether a core may take all columns for each tile of rows: b stays in a cache of its own."""
        wide = self.target.is_cpu and self.target.vector >= WIDEST
        most = WIDE_L2_BYTES if wide else L2_BYTES
        rows = self.m * self.sharing
        if wide and self._reads_ahead and rows * self.k * F32.itemsize <= WIDE_L2_BYTES:
            most = AHEAD_BYTES
        return self.k * self.n * F32.itemsize <= most

    @cached_property
    def sharing(self) -> int:
        """How many matrices of the batch share a constant b that CPUs walk: all of them, or 1."""
        extents, pitches = self.product.batch.extents, self.product.batch.pitches[1]
        known = not any(map(is_open, (self.m, *extents, *pitches)))
        shares = known and self.target.is_cpu and self.b_is_const and not any(pitches)
        return self.matrices if shares and not self.pairs else 1

    @property
    def _reads_ahead(self) -> bool:
        """Whether panels of a constant b may be read ahead, and the rows of a are told."""
        fits = self.b_is_const and not self.pairs and not is_open(self.m)
        return fits and "prefetch" in self.target.features

    @property
    def b_is_dense(self) -> bool:
        """Whether neighbouring columns of b lie side by side."""
        return is_one(self.product.b[1])

    @property
    def lies_along_k(self) -> bool:
        """Whether rows of a and columns of b are runs of neighbours, worth reading as vectors."""
        along = is_one(self.product.a[1]) and is_one(self.product.b[0])
        return along and (is_open(self.k) or self.k >= 2 * self.target.vector)

    @property
    def b_is_const(self) -> bool:
        """Whether b is a constant."""
        return self.b.const is not None

    def b_matrices(self) -> Callable[[], Array]:
        """Return what makes the constant b as matrices (..., k, n), of any number of rows of a."""
        which, array = self.views.inputs[1], self.b.const
        assert array is not None
        view = self.views.b if which == 1 else flip(self.views.b)
        return partial(_matrices, array, which, self.transposed[which], tuple(map(int, view.shape)))

    def folded(self) -> GemmProblem:
        """Return the product with batch axes that share b joined to the rows."""
        return replace(self, views=folded(self.views))

    def flipped(self) -> GemmProblem:
        """Return the product in the other orientation."""
        return replace(self, views=self.views.flipped())

    def oriented(self) -> GemmProblem:
        """Return the orientation whose columns are worth a vector: many, and dense in dst.

        Called on the node's own orientation. One in which b is a constant is kept.
        """
        rows, columns = self.views.dst.pitches[-2:]
        lies_turned = not (is_one(self.m) or is_one(self.n) or alike(columns, 1)) and is_one(rows)
        turns = (is_one(self.n) and not is_one(self.m)) or (lies_turned and not self.b_is_const)
        return self.flipped() if turns else self

    def for_packing(self) -> GemmProblem:
        """Return the orientation in which b is packed: where it is a constant, if it ever is."""
        oriented = self.oriented()
        return self if self.b_is_const and not oriented.b_is_const else oriented

    def with_packed_b(self, panels: Panels) -> GemmProblem:
        """Return the product with the matrices of b where they lie packed."""
        return replace(self, views=replace(self.views, b=packed_view(self.views.b, panels)))

    def params(self) -> dict[str, Any]:
        """Return the parameters that the templates share."""
        product = self.product
        return {
            "m": product.m,
            "n": product.n,
            "k": product.k,
            "a": product.a,
            "dst": product.dst,
            "batch": product.batch,
            "extras": product.extras,
            "scales": self.scales,
            "post_ops": self.post_ops,
        }

    def types(self, b: Arg) -> tuple[str, str, str]:
        """Return the types of a, b and dst in memory; a b in scratch memory is packed as float, or in pairs."""
        packed = isinstance(b, Scratch) and not self.pairs
        return self.a.ctype, F32.cl if packed else self.b.ctype, self.dst.ctype

    def args(self, b: Arg) -> tuple[Arg, ...]:
        """Return the kernel arguments: a, b as given, operands of the post-ops, dst."""
        return (In(self.views.inputs[0]), b, *(In(k) for k in self.views.extras), Out(0))

    @property
    def b_arg(self) -> In:
        """The kernel argument of a b that is read where it lies."""
        return In(self.views.inputs[1])


def gemm_problem(
    node: Problem,
    transposed: tuple[bool, bool],
    post_ops: tuple[PostOp, ...],
    scales: Mapping[int, float],
) -> GemmProblem:
    """Return the product of a node's inputs 0 and 1 in its own orientation, batch axes as they are.

    An input of one axis is a row (input 0) or a column (input 1), whose axis the output lacks.
    """
    a, b = node.input(0).layout.unpadded(), node.input(1).layout.unpadded()
    dst = node.outputs[0].layout.unpadded()
    extras = {k: layout for k, (_, layout) in operand_layouts(node, post_ops).items()}
    if b.rank == 1:
        b, dst = insert_axis(b, 1), insert_axis(dst, dst.rank)
        extras = {k: insert_axis(e, e.rank) for k, e in extras.items()}
    if a.rank == 1:
        a, dst = insert_axis(a, 0), insert_axis(dst, dst.rank - 1)
        extras = {k: insert_axis(e, e.rank - 1) for k, e in extras.items()}
    a, b = (flip(x) if turned else x for x, turned in zip((a, b), transposed, strict=True))
    return GemmProblem(node, Views(a, b, dst, extras), transposed, post_ops, scales)


def _matrices(array: Array, which: int, transposed: bool, shape: tuple[int, ...]) -> Array:
    """Return operand `which` of a product, of this shape as matrices, as the right one (..., k, n)."""
    if array.ndim == 1:
        array = np.expand_dims(array, which)  # input 0 is a row, input 1 a column
    if transposed:
        array = np.swapaxes(array, -1, -2)
    array = array.reshape(shape)
    return array if which == 1 else np.swapaxes(array, -1, -2)
