"""Convolutions of few channels per group as variants, with tiles of columns by rows of a band."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from clnn.arith._base import FLOAT
from clnn.ops.conv.edges import stays_inside
from clnn.ops.conv.packing import pack_filters
from clnn.ops.conv.problem import WEIGHTS, ConvProblem, innermost
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.workgroup_tiles import latency_hiding
from clnn.target import Target
from clnn.traced import is_open, other

UNIT_ITEMS = 512  # work-items that a GPU's compute unit should have
ITEMS = 64  # work-items that a CPU's kernel should have
UNIT_BANDS = 8  # those that each of its cores should have at least
# Rows of a map that are walked each alone on processors with this, where that was seen to be faster.
FEW_ROWS, ROWS_APART = 7, "x86_amx"
FILTERS = (2, 4)  # outputs of an input channel, besides one
GROUPS = (2, 4, 8)  # channels of a group, inputs and outputs alike, besides one
MOST_COLUMNS = 14  # output columns at a time, of groups of several channels
OTHER_REGISTERS = 3  # besides sums and the weights of a row of taps
OTHER_TILE_COST = 1.05  # of tiles other than the estimated best
MOST_IN_REGISTERS = 9  # taps of a filter that stays there
# Output columns at a time of larger filters, where registers hold the weights of a row of taps beside the sums, and
# where there are so few registers: sums enough to hide how long additions take.
WIDE = (14, 8)
NARROW, FEW = (8, 10, 7), 16
PAGE, PAGES = 4096, 128  # bytes of a page, and pages whose addresses a core finds quickly, at most
NEAR_BYTES = 24 << 10  # that rows in private memory take of the nearest cache at most


class BandTile(NamedTuple):
    """Channels of a vector, output columns at a time, output rows of a work-item; near: rows are copied first."""

    vw: int
    tx: int
    band: int
    near: bool = False


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernel of the estimated best tile, then those of others."""
    if not _fits(problem):
        return
    best = best_tile(problem)
    yield _variant(problem, best)
    for tile in _tiles(problem, best):
        if tile != best:
            yield _variant(problem, tile)


def _fits(problem: ConvProblem) -> bool:
    """Whether there is one filter per channel; or, of floats on CPUs, groups that fill vectors.

    These have one input channel and a few outputs, or as many of both.
    """
    if problem.fits_depthwise:
        return True
    several = problem.oc in FILTERS if problem.ic == 1 else problem.ic == problem.oc in GROUPS
    several = several and problem.group > 1
    plain = several and problem.arith is FLOAT and problem.target.is_cpu
    return plain and innermost(problem.src) and problem.has_border and bool(_widths(problem))


def _widths(problem: ConvProblem) -> list[int]:
    """Return the channels that a vector may have: all of a group, where it has several outputs."""
    channels, each = problem.group * problem.oc, problem.oc
    widths = [w for w in (16, 8, 4, 2, 1) if w <= min(channels, problem.lanes)]
    return [w for w in widths if each == 1 or (w > each and channels % w == w % each == 0)]


