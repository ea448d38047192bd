"""Winograd's convolution F(2, 3) in one kernel, for GPUs: a work-group keeps all of it in local memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.ops.conv.winograd import ERRORS, MARGINS, matrices, transformed_blocks
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.workgroup_tiles import (
    BARRIER,
    GLOBAL,
    LOCAL,
    START,
    STORE,
    GroupTile,
    left,
    right,
)
from clnn.target import Target
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

M, PLACES = 2, 16
TILES, CHANNELS = 32, 32  # of a group
SLICES = (8, 4)  # input channels of a slice
TRANSFORM = 48  # slots of the sums of a tile


def fused_tile(bk: int) -> GroupTile:
    """Return how the work-items of a place divide its sums."""
    return GroupTile(TILES, CHANNELS, 8, 8, bk, 1, 4)


def local_bytes(tile: GroupTile) -> int:
    """Return the bytes of local memory that a group takes."""
    return max(PLACES * tile.local_bytes, 4 * PLACES * tile.bm * tile.across * tile.vc)


def winograd_fused(spec: Conv2d, problem: Problem, common: dict[str, Any]) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first.

    common: parameters that all kernels of the problem have. The convolution is 3 x 3 of stride 1.
    """
    target, found = problem.target, list[Variant]()
    for tile in map(fused_tile, SLICES):
        fits = local_bytes(tile) <= target.local_bytes
        if fits and PLACES * tile.threads <= target.max_work_group:
            found.append(_variant(spec, problem, common, tile))
    return sorted(found, key=lambda v: v.cost)


def _variant(spec: Conv2d, problem: Problem, common: dict[str, Any], tile: GroupTile) -> Variant:
    src, dst = common["src"], common["dst"]
    batch, oc, height, width = dst.shape
    high, wide = -(-height // M), -(-width // M)
    groups, blocks = -(-batch * high * wide // tile.bm), -(-oc // tile.bn)
    first = oc <= batch * high * wide
    wg = (PLACES * tile.threads, 1, 1)
    counts = (blocks, groups) if first else (groups, blocks)
    name = f"winograd_fused_f{M}_k{tile.bk}_{'blocks' if first else 'tiles'}"
    kernel, weights = matrices(M), problem.input(1).const
    bias = problem.input(2).const if problem.has(2) else None
    assert weights is not None
    params = {
        "name": name,
        "src": src,
        "dst": dst,
        "high": high,
        "wide": wide,
        "pads": common["pads"],
        "reach": tuple(src.shape[a] + src.after[a] - 1 for a in (2, 3)),
        "bt": kernel.bt,
        "matrix": kernel.at,
        "has_bias": bias is not None,
        "post_ops": spec.post_ops,
        "operands": common["operands"],
        "tile": tile,
        "channels_fastest": first,
        "wg": wg,
        "fetches": {"a": left(tile, "rows", 1), "b": right(tile, "rows", 4)},
    }
    args: list[Arg] = [In(0), Const(lambda: pack(weights, tile))]
    if bias is not None:
        full = np.pad(bias.astype(np.float32), (0, blocks * tile.bn - oc))
        args.append(Const(lambda: full))
    args += [*operand_args(problem, spec.post_ops), Out(0)]
    sizes = (counts[0] * wg[0], counts[1], 1)
    launch = Launch("conv/winograd_fused.cl.mako", params, tuple(args), sizes, wg)
    cost = _cycles(groups * blocks, src.shape[1], tile, problem.target) * MARGINS[M]
    return Variant(name, (launch,), cost, ERRORS[M])


def _cycles(groups: int, ic: int, tile: GroupTile, target: Target) -> float:
    """Return the estimated cycles, as clnn/ops/shared/workgroup_tiles.py counts them."""
    threads, slices = PLACES * tile.threads, -(-ic // tile.bk)
    sums = tile.tm * tile.tn
    term = sums + LOCAL * (tile.tm + tile.tn) / 4
    pairs = tile.bm * tile.bk / threads
    brought = GLOBAL * (PLACES * pairs + PLACES * tile.bk * tile.bn / threads)
    slice_ = tile.bk * term + brought + TRANSFORM * pairs + 2 * BARRIER
    rounds = -(-groups // target.compute_units)
    item = slices * slice_ + START + (LOCAL + STORE) * sums
    return rounds * item * threads / (2 * target.vector)


def pack(weights: Array, tile: GroupTile) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, as [blocks][slices][places][bk][channels]."""
    oc, ic = weights.shape[:2]
    blocks, slices = -(-oc // tile.bn), -(-ic // tile.bk)
    packed = np.zeros((blocks, slices, PLACES, tile.bk, tile.bn), np.float32)
    for block, part in transformed_blocks(weights, M, tile.bn):
        for k in range(slices):
            terms = part[:, k * tile.bk : (k + 1) * tile.bk]
            packed[block, k, :, : terms.shape[1], : terms.shape[2]] = terms
    return packed
