"""Transposed convolutions of bytes by bytes whose results are those of float32 sums in a given order.

Sums are exact. What such a float32 sum may be off by decides which results are summed again in that order.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from clnn.arith.quantised import LARGEST_I32
from clnn.arith.real_taps import RealTaps
from clnn.layout import TensorLayout
from clnn.ops.conv.packing import by_output, pack_table, pack_weights
from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.tiles import Tile, Tiles
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.target import Target
from clnn.types import I8, Array

Firsts = tuple[tuple[int, ...], ...]  # the first tap of each phase along both axes
MOST_RESTS = 1 / 256  # share of weights that may leave 8 bits
PACKED = 4  # channels whose products are added at once
# How far float32 sums are taken to lie from exact ones, in halves of the last place: of the largest sum that the
# weights allow, and of the sum itself.
OF_LARGEST, OF_RESULT = 1, 16
HALF_PLACE = 2.0**-24
DOTS = {"x86_vnni": ("vnni4", "x86", 16), "x86_madd": ("madd4", "x86", 8)}


def in_bytes(whole: Array) -> Array:
    """Return integers clipped to int8."""
    return np.clip(whole, -128, 127).astype(np.int8)


def rests_of(whole: Array, group: int, width: int) -> tuple[Array, Array, Array]:
    """Return what weights (oc, ic, kernel...) have beyond 8 bits, by blocks and taps.

    That is the first rest of each block and tap, and the input channel and the row of each rest.
    """
    rest = pack_weights(whole - in_bytes(whole), group, width)  # [group][blocks][taps][ic][width]
    rows = rest.reshape(-1, *rest.shape[3:])
    places, channels = np.nonzero(rows.any(axis=2))
    firsts = np.searchsorted(places, np.arange(len(rows) + 1))
    found = rows[places, channels]
    return firsts.astype(np.int32), channels.astype(np.int32), found.astype(np.int32)


def way_of(target: Target) -> tuple[str, str, int]:
    """Return how products are added, how results become bytes, and the elements of a vector."""
    found = (way for feature, way in DOTS.items() if feature in target.features)
    return next(found, ("plain4", "plain", min(max(target.vector, 4), 16)))


def is_fast(target: Target) -> bool:
    """Whether products of bytes are faster than those of floats."""
    return "x86_vnni" in target.features


def integers_of(problem: ConvProblem) -> Array | None:
    """Return weights (oc, ic / group, kernel...) as integers, None where the kernel does not take the problem.

    Few may leave 8 bits, as where a zero point is not in the middle.
    """
    arith, target = problem.arith, problem.target
    if not isinstance(arith, RealTaps) or arith.quads or problem.post_ops or not problem.has_border:
        return None
    ordered = innermost(problem.src) and problem.src.pitches[1] == problem.dst.pitches[1] == 1
    if not ordered or problem.ic % PACKED or not target.is_cpu:
        return None
    whole = arith.integers(by_output(problem.weights, problem.group))
    if whole is None or (whole != in_bytes(whole)).mean() > MOST_RESTS:
        return None
    most = 2 * 255 * np.abs(whole.astype(np.int64)).reshape(len(whole), -1).sum(1)
    reached = most * np.abs(_factors(problem)) + np.abs(_offsets(problem)) / arith.step_out
    return whole if (most < 2**31).all() and (reached < LARGEST_I32).all() else None


def _factors(problem: ConvProblem) -> Array:
    """Return what a step of the sum of each output channel is worth in steps of the result, float64."""
    arith, count = problem.arith, problem.oc * problem.group
    assert isinstance(arith, RealTaps)
    steps = np.broadcast_to(np.array(arith.weight_steps, np.float32), (count,))
    return np.asarray(arith.step_in * steps.astype(np.float64) / arith.step_out)


def _offsets(problem: ConvProblem) -> Array:
    """Return the bias of each output channel, float64."""
    assert isinstance(problem.arith, RealTaps)
    offsets = np.array(problem.arith.offsets or (0.0,), np.float64)
    return np.broadcast_to(offsets, (problem.oc * problem.group,))


def table_of(problem: ConvProblem, whole: Array) -> Array:
    """Return rows: factor, bias in steps of the result, distance from which on results are near ties, bias, step."""
    arith, factors, offsets = problem.arith, _factors(problem), _offsets(problem)
    assert isinstance(arith, RealTaps)
    low, high = (-128, 127) if problem.input(0).plain == I8 else (0, 255)
    most = max(arith.zero - low, high - arith.zero)
    largest = most * factors * np.abs(whole.astype(np.int64)).reshape(len(whole), -1).sum(1)
    off = HALF_PLACE * (OF_LARGEST * largest + OF_RESULT * np.abs(offsets) / arith.step_out)
    steps = np.broadcast_to(np.array(arith.weight_steps, np.float32), factors.shape)
    rows = (factors, offsets / arith.step_out, np.maximum(0.5 - off, 0), offsets, steps)
    return np.stack(rows).astype(np.float32)


def starts_of(problem: ConvProblem, whole: Array, firsts: Firsts) -> Array:
    """Return what sums of each phase begin with, (sy, sx, oc): less the zero point's share of their taps."""
    pairs = problem.geometry
    full = whole.astype(np.int64).reshape(*whole.shape[:2], *pairs["kernel"])
    arith = problem.arith
    assert isinstance(arith, RealTaps)
    above = arith.zero + 128 * (problem.input(0).plain == I8)
    apart = [
        s // int(np.gcd(s, d)) for s, d in zip(pairs["strides"], pairs["dilations"], strict=True)
    ]
    rows = [
        [-above * full[:, :, y :: apart[0], x :: apart[1]].sum((1, 2, 3)) for x in firsts[1]]
        for y in firsts[0]
    ]
    return np.array(rows).astype(np.int32)


