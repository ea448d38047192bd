"""Winograd's convolution F(2, 3) in one kernel, for GPUs: a work-group keeps all of it in local memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product, starmap

import numpy as np

from clnn.ops.conv.packing import pack_table
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.winograd import (
    ERRORS,
    MARGINS,
    fits,
    matrices,
    tile_grid,
    transformed_blocks,
)
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.workgroup_tiles import (
    BARRIER,
    LOCAL,
    START,
    STORE,
    GroupTile,
    fetch_slots,
    has_room,
    left,
    right,
)
from clnn.target import UNASKED, RegisterMode, Target
from clnn.types import Array

M, PLACES = 2, 16  # outputs of a tile along an axis, and products of a tile and a pair of channels
TILES, CHANNELS = 32, 32  # of a group
CHUNKS = (8, 4)  # input channels
TRANSFORM_SLOTS = 48  # of the sums of a tile
# Of a work-item, by chunk: sums, operands, and what it transforms.
VALUES = {4: 100, 8: 116}


def fused_tile(bk: int, mode: RegisterMode = UNASKED) -> GroupTile:
    """Return how the work-items of a place divide its sums; mode: what the kernel asks of registers."""
    return GroupTile(TILES, CHANNELS, 8, 8, bk, 1, 4, mode)


def local_bytes(tile: GroupTile) -> int:
    """Return the bytes of local memory that a group takes."""
    return max(PLACES * tile.local_bytes, 4 * PLACES * tile.bm * tile.across * tile.vc)


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first."""
    target = problem.target
    if target.is_cpu or not fits(problem, 1):
        return
    tiles = [
        tile
        for tile in starmap(fused_tile, product(CHUNKS, target.register_modes))
        if has_room(tile.mode, VALUES[tile.bk])
        and local_bytes(tile) <= target.local_bytes
        and PLACES * tile.threads <= target.max_work_group
    ]
    yield from sorted((_variant(problem, tile) for tile in tiles), key=lambda v: v.cost)


def _variant(problem: ConvProblem, tile: GroupTile) -> Variant:
    """Return the kernel of one tile."""
    images, bias, oc = tile_grid(problem, M), problem.bias, problem.oc
    groups, blocks = -(-images.tiles // tile.bm), -(-oc // tile.bn)
    channels_fastest = oc <= images.tiles
    wg = (PLACES * tile.threads, 1, 1)
    counts = (blocks, groups) if channels_fastest else (groups, blocks)
    order = "blocks" if channels_fastest else "tiles"
    name = f"winograd_fused_f{M}_k{tile.bk}{tile.mode.label}_{order}"
    kernel, weights = matrices(M), problem.weights
    params = {
        "name": name,
        "src": problem.src,
        "dst": problem.dst,
        "high": images.high,
        "wide": images.wide,
        "pads": problem.geometry["pads"],
        "reach": problem.reach,
        "bt": kernel.bt,
        "matrix": kernel.at,
        "has_bias": bias is not None,
        "post_ops": problem.post_ops,
        "operands": problem.operands,
        "tile": tile,
        "channels_fastest": channels_fastest,
        "wg": wg,
        "fetches": {"a": left(tile, "rows", 1), "b": right(tile, "rows", 4)},
    }
    args: list[Arg] = [In(0), Const(lambda: pack(weights, tile))]
    if bias is not None:
        args.append(Const(lambda: pack_table(bias, 1, tile.bn)))
    args += [*operand_args(problem, problem.post_ops), Out(0)]
    sizes = (counts[0] * wg[0], counts[1], 1)
    launch = Launch("conv/winograd_fused.cl.mako", params, tuple(args), sizes, wg)
    cost = _cycles(groups * blocks, problem.ic, tile, problem.target) * MARGINS[M]
    return Variant(name, (launch,), cost, ERRORS[M])


def _cycles(groups: int, ic: int, tile: GroupTile, target: Target) -> float:
    """Return the estimated cycles, as clnn/ops/shared/workgroup_tiles.py counts them."""
    threads, chunks = PLACES * tile.threads, -(-ic // tile.bk)
    sums = tile.tm * tile.tn
    term = sums + LOCAL * (tile.tm + tile.tn) / 4
    pairs = tile.bm * tile.bk / threads
    brought = fetch_slots(target) * (PLACES * pairs + PLACES * tile.bk * tile.bn / threads)
    chunk = tile.bk * term + brought + TRANSFORM_SLOTS * pairs + 2 * BARRIER
    rounds = -(-groups // target.compute_units)
    item = chunks * chunk + START + (LOCAL + STORE) * sums
    return rounds * item * threads / (2 * target.vector)


def pack(weights: Array, tile: GroupTile) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, as [blocks][chunks][places][bk][channels]."""
    oc, ic = weights.shape[:2]
    blocks, chunks = -(-oc // tile.bn), -(-ic // tile.bk)
    packed = np.zeros((blocks, chunks, PLACES, tile.bk, tile.bn), np.float32)
    for block, part in transformed_blocks(weights, M, tile.bn):
        for k in range(chunks):
            terms = part[:, k * tile.bk : (k + 1) * tile.bk]
            packed[block, k, :, : terms.shape[1], : terms.shape[2]] = terms
    return packed
