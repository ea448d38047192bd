"""Convolutions on tensor cores: products of pixels with weights by conv/mma.cl.mako."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import prod

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import Sums
from clnn.ops.conv.problem import BIAS, WEIGHTS, ConvProblem
from clnn.ops.launch import Arg, Const, In, Launch, Variant
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.tensor_core_tiles import kind_of, mma_tiles, rounding
from clnn.ops.shared.tensor_cores import (
    BYTES,
    DST_TYPES,
    MmaConv,
    MmaTile,
    mma_conv_params,
    mma_grid,
)
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import GemmShape
from clnn.types import I8, Array


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none without tensor cores."""
    kind = _kind(problem)
    if not kind:
        return
    conv, pixels = _conv(problem, kind), problem.batch * problem.height * problem.width
    terms = problem.taps * pieces(conv.ic, kind)
    for cost, tile in mma_tiles(kind, GemmShape(pixels, conv.oc, terms), problem.target):
        yield _variant(problem, conv, tile, cost)


def pieces(channels: int, kind: str) -> int:
    """Return channels rounded up to whole pieces of 16 bytes."""
    per = 16 // BYTES[kind]
    return -(-channels // per) * per


def _kind(problem: ConvProblem) -> str:
    """Return the kind of product, "" where the kernel does not take the problem."""
    x, kind, src = problem.input(0), "", problem.src
    if problem.arith is FLOAT:
        kind = kind_of(problem.target, (x, problem.input(WEIGHTS), problem.outputs[0]))
    elif isinstance(problem.arith, Sums) and problem.input(WEIGHTS).type.dtype == I8:
        kind = problem.target.tensor_kind(x.memory)
    if not (kind and problem.group == 1 and problem.has_border):
        return ""
    pitches = (src.pitches[0], *src.pitches[2:])
    even = all(p >= 0 and p % (16 // BYTES[kind]) == 0 for p in (*pitches, src.offset))
    return kind if even and src.pitches[1] == 1 else ""


def _conv(problem: ConvProblem, kind: str) -> MmaConv:
    """Return the problem as the kernel takes it; the bias of floats becomes the first post-op."""
    known = problem.refined.packed_products() if problem.arith is not FLOAT else None
    arith = known if isinstance(known, Sums) else None
    bias = BIAS if problem.has(BIAS) and arith is None else -1
    first = (PostOp("add", operand=BIAS),) if bias >= 0 else ()
    at, (result, stored) = problem.geometry, problem.storage
    return MmaConv(
        kind,
        problem.src,
        problem.dst,
        problem.ic,
        problem.oc,
        problem.taps * pieces(problem.ic, kind),
        Window(at["kernel"], at["strides"], at["dilations"], at["pads"], (0, 0)),
        DST_TYPES.get(kind, result),
        "n",
        kind == "tf32",
        problem.operands,
        (*first, *problem.post_ops),
        stored["extra_types"],
        stored["scales"],
        arith,
        bias,
        b_moves=False,
    )


def _variant(problem: ConvProblem, conv: MmaConv, tile: MmaTile, cost: float) -> Variant:
    """Return the kernel of one tile."""
    params = mma_conv_params(conv, tile, problem.target.tensor)
    pack = functools.partial(pack_rows, problem.weights, pieces(conv.ic, conv.kind))
    args: list[Arg] = [In(0), problem.input(WEIGHTS).packed(pack)]
    constants = problem.bias if conv.arith is None else problem.table
    if constants is not None:
        args.append(Const(functools.partial(np.ascontiguousarray, constants)))
    args += last_args(problem, problem.post_ops)
    grid = mma_grid(problem.batch * problem.height * problem.width, conv.oc, 1, tile)
    launch = Launch("conv/mma.cl.mako", params, tuple(args), grid, (tile.threads, 1))
    return Variant(params["name"], (launch,), cost, rounding(conv.kind, conv.b))


def pack_rows(weights: Array, channels: int) -> Array:
    """Return weights (oc, ic, kernel...) as [oc][kernel...][channels], zeros beyond ic."""
    oc, ic = weights.shape[:2]
    full = np.zeros((oc, prod(weights.shape[2:]), channels), weights.dtype)
    full[..., :ic] = weights.reshape(oc, ic, -1).transpose(0, 2, 1)
    return full
