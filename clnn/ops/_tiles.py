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


MOST = 4  # tiles of one kind that are worth a measurement
REGISTERS = {16: 32, 8: 32, 4: 20}  # vector registers that a tile may fill, by vector width


def conv_tile(height: int, width: int, channels: int, vector: int) -> Tile:
    """Return the tile for an output of height x width pixels and `channels` channels per group."""
    return _tiles(height, width, channels, vector)[0][1]


def conv_cycles(height: int, width: int, channels: int, vector: int, products: int) -> float:
    """Return the estimated cycles of one core for `products` multiply-adds per output element."""
    return _cycles(*_tiles(height, width, channels, vector)[0], height * width, channels, products)


def conv_tiles(
    height: int, width: int, channels: int, vector: int, products: int
) -> list[tuple[float, Tile]]:
    """Return (estimated cycles, tile), the MOST best of each number of vectors and each mode."""
    found: dict[tuple[int, str], list[tuple[float, Tile]]] = {}
    for score, tile in _tiles(height, width, channels, vector):
        cycles = _cycles(score, tile, height * width, channels, products)
        found.setdefault((tile.nv, tile.mode), []).append((cycles, tile))
    return [made for same in found.values() for made in same[:MOST]]


def _cycles(score: float, tile: Tile, pixels: int, channels: int, products: int) -> float:
    return pixels * -(-channels // tile.vw) * products / (2 * score)


def _tiles(height: int, width: int, channels: int, vector: int) -> list[tuple[float, Tile]]:
    """Return (score, tile) of all tiles that are possible, best first."""
    vw = vector
    while vw > 4 and vw // 2 >= channels:
        vw //= 2
    vectors = -(-channels // vw)
    registers = REGISTERS.get(vector, 16)
    found = [
        (score, Tile(mr, nv, vw, mode))
        for nv in (1, 2, 3, 4)
        if nv <= vectors
        for mr in range(1, (registers - 1) // nv)  # nv weights and a broadcast besides
        for mode in ("row", "pointer")
        if (score := _score(height, width, vectors, mr, nv, mode)) is not None
    ]
    return sorted(found, key=lambda pair: -pair[0])


def _score(height: int, width: int, vectors: int, mr: int, nv: int, mode: str) -> float | None:
    """Return useful multiply-adds per load slot, or None where the tile is not possible."""
    if mode == "row" and width % mr:
        return None
    pixels = height * width
    if mode == "pointer" and (mr > pixels or mr < min(4, pixels)):
        return None
    used_pixels = 1.0 if mode == "row" else pixels / (-(-pixels // mr) * mr)
    used_channels = vectors / (-(-vectors // nv) * nv)
    work = mr * nv
    slots = max(work, mr + nv + 1) + 3  # multiply-adds against loads, and the loop itself
    penalty = 1.0 if mode == "row" else 0.93
    return used_pixels * used_channels * penalty * work / slots
