"""Convolutions of one filter per channel, of bytes, as variants: x86's sums of four products for rows of windows."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from clnn.arith.quantised import Requantised
from clnn.ops.conv.depthwise import BandTile
from clnn.ops.conv.packing import moved_start
from clnn.ops.conv.problem import WEIGHTS, ConvProblem, innermost
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.shared.epilogue import operand_args, table_operands
from clnn.types import I8, U8, Array

GROUP = 4  # rows of a window whose products are added at once
VECTORS = 4  # of channels, whose results become bytes together
PORTS = {16: 2, 8: 3}  # vector instructions of a cycle, by width
ITEMS = 16  # work-items that a core should have
WIDTHS = (16, 8)


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernel of the estimated best tile, then those of others."""
    if not _fits(problem):
        return
    tiles = sorted(_tiles(problem), key=lambda tile: _cycles(problem, tile))
    for tile in tiles:
        yield _variant(problem, tile)


def _fits(problem: ConvProblem) -> bool:
    """Whether the kernel takes a problem."""
    x, arith, channels = problem.input(0).plain, problem.arith, problem.group
    steps, features = problem.post_ops, problem.target.features
    plain = problem.fits_depthwise and innermost(problem.dst)
    if not plain or "x86_vnni" not in features or not isinstance(arith, Requantised):
        return False
    if steps and not ("x86_vbmi" in features and len(steps) == len(table_operands(steps)) == 1):
        return False
    of_bytes = x in (I8, U8) and problem.input(WEIGHTS).type.dtype == I8
    refined = problem.refined
    bounded = isinstance(refined, Requantised) and refined.bounded
    return of_bytes and bounded and channels >= VECTORS * WIDTHS[-1] and channels % 4 == 0


def _tiles(problem: ConvProblem) -> list[BandTile]:
    """Return the tiles that are worth a measurement."""
    oh, ow, channels = problem.height, problem.width, problem.group
    columns = [t for t in (7, 8, 6, 5, 4) if ow % t == 0] or [min(ow, 6)]
    found = []
    for vw in (w for w in WIDTHS if VECTORS * w <= channels):
        items = -(-channels // (VECTORS * vw)) * problem.batch
        band = max(1, min(oh, oh * items // (ITEMS * problem.target.compute_units)))
        found += [BandTile(vw, tx, band) for tx in columns[:2]]
    return found


def _cycles(problem: ConvProblem, tile: BandTile) -> float:
    """Return the estimated cycles: of a column, eight unpacks of a group of rows for all windows that meet it."""
    vw, tx = tile[:2]
    (kh, kw), (_, sx), (_, dx) = (problem.geometry[k] for k in ("kernel", "strides", "dilations"))
    groups, columns = -(-kh // GROUP), len({t * sx + k * dx for t in range(tx) for k in range(kw)})
    slots = groups * (2 * VECTORS * columns + VECTORS * kw * tx)
    across, blocks = -(-problem.width // tx), -(-problem.group // (VECTORS * vw))
    rows = problem.batch * problem.height
    return rows * across * blocks * slots / PORTS[vw] / problem.target.compute_units


def _variant(problem: ConvProblem, tile: BandTile) -> Variant:
    """Return the kernel of a tile."""
    (vw, tx, band, _), target = tile, problem.target
    blocks, bands = -(-problem.group // (VECTORS * vw)), -(-problem.height // band)
    global_size, local = grid(target, blocks, bands, problem.batch)
    params = problem.params | {
        "name": problem.label("depthwise_bytes", f"v{vw}x{tx}_b{band}"),
        "arith": problem.refined.packed_products(),
        "rows": problem.rows,
        "wg": local,
        "vw": vw,
        "tx": tx,
        "band": band,
    }
    weights, table = problem.weights, problem.table
    assert table is not None
    if problem.input(0).plain == I8:
        table = moved_start(table, weights)
    packed = problem.input(WEIGHTS).packed(functools.partial(pack_rows, weights, vw))
    constants: tuple[Arg, ...] = packed, Const(functools.partial(_pack_table, table, vw))
    args: tuple[Arg, ...] = (In(0), *constants, *operand_args(problem, problem.post_ops), Out(0))
    launch = Launch("conv/depthwise_bytes.cl.mako", params, args, global_size, local)

    def fits(other: ConvProblem) -> bool:
        return _fits(other) and other.group >= VECTORS * vw

    def again(other: ConvProblem) -> Variant | None:
        return _variant(other, tile) if fits(other) else None

    def cost_at(other: ConvProblem) -> float:
        return _cycles(other, tile) if fits(other) else math.inf

    cost = _cycles(problem, tile)
    return Variant(params["name"], (launch,), cost, again=again, cost_at=cost_at)


def channels_of(count: int, vw: int) -> Array:
    """Return the channels (blocks, vectors, vw) in the order in which unpacks leave them."""
    block = VECTORS * vw
    first = np.minimum(np.arange(-(-count // block)) * block, count - block)
    inside = np.arange(block).reshape(vw // 4, VECTORS, 4).transpose(1, 0, 2).reshape(VECTORS, vw)
    return np.asarray(first[:, None, None] + inside)


def pack_rows(weights: Array, vw: int) -> Array:
    """Return weights (c, 1, kh, kw) as [blocks][kw][groups][vectors][vw][4 rows], 0 beyond the window."""
    kh, kw = weights.shape[-2:] if weights.ndim == 4 else (1, weights.shape[-1])
    groups = -(-kh // GROUP)
    full = np.zeros((len(weights), groups * GROUP, kw), np.int8)
    full[:, :kh] = weights.reshape(len(weights), kh, kw)
    order = channels_of(len(weights), vw)
    split = full[order].reshape(*order.shape, groups, GROUP, kw)
    return np.ascontiguousarray(split.transpose(0, 5, 3, 1, 2, 4))


def _pack_table(table: Array, vw: int) -> Array:
    """Return constants (rows, c) as [rows][blocks][vectors][vw]."""
    return np.ascontiguousarray(table[:, channels_of(table.shape[1], vw)])
