"""Convolutions as products of pixels with weights by work-groups that share chunks of them, for GPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from clnn.arith._base import FLOAT
from clnn.layout import TensorLayout
from clnn.ops.conv.packing import pack_table
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.loops import Loops, collapse, without
from clnn.ops.shared.workgroup_tiles import (
    Fetch,
    GemmShape,
    GroupTile,
    SplitK,
    group_tiles,
    left,
    right,
    sum_slices,
    widest,
)
from clnn.records import dataclass
from clnn.types import F32, Array

SWAPPED_ORDER_COST = 1.02  # cost of walking first along the shorter side of the result
SWAPPED_TILES = 2  # best tiles of which the other order is worth a measurement


@dataclass(frozen=True)
class Terms:
    """Where the terms of a pixel lie: runs of `run` elements, `pitch` apart; rows and columns of them."""

    run: int
    pitch: int
    runs: tuple[int, int]
    run_pitches: tuple[int, int]

    @property
    def count(self) -> int:
        """Terms of a pixel."""
        return self.runs[0] * self.runs[1] * self.run


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none on CPUs."""
    if (
        problem.target.is_cpu
        or problem.arith is not FLOAT
        or problem.fits_depthwise
        or not problem.has_border
    ):
        return
    pixels, terms = problem.batch * problem.height * problem.width, _terms(problem)
    sums = GemmShape(pixels, problem.oc, terms.count, problem.group)
    splits = group_tiles(sums, problem.target)
    channels_fastest = problem.oc * problem.group <= pixels
    for split in splits:
        yield _variant(problem, terms, split, channels_fastest)
    for split in splits[:SWAPPED_TILES]:
        other = _variant(problem, terms, split, not channels_fastest)
        yield replace(other, cost=other.cost * SWAPPED_ORDER_COST)


