"""Convolutions as products of pixels with weights by work-groups that share slices, for GPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.loops import Loops, collapse
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
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

SWAPPED_ORDER_COST = 1.02  # cost of walking first along the shorter side of the result


@dataclass(frozen=True)
class Terms:
    """Where the terms of a pixel lie: runs of `run` elements, `pitch` apart, down x right of them."""

    run: int
    pitch: int
    taps: tuple[int, int]
    steps: tuple[int, int]

    @property
    def count(self) -> int:
        """Terms of a pixel."""
        return self.taps[0] * self.taps[1] * self.run


def group_variants(spec: Conv2d, problem: Problem, common: dict[str, Any]) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first.

    common: parameters that all kernels of the problem have; src and dst are images.
    """
    dst, terms = common["dst"], _terms(common, spec.group)
    pixels, channels = dst.shape[0] * dst.shape[2] * dst.shape[3], dst.shape[1] // spec.group
    splits = group_tiles(GemmShape(pixels, channels, terms.count, spec.group), problem.target)
    first = channels * spec.group <= pixels
    made = [group_variant(spec, problem, common, split, first) for split in splits]
    others = [group_variant(spec, problem, common, split, not first) for split in splits[:2]]
    return made + [replace(v, cost=v.cost * SWAPPED_ORDER_COST) for v in others]


