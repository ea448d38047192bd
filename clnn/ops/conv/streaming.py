"""Streamed weights of the direct convolution: how much of them stays in the nearest cache at a time.

A work-item takes a chunk of its weights through many tiles of pixels, so that each weight comes from
memory once, and the next chunk is read ahead meanwhile. Sums wait in local memory from chunk to chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from clnn.ops.conv.tiles import Extents, Tile

NEAR_BYTES = 32 * 1024  # of a chunk
SUMS_BYTES = 16 * 1024  # that wait close to a core; more of them cost what streaming gains
MOST_SUMS = 128 * 1024  # worth a measurement
# Times against a work-item a tile: all weights of a block in one chunk; parts of them; many sums.
WHOLE, PART, MUCH = 0.95, 0.8, 1.1
ALIGN = 8  # input channels that chunks are multiples of
BEST = 128  # input channels of a chunk, where sums wait


@dataclass(frozen=True)
class Stream:
    """Input channels of a chunk, bands of tiles, and the time against that of a work-item a tile."""

    chunk: int
    bands: int
    factor: float


def streams(extents: Extents, tile: Tile, ic: int, taps: int, local_bytes: int) -> list[Stream]:
    """Return the streams of a tile that are worth a measurement, the estimated best first.

    taps: of the window. local_bytes: local memory that there is. A factor above 1 says that it is
    not expected to pay.
    """
    if tile.mode not in ("row", "flat"):
        return []
    found = []
    most = NEAR_BYTES // (4 * tile.channels)
    for chunk in (c for c in range(ALIGN, most + 1, ALIGN) if ic % c == 0):
        whole = chunk == ic and taps == 1
        for bands in (1, 2, 4):
            sums = 0 if whole else -(-extents.pixels // bands) * tile.channels * 4
            if sums > min(MOST_SUMS, local_bytes // 2) or bands > extents.pixels // tile.mr:
                continue
            pays = WHOLE if whole else PART if bands * sums <= SUMS_BYTES else MUCH
            found.append(Stream(chunk, bands, pays * (1 + 0.01 * (bands - 1))))
    return sorted(found, key=lambda s: (s.factor, max(s.chunk / BEST, BEST / s.chunk)))
