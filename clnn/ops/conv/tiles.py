"""Register tiles of the direct convolution: how many pixels by how many output channels."""

from __future__ import annotations

from clnn.ops.shared.cycles import block_slots
from clnn.records import dataclass
from clnn.traced import divides, is_open


@dataclass(frozen=True)
class Tile:
    """mr pixels, in `rows` rows, x nv vectors of vw output channels; mode: how pixels are addressed."""

    mr: int
    nv: int
    vw: int
    mode: str
    rows: int = 1

    @property
    def channels(self) -> int:
        """Output channels of a tile."""
        return self.nv * self.vw

    def fits(self, height: int, width: int) -> bool:
        """Whether the tile lies within an image of this size, as evenly spaced ones must."""
        if self.mode == "flat":
            return self.mr <= height * width
        return self.mode != "row" or (self.rows <= height and self.mr // self.rows <= width)


@dataclass(frozen=True)
class Extents:
    """What tiles depend on: output pixels, output channels of a group, elements of a vector.

    input_slots: instructions, besides its load, that each element of the input takes. weight_limbs:
    accumulators of each vector of outputs. flat: all pixels of an image are evenly spaced. registers:
    vectors that a tile may fill.
    """

    height: int
    width: int
    channels: int
    vector: int
    input_slots: int = 0
    weight_limbs: int = 1
    flat: bool = False
    registers: int = 32

    @property
    def pixels(self) -> int:
        """Output pixels."""
        return self.height * self.width


class Tiles:
    """An image of oh x ow pixels in tiles of mr, th rows of them; `count` tiles in all.

    row and flat tiles are evenly spaced (`even`): th rows of tw neighbours, the last ones overlapping
    others; in a flat image all pixels are one row. Other modes count pixels through rows. exact: no
    tile ends beyond the image, or overlaps another. wide: all rows are one, each with the border behind
    it, `span` pixels from one to the next. end: the name of a pixel that tiles of a flat
    image may reach beyond, "" where they do not; an image may be smaller than a tile then.
    """

    def __init__(
        self, mode: str, oh: int, ow: int, mr: int, th: int, end: str = "", span: int = 0
    ) -> None:
        self.end, self.span = end, span
        self.oh, self.ow, self.mr, self.th, self.tw = oh, ow, mr, th, mr // th
        self.pixels = (oh - 1) * span + ow if span else oh * ow
        self.even = mode in ("row", "flat")
        high, wide = (1, self.pixels) if mode == "flat" else (oh, ow)
        self.columns = -(-wide // self.tw)
        self.count = -(-high // th) * self.columns if self.even else -(-self.pixels // mr)
        self.exact = not span and divides(mr, self.pixels)
        if self.even:
            self.exact = divides(th, high) and divides(self.tw, wide)
            assert end or (th <= high and self.tw <= wide), (th, mr, oh, ow)
            assert self.tw * th == mr, (th, mr)


# Tiles of a mode and a number of vectors that are worth a measurement; flat ones stand for both others.
CANDIDATES = {"row": 4, "pointer": 4, "flat": 8}
FEW = 16  # registers, which tiles of 4 pixels by 3 vectors fill with fewer loads than others need
POINTERS = 8  # addresses that general registers hold
FEW_POINTERS, MANY_POINTERS = (
    0.93,
    0.75,
)  # speed of tiles with up to so many, with more: 1 for "row"


def conv_tiles(extents: Extents) -> list[tuple[float, Tile]]:
    """Return (estimated cycles per product and output element, tile), the best first.

    That is the best tiles of each number of vectors and each mode.
    """
    alike: dict[tuple[int, str], list[tuple[float, Tile]]] = {}
    for score, tile in _tiles(extents):
        alike.setdefault((tile.nv, tile.mode), []).append((_cycles(extents, tile, score), tile))
    best = [pair for (_, mode), same in alike.items() for pair in same[: CANDIDATES[mode]]]
    return sorted(best, key=lambda pair: pair[0])


def tile_cycles(extents: Extents, tile: Tile) -> float:
    """Return the estimated cycles per product and output element of a tile that fits."""
    return _cycles(extents, tile, _score(extents, -(-extents.channels // tile.vw), tile))


def _cycles(extents: Extents, tile: Tile, score: float) -> float:
    return extents.pixels * -(-extents.channels // tile.vw) / (2 * score)


def _tiles(extents: Extents) -> list[tuple[float, Tile]]:
    """Return (score, tile) of all tiles that are possible, best first."""
    vw = extents.vector
    while vw > 4 and vw // 2 >= extents.channels:
        vw //= 2
    vectors = -(-extents.channels // vw)
    registers = extents.registers // extents.weight_limbs
    scored = [
        (score, tile)
        for nv in (1, 2, 3, 4)
        if nv <= vectors
        for tile in _shapes(extents, nv, vw, (registers - _spare(extents, nv)) // nv - 1)
        if (score := _score(extents, vectors, tile)) > 0
    ]
    return sorted(scored, key=lambda pair: -pair[0])


def _spare(extents: Extents, nv: int) -> int:
    """Return the registers that hold neither sums nor weights: an input's, and one that few can do without."""
    return 1 if extents.registers == FEW and extents.weight_limbs == 1 and nv > 1 else 2


def _shapes(extents: Extents, nv: int, vw: int, most: int) -> list[Tile]:
    """Return the tiles of up to `most` pixels: evenly spaced ones, and such at any place."""
    most = min(most, extents.pixels)
    if extents.flat:
        # Images of other shapes may be smaller than a flat tile.
        least = min(4, extents.pixels) if is_open(extents.pixels) else most + 1
        anywhere = (Tile(mr, nv, vw, "pointer") for mr in range(least, most + 1))
        return [*(Tile(mr, nv, vw, "flat") for mr in range(1, most + 1)), *anywhere]
    one = [Tile(mr, nv, vw, "row") for mr in range(1, min(most, extents.width) + 1)]
    tall = most // extents.width
    rows = [
        Tile(r * extents.width, nv, vw, "row", r) for r in range(2, min(tall, extents.height) + 1)
    ]
    least = min(4, extents.pixels)
    return [*one, *rows, *(Tile(mr, nv, vw, "pointer") for mr in range(least, most + 1))]


def _score(extents: Extents, vectors: int, tile: Tile) -> float:
    """Return useful multiply-adds per load slot."""
    mr, nv = tile.mr, tile.nv
    tiles = Tiles(tile.mode, extents.height, extents.width, mr, tile.rows).count
    used = extents.pixels / tiles * vectors
    if tile.mode == "pointer":
        used *= FEW_POINTERS if mr <= POINTERS else MANY_POINTERS
    return used / block_slots(mr, nv, vectors, extents.input_slots * mr)