def _variant(problem: ConvProblem, terms: Terms, split: SplitK, channels_fastest: bool) -> Variant:
    """Return the kernel of one tile.

    channels_fastest: neighbouring groups have neighbouring blocks of channels, not tiles of pixels.
    """
    tile, slices = split.tile, split.slices
    walked, fetches = walk(problem, tile), _fetches(problem, terms, tile)
    blocks, tiles = -(-problem.oc // tile.bn) * problem.group, -(-prod(walked["pixels"]) // tile.bm)
    counts = (blocks, tiles) if channels_fastest else (tiles, blocks)
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    order, way = (
        "blocks" if channels_fastest else "pixels",
        "terms" if terms.run % tile.bk else "runs",
    )
    params = {
        "name": problem.label("conv2d_workgroup", f"{way}_{marks}_{split.label}_{order}"),
        "ic": problem.ic,
        "oc": problem.oc,
        "groups": problem.group,
        "channel": terms.pitch,
        "run": terms.run,
        "taps": (terms.runs, terms.run_pitches),
        "tile": tile,
        "k_slices": slices,
        "has_bias": problem.bias is not None,
        "types": problem.params["types"],
        "extra_types": problem.params["extra_types"],
        "post_ops": problem.post_ops,
        "loop_epilogue": heavy(problem.post_ops),
        "fetches": fetches,
        "channels_fastest": channels_fastest,
        "wg": (tile.threads, 1, 1),
        **walked,
    }
    sizes = (counts[0] * tile.threads, counts[1], slices)
    launches = _whole(problem, params, sizes) if slices == 1 else _in_slices(problem, params, sizes)
    return Variant(str(params["name"]), launches, split.cost)


def walk(problem: ConvProblem, tile: GroupTile) -> dict[str, Any]:
    """Return the parameters that say where pixels lie in src, and their results in dst and operands."""
    layouts = [problem.dst, *(layout for _, layout in problem.operands.values())]
    dst, *operands = (without(layout, (1,)) for layout in layouts)
    loops = collapse([_pixels(problem), *operands, dst])
    places, *operand_places, dst_places = loops.pitches
    channels = [layout.pitches[1] for layout in layouts]
    return {
        "pixels": loops.extents,
        "places": places,
        "base": _base(problem),
        "outs": tuple(zip((dst_places, *operand_places), channels, strict=True)),
        "extras": {k: place for k, (place, _) in problem.operands.items()},
        "aligned": _aligned(problem, tile.vc, loops),
    }


def _whole(
    problem: ConvProblem, params: dict[str, Any], sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the whole convolution in one launch."""
    args: list[Arg] = [In(0), _weights(problem, params)]
    bias, blocks = problem.bias, (problem.group, params["tile"].bn)
    if bias is not None:
        args.append(Const(lambda: pack_table(bias, *blocks)))
    args += [*operand_args(problem, problem.post_ops), Out(0)]
    return (Launch("conv/workgroup.cl.mako", params, tuple(args), sizes, params["wg"]),)


def _in_slices(
    problem: ConvProblem, params: dict[str, Any], sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the launch that leaves partial sums in scratch memory, and the one that adds them."""
    columns, extents = problem.oc * problem.group, params["pixels"]
    rows, vc = prod(extents), params["tile"].vc
    scratch = Scratch("parts", params["k_slices"] * rows * columns * 4)
    dense = tuple(columns * prod(extents[k + 1 :]) for k in range(len(extents)))
    plain = params | {
        "outs": ((dense, 1),),
        "types": (*params["types"][:3], F32.cl),
        "extras": {},
        "post_ops": (),
        "has_bias": False,
        "loop_epilogue": False,
        "aligned": () if problem.oc % vc else (-1,),
    }
    args: tuple[Arg, ...] = (In(0), _weights(problem, params), scratch)
    first = Launch("conv/workgroup.cl.mako", plain, args, sizes, params["wg"])
    bias = problem.bias
    rest = {
        "k_slices": params["k_slices"],
        "operands": params["outs"],
        "has_bias": bias is not None,
        "extras": params["extras"],
        "post_ops": problem.post_ops,
        "scales": {},
        "types": (params["types"][3], params["extra_types"]),
    }
    args = (*operand_args(problem, problem.post_ops), Out(0))
    if bias is not None:
        args = (Const(lambda: bias), *args)
    return first, sum_slices(problem.target, scratch, args, extents, columns, rest)


def _weights(problem: ConvProblem, params: dict[str, Any]) -> Const:
    """Return the packed weights, stored as the operand is."""
    pack = functools.partial(pack_terms, problem.weights, problem.group, params["tile"])
    return problem.input(problem.weights_input).packed(pack)


def pack_terms(weights: Array, group: int, tile: GroupTile) -> Array:
    """Return weights (oc, ic, kernel...) as [group][blocks][chunks * bk][bn] over (kernel..., ic)."""
    oc, ic = weights.shape[:2]
    per, taps = oc // group, prod(weights.shape[2:])
    blocks, terms = -(-per // tile.bn), -(-taps * ic // tile.bk) * tile.bk
    by_term = weights.reshape(group, per, ic, taps).transpose(0, 3, 2, 1)
    full = np.zeros((group, terms, blocks * tile.bn), np.float32)
    full[:, : taps * ic, :per] = by_term.reshape(group, taps * ic, per)
    split = full.reshape(group, terms, blocks, tile.bn)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def _terms(problem: ConvProblem) -> Terms:
    """Return where the terms of a pixel lie; a row of taps is one run where it has no gaps."""
    src, (kh, kw), channels = problem.src, problem.geometry["kernel"], problem.ic
    pitch = src.pitches[1] if src.shape[1] > 1 else 1
    dilations = problem.geometry["dilations"]
    row, column = (d * p for d, p in zip(dilations, src.pitches[2:], strict=True))
    if pitch == 1 and kw > 1 and column == channels:
        return Terms(kw * channels, 1, (kh, 1), (row, 0))
    return Terms(channels, pitch, (kh, kw), (row, column))


def _pixels(problem: ConvProblem) -> TensorLayout:
    """Return where the first taps of the output's pixels lie in src, less the padding in front."""
    image, *spatial = (problem.src.pitches[a] for a in (0, 2, 3))
    strides = problem.geometry["strides"]
    pitches = (image, *(s * p for s, p in zip(strides, spatial, strict=True)))
    shape = (problem.batch, problem.height, problem.width)
    return TensorLayout(shape, pitches, (0, 0, 0), (0, 0, 0), 0, 1)


def _base(problem: ConvProblem) -> int:
    """Return the offset of the first pixel's first tap."""
    pads, pitches = problem.geometry["pads"], problem.src.pitches[2:]
    return -sum(pad * pitch for pad, pitch in zip(pads, pitches, strict=True))


def _fetches(problem: ConvProblem, terms: Terms, tile: GroupTile) -> dict[str, Fetch]:
    """Return how chunks of pixels and of weights are read."""
    b = right(tile, "rows", 4)
    if terms.pitch != 1:
        return {"a": left(tile, "rows", 1), "b": b}
    return {"a": along_terms(problem, (problem.ic, terms.run), tile), "b": b}


def along_terms(problem: ConvProblem, runs: Sequence[int], tile: GroupTile) -> Fetch:
    """Return how chunks of pixels are read whose terms are neighbours in runs of such lengths."""
    src = problem.src
    starts = [src.offset, _base(problem), *runs]
    starts += [src.pitches[a] for a in (0, 2, 3) if src.shape[a] > 1 or a > 1]
    return left(tile, "terms", widest(starts))


def _aligned(problem: ConvProblem, vc: int, loops: Loops) -> tuple[int, ...]:
    """Return the operands, by number and -1 for dst, whose vectors of channels are aligned."""
    layouts = [*(layout for _, layout in problem.operands.values()), problem.dst]
    numbers = [*range(len(layouts) - 1), -1]
    aligned = []
    for number, layout, pitches in zip(numbers, layouts, loops.pitches[1:], strict=True):
        moves = [p for p, extent in zip(pitches, loops.extents, strict=True) if extent > 1]
        starts = (problem.oc, layout.offset, *moves)
        if layout.pitches[1] == 1 and not any(x % vc for x in starts):
            aligned.append(number)
    return tuple(aligned)
