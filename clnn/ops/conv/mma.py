"""Convolutions on tensor cores: products of pixels with weights by conv/mma.cl.mako."""

from __future__ import annotations

import functools
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.int8 import Int8
from clnn.codegen.filters import image
from clnn.ops.conv.direct import BIAS, fits_fast, has_border, table_of
from clnn.ops.launch import Arg, Const, In, Launch, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.byte_scales import last_args, stored_types
from clnn.ops.shared.epilogue import operand_layouts
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
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d


def mma_variants(spec: Conv2d, problem: Problem) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first: none without tensor cores."""
    kind = _kind(spec, problem)
    if not kind:
        return []
    conv = _conv(spec, problem, kind)
    n, _, h, w = conv.dst.shape
    terms = prod(conv.window.kernel) * pieces(conv.ic, kind)
    tiles = mma_tiles(kind, GemmShape(n * h * w, conv.oc, terms), problem.target)
    return [_variant(spec, problem, conv, tile, cost) for cost, tile in tiles]


def pieces(channels: int, kind: str) -> int:
    """Return channels rounded up to whole pieces of 16 bytes."""
    per = 16 // BYTES[kind]
    return -(-channels // per) * per


def _kind(spec: Conv2d, problem: Problem) -> str:
    """Return the kind of product, "" where the kernel does not take the problem."""
    x = problem.input(0)
    kind = ""
    if spec.arith is FLOAT:
        kind = kind_of(problem.target, (x, problem.input(1), problem.outputs[0]))
    elif isinstance(spec.arith, Int8) and x.memory.scale:
        kind = problem.target.tensor_kind(x.memory)
    plain = spec.group == 1 and x.layout.rank in (3, 4)
    if not (kind and plain and fits_fast(spec, problem) and has_border(spec, problem)):
        return ""
    src = image(x.layout)
    pitches = (src.pitches[0], *src.pitches[2:])
    even = all(p >= 0 and p % (16 // BYTES[kind]) == 0 for p in (*pitches, src.offset))
    return kind if even and src.pitches[1] == 1 else ""


def _conv(spec: Conv2d, problem: Problem, kind: str) -> MmaConv:
    """Return the problem as the kernel takes it; the bias of floats becomes the first step."""
    src, dst = image(problem.input(0).layout), image(problem.outputs[0].layout)
    arith = spec.arith if isinstance(spec.arith, Int8) else None
    bias = BIAS if problem.has(BIAS) and arith is None else -1
    post_ops = (PostOp("add", operand=BIAS), *spec.post_ops) if bias >= 0 else spec.post_ops
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.post_ops).items()
    }
    at, (result, stored) = spec.window.pairs(), stored_types(problem, spec.post_ops)
    window = Window(at["kernel"], at["strides"], at["dilations"], at["pads"], (0, 0))
    ic = src.shape[1]
    return MmaConv(
        kind,
        src,
        dst,
        ic,
        dst.shape[1],
        prod(window.kernel) * pieces(ic, kind),
        window,
        DST_TYPES.get(kind, result),
        "n",
        kind == "tf32",
        operands,
        post_ops,
        stored["extra_types"],
        stored["scales"],
        arith,
        bias,
        b_moves=False,
    )


def _variant(spec: Conv2d, problem: Problem, conv: MmaConv, tile: MmaTile, cost: float) -> Variant:
    """Return the kernel of one tile."""
    target = problem.target
    params: dict[str, Any] = mma_conv_params(conv, tile, target.tensor)
    n, oc, h, w = conv.dst.shape
    weights = problem.input(1).const
    assert weights is not None
    make = functools.partial(pack_rows, weights, pieces(conv.ic, conv.kind))
    args: list[Arg] = [In(0), problem.input(1).packed(make)]
    if conv.bias >= 0:
        bias = problem.input(BIAS).const
        assert bias is not None
        args.append(Const(functools.partial(np.ascontiguousarray, bias)))
    if conv.arith is not None:
        table = table_of(conv.arith, problem)
        assert table is not None
        args.append(Const(functools.partial(np.ascontiguousarray, table)))
    args += last_args(problem, spec.post_ops)
    grid = mma_grid(n * h * w, oc, 1, tile)
    launch = Launch("conv/mma.cl.mako", params, tuple(args), grid, (tile.threads, 1))
    return Variant(str(params["name"]), (launch,), cost, rounding(conv.kind, conv.b))


def pack_rows(weights: Array, channels: int) -> Array:
    """Return weights (oc, ic, kernel...) as [oc][kernel...][channels], zeros beyond ic."""
    oc, ic = weights.shape[:2]
    full = np.zeros((oc, prod(weights.shape[2:]), channels), weights.dtype)
    full[..., :ic] = weights.reshape(oc, ic, -1).transpose(0, 2, 1)
    return full
