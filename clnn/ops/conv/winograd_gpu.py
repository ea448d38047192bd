"""Winograd's convolution for GPUs: transform, products by work-groups, transform; or all in one.

Tiles of the input are transformed into scratch memory as [places][tiles][ic], multiplied with the
weights place by place (gemm_workgroup, a batch of (m + 2) ** 2 products), and transformed back. A
batch of images is taken in shares, so that scratch memory stays small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.ops.conv.winograd import ERRORS, MARGINS, SIZES, TAPS, matrices, transformed_blocks
from clnn.ops.conv.winograd_fused import winograd_fused
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.workgroup_tiles import (
    LAUNCH,
    GemmShape,
    SplitK,
    group_tiles,
    left,
    right,
    widest,
)
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

NEAR, FAR = 12, 30  # slots of an element that a transform moves, in a device's cache and beyond
NEAR_BYTES = 16 * 2**20  # scratch memory that such a cache holds
PLACE = 8  # slots of the sums of a place
WIDER = 1.05  # cost of wider vectors than one element, which take registers
SHARE_BYTES = 64 * 2**20  # scratch memory that a share of the images may take
MOST_BYTES = 256 * 2**20  # and that one image may
MOST = 4  # tiles of products, for each size of outputs, that are worth a measurement
WIDEST_ALIGNED = 4  # vectors up to which tensors and scratch memory are aligned
WIDTHS = {2: (1, 2, 4), 4: (1, 2)}  # vectors of transforms, by the size of outputs


@dataclass(frozen=True)
class Shape:
    """Outputs of m x m a tile; tiles of `images` images at a time, out of `batch`."""

    m: int
    ic: int
    oc: int
    high: int
    wide: int
    batch: int
    images: int

    @property
    def places(self) -> int:
        """Products of a tile and a pair of channels."""
        return (self.m + TAPS - 1) ** 2

    @property
    def tiles(self) -> int:
        """Tiles of a share."""
        return self.images * self.high * self.wide

    def elements(self, channels: int) -> int:
        """Elements that a share has in scratch memory, with so many channels."""
        return self.places * self.tiles * channels

    @property
    def transforms(self) -> float:
        """Slots of both transforms of all shares."""
        traffic = NEAR if 4 * self.elements(self.ic + self.oc) <= NEAR_BYTES else FAR
        slots = traffic * (self.m**2 + self.places) + PLACE * self.places
        return self.batch * self.high * self.wide * (self.ic + self.oc) * slots


def shape_of(dst: tuple[int, ...], ic: int, m: int) -> Shape | None:
    """Return the shares of an output (n, oc, h, w), None where scratch memory would be too large."""
    batch, oc, height, width = dst
    whole = Shape(m, ic, oc, -(-height // m), -(-width // m), batch, 1)
    if 4 * whole.elements(ic + oc) > MOST_BYTES:
        return None
    most = max(1, SHARE_BYTES // (4 * whole.elements(ic + oc)))
    images = next(n for n in range(min(batch, most), 0, -1) if batch % n == 0)
    return replace(whole, images=images)


def winograd_groups(
    spec: Conv2d, problem: Problem, common: dict[str, Any], every: bool
) -> list[Variant]:
    """Return the best kernels, in one launch and in three, or `every` one worth a measurement.

    common: parameters that all kernels of the problem have. The convolution is 3 x 3 of stride 1.
    """
    fused, found = winograd_fused(spec, problem, common), _in_three(spec, problem, common)
    return [*fused, *found] if every else [*fused[:1], *found[:1]]


def _in_three(spec: Conv2d, problem: Problem, common: dict[str, Any]) -> list[Variant]:
    found: list[Variant] = []
    for m in SIZES:
        shape = shape_of(common["dst"].shape, common["src"].shape[1], m)
        if shape is None:
            continue
        sums = GemmShape(shape.tiles, shape.oc, shape.ic, shape.places)
        part = 4 * shape.elements(shape.oc)
        splits = [s for s in group_tiles(sums, problem.target) if s.slices * part <= MOST_BYTES]
        for number, split in enumerate(splits[:MOST]):
            for vw in WIDTHS[m] if number == 0 else (1,):
                if shape.ic % vw == 0 and shape.oc % vw == 0:
                    found.append(_variant(spec, problem, common, shape, split, vw))
    return sorted(found, key=lambda v: v.cost)


def _variant(
    spec: Conv2d, problem: Problem, common: dict[str, Any], shape: Shape, split: SplitK, vw: int
) -> Variant:
    shares, target = shape.batch // shape.images, problem.target
    lanes = 2 * target.vector * target.compute_units
    cost = shares * (split.cost + 2 * LAUNCH)
    cost += shape.transforms * (1 if vw == 1 else WIDER) / lanes
    some = f"_n{shape.images}" if shares > 1 else ""
    name = f"winograd_workgroup_f{shape.m}_v{vw}_{split.label}{some}"
    inputs = Scratch("inputs", 4 * shape.elements(shape.ic))
    products = Scratch("products", 4 * split.slices * shape.elements(shape.oc))
    multiply = _products(problem, shape, split, inputs, products)
    launches = []
    for share in range(shares):
        first = share * shape.images
        launches += [
            input_launch(problem, common, shape, vw, (_moved(problem, In(0), first), inputs)),
            multiply,
            _output(spec, problem, common, shape, split, vw, products, first),
        ]
    return Variant(name, tuple(launches), cost * MARGINS[shape.m], ERRORS[shape.m])


def _moved(problem: Problem, arg: In | Out, image: int) -> In | Out:
    """Return a tensor as an argument that begins with an image."""
    operands = problem.inputs if isinstance(arg, In) else problem.outputs
    operand = operands[arg.index]
    assert operand is not None
    layout, rank = operand.layout, problem.outputs[0].layout.rank
    moves = layout.rank == rank and layout.shape[0] > 1
    return replace(arg, shift=layout.pitches[0] * image if moves else 0)


def _tile_params(common: dict[str, Any], shape: Shape, vw: int) -> dict[str, Any]:
    return {"batch": shape.images, "high": shape.high, "wide": shape.wide, "m": shape.m, "vw": vw}


def input_launch(
    problem: Problem,
    common: dict[str, Any],
    shape: Shape,
    vw: int,
    args: tuple[Arg, ...],
    run: int = 1,
    held: int = 0,
    stride: int = 0,
) -> Launch:
    """Return the launch that transforms the input, `vw` channels at once, `run` times each.

    held: tiles in scratch memory, copies of the last one included; stride: their pitch. As many as
    there are, without gaps, where they are 0.
    """
    src, held = common["src"], held or shape.tiles
    size, local = grid(problem.target, held * shape.ic // (vw * run))
    starts = [problem.input(0).layout.offset, src.pitches[0], *src.pitches[2:]]
    near = (src.pitches[1] == 1 or shape.ic == 1) and vw <= WIDEST_ALIGNED
    params = _tile_params(common, shape, vw) | {
        "name": f"winograd_input_f{shape.m}_v{vw}",
        "src": src,
        "pads": common["pads"],
        "reach": tuple(src.shape[a] + src.after[a] - 1 for a in (2, 3)),
        "run": run,
        "held": held,
        "stride": stride or shape.ic,
        "bt": matrices(shape.m).bt,
        "aligned": near and widest([vw, *starts]) >= vw,
        "wg": local,
    }
    return Launch("conv/winograd_input.cl.mako", params, args, size, local)


def _products(
    problem: Problem, shape: Shape, split: SplitK, inputs: Scratch, products: Scratch
) -> Launch:
    """Return the batch of products of tiles with weights, place by place."""
    tile, (m, n, k) = split.tile, (shape.tiles, shape.oc, shape.ic)
    blocks, rows = -(-n // tile.bn), -(-m // tile.bm)
    size = blocks * -(-k // tile.bk) * tile.bk * tile.bn
    first = n <= m
    counts = (blocks, rows) if first else (rows, blocks)
    weights = problem.input(1).const
    assert weights is not None
    wg = (tile.threads, 1, 1)
    params = {
        "name": f"gemm_workgroup_f32_places_{split.label}_{'blocks' if first else 'rows'}",
        "m": m,
        "n": n,
        "k": k,
        "a": (k, 1),
        "b": None,
        "dst": (n, 1),
        "extras": {},
        "scales": {},
        "post_ops": (),
        "batch": Loops((shape.places,), ((m * k,), (size,), (m * n,))),
        "matrices": shape.places,
        "aligned": () if n % tile.vc else (-1,),
        "b_moves": False,
        "fetches": {"a": left(tile, "terms", widest([k])), "b": right(tile, "rows", 4)},
        "tile": tile,
        "k_slices": split.slices,
        "loop_epilogue": False,
        "channels_fastest": first,
        "wg": wg,
    }
    args = (inputs, Const(lambda: _packed(weights, shape.m, split)), products)
    sizes = (counts[0] * tile.threads, counts[1], shape.places * split.slices)
    return Launch("gemm/workgroup.cl.mako", params, args, sizes, wg)


def _packed(weights: Array, m: int, split: SplitK) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, packed for a tile: [places][blocks][slices][bn]."""
    tile, (oc, ic) = split.tile, weights.shape[:2]
    blocks, terms = -(-oc // tile.bn), -(-ic // tile.bk) * tile.bk
    packed = np.zeros(((m + TAPS - 1) ** 2, blocks, terms, tile.bn), np.float32)
    for block, part in transformed_blocks(weights, m, tile.bn):
        packed[:, block, :ic, : part.shape[2]] = part
    return packed


def _output(
    spec: Conv2d,
    problem: Problem,
    common: dict[str, Any],
    shape: Shape,
    split: SplitK,
    vw: int,
    products: Scratch,
    first: int,
) -> Launch:
    size, local = grid(problem.target, shape.tiles * shape.oc // vw)
    bias = problem.input(2).const if problem.has(2) else None
    params = _tile_params(common, shape, vw) | {
        "name": f"winograd_output_f{shape.m}_v{vw}",
        "dst": common["dst"],
        "k_slices": split.slices,
        "at": matrices(shape.m).at,
        "has_bias": bias is not None,
        "post_ops": spec.post_ops,
        "operands": common["operands"],
        "loop_epilogue": heavy(spec.post_ops),
        "wg": local,
    }
    args: list[Arg] = [products]
    if bias is not None:
        args.append(Const(lambda: bias))
    args += [_moved(problem, arg, first) for arg in operand_args(problem, spec.post_ops)]
    args.append(_moved(problem, Out(0), first))
    return Launch("conv/winograd_output.cl.mako", params, tuple(args), size, local)
