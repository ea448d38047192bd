"""Matrix products as launches of the universal set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product as combinations
from math import prod

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant
from clnn.ops.universal.functions import tile_channels, tiling, universal_launch
from clnn.ops.universal.packing import pack_columns
from clnn.ops.universal.post_ops import OPERANDS, Number, encoded, is_plain, limited, operands
from clnn.records import dataclass
from clnn.types import Array

MOST_LAUNCHES = 64  # of a batch whose axes no two loops walk
NO_WEIGHTS = Const(lambda: np.zeros(1, np.float32))
INNER = 2  # axes of a batch that a launch walks


def universal_product(whole: GemmProblem) -> Variant | None:
    """Return a product as launches of the set, None where it has no form there."""
    if not whole.fits_fast or whole.scales or not is_plain(whole.node, 0, 1):
        return None
    problem = (whole if whole.b_is_const else whole.flipped()).folded()
    if not problem.b_is_const or problem.matrices != 1:
        return _of_computed(whole.oriented().folded())
    batch = Batch((), ())
    found = _behind(problem, batch)
    if found is None:
        return None
    matrices, wide = problem.b_matrices(), tile_channels(problem.target)

    def pack() -> Array:
        return pack_columns(matrices().reshape(1, problem.k, problem.n).transpose(0, 2, 1), wide)

    launch = _launch(problem, batch, (), Const(pack), found)
    return Variant("universal_product", (launch,))


@dataclass(frozen=True)
class Batch:
    """The axes of a batch of products that a launch walks, outermost first.

    pitches: of each axis, in the order a, packed b, dst, operands.
    """

    extents: tuple[int, ...]
    pitches: tuple[tuple[int, ...], ...]

    def along(self, which: int) -> tuple[int, ...]:
        """Return how a matrix of each axis moves operand `which`: (group, matrix of a batch)."""
        found = [p[which] if which < len(p) else 0 for p in self.pitches[::-1]]
        return *found, *[0] * (INNER - len(found))

    @property
    def counts(self) -> tuple[int, int]:
        """Groups, and matrices of a batch."""
        groups, matrices = (*self.extents[::-1], 1, 1)[:INNER]
        return groups, matrices


@dataclass(frozen=True)
class _Behind:
    """What is done with sums: the least and largest of them, arguments and pitches of operands, codes."""

    limits: tuple[float, float]
    args: tuple[In, ...]
    pitches: tuple[int, ...]
    codes: tuple[Number, ...]


def _behind(problem: GemmProblem, batch: Batch) -> _Behind | None:
    """Return what is done with sums, None where the set has no form for it."""
    extras = problem.product.extras
    ordered = {k: place for place, k in enumerate(extras)}
    images = {
        k: (place, _as_image(extras[k][1], problem.m, problem.n)) for k, place in ordered.items()
    }
    codes = encoded(problem.post_ops, ordered)
    extra = operands(problem.node, problem.post_ops, images)
    if codes is None or extra is None:
        return None
    low, high, codes = limited(codes)
    return _Behind((low, high), *extra, codes)


def _of_computed(problem: GemmProblem) -> Variant | None:
    """Return a product whose b is packed by each run."""
    loops, k, wide = problem.product.batch, problem.k, tile_channels(problem.target)
    axes = [
        (extent, [p[axis] for p in loops.pitches])
        for axis, extent in enumerate(loops.extents)
        if extent > 1
    ]
    outer, inner = axes[: max(0, len(axes) - INNER)], axes[max(0, len(axes) - INNER) :]
    if prod(extent for extent, _ in outer) > MOST_LAUNCHES:
        return None
    size = -(-problem.n // wide) * k * wide
    packed = [extent if pitches[1] else 1 for extent, pitches in inner]
    steps = [size * prod(packed[at + 1 :]) if packed[at] > 1 else 0 for at in range(len(inner))]
    batch = Batch(
        tuple(extent for extent, _ in inner),
        tuple((p[0], step, *p[2:]) for (_, p), step in zip(inner, steps, strict=True)),
    )
    found = _behind(problem, batch)
    if found is None:
        return None
    panels = Scratch("panels", 4 * size * prod(packed))
    launches = []
    for place in combinations(*(range(extent) for extent, _ in outer)):
        moved = [
            sum(pitches[which] * at for at, (_, pitches) in zip(place, outer, strict=True))
            for which in range(len(loops.pitches))
        ]
        launches.append(_pack(problem, inner, packed, panels, moved[1]))
        launches.append(_launch(problem, batch, moved, panels, found))
    return Variant("universal_computed_product", tuple(launches))


def _pack(
    problem: GemmProblem,
    axes: Sequence[tuple[int, Sequence[int]]],
    packed: Sequence[int],
    panels: Scratch,
    moved: int,
) -> Launch:
    groups, matrices = (*packed[::-1], 1, 1)[:INNER]
    pitches = (*[p[1] for _, p in axes[::-1]], 0, 0)[:INNER]
    blocks = -(-problem.n // tile_channels(problem.target))
    numbers = (problem.k, problem.n, *problem.product.b, *pitches, blocks, groups)
    args = (In(problem.views.inputs[1], moved), panels)
    return universal_launch("pack", problem.target, args, numbers, (blocks, groups, matrices))


def _launch(
    problem: GemmProblem,
    batch: Batch,
    moved: Sequence[int],
    weights: Const | Scratch,
    after: _Behind,
) -> Launch:
    """Return the products of the matrices of a batch. moved: by how much a, b, dst and operands are."""
    target, wide, product = problem.target, tile_channels(problem.target), problem.product
    groups, matrices = batch.counts
    tiles = tiling(problem.m, problem.n, groups * matrices, problem.k, target)
    (row, term), (dst_row, dst_column) = product.a, product.dst
    of = [batch.along(which) for which in range(3 + OPERANDS)]
    numbers = (
        *(problem.m, 1, problem.m, tiles.band, tiles.across),
        *(0, 0, row, of[0][0]),
        *(0, dst_column, 0, dst_row),
        *(problem.k, problem.k, term, 1, 0, 0),
        *(tiles.blocks, tiles.span, problem.n, *after.limits, *after.pitches),
        *(isinstance(weights, Scratch), *(group for group, _ in of[1:])),
        *(matrix for _, matrix in of),
        *after.codes,
    )
    columns = groups * tiles.blocks * wide
    shifts = [*moved, *[0] * (3 + OPERANDS)]
    given = [replace(one, shift=shift) for one, shift in zip(after.args, shifts[3:], strict=False)]
    args: tuple[Arg, ...] = (
        In(problem.views.inputs[0], shifts[0]),
        *((weights, In(0)) if isinstance(weights, Const) else (NO_WEIGHTS, weights)),
        Const(lambda: np.zeros(columns, np.float32)),
        *given,
        Out(0, shifts[2]),
    )
    bands, spans = tiles.sizes[::-1] if tiles.across else tiles.sizes
    sizes = (spans // matrices, bands) if tiles.across else (bands, spans // matrices)
    return universal_launch("conv", target, args, numbers, (*sizes, matrices))


def _as_image(pitches: tuple[int, int], rows: int, columns: int) -> TensorLayout:
    """Return an operand (row, column) as an image: rows along x, columns as channels."""
    row, column = pitches
    return TensorLayout.of_pitches((1, columns, 1, rows), (0, column, 0, row))
