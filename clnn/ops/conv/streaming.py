"""The direct convolution with streamed weights as variants, for CPUs and weights that exceed caches.

A work-item takes a chunk of its weights through many tiles of pixels, so that each weight comes from
memory once, and the next chunk is read ahead meanwhile. Sums wait in local memory from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clnn.arith._base import FLOAT
from clnn.ops.conv.direct import (
    ONE,
    direct_tiles,
    extents_of,
    fits_tile,
    kernel_name,
    tile_args,
    tile_params,
    work_sizes,
)
from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.tiles import Extents, Tile
from clnn.ops.launch import Launch, Variant, grid

STREAMS = 3  # of a tile that are worth a measurement
NEAR_BYTES = 32 * 1024  # of a chunk
SUMS_BYTES = 16 * 1024  # that wait close to a core; more of them cost what streaming gains
MOST_SUMS_BYTES = 128 * 1024  # worth a measurement
# Time against that of a work-item a tile, where all weights of a block are one chunk; where sums wait
# from chunk to chunk, close to a core; where they wait further away.
ONE_CHUNK, NEAR_SUMS, FAR_SUMS = 0.95, 0.8, 1.1
ALIGN = 8  # input channels that chunks are multiples of
BEST_CHUNK = 128  # input channels, where sums wait


@dataclass(frozen=True)
class Stream:
    """Input channels of a chunk, bands of tiles, and the time against that of a work-item a tile."""

    chunk: int
    bands: int
    factor: float


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, those of the best tile first.

    None for other than floats, and where weights stay close to a core while pixels move over them.
    """
    fits = problem.arith is FLOAT and problem.target.is_cpu and problem.has_border
    if not fits or not innermost(problem.src) or problem.weights_stay:
        return
    extents, local_bytes = extents_of(problem, ONE), problem.target.local_bytes
    for cost, tile in direct_tiles(problem, ONE):
        for stream in streams(extents, tile, problem.ic, problem.taps, local_bytes)[:STREAMS]:
            yield _variant(problem, tile, stream, cost * stream.factor)


def _variant(problem: ConvProblem, tile: Tile, stream: Stream, cost: float) -> Variant:
    """Return the kernel of a tile and a stream."""
    _, blocks = work_sizes(problem, tile)
    global_size, local = grid(problem.target, blocks, stream.bands, problem.batch)
    params = tile_params(problem, tile) | {
        "name": kernel_name(problem, tile, f"c{stream.chunk}_b{stream.bands}"),
        "chunk": stream.chunk,
        "bands": stream.bands,
        "most_sums": min(MOST_SUMS_BYTES, problem.target.local_bytes // 2) // 4,
        "wg": local,
    }
    args = tile_args(problem, ONE, tile)
    launch = Launch("conv/streamed.cl.mako", params, args, global_size, local)

    def again(other: ConvProblem) -> Variant | None:
        fits = innermost(other.src) and fits_tile(other, ONE, tile)
        fits = fits and stream.bands <= other.height * other.width // tile.mr
        return _variant(other, tile, stream, cost) if fits and _near(other, tile, stream) else None

    return Variant(params["name"], (launch,), cost, again=again)


def _near(problem: ConvProblem, tile: Tile, stream: Stream) -> bool:
    """Whether a stream's sums fit the memory that is there for them."""
    sums = _sums_bytes(
        problem.height * problem.width, problem.ic, problem.taps, tile, stream.chunk, stream.bands
    )
    return sums <= min(MOST_SUMS_BYTES, problem.target.local_bytes // 2)


def _sums_bytes(pixels: int, ic: int, taps: int, tile: Tile, chunk: int, bands: int) -> int:
    """Return the bytes of the sums that a band keeps between chunks."""
    whole = chunk == ic and taps == 1
    return 0 if whole else -(-pixels // bands) * tile.channels * 4


def streams(extents: Extents, tile: Tile, ic: int, taps: int, local_bytes: int) -> list[Stream]:
    """Return the streams of a tile that are worth a measurement, the estimated best first.

    taps: of the window. local_bytes: local memory that there is. A factor above 1 says that it is
    not expected to pay.
    """
    if tile.mode not in ("row", "flat"):
        return []
    choices = []
    most = NEAR_BYTES // (4 * tile.channels)
    for chunk in (c for c in range(ALIGN, most + 1, ALIGN) if ic % c == 0):
        whole = chunk == ic and taps == 1
        for bands in (1, 2, 4):
            sums = _sums_bytes(extents.pixels, ic, taps, tile, chunk, bands)
            if sums > min(MOST_SUMS_BYTES, local_bytes // 2) or bands > extents.pixels // tile.mr:
                continue
            near = bands * sums <= SUMS_BYTES
            factor = ONE_CHUNK if whole else NEAR_SUMS if near else FAR_SUMS
            choices.append(Stream(chunk, bands, factor * (1 + 0.01 * (bands - 1))))
    return sorted(
        choices, key=lambda s: (s.factor, max(s.chunk / BEST_CHUNK, BEST_CHUNK / s.chunk))
    )
