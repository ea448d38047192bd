"""Winograd's convolution for GPUs in three launches: transform, products by work-groups, transform.

Tiles of the input are transformed into scratch memory as [places][tiles][ic], multiplied with the
weights place by place (gemm/workgroup, a batch of (m + 2) ** 2 products), and transformed back. A
batch of images is taken in shares, so that scratch memory stays small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.winograd import (
    ERRORS,
    MARGINS,
    TAPS,
    TileGrid,
    fits,
    input_launch,
    matrices,
    tile_grid,
    transformed_blocks,
)
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.workgroup_tiles import (
    GemmShape,
    SplitK,
    element_slots,
    group_tiles,
    has_room,
    left,
    right,
    second_launch,
    widest,
)
from clnn.target import RegisterMode, Target
from clnn.types import F32, Array

SIZES = (4, 2)  # outputs of a tile along an axis
CACHED = 0.4  # slots of an element that a transform moves, of those that one from memory takes
CACHE_BYTES = 16 * 2**20  # of scratch memory that a device's cache holds
PLACE_SLOTS = 8  # of the sums of a place
WIDE_COST = 1.05  # of wider vectors than one element, which take registers
SHARE_BYTES = 64 * 2**20  # of scratch memory that a share of the images may take
MOST_IMAGE_BYTES = 256 * 2**20  # and that one image may
CANDIDATES = 4  # tiles of products, for each size of outputs, that are worth a measurement
WIDTHS = {2: (1, 2, 4), 4: (1, 2)}  # vectors of transforms, by the size of outputs
# Values of a transform, where registers are few: with more of them, Intel's compilers take subgroups for some
# that are too wide for these.
MOST_TRANSFORMED = 64


def share_of(batch: TileGrid) -> TileGrid | None:
    """Return the tiles of a share of a batch, None where scratch memory would be too large."""
    nbytes = 4 * replace(batch, images=1).elements(batch.ic + batch.oc)
    if nbytes > MOST_IMAGE_BYTES:
        return None
    most = min(batch.images, max(1, SHARE_BYTES // nbytes))
    images = next(n for n in range(most, 0, -1) if batch.images % n == 0)
    return replace(batch, images=images)


def _transform_slots(share: TileGrid, target: Target) -> float:
    """Return the slots of both transforms of a share."""
    channels = share.ic + share.oc
    is_cached = 4 * share.elements(channels) <= CACHE_BYTES
    moved = element_slots(target) * (CACHED if is_cached else 1)
    slots = moved * (share.m**2 + share.places) + PLACE_SLOTS * share.places
    return share.tiles * channels * slots


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first."""
    if problem.target.is_cpu or not fits(problem, 1):
        return
    every: list[Variant] = []
    for share in (share_of(tile_grid(problem, m)) for m in SIZES):
        if share is None:
            continue
        sums = GemmShape(share.tiles, share.oc, share.ic, share.places)
        part = 4 * share.elements(share.oc)
        splits = group_tiles(sums, problem.target)
        splits = [s for s in splits if s.slices * part <= MOST_IMAGE_BYTES]
        for number, split in enumerate(splits[:CANDIDATES]):
            for vw in WIDTHS[share.m] if number == 0 else (1,):
                mode = problem.target.register_modes[0]
                room = has_room_to_transform(mode, share.places * vw)
                if room and share.ic % vw == 0 and share.oc % vw == 0:
                    every.append(_variant(problem, share, split, vw))
    yield from sorted(every, key=lambda v: v.cost)


def has_room_to_transform(mode: RegisterMode, values: int) -> bool:
    """Whether a work-item has registers for a transform of so many values."""
    return mode.registers == 0 or (values <= MOST_TRANSFORMED and has_room(mode, values))


def _variant(problem: ConvProblem, share: TileGrid, split: SplitK, vw: int) -> Variant:
    shares, target = problem.batch // share.images, problem.target
    lanes = 2 * target.vector * target.compute_units
    cost = shares * (split.cost + 2 * second_launch(target))
    cost += shares * _transform_slots(share, target) * (1 if vw == 1 else WIDE_COST) / lanes
    some = f"_n{share.images}" if shares > 1 else ""
    name = f"winograd_workgroup_f{share.m}_v{vw}_{split.label}{some}"
    inputs = Scratch("inputs", 4 * share.elements(share.ic))
    products = Scratch("products", 4 * split.slices * share.elements(share.oc))
    multiply = _products(problem, share, split, inputs, products)
    launches = []
    for first in range(0, problem.batch, share.images):
        launches += [
            input_launch(problem, share, vw, (_moved(problem, In(0), first), inputs)),
            multiply,
            _output(problem, share, split, vw, products, first),
        ]
    return Variant(name, tuple(launches), cost * MARGINS[share.m], ERRORS[share.m])


