"""Which taps of filters per channel meet the border, so that kernels leave them out, and nobody fills it.

Tiles of columns that have such taps are written out, each with its own: they are few. Rows of taps are taken under a
condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from clnn.layout import TensorLayout
from clnn.ops.conv.problem import ConvProblem
from clnn.records import dataclass
from clnn.traced import is_open

MOST_AT_EDGES = 3  # tiles of columns that are written out
Pair = tuple[int, int]


@dataclass(frozen=True)
class Edges:
    """An image of `height` by `width` that windows move over, with outputs in `rows`; the rest are (y, x)."""

    height: int
    width: int
    rows: int
    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: Pair

    @staticmethod
    def of(src: TensorLayout, dst: TensorLayout, geometry: Mapping[str, Pair]) -> Edges:
        """Return those of a layer's tensors, seen as (n, c, h, w)."""
        height, width = src.shape[2:]
        kernel, strides, dilations, pads = (
            geometry[name] for name in ("kernel", "strides", "dilations", "pads")
        )
        return Edges(height, width, dst.shape[2], kernel, strides, dilations, pads)

    def has_column(self, x: int, kx: int) -> bool:
        """Whether a tap of an output column lies in the image."""
        return 0 <= x * self.strides[1] + kx * self.dilations[1] - self.pads[1] < self.width

    def row_condition(self, ky: int) -> str:
        """Return the C condition that a row of taps of output row `y` lies in the image, "" where all do."""
        step, at = self.strides[0], ky * self.dilations[0] - self.pads[0]
        above = [f"y * {step} + {at} >= 0"] if at < 0 else []
        last = (self.rows - 1) * step + at
        below = [f"y * {step} + {at} < {self.height}"] if last >= self.height else []
        return " && ".join(above + below)

    def _is_free(self, tile: Pair) -> bool:
        """Whether all taps of a tile of columns, its first one and their count, lie in the image."""
        first, count = tile
        return self.has_column(first, 0) and self.has_column(first + count - 1, self.kernel[1] - 1)

    def runs(self, tiles: Sequence[Pair]) -> Iterator[tuple[int, int, int, bool]]:
        """Yield (first, last, columns, free) of tiles: those evenly spaced in the image together, others alone."""
        kinds = groupby(tiles, lambda tile: (self._is_free(tile), tile[1], tile[0] % tile[1]))
        for (free, count, _), alike in kinds:
            starts = [*map(itemgetter(0), alike)]
            if free:
                yield starts[0], starts[-1], count, True
            else:
                yield from ((start, start, count, False) for start in starts)

    def fits(self, tiles: Sequence[Pair]) -> bool:
        """Whether few tiles have taps in the border."""
        return sum(not self._is_free(tile) for tile in tiles) <= MOST_AT_EDGES


def column_tiles(width: int, tx: int, overlap: bool = False) -> list[Pair]:
    """Return (first, columns) of tiles; the last one is smaller, or overlaps the one before."""
    if overlap:
        return [(min(x, width - tx), tx) for x in range(0, width, tx)]
    return [(x, min(tx, width - x)) for x in range(0, width, tx)]


def stays_inside(problem: ConvProblem, tx: int, overlap: bool = False) -> bool:
    """Whether a CPU's kernel of one filter per channel leaves out the taps that meet the border."""
    extents = (*problem.src.shape[2:], problem.height, problem.width)
    if any(map(is_open, extents)) or not any(problem.window.before + problem.window.after):
        return False
    edges = Edges.of(problem.src, problem.dst, problem.geometry)
    return edges.fits(column_tiles(problem.width, tx, overlap))