def best_tile(problem: ConvProblem) -> BandTile:
    """Return the tile that is estimated best."""
    channels, oh, ow = problem.group * problem.oc, problem.height, problem.width
    vw = min(_widths(problem), key=lambda w: (-(-channels // w), -w))
    if not problem.target.is_cpu:
        rows, items = problem.batch * oh * -(-channels // vw), UNIT_ITEMS
        enough = (t for t in (4, 2) if rows * -(-ow // t) >= items * problem.target.compute_units)
        return BandTile(vw, min(ow, next(enough, 1)), 1)
    wide = _wide_columns(problem)
    tx = next((t for t in (*wide, 7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    if wide == NARROW and tx < min(NARROW):
        tx = min(ow, NARROW[0])
    if problem.ic > 1:
        most = _most_columns(problem)
        tx = next((t for t in range(most, most // 2, -1) if ow % t == 0), min(ow, most))
    tile = BandTile(vw, tx, _even_band(oh, -(-channels // vw), problem.target))
    return tile._replace(near=_takes_near(problem, vw) and _is_spread(problem))


def _wide_columns(problem: ConvProblem) -> tuple[int, ...]:
    """Return the output columns at a time that a CPU's kernel of a large filter should have, best first."""
    if not _is_large(problem) or problem.geometry["strides"][1] != 1:
        return ()
    if problem.target.registers <= FEW:
        return NARROW
    return tuple(t for t in WIDE if t <= _most_columns(problem))


def _even_band(rows: int, vectors: int, target: Target) -> int:
    """Return the rows of bands that are alike, so many that work-items are neither few nor short."""
    if ROWS_APART in target.features and not is_open(rows) and rows <= FEW_ROWS:
        return 1
    bands = max(ITEMS // vectors, -(-UNIT_BANDS * target.compute_units // vectors))
    return -(-rows // max(1, min(rows, bands)))


def _is_large(problem: ConvProblem) -> bool:
    """Whether a CPU's kernel of one filter per channel reads its taps from memory."""
    alone = problem.ic == problem.oc == 1 and problem.arith is FLOAT and problem.target.is_cpu
    return alone and math.prod(problem.window.kernel) > MOST_IN_REGISTERS


def _takes_near(problem: ConvProblem, vw: int) -> bool:
    """Whether rows that taps reach may be copied to private memory."""
    held, most = _pixels_reached(problem), _near_vectors(vw)
    return _is_large(problem) and held <= most and other(held) <= most


def _near_vectors(vw: int) -> int:
    return NEAR_BYTES // (4 * vw)


def _pixels_reached(problem: ConvProblem) -> int:
    """Return the pixels of all rows that the taps of a row of outputs reach."""
    (_, sx), (kh, kw), (dy, dx) = (problem.geometry[k] for k in ("strides", "kernel", "dilations"))
    return ((kh - 1) * dy + 1) * ((problem.width - 1) * sx + (kw - 1) * dx + 1)


def _is_spread(problem: ConvProblem) -> bool:
    """Whether the rows that taps reach lie in more pages than a core finds addresses of quickly."""
    pitch = 4 * problem.src.pitches[3]
    return not is_open(pitch) and _pixels_reached(problem) * pitch > PAGES * PAGE


def _most_columns(problem: ConvProblem) -> int:
    """Return the output columns whose sums fit the registers beside the weights of a row of taps."""
    taken = problem.geometry["kernel"][1] + OTHER_REGISTERS
    return max(1, min(MOST_COLUMNS, problem.target.registers - taken))


def _row_slots(problem: ConvProblem, tx: int) -> int:
    """Return the instructions of a row of outputs and a vector, `tx` columns at a time."""
    (kh, kw), (_, sx), (_, dx) = (problem.geometry[k] for k in ("kernel", "strides", "dilations"))
    columns = (tx - 1) * sx + (kw - 1) * dx + 1
    slots = max(2 * kh * columns + tx, tx * kh * kw)
    if problem.ic > 1:  # an input is spread over its group's outputs once for a row of taps
        slots = problem.ic * kh * (columns + kw + tx * kw) + tx
    return -(-problem.width // tx) * slots


def _tiles(problem: ConvProblem, best: BandTile) -> list[BandTile]:
    """Return the tiles that are worth a measurement, the estimated best one among them."""
    oh, ow = problem.height, problem.width
    bands = sorted({best.band, 1, 2, 4, 8, -(-oh // problem.target.compute_units), oh})
    columns = sorted({best.tx, 2, 4, 6, 7, 8})
    if problem.ic > 1:
        columns = [t for t in sorted({best.tx, 7, 8, 10, 14}) if t <= _most_columns(problem)]
    if not problem.target.is_cpu:
        bands, columns = [1, 2, 4], sorted({best.tx, 1, 2, 4})
    near = [best._replace(near=not best.near)] if _takes_near(problem, best.vw) else []
    return near + [
        BandTile(vw, tx, band, best.near and _takes_near(problem, vw))
        for vw in sorted({best.vw, max(best.vw // 2, 1)})
        if vw in _widths(problem)
        for tx in columns
        if tx <= ow
        for band in bands
        if band <= oh
    ]


def _cycles(problem: ConvProblem, tile: BandTile) -> float:
    """Return the estimated cycles; reads of a column of inputs are shared by its outputs."""
    (vw, tx, band, _), target, rows = tile, problem.target, problem.batch * problem.height
    vectors, across = -(-problem.group * problem.oc // vw), -(-problem.width // tx)
    cost = rows * vectors * _row_slots(problem, tx) / 2
    cost *= (1 if tile == best_tile(problem) else OTHER_TILE_COST) / target.compute_units
    items = -(-problem.height // band) * problem.batch * vectors
    busiest = -(-items // target.compute_units) * band  # rows; runtimes give cores items, not rows
    cost *= busiest * target.compute_units / (rows * vectors)
    return cost if target.is_cpu else cost / latency_hiding(items * across, target)


def _variant(problem: ConvProblem, tile: BandTile) -> Variant:
    """Return the kernel of a tile.

    A CPU's work-items take all columns of a band; of GPUs, where there must be many, `tx` of them.
    """
    (vw, tx, band, near), target = tile, problem.target
    each, vectors = problem.oc, -(-problem.group * problem.oc // vw)
    bands, inside = -(-problem.height // band), _stays_inside(problem, tile)
    sizes = (vectors, bands) if target.is_cpu else (vectors * -(-problem.width // tx) * bands, 1)
    global_size, local = grid(target, *sizes, problem.batch)
    tile_name = (
        f"v{vw}x{tx}_b{band}"
        + f"_m{each}" * (each > 1)
        + f"_g{problem.ic}" * (problem.ic > 1)
        + "_near" * near
    )
    params = problem.params | {
        "name": problem.label("depthwise", tile_name + "_spread" * (not target.is_cpu)),
        "rows": problem.rows,
        "wg": local,
        "vw": vw,
        "tx": tx,
        "band": band,
        "each": each,
        "taken": problem.ic,
        "near": _near_vectors(vw) if near else 0,
        "inside": inside,
        "tile_per_item": not target.is_cpu,
        "prefetch": "prefetch" in target.features,
        "aligned": not target.is_cpu and _is_aligned(problem, vw),
    }
    weights, table = problem.weights, problem.table
    width = vw if target.is_cpu else 0
    packed = problem.input(WEIGHTS).packed(lambda: pack_filters(weights, width))
    args: list[Arg] = [In(0), packed]
    if table is not None:
        args.append(Const(lambda: table))
    args += last_args(problem, problem.post_ops)
    launch = Launch("conv/depthwise.cl.mako", params, tuple(args), global_size, local)

    def fits(other: ConvProblem) -> bool:
        return (
            _fits(other)
            and (target.is_cpu or tx <= other.width)
            and (not near or _takes_near(other, vw))
        )

    def again(other: ConvProblem) -> Variant | None:
        return _variant(other, tile) if fits(other) else None

    def cost_at(other: ConvProblem) -> float:
        return _cycles(other, tile) if fits(other) else math.inf

    cost = _cycles(problem, tile)
    unread = (0,) if inside else ()
    return Variant(params["name"], (launch,), cost, again=again, cost_at=cost_at, unread=unread)


def _stays_inside(problem: ConvProblem, tile: BandTile) -> bool:
    """Whether a tile's kernel leaves out taps that meet the border."""
    alone = problem.ic == problem.oc == 1 and problem.arith is FLOAT and problem.target.is_cpu
    return alone and not tile.near and stays_inside(problem, tile.tx)


def _is_aligned(problem: ConvProblem, vw: int) -> bool:
    """Whether all vectors of the input and of weights begin at multiples of their size."""
    src = problem.src
    starts = (problem.group, src.offset, src.pitches[0], *src.pitches[2:])
    plain = problem.arith is FLOAT and not problem.uses_narrow_storage
    return plain and vw <= 4 and not any(x % vw for x in starts)