def _moved(problem: ConvProblem, arg: In | Out, image: int) -> In | Out:
    """Return a tensor as an argument that begins with an image."""
    operands = problem.inputs if isinstance(arg, In) else problem.outputs
    operand = operands[arg.index]
    assert operand is not None
    layout, rank = operand.layout, problem.outputs[0].layout.rank
    moves = layout.rank == rank and layout.shape[0] > 1
    return replace(arg, shift=layout.pitches[0] * image if moves else 0)


def _products(
    problem: ConvProblem, share: TileGrid, split: SplitK, inputs: Scratch, products: Scratch
) -> Launch:
    """Return the batch of products of tiles with weights, place by place."""
    tile, (m, n, k) = split.tile, (share.tiles, share.oc, share.ic)
    blocks, rows = -(-n // tile.bn), -(-m // tile.bm)
    size = blocks * -(-k // tile.bk) * tile.bk * tile.bn
    channels_fastest = n <= m
    counts = (blocks, rows) if channels_fastest else (rows, blocks)
    weights, wg = problem.weights, (tile.threads, 1, 1)
    params = {
        "name": f"gemm_workgroup_f32_places_{split.label}_{'blocks' if channels_fastest else 'rows'}",
        "m": m,
        "n": n,
        "k": k,
        "a": (k, 1),
        "b": None,
        "dst": (n, 1),
        "extras": {},
        "scales": {},
        "post_ops": (),
        "types": (F32.cl,) * 3,
        "batch": Loops((share.places,), ((m * k,), (size,), (m * n,))),
        "matrices": share.places,
        "aligned": () if n % tile.vc else (-1,),
        "b_moves": False,
        "fetches": {"a": left(tile, "terms", widest([k])), "b": right(tile, "rows", 4)},
        "tile": tile,
        "k_slices": split.slices,
        "loop_epilogue": False,
        "channels_fastest": channels_fastest,
        "wg": wg,
    }
    args = (inputs, Const(lambda: _packed(weights, share.m, split)), products)
    sizes = (counts[0] * tile.threads, counts[1], share.places * split.slices)
    return Launch("gemm/workgroup.cl.mako", params, args, sizes, wg)


def _packed(weights: Array, m: int, split: SplitK) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, packed for a tile: [places][blocks][terms][bn]."""
    tile, (oc, ic) = split.tile, weights.shape[:2]
    blocks, terms = -(-oc // tile.bn), -(-ic // tile.bk) * tile.bk
    packed = np.zeros(((m + TAPS - 1) ** 2, blocks, terms, tile.bn), np.float32)
    for block, part in transformed_blocks(weights, m, tile.bn):
        packed[:, block, :ic, : part.shape[2]] = part
    return packed


def _output(
    problem: ConvProblem, share: TileGrid, split: SplitK, vw: int, products: Scratch, first: int
) -> Launch:
    """Return the launch that transforms products to outputs of a share, which begins with `first`."""
    size, local = grid(problem.target, share.tiles * share.oc // vw)
    bias = problem.bias
    params = share.params | {
        "name": f"winograd_output_f{share.m}_v{vw}",
        "dst": problem.dst,
        "vw": vw,
        "k_slices": split.slices,
        "at": matrices(share.m).at,
        "has_bias": bias is not None,
        "post_ops": problem.post_ops,
        "operands": problem.operands,
        "loop_epilogue": heavy(problem.post_ops),
        "wg": local,
    }
    args: list[Arg] = [products]
    if bias is not None:
        args.append(Const(lambda: bias))
    args += [_moved(problem, arg, first) for arg in operand_args(problem, problem.post_ops)]
    args.append(_moved(problem, Out(0), first))
    return Launch("conv/winograd_output.cl.mako", params, tuple(args), size, local)