def variant(problem: ConvProblem, whole: Array, tile: Tile, firsts: Firsts, label: str) -> Variant:
    """Return the kernel of a tile in mode row; label: what its name begins with."""
    target, group, width = problem.target, problem.group, tile.channels
    dst, dot, narrow = _phase(problem), *way_of(target)[:2]
    tiles = Tiles("row", dst.shape[2], dst.shape[3], tile.mr, tile.rows).count
    sizes = (-(-problem.oc // width) * group * math.prod(problem.geometry["strides"]), tiles)
    near, types = problem.weights_stay, problem.params["types"]
    global_size, local = grid(target, *(sizes if near else sizes[::-1]), problem.batch)
    has_rests = bool((whole != in_bytes(whole)).any())
    shared = (*problem.geometry, "src", "arith", "post_ops", "operands", "extra_types")
    params = {k: problem.params[k] for k in shared} | {
        "name": f"{label}t{tile.rows}x{tile.mr // tile.rows}x{width}_{dot}{'_rests' * has_rests}",
        "types": (types[0], "char", "float", types[3]),
        "dst": dst,
        "extents": (problem.height, problem.width),
        "steps": problem.dst.pitches[2:],
        "groups": group,
        "ic": problem.ic,
        "oc": problem.oc,
        "firsts": firsts,
        "dot": dot,
        "narrow": narrow,
        "has_rests": has_rests,
        "near": OF_RESULT * HALF_PLACE,
        "wg": local,
        "channels_fastest": near,
        "mr": tile.mr,
        "th": tile.rows,
        "nv": tile.nv,
        "vw": tile.vw,
    }
    arith = problem.arith
    assert isinstance(arith, RealTaps)

    def _rests(which: int) -> Array:
        return rests_of(whole, group, width)[which]

    given = np.arange(256, dtype=np.uint8).view(problem.input(0).type.dtype.numpy)
    args: tuple[Arg, ...] = (
        In(0),
        Const(lambda: pack_weights(in_bytes(whole), group, width, PACKED)),
        Const(lambda: pack_table(starts_of(problem, whole, firsts), group, width)),
        Const(lambda: pack_table(table_of(problem, whole), group, width)),
        Const(partial(pack_weights, whole, group, width)),
        Const(partial(arith.stands_for, given)),
        *([Const(partial(_rests, k)) for k in range(3)] if has_rests else []),
        Out(0),
    )
    launch = Launch("conv/transpose_bytes.cl.mako", params, args, global_size, local)
    return Variant(params["name"], (launch,))


def _phase(problem: ConvProblem) -> TensorLayout:
    """Return the layout of the first phase of the result."""
    dst, strides = problem.dst, problem.geometry["strides"]
    extents = (-(-e // s) for e, s in zip(dst.shape[2:], strides, strict=True))
    pitches = (p * s for p, s in zip(dst.pitches[2:], strides, strict=True))
    none = (0, 0, 0, 0)
    shape = (*dst.shape[:2], *extents)
    return TensorLayout(shape, (*dst.pitches[:2], *pitches), none, none, dst.offset, dst.size)
