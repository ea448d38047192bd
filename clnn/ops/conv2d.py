"""Convolution over one or two spatial axes, grouped or depthwise, with fused elementwise steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.codegen.filters import image
from clnn.errors import DTypeError, PlanError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops._base import (
    Arg,
    Array,
    Border,
    Const,
    In,
    Launch,
    OpSpec,
    Out,
    Problem,
    Target,
    Variant,
    grid,
)
from clnn.ops._conv_pack import pack_table, pack_weights, start_shift
from clnn.ops._functions import Step, apply_steps
from clnn.ops._registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops._steps import heavy, operand_args, operand_layouts
from clnn.ops._tiles import conv_cycles, conv_tile
from clnn.ops._window import Window, window_of
from clnn.ops._winograd import Plan, matrices, pack, plan
from clnn.types import I8, I16, U8, TensorType

BIAS = 2
ERRORS = {2: 2e-5, 4: 1e-4}  # of Winograd's products, by the extent of their tiles
MARGIN = 1.15  # by which Winograd's estimate must beat the direct one's


@dataclass(frozen=True)
class Conv2d(OpSpec):
    """Inputs: x (n, c, spatial...), weights (oc, c / group, kernel...), bias (oc) or None, operands.

    Output (n, oc, spatial...). `steps` are applied to each result. A bias may also be (oc,
    spatial...) of the output, where the arithmetic takes it as it is.
    """

    window: Window
    group: int = 1
    steps: tuple[Step, ...] = ()
    arith: Arithmetic = FLOAT

    kind = "conv2d"
    layout_rule = "image"
    fuses_steps = True
    first_operand = 3

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError where shapes do not fit."""
        x, w = inputs[0], inputs[1]
        if x is None or w is None:
            raise ShapeError("convolution needs an input and weights.")
        if x.rank != len(self.window.kernel) + 2 or w.rank != x.rank:
            raise ShapeError(f"convolution of {x.shape} with weights {w.shape}: ranks must match.")
        if x.shape[1] != w.shape[1] * self.group or w.shape[0] % self.group:
            raise ShapeError(
                f"convolution of {x.shape} with weights {w.shape} in {self.group} groups: weights "
                f"want {w.shape[1] * self.group} input channels, input has {x.shape[1]}."
            )
        if w.shape[2:] != self.window.kernel:
            raise ShapeError(f"weights {w.shape} do not have kernel {self.window.kernel}.")
        result = self.arith.output(x.dtype, w.dtype)
        shape = (x.shape[0], w.shape[0], *self.window.output(x.shape[2:]))
        self._check_bias(inputs[BIAS] if len(inputs) > BIAS else None, x, w, shape)
        return (TensorType(shape, result),)

    def _check_bias(
        self, bias: TensorType | None, x: TensorType, w: TensorType, shape: tuple[int, ...]
    ) -> None:
        if bias is None:
            return
        allowed = [(shape[1],), shape[1:]] if self.arith.plain_bias else [(shape[1],)]
        if bias.shape not in allowed:
            raise ShapeError(f"bias is {bias.shape}, must be {' or '.join(map(str, allowed))}.")
        wanted = self.arith.bias(x.dtype, w.dtype)
        if bias.dtype != wanted:
            raise DTypeError(f"bias is {bias.dtype.name}, must be {wanted.name}.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the convolution; of floats as shifted products, in the arrays' own precision."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if self.arith is not FLOAT:
            return (self._exact(x, w, inputs[BIAS] if len(inputs) > BIAS else None),)
        win, rank = self.window, len(self.window.kernel)
        outs = win.output(x.shape[2:])
        extra = win.needed_after(x.shape[2:])
        x = np.pad(x, [(0, 0), (0, 0), *zip(win.before, extra, strict=True)])
        n, oc, icg = x.shape[0], w.shape[0], w.shape[1]
        y = np.zeros((n, self.group, oc // self.group, *outs), x.dtype)
        grouped = w.reshape(self.group, oc // self.group, icg, *win.kernel)
        for tap in np.ndindex(*win.kernel):
            begin = [t * d for t, d in zip(tap, win.dilations, strict=True)]
            cut = tuple(
                slice(b, b + (o - 1) * s + 1, s)
                for b, o, s in zip(begin, outs, win.strides, strict=True)
            )
            part = x[(slice(None), slice(None), *cut)].reshape(n, self.group, icg, *outs)
            y += np.einsum("ngc...,goc->ngo...", part, grouped[(..., *tap)])
        y = y.reshape(n, oc, *outs)
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None:
            y = y + bias.reshape(1, oc, *(bias.shape[1:] or (1,) * rank))
        return (apply_steps(y, self.steps, inputs),)

    def _exact(self, x: Array, w: Array, bias: Array | None) -> Array:
        """Return the convolution as the arithmetic's own reference computes it."""
        win, n, oc, icg = self.window, x.shape[0], w.shape[0], w.shape[1]
        outs, taps = win.output(x.shape[2:]), int(np.prod(win.kernel))
        extra = win.needed_after(x.shape[2:])
        pads = [(0, 0), (0, 0), *zip(win.before, extra, strict=True)]
        x = np.pad(x, pads, constant_values=self.arith.padding)
        axes = tuple(range(2, x.ndim))
        reach = tuple(win.reach(a) for a in range(len(outs)))
        seen = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
        steps = [slice(0, (o - 1) * s + 1, s) for o, s in zip(outs, win.strides, strict=True)]
        seen = seen[
            (slice(None), slice(None), *steps, *(slice(None, None, d) for d in win.dilations))
        ]
        seen = seen.reshape(n, self.group, icg, *outs, taps)
        columns = np.moveaxis(seen, -1, 3)
        y = self.arith.reference(columns, w.reshape(self.group, oc // self.group, icg, taps), bias)
        return y.reshape(n, oc, *outs)

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border as wide as the windows reach, of what the arithmetic takes for zero."""
        assert inputs[0] is not None
        return {0: self.window.border(inputs[0].shape, float(self.arith.padding))}

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add."""
        w = inputs[1]
        assert w is not None
        return 2 * outputs[0].size * int(np.prod(w.shape[1:]))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return depthwise, register-tiled and reference kernels, as far as they fit."""
        if problem.outputs[0].type.size == 0:
            return [Variant("empty", ())]
        found = []
        if _fits_fast(problem, self.steps):
            if _fits_depthwise(self, problem):
                found.append(_depthwise(self, problem))
            found += [_direct(self, problem, dot) for dot in _dots(self, problem)]
            found += _winograd(self, problem)
            found.sort(key=lambda v: v.cost)
        return [*found, _reference(self, problem)]


def _fits_fast(problem: Problem, steps: Sequence[Step]) -> bool:
    """Whether weights are constant and channels are innermost in all tensors."""
    x, out = problem.input(0), problem.outputs[0]
    bias = problem.input(BIAS) if problem.has(BIAS) else None
    if problem.input(1).const is None or (bias and (bias.const is None or bias.type.rank > 1)):
        return False
    tensors = [x.layout, out.layout]
    if any(t.pitches[1] != 1 and t.shape[1] != 1 for t in tensors):
        return False
    layouts = operand_layouts(problem, steps).values()
    return all(t.pitches[1] in (0, 1) or t.shape[1] == 1 for _, t in layouts)


def _has_border(spec: Conv2d, problem: Problem) -> bool:
    x = problem.input(0)
    return x.border.covers(spec.window.border(x.type.shape, float(spec.arith.padding)))


def _fits_depthwise(spec: Conv2d, problem: Problem) -> bool:
    channels = problem.input(0).type.shape[1]
    alone = spec.group == channels == problem.outputs[0].type.shape[1]
    alone = alone and not spec.arith.channelwise
    return alone and spec.group > 1 and _has_border(spec, problem)


def _images(problem: Problem) -> tuple[TensorLayout, TensorLayout]:
    return image(problem.input(0).layout), image(problem.outputs[0].layout)


def _label(kind: str, spec: Conv2d, extra: str) -> str:
    k, s = "x".join(map(str, spec.window.kernel)), "x".join(map(str, spec.window.strides))
    return f"{kind}_{spec.arith.name}_nhwc_k{k}_s{s}_{extra}"


def _common(spec: Conv2d, problem: Problem) -> dict[str, Any]:
    src, dst = _images(problem)
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.steps).items()
    }
    x, w, y = problem.input(0).type, problem.input(1).type, problem.outputs[0].type
    table = "float" if spec.arith.acc == "float" else "int"
    return {"src": src, "dst": dst, **spec.window.pairs(), "steps": spec.steps,
            "operands": operands, "arith": _refined(spec, problem),
            "types": (x.dtype.cl, w.dtype.cl, table, y.dtype.cl)}  # fmt: skip


def _vector(spec: Conv2d, target: Target) -> int:
    """Return how many accumulators fill a vector register."""
    return target.vector // 2 if spec.arith.acc == "long" else target.vector


def _dots(spec: Conv2d, problem: Problem) -> tuple[str, ...]:
    """Return the ways to multiply that the direct kernel has, best first (_common/dot.cl.mako)."""
    x, w, arith = problem.input(0).type.dtype, problem.input(1).type, spec.arith
    lot = 4 if x in (I8, U8) and w.dtype == I8 else 2 if x == I16 and w.dtype in (I8, I16) else 0
    plain = arith.wraps and not arith.channelwise and (arith.acc == "int" or lot == 2)
    if not (plain and lot and w.shape[1] % lot == 0):
        return ("",)
    fast, other = (f"vnni{lot}", f"plain{lot}") if arith.acc == "int" else ("wide2", "plainwide2")
    return (fast,) if "x86_vnni" in problem.target.features else ("", other)


def _refined(spec: Conv2d, problem: Problem) -> Arithmetic:
    """Return the arithmetic with what is known of the problem's constants.

    Raises PlanError where it needs constants and there are none.
    """
    weights = problem.input(1).const
    bias = problem.input(BIAS).const if problem.has(BIAS) else None
    if weights is not None and (bias is not None or not problem.has(BIAS)):
        return spec.arith.refine(weights, bias)
    if spec.arith.plain_bias:
        return spec.arith
    raise PlanError(
        f"convolution in {spec.arith.name}: weights and bias are computed by other nodes, and "
        "this arithmetic needs them when it is compiled. Give them as constants."
    )


def _table(arith: Arithmetic, problem: Problem) -> Array | None:
    """Return the arithmetic's constants per output channel."""
    weights = problem.input(1).const
    assert weights is not None
    return arith.table(weights, problem.input(BIAS).const if problem.has(BIAS) else None)


def _direct(spec: Conv2d, problem: Problem, dot: str = "") -> Variant:
    params = _common(spec, problem)
    src, dst = params["src"], params["dst"]
    oc, ic = dst.shape[1] // spec.group, src.shape[1] // spec.group
    x = problem.input(0).type.dtype
    signed = dot.endswith("4") and x == I8
    halves = 2 if "wide" in dot else 1
    vector = problem.target.vector if dot else _vector(spec, problem.target)
    tile = conv_tile(dst.shape[2], dst.shape[3], oc, vector, int(signed), halves)
    mode = tile.mode if _has_border(spec, problem) else "checked"
    blocks = -(-oc // tile.channels) * spec.group
    tiles = -(-dst.shape[2] * dst.shape[3] // tile.mr)
    weights = problem.input(1).const
    assert weights is not None
    first = weights.nbytes <= 256 * 1024
    sizes = (blocks, tiles) if first else (tiles, blocks)
    global_size, local = grid(problem.target, *sizes, dst.shape[0])
    lot = int(dot[-1]) if dot else 1
    if lot == 2:
        params["types"] = (x.cl, "short", *params["types"][2:])
    pack = functools.partial(pack_weights, weights, spec.group, tile, lot, spec.arith.channelwise,
                             halves)  # fmt: skip
    args: list[Arg] = [In(0), Const(pack)]
    table = _table(params["arith"], problem)
    if table is not None:
        start = start_shift(weights) if signed else None
        args.append(Const(lambda: pack_table(table, start, spec.group, tile)))
    if mode == "checked":
        args.append(Const(lambda: np.full(max(ic, 1), spec.arith.padding, x.numpy)))
    name = _label("conv2d_direct", spec, f"t{tile.mr}x{tile.channels}_{mode}{dot and '_'}{dot}")
    params |= {"name": name, "ic": ic, "oc": oc, "groups": spec.group, "mode": mode, "dot": dot,
               "rows": 0 if table is None else len(table), "blocks_first": first, "wg": local,
               "mr": tile.mr, "nv": tile.nv, "vw": tile.vw,
               "staged": heavy(spec.steps) or spec.arith is not FLOAT}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_direct.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))


def _depthwise(spec: Conv2d, problem: Problem) -> Variant:
    params = _common(spec, problem)
    dst = params["dst"]
    channels, oh, ow = dst.shape[1:]
    vector = _vector(spec, problem.target)
    vw = max(w for w in (16, 8, 4, 2, 1) if channels % w == 0 and w <= vector)
    tx = next((t for t in (7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    band = max(1, min(oh, 4 * oh * channels // vw // 256)) if problem.target.is_cpu else 1
    global_size, local = grid(problem.target, channels // vw, -(-oh // band), dst.shape[0])
    weights, table = problem.input(1).const, _table(params["arith"], problem)
    assert weights is not None
    taps = int(np.prod(weights.shape[2:]))
    args: list[Arg] = [In(0), Const(lambda: weights.reshape(channels, taps).T.copy())]
    if table is not None:
        args.append(Const(lambda: table))
    name = _label("depthwise", spec, f"v{vw}x{tx}")
    params |= {"name": name, "rows": 0 if table is None else len(table), "wg": local, "vw": vw,
               "tx": tx, "band": band}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("depthwise.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))


def _winograd(spec: Conv2d, problem: Problem) -> list[Variant]:
    """Return Winograd's convolution, with its cost against the direct one's 0, where it fits."""
    win, target = spec.window, problem.target
    plain = (win.kernel, win.strides, win.dilations) == ((3, 3), (1, 1), (1, 1)) and spec.group == 1
    if not (
        spec.arith is FLOAT
        and plain
        and target.winograd
        and target.is_cpu
        and _has_border(spec, problem)
    ):
        return []
    params = _common(spec, problem)
    src, dst = params["src"], params["dst"]
    ic, vw = src.shape[1], target.vector
    made = plan(dst.shape, ic, target, vw) if ic % vw == 0 and dst.shape[1] % vw == 0 else None
    if made is None:
        return []
    batch, oc, high, wide = dst.shape
    direct = conv_cycles(high, wide, oc, vw, 9 * ic) * batch
    cost = made.cycles * MARGIN - direct / target.compute_units
    return [_winograd_variant(spec, problem, params, made, cost)]


def _winograd_variant(
    spec: Conv2d, problem: Problem, params: dict[str, Any], made: Plan, cost: float
) -> Variant:
    src, dst = params["src"], params["dst"]
    groups = -(-dst.shape[0] * -(-dst.shape[2] // made.m) * -(-dst.shape[3] // made.m) // made.mr)
    global_size, local = grid(problem.target, groups, made.parts)
    weights = problem.input(1).const
    assert weights is not None
    args: list[Arg] = [In(0), Const(lambda: pack(weights, made))]
    if problem.has(BIAS):
        bias = problem.input(BIAS).const
        assert bias is not None
        args.append(Const(lambda: bias))
    kernel = matrices(made.m)
    name = _label("winograd", spec, f"f{made.m}_t{made.mr}x{made.nv * made.vw}")
    reach = tuple(src.shape[a] + src.after[a] - 1 for a in (2, 3))
    params |= {"name": name, "ic": src.shape[1], "oc": dst.shape[1], "reach": reach, "m": made.m,
               "bt": kernel.bt, "at": kernel.at, "has_bias": problem.has(BIAS), "wg": local,
               "mr": made.mr, "nv": made.nv, "vw": made.vw, "parts": made.parts,
               "stride": made.stride}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_winograd.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost, ERRORS[made.m])


def _reference(spec: Conv2d, problem: Problem) -> Variant:
    params = _common(spec, problem)
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    args: list[Arg] = [In(0), In(1)]
    bias, rows = None, 0
    if spec.arith.plain_bias and problem.has(BIAS):
        given = problem.input(BIAS).layout
        args.append(In(BIAS))
        bias, rows = _over_output(given, problem.outputs[0].type.shape), 1
    elif not spec.arith.plain_bias:
        table = _table(params["arith"], problem)
        assert table is not None
        args.append(Const(lambda: table))
        rows = len(table)
    name = _label("conv2d_reference", spec, "any")
    params |= {"name": name, "weights": image(problem.input(1).layout), "bias": bias, "rows": rows,
               "groups": spec.group, "wg": local}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))


def _over_output(bias: TensorLayout, shape: tuple[int, ...]) -> TensorLayout:
    """Return the layout of a bias, (oc) or (oc, spatial...), seen as an image of the output."""
    if bias.rank == 1:
        wide = (*bias.shape, *(1,) * (len(shape) - 2))
        pitches = (*bias.pitches, *(0,) * (len(shape) - 2))
        zero = (0,) * len(wide)
        bias = TensorLayout(wide, pitches, zero, zero, bias.offset, bias.size)
    return image(bias.unpadded().broadcast(shape))


@onnx_op("Conv")
def _conv(node: OnnxNode) -> Source:
    x, w = node.type(0), node.type(1)
    if x.rank not in (3, 4):
        raise Unsupported(f"convolution of an input with {x.rank} axes; 3 and 4 are supported")
    kernel = node.attr("kernel_shape", w.shape[2:])
    window = window_of(node, kernel, x.shape[2:])
    spec = Conv2d(window, int(node.attr("group", 1)))
    return Emit(spec, [0, 1, 2 if node.has(2) else None])
