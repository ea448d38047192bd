"""Matrix products over strided views: batch loops, register tiles and packed panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.shared.loops import Loops, collapse
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import alike, is_one, is_open, other
from clnn.types import Array

Pitches = tuple[int, int]
MAX_VECTORS = 4  # of columns of a tile
ITEMS_PER_UNIT = 64  # work-items that keep a compute unit of a GPU busy


@dataclass(frozen=True)
class Tile:
    """mr rows x nv vectors of vw columns, held in registers."""

    mr: int
    nv: int
    vw: int

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.nv * self.vw


@dataclass(frozen=True)
class Views:
    """A product as matrices on the last two axes: dst (m, n) = a (m, k) times b (k, n).

    extras: node input -> an operand of the post-ops, broadcast to dst. inputs: which node inputs a
    and b are.
    """

    a: TensorLayout
    b: TensorLayout
    dst: TensorLayout
    extras: Mapping[int, TensorLayout]
    inputs: tuple[int, int] = (0, 1)

    @property
    def m(self) -> int:
        """Rows of dst."""
        return self.dst.shape[-2]

    @property
    def n(self) -> int:
        """Columns of dst."""
        return self.dst.shape[-1]

    @property
    def k(self) -> int:
        """Length of the sums."""
        return self.a.shape[-1]

    def flipped(self) -> Views:
        """Return the transposed product: b transposed times a transposed."""
        extras = {which: flip(layout) for which, layout in self.extras.items()}
        return Views(flip(self.b), flip(self.a), flip(self.dst), extras, self.inputs[::-1])


@dataclass(frozen=True)
class Product:
    """What kernels need of Views: extents, (row, column) pitches, and loops over the batch.

    The pitches of the batch loops are in the order a, b, dst, extras.
    """

    m: int
    n: int
    k: int
    a: Pitches
    b: Pitches
    dst: Pitches
    extras: Mapping[int, tuple[int, Pitches]]
    batch: Loops

    @property
    def matrices(self) -> int:
        """Number of products in the batch."""
        return prod(self.batch.extents)


def flip(layout: TensorLayout) -> TensorLayout:
    """Return a layout with its last two axes exchanged."""
    rank = layout.rank
    return layout.transpose((*range(rank - 2), rank - 1, rank - 2))


def insert_axis(layout: TensorLayout, axis: int) -> TensorLayout:
    """Return a layout with an axis of extent 1 put before `axis`."""

    def put(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:axis], value, *values[axis:])

    return replace(
        layout,
        shape=put(layout.shape, 1),
        pitches=put(layout.pitches, 0),
        before=put(layout.before, 0),
        after=put(layout.after, 0),
    )


def folded(views: Views) -> Views:
    """Return the product with batch axes that share b joined to the rows, where pitches allow."""
    while views.dst.rank > 2:
        outer, m, k = views.dst.shape[:-2], views.m, views.k
        if views.b.rank > 2 and not is_one(views.b.shape[-3]):
            return views
        a = _join_rows(views.a.broadcast((*outer, m, k)))
        dst = _join_rows(views.dst)
        extras = {which: _join_rows(layout) for which, layout in views.extras.items()}
        if a is None or dst is None or None in extras.values():
            return views
        b = views.b if views.b.rank == 2 else _pick(views.b, (*range(views.b.rank - 3), -2, -1))
        known = {which: layout for which, layout in extras.items() if layout is not None}
        views = Views(a, b, dst, known, views.inputs)
    return views


def _join_rows(layout: TensorLayout) -> TensorLayout | None:
    """Return a layout with axis -3 joined to axis -2, or None where rows are not evenly spaced."""
    count, rows = layout.shape[-3:-1]
    spaced = alike(layout.pitches[-3], layout.pitches[-2] * rows)
    if not (is_one(count) or is_one(rows) or spaced):
        return None
    joined = _pick(layout, (*range(layout.rank - 3), -3 if is_one(rows) else -2, -1))
    return replace(joined, shape=(*joined.shape[:-2], count * rows, joined.shape[-1]))


def _pick(layout: TensorLayout, axes: Sequence[int]) -> TensorLayout:
    none = (0,) * len(axes)
    return replace(
        layout,
        shape=tuple(layout.shape[x] for x in axes),
        pitches=tuple(layout.pitches[x] for x in axes),
        before=none,
        after=none,
    )


def product(views: Views) -> Product:
    """Return the extents, pitches and batch loops of `views`."""
    m, n, k = views.m, views.n, views.k
    outer = views.dst.shape[:-2]
    a, b = views.a.broadcast((*outer, m, k)), views.b.broadcast((*outer, k, n))
    layouts = [a, b, views.dst, *views.extras.values()]
    batch = collapse([_only_batch(layout) for layout in layouts])
    extras = {
        which: (place, _last(layout)) for place, (which, layout) in enumerate(views.extras.items())
    }
    return Product(m, n, k, _last(a), _last(b), _last(views.dst), extras, batch)


def _last(layout: TensorLayout) -> Pitches:
    rows, columns = layout.shape[-2:]
    return tuple(  # type: ignore[return-value]
        p if is_open(d) or d > 1 else 0
        for d, p in ((rows, layout.pitches[-2]), (columns, layout.pitches[-1]))
    )


def _only_batch(layout: TensorLayout) -> TensorLayout:
    return _pick(layout, range(layout.rank - 2))


def gemm_tiles(
    m: int, n: int, matrices: int, target: Target, widest: float = inf, taken: int = 0
) -> list[tuple[float, Tile]]:
    """Return (estimated cycles for each term of the sums, tile) of all tiles, best first.

    widest: columns that a tile may have at most. taken: registers of other operands. Of open extents:
    tiles for the larger shape, by their mean score for both.
    """
    vw = target.vector
    while vw > 1 and (vw > widest or (vw > 4 and vw // 2 >= n and not is_open(n))):
        vw //= 2
    shapes = [
        (int(rows), -(-int(columns) // vw), int(count))
        for rows, columns, count in ((m, n, matrices), (other(m), other(n), other(matrices)))
    ]
    most_rows, most_vectors = max(s[0] for s in shapes), max(s[1] for s in shapes)

    def score(mr: int, nv: int) -> float:
        return sum(_score(r, v, mr, nv, c, target) for r, v, c in shapes) / len(shapes)

    tiles = [
        (score(mr, nv), Tile(mr, nv, vw))
        for nv in range(1, MAX_VECTORS + 1)
        if nv <= most_vectors and (nv == 1 or nv * vw <= widest)
        # nv vectors of b and one of a besides
        for mr in range(1, min(most_rows, max((target.registers - taken - 1) // nv - 1, 1)) + 1)
    ]
    tiles.sort(key=lambda pair: -pair[0])
    return [(m * -(-n // vw) / (2 * found), tile) for found, tile in tiles]


def _score(m: int, vectors: int, mr: int, nv: int, matrices: int, target: Target) -> float:
    """Return useful multiply-adds per load slot, less what idle compute units cost."""
    tiles, blocks = -(-m // mr), -(-vectors // nv)
    used = m / (tiles * mr) * vectors / (blocks * nv)
    slots = max(mr * nv, mr + nv + 1) + 3  # multiply-adds against loads, and the loop itself
    items = tiles * blocks * matrices
    if target.is_cpu:
        rounds = -(-items // target.compute_units)
        busy = items / (rounds * target.compute_units)
    else:
        busy = min(1.0, items / (target.compute_units * ITEMS_PER_UNIT))
    return used * busy * mr * nv / slots


@dataclass(frozen=True)
class Panels:
    """How b lies packed: panels of `width` columns; distances in elements, size of one matrix.

    CPUs read one panel after the other, each dense; on GPUs neighbours read neighbouring columns.
    """

    width: int
    row: int
    panel: int
    size: int


def panels_for(k: int, n: int, tile: Tile, target: Target, pairs: bool = False) -> Panels:
    """Return the packed form of a k x n matrix for `tile`; pairs: its rows two by two, on CPUs."""
    width = tile.width
    blocks = -(-n // width)
    if pairs:
        row, rows = 2 * width, -(-k // 2)
        return Panels(width, row, rows * row, blocks * rows * row)
    if target.is_cpu:
        return Panels(width, width, k * width, blocks * k * width)
    return Panels(width, blocks * width, width, blocks * k * width)


def pack_panels(b: Array, panels: Panels) -> Array:
    """Return matrices (..., k, n) packed, columns padded with zeros; a view where that will do."""
    *outer, k, n = b.shape
    blocks = -(-n // panels.width)
    full = b
    if blocks * panels.width > n or b.dtype != np.float32:
        full = np.zeros((*outer, k, blocks * panels.width), np.float32)
        full[..., :n] = b
    if panels.row != panels.width or blocks == 1:
        return full
    split = full.reshape(*outer, k, blocks, panels.width)
    return np.moveaxis(split, -2, -3)


def pack_pairs(b: Array, panels: Panels) -> Array:
    """Return matrices (..., k, n) packed as (..., blocks, pairs of rows, columns of a panel, 2)."""
    *outer, k, n = b.shape
    blocks, rows = -(-n // panels.width), -(-k // 2)
    full = np.zeros((*outer, 2 * rows, blocks * panels.width), np.float32)
    full[..., :k, :n] = b
    split = full.reshape(*outer, rows, 2, blocks, panels.width)
    return np.moveaxis(split, (-2, -3), (-4, -1))


def packed_view(b: TensorLayout, panels: Panels) -> TensorLayout:
    """Return the layout whose batch pitches are those of b packed (broadcast axes kept)."""
    outer, (k, n) = b.shape[:-2], b.shape[-2:]
    whole = TensorLayout.make((*outer, panels.size))
    return TensorLayout(
        (*outer, k, n), (*whole.pitches[:-1], 0, 0), (0,) * b.rank, (0,) * b.rank, 0, whole.size
    )


def packing(b: TensorLayout, packed: TensorLayout) -> tuple[Pitches, Loops]:
    """Return b's pitches (row, column) and the loops over its matrices: b's and the packed ones."""
    return _last(b), collapse([_only_batch(b), _only_batch(packed)])
