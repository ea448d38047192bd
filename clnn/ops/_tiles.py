"""Register tiles of the direct convolution: how many pixels by how many output channels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """mr pixels x nv vectors of vw output channels; mode: how pixels are addressed."""

    mr: int
    nv: int
    vw: int
    mode: str

    @property
    def channels(self) -> int:
        """Output channels of a tile."""
        return self.nv * self.vw


@dataclass(frozen=True)
class Extents:
    """What tiles depend on: output pixels, output channels of a group, elements of a vector.

    spread: instructions, besides its load, that each element of the input takes. halves:
    accumulators of each vector of outputs.
    """

    height: int
    width: int
    channels: int
    vector: int
    spread: int = 0
    halves: int = 1

    @property
    def pixels(self) -> int:
        """Output pixels."""
        return self.height * self.width


MOST = 4  # tiles of one kind that are worth a measurement
REGISTERS = {16: 32, 8: 32, 4: 20}  # vector registers that a tile may fill, by vector width


def conv_tiles(extents: Extents) -> list[tuple[float, Tile]]:
    """Return (estimated cycles per product and output element, tile), the best first.

    That is the MOST best tiles of each number of vectors and each mode.
    """
    found: dict[tuple[int, str], list[tuple[float, Tile]]] = {}
    for score, tile in _tiles(extents):
        cycles = extents.pixels * -(-extents.channels // tile.vw) / (2 * score)
        found.setdefault((tile.nv, tile.mode), []).append((cycles, tile))
    every = [made for same in found.values() for made in same[:MOST]]
    return sorted(every, key=lambda pair: pair[0])


def _tiles(extents: Extents) -> list[tuple[float, Tile]]:
    """Return (score, tile) of all tiles that are possible, best first."""
    vw = extents.vector
    while vw > 4 and vw // 2 >= extents.channels:
        vw //= 2
    vectors = -(-extents.channels // vw)
    registers = REGISTERS.get(extents.vector, 16) // extents.halves
    found = [
        (score, Tile(mr, nv, vw, mode))
        for nv in (1, 2, 3, 4)
        if nv <= vectors
        for mr in range(1, (registers - 1) // nv)  # nv weights and a broadcast besides
        for mode in ("row", "pointer")
        if (score := _score(extents, vectors, mr, nv, mode)) is not None
    ]
    return sorted(found, key=lambda pair: -pair[0])


def _score(extents: Extents, vectors: int, mr: int, nv: int, mode: str) -> float | None:
    """Return useful multiply-adds per load slot, or None where the tile is not possible."""
    if mode == "row" and extents.width % mr:
        return None
    pixels = extents.pixels
    if mode == "pointer" and (mr > pixels or mr < min(4, pixels)):
        return None
    used_pixels = 1.0 if mode == "row" else pixels / (-(-pixels // mr) * mr)
    used_channels = vectors / (-(-vectors // nv) * nv)
    work = mr * nv
    # multiply-adds against loads, and the loop itself
    slots = max(work + extents.spread * mr, mr + nv + 1) + 3
    penalty = 1.0 if mode == "row" else 0.93
    return used_pixels * used_channels * penalty * work / slots