def group_variant(
    spec: Conv2d, problem: Problem, common: dict[str, Any], split: SplitK, first: bool
) -> Variant:
    """Return the kernel of one tile; first: blocks of channels are neighbours, not tiles of pixels."""
    tile, slices, terms = split.tile, split.slices, _terms(common, spec.group)
    src, dst = common["src"], common["dst"]
    walked = walk(common, spec.group, tile)
    oc, rows = dst.shape[1] // spec.group, prod(walked["pixels"])
    fetches = _fetches(problem, common, spec.group, terms, tile)
    blocks = -(-oc // tile.bn) * spec.group
    counts = (blocks, -(-rows // tile.bm))[:: 1 if first else -1]
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    k, s = ("x".join(map(str, pair)) for pair in (spec.window.kernel, spec.window.strides))
    order, way = "blocks" if first else "pixels", "terms" if terms.run % tile.bk else "runs"
    params = {
        "name": f"conv2d_workgroup_f32_nhwc_k{k}_s{s}_{way}_{marks}_{split.label}_{order}",
        "ic": src.shape[1] // spec.group,
        "oc": oc,
        "groups": spec.group,
        "channel": terms.pitch,
        "run": terms.run,
        "taps": (terms.taps, terms.steps),
        "tile": tile,
        "k_slices": slices,
        "has_bias": _bias(problem) is not None,
        "post_ops": spec.post_ops,
        "loop_epilogue": heavy(spec.post_ops),
        "fetches": fetches,
        "channels_fastest": first,
        "wg": (tile.threads, 1, 1),
        **walked,
    }
    sizes = (counts[0] * tile.threads, counts[1], slices)
    make = _launches if slices == 1 else _in_slices
    return Variant(str(params["name"]), make(spec, problem, params, sizes), split.cost)


def walk(common: dict[str, Any], group: int, tile: GroupTile) -> dict[str, Any]:
    """Return the parameters that say where pixels lie in src, and their results in dst and operands.

    common: src, dst, strides, pads and operands, as parameters of a convolution.
    """
    src, dst, others = common["src"], common["dst"], [t for _, t in common["operands"].values()]
    layouts = [_pixels(src, dst, common), *map(_channelless, (*others, dst))]
    loops = collapse(layouts)
    outs = (loops.pitches[-1], *loops.pitches[1:-1])
    steps = [dst.pitches[1], *(t.pitches[1] for t in others)]
    return {
        "pixels": loops.extents,
        "places": loops.pitches[0],
        "base": _base(common),
        "outs": tuple(zip(outs, steps, strict=True)),
        "extras": {k: place for k, (place, _) in common["operands"].items()},
        "aligned": _aligned(common, group, tile.vc, loops),
    }


def _launches(
    spec: Conv2d, problem: Problem, params: dict[str, Any], sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the whole convolution in one launch."""
    args: list[Arg] = [In(0), _weights(spec, problem, params)]
    bias = _bias(problem)
    if bias is not None:
        tile = params["tile"]
        args.append(Const(lambda: pack(bias, spec.group, tile.bn)))
    args += [*operand_args(problem, spec.post_ops), Out(0)]
    return (Launch("conv/workgroup.cl.mako", params, tuple(args), sizes, params["wg"]),)


def _in_slices(
    spec: Conv2d, problem: Problem, params: dict[str, Any], sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the launch that leaves parts of the sums in scratch memory, and the one that adds them."""
    columns, extents = params["oc"] * spec.group, params["pixels"]
    rows, vc = prod(extents), params["tile"].vc
    scratch = Scratch("parts", params["k_slices"] * rows * columns * 4)
    dense = tuple(columns * prod(extents[k + 1 :]) for k in range(len(extents)))
    plain = params | {
        "outs": ((dense, 1),),
        "extras": {},
        "post_ops": (),
        "has_bias": False,
        "loop_epilogue": False,
        "aligned": () if params["oc"] % vc else (-1,),
    }
    args: tuple[Arg, ...] = (In(0), _weights(spec, problem, params), scratch)
    first = Launch("conv/workgroup.cl.mako", plain, args, sizes, params["wg"])
    bias = _bias(problem)
    rest = {
        "k_slices": params["k_slices"],
        "operands": params["outs"],
        "has_bias": bias is not None,
        "extras": params["extras"],
        "post_ops": spec.post_ops,
        "scales": {},
    }
    args = (*operand_args(problem, spec.post_ops), Out(0))
    if bias is not None:
        args = (Const(lambda: bias), *args)
    return first, sum_slices(problem.target, scratch, args, extents, columns, rest)


def _weights(spec: Conv2d, problem: Problem, params: dict[str, Any]) -> Const:
    weights, tile = problem.input(1).const, params["tile"]
    assert weights is not None
    return Const(functools.partial(pack_terms, weights, spec.group, tile))


def _bias(problem: Problem) -> Array | None:
    return problem.input(2).const if problem.has(2) else None


def pack(table: Array, group: int, width: int) -> Array:
    """Return constants (oc) padded with zeros to whole blocks of each group."""
    per = len(table) // group
    full = np.zeros((group, -(-per // width) * width), np.float32)
    full[:, :per] = table.reshape(group, per)
    return full


def pack_terms(weights: Array, group: int, tile: GroupTile) -> Array:
    """Return weights (oc, ic, kernel...) as [group][blocks][slices * bk][bn] over (kernel..., ic)."""
    oc, ic = weights.shape[:2]
    per, taps = oc // group, prod(weights.shape[2:])
    blocks, terms = -(-per // tile.bn), -(-taps * ic // tile.bk) * tile.bk
    by_term = weights.reshape(group, per, ic, taps).transpose(0, 3, 2, 1)
    full = np.zeros((group, terms, blocks * tile.bn), np.float32)
    full[:, : taps * ic, :per] = by_term.reshape(group, taps * ic, per)
    split = full.reshape(group, terms, blocks, tile.bn)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def _terms(common: dict[str, Any], group: int) -> Terms:
    """Return where the terms of a pixel lie; a row of taps is one run where it has no gaps."""
    src, (kh, kw) = common["src"], common["kernel"]
    channels = src.shape[1] // group
    pitch = src.pitches[1] if src.shape[1] > 1 else 1
    down, right_ = (d * p for d, p in zip(common["dilations"], src.pitches[2:], strict=True))
    if pitch == 1 and kw > 1 and right_ == channels:
        return Terms(kw * channels, 1, (kh, 1), (down, 0))
    return Terms(channels, pitch, (kh, kw), (down, right_))


def _pixels(src: TensorLayout, dst: TensorLayout, common: dict[str, Any]) -> TensorLayout:
    """Return where the first taps of the output's pixels lie in src, less the padding in front."""
    shape = (dst.shape[0], *dst.shape[2:])
    pitches = (
        src.pitches[0],
        *(s * p for s, p in zip(common["strides"], src.pitches[2:], strict=True)),
    )
    return TensorLayout(shape, pitches, (0, 0, 0), (0, 0, 0), 0, 1)


def _channelless(layout: TensorLayout) -> TensorLayout:
    kept = (0, 2, 3)
    shape, pitches = (tuple(v[a] for a in kept) for v in (layout.shape, layout.pitches))
    return TensorLayout(shape, pitches, (0, 0, 0), (0, 0, 0), layout.offset, layout.size)


def _base(common: dict[str, Any]) -> int:
    """Return the offset of the first pixel's first tap."""
    down, right_ = common["src"].pitches[2:]
    return -int(common["pads"][0] * down + common["pads"][1] * right_)


def _fetches(
    problem: Problem, common: dict[str, Any], group: int, terms: Terms, tile: GroupTile
) -> dict[str, Fetch]:
    """Return how slices of pixels and of weights are read."""
    b = right(tile, "rows", 4)
    if terms.pitch != 1:
        return {"a": left(tile, "rows", 1), "b": b}
    per = common["src"].shape[1] // group
    return {"a": along_terms(problem, common, (per, terms.run), tile), "b": b}


def along_terms(
    problem: Problem, common: dict[str, Any], runs: Sequence[int], tile: GroupTile
) -> Fetch:
    """Return how slices of pixels are read whose terms are neighbours in runs of such lengths."""
    src = common["src"]
    starts = [problem.input(0).layout.offset, _base(common), *runs]
    starts += [src.pitches[a] for a in (0, 2, 3) if src.shape[a] > 1 or a > 1]
    return left(tile, "terms", widest(starts))


def _aligned(common: dict[str, Any], group: int, vc: int, loops: Loops) -> tuple[int, ...]:
    """Return the operands, by number and -1 for dst, whose vectors of channels are aligned."""
    layouts = [*(layout for _, layout in common["operands"].values()), common["dst"]]
    numbers = [*range(len(layouts) - 1), -1]
    per, found = common["dst"].shape[1] // group, []
    for number, layout, pitches in zip(numbers, layouts, loops.pitches[1:], strict=True):
        moves = [p for p, extent in zip(pitches, loops.extents, strict=True) if extent > 1]
        if layout.pitches[1] == 1 and not any(x % vc for x in (per, layout.offset, *moves)):
            found.append(number)
    return tuple(found)
