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


REGISTERS = {16: 32, 8: 32, 4: 20}  # vector registers that a tile may fill, by vector width


def conv_tile(
    height: int, width: int, channels: int, vector: int, spread: int = 0, halves: int = 1
) -> Tile:
    """Return the tile for an output of height x width pixels and `channels` channels per group.

    spread: instructions, besides its load, that each element of the input takes. halves:
    accumulators of each vector of outputs.
    """
    return _best(height, width, channels, vector, spread, halves)[1]


def conv_cycles(height: int, width: int, channels: int, vector: int, products: int) -> float:
    """Return the estimated cycles of one core for `products` multiply-adds per output element."""
    score, tile = _best(height, width, channels, vector)
    return height * width * -(-channels // tile.vw) * products / (2 * score)


def _best(
    height: int, width: int, channels: int, vector: int, spread: int = 0, halves: int = 1
) -> tuple[float, Tile]:
    vw = vector
    while vw > 4 and vw // 2 >= channels:
        vw //= 2
    vectors = -(-channels // vw)
    registers = REGISTERS.get(vector, 16) // halves
    best: tuple[float, Tile] | None = None
    for nv in (1, 2, 3, 4):
        if nv > vectors:
            continue
        for mr in range(1, (registers - 1) // nv):  # nv weights and a broadcast besides
            for mode in ("row", "pointer"):
                score = _score(height, width, vectors, mr, nv, mode, spread)
                if score is not None and (best is None or score > best[0]):
                    best = (score, Tile(mr, nv, vw, mode))
    assert best is not None
    return best


def _score(
    height: int, width: int, vectors: int, mr: int, nv: int, mode: str, spread: int
) -> float | None:
    """Return useful multiply-adds per load slot, or None where the tile is not possible."""
    if mode == "row" and width % mr:
        return None
    pixels = height * width
    if mode == "pointer" and (mr > pixels or mr < min(4, pixels)):
        return None
    used_pixels = 1.0 if mode == "row" else pixels / (-(-pixels // mr) * mr)
    used_channels = vectors / (-(-vectors // nv) * nv)
    work = mr * nv
    slots = (
        max(work + spread * mr, mr + nv + 1) + 3
    )  # multiply-adds against loads, and the loop itself
    penalty = 1.0 if mode == "row" else 0.93
    return used_pixels * used_channels * penalty * work / slots
