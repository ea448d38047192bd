"""The direct convolution with streamed weights as variants, for CPUs and weights that exceed caches.

A work-item takes a chunk of its weights through many tiles of pixels, so that each weight comes from
memory once, and the next chunk is read ahead meanwhile. Sums wait in local memory from chunk to chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapreplace
from operator import attrgetter

from clnn.arith._base import FLOAT
from clnn.ops.conv.direct import (
    ONE,
    Dot,
    direct_tiles,
    extents_of,
    fits_tile,
    kernel_name,
    of_pairs,
    tile_args,
    tile_cost,
    tile_params,
    work_sizes,
)
from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.tiles import Extents, Tile
from clnn.ops.launch import Launch, Variant, grid
from clnn.records import dataclass
from clnn.traced import is_open, opened

BANDS = (1, 2, 4)
STREAMS = 3  # of a tile that are worth a measurement
NEAR_BYTES = 32 * 1024  # of a chunk
SUMS_BYTES = 16 * 1024  # that wait close to a core; more of them cost what streaming gains
MOST_SUMS_BYTES = 128 * 1024  # worth a measurement
# Time against that of a work-item a tile, where all weights of a block are one chunk; where sums wait
# from chunk to chunk, close to a core; where those of each of several bands do; where they wait further away.
ONE_CHUNK, NEAR_SUMS, NEAR_BANDS, FAR_SUMS = 0.95, 0.8, 0.98, 1.1
ALIGN = 4  # input channels that chunks are multiples of
BEST_CHUNK = 128  # input channels, where sums wait
MANY = 64  # work-items of a core, beyond which cores end together


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
    dot = _dot(problem)
    extents, local_bytes = extents_of(problem, dot), problem.target.local_bytes
    for cost, tile in direct_tiles(problem, dot):
        found = streams(extents, tile, problem.ic, problem.taps, local_bytes)
        for stream in _balanced(problem, tile, found)[:STREAMS]:
            if not is_open(extents.pixels) or _resized(problem, tile, stream, (stream.bands,)):
                yield _variant(problem, tile, stream, cost * stream.factor)


def _dot(problem: ConvProblem) -> Dot:
    return of_pairs(problem, streamed=True) or ONE


def _variant(
    problem: ConvProblem, tile: Tile, stream: Stream, cost: float, name: str = ""
) -> Variant:
    """Return the kernel of a tile and a stream. name: that of the kernel which it repeats elsewhere.

    Bands are open where extents are: kernels for all shapes read them at run time.
    """
    count, blocks = work_sizes(problem, tile)
    bands = opened(stream.bands, stream.bands) if is_open(count) else stream.bands
    global_size, local = grid(problem.target, blocks, bands, problem.batch)
    dot, arith = _dot(problem), problem.params["arith"]
    params = tile_params(problem, tile) | {
        "name": name or kernel_name(problem, tile, dot.name, f"c{stream.chunk}_b{stream.bands}"),
        "arith": arith if dot == ONE else arith.packed_products(),
        "dot": dot.name,
        "chunk": stream.chunk,
        "bands": bands,
        "most_sums": min(MOST_SUMS_BYTES, problem.target.local_bytes // 2) // 4,
        "wg": local,
    }
    args = tile_args(problem, dot, tile)
    launch = Launch("conv/streamed.cl.mako", params, args, global_size, local)

    def again(other: ConvProblem) -> Variant | None:
        fits = innermost(other.src) and fits_tile(other, dot, tile) and _dot(other) == dot
        there = _resized(other, tile, stream) if fits else None
        return None if there is None else _variant(other, tile, there, cost, params["name"])

    def cost_at(other: ConvProblem) -> float:
        there = _resized(other, tile, stream) if fits_tile(other, dot, tile) else None
        return tile_cost(other, _dot(other), tile) * there.factor if there else math.inf

    return Variant(params["name"], (launch,), cost, again=again, cost_at=cost_at)


def _resized(
    problem: ConvProblem, tile: Tile, stream: Stream, open_bands: tuple[int, ...] = BANDS
) -> Stream | None:
    """Return a stream of the same chunk, with the bands that are best for a problem; None where none fit.

    open_bands: those that it may have where extents are open.
    """
    pixels, local_bytes = problem.height * problem.width, problem.target.local_bytes
    bands: tuple[int, ...] = (stream.bands,)
    if is_open(pixels):  # a text for all shapes has room for whole tiles
        bands, pixels = open_bands, work_sizes(problem, tile)[0] * tile.mr
    found = _of_chunk(int(pixels), problem.ic, problem.taps, tile, stream.chunk, local_bytes, bands)
    return next(iter(_balanced(problem, tile, found)), None)


def _balanced(problem: ConvProblem, tile: Tile, found: Sequence[Stream]) -> list[Stream]:
    """Return streams with how long the busiest core takes as part of their factors, the best first."""
    uneven = {bands: _uneven(problem, tile, bands) for bands in {one.bands for one in found}}
    slower = [replace(one, factor=one.factor * uneven[one.bands]) for one in found]
    return sorted(slower, key=attrgetter("factor"))


def _uneven(problem: ConvProblem, tile: Tile, bands: int) -> float:
    """Return the busiest core's time against what it would be, did all take as long.

    Work-items are as long as their tiles and vectors are many. 1 where they are many, or not known.
    """
    (count, blocks), cores = work_sizes(problem, tile), problem.target.compute_units
    if any(map(is_open, (count, problem.batch))) or blocks * bands * problem.batch > MANY * cores:
        return 1.0
    share, vectors = -(-count // bands), -(-problem.oc // tile.vw)
    tiles = [min(share, count - first) for first in range(0, count, share)]
    left = vectors - (blocks // problem.group - 1) * tile.nv
    of_group = [tile.nv] * (blocks // problem.group - 1) + [left]
    taken = [0] * cores
    for item in [t * v for t in tiles for v in of_group * problem.group] * problem.batch:
        heapreplace(taken, taken[0] + item)  # the core that is free first
    return max(taken) * cores / sum(taken)


def _sums_bytes(pixels: int, ic: int, taps: int, tile: Tile, chunk: int, bands: int) -> int:
    """Return the bytes of the sums that a band keeps between chunks."""
    whole = chunk == ic and taps == 1
    return 0 if whole else -(-pixels // bands) * tile.channels * 4


def _of_chunk(
    pixels: int,
    ic: int,
    taps: int,
    tile: Tile,
    chunk: int,
    local_bytes: int,
    bands: tuple[int, ...] = BANDS,
) -> list[Stream]:
    """Return the streams of a chunk whose sums fit local memory."""
    most = min(MOST_SUMS_BYTES, local_bytes // 2)
    return [
        Stream(chunk, b, _factor(pixels, ic, taps, tile, chunk, b))
        for b in bands
        if b <= pixels // tile.mr and _sums_bytes(pixels, ic, taps, tile, chunk, b) <= most
    ]


def _factor(pixels: int, ic: int, taps: int, tile: Tile, chunk: int, bands: int) -> float:
    """Return the time of a stream against that of a work-item a tile."""
    waiting = _sums_bytes(pixels, ic, taps, tile, chunk, bands)
    if chunk == ic and taps == 1:
        factor = ONE_CHUNK
    elif waiting > SUMS_BYTES:
        factor = FAR_SUMS
    else:
        factor = NEAR_SUMS if bands * waiting <= SUMS_BYTES else NEAR_BANDS
    return factor * (1 + 0.01 * (bands - 1))


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
        choices += _of_chunk(extents.pixels, ic, taps, tile, chunk, local_bytes)
    return sorted(
        choices, key=lambda s: (s.factor, max(s.chunk / BEST_CHUNK, BEST_CHUNK / s.chunk))
    )
