"""Convolution over one or two spatial axes, grouped or depthwise, with fused elementwise steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnn.codegen.filters import image
from clnn.errors import DTypeError, ShapeError
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
    Variant,
    by_cost,
    grid,
)
from clnn.ops._functions import Step, apply_steps
from clnn.ops._registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops._steps import heavy, operand_args, operand_layouts
from clnn.ops._tiles import Tile, conv_cycles, conv_tile, conv_tiles
from clnn.ops._window import Window, window_of
from clnn.ops._winograd import Plan, matrices, pack, plan, plans
from clnn.types import F32, TensorType

BIAS = 2
L2_BYTES = 256 * 1024  # weights that stay close to a core while pixels move over them
OTHER_ORDER = 1.04  # cost of the group order that the size of the weights speaks against
ERRORS = {2: 2e-5, 4: 1e-4, 6: 2e-4}  # of Winograd's products, by the extent of their tiles
# By which Winograd's estimate must beat the direct one's; transforms of 8 x 8 cost most.
MARGINS = {2: 1.15, 4: 1.15, 6: 1.8}


@dataclass(frozen=True)
class Conv2d(OpSpec):
    """Inputs: x (n, c, spatial...), weights (oc, c / group, kernel...), bias (oc) or None, operands.

    Output (n, oc, spatial...). `steps` are applied to each result.
    """

    window: Window
    group: int = 1
    steps: tuple[Step, ...] = ()

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
        if x.dtype != F32 or w.dtype != F32:
            raise DTypeError(f"convolution of {x.dtype} with {w.dtype}: both must be float32.")
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None and bias.shape != (w.shape[0],):
            raise ShapeError(f"bias is {bias.shape}, must be ({w.shape[0]},).")
        return (TensorType((x.shape[0], w.shape[0], *self.window.output(x.shape[2:])), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the convolution as a sum of shifted products, in the arrays' own precision."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
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
            y = y + bias.reshape(1, oc, *(1,) * rank)
        return (apply_steps(y, self.steps, inputs),)

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border of zeros as wide as the windows reach."""
        assert inputs[0] is not None
        return {0: self.window.border(inputs[0].shape, 0.0)}

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
            found.append(_direct(self, problem))
            found += _winograd(self, problem)
            found.sort(key=lambda v: v.cost)
        return [*found, _reference(self, problem)]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return register tiles in both group orders, bands of depthwise, plans of Winograd."""
        out = problem.outputs[0].type
        if out.size == 0 or out.dtype != F32 or not _fits_fast(problem, self.steps):
            return self.variants(problem)
        found = [
            _direct(self, problem, tile, first, cycles)
            for cycles, tile in conv_tiles(*_extents(self, problem))
            for first in (True, False)
        ]
        if _fits_depthwise(self, problem):
            found += [_depthwise(self, problem, *tile) for tile in _depthwise_tiles(problem)]
        return by_cost([*found, *_winograd(self, problem, every=True)])


def _fits_fast(problem: Problem, steps: Sequence[Step]) -> bool:
    """Whether weights are constant and channels are innermost in all tensors."""
    x, out = problem.input(0), problem.outputs[0]
    if problem.input(1).const is None or (problem.has(BIAS) and problem.input(BIAS).const is None):
        return False
    tensors = [x.layout, out.layout]
    if any(t.pitches[1] != 1 and t.shape[1] != 1 for t in tensors):
        return False
    layouts = operand_layouts(problem, steps).values()
    return all(t.pitches[1] in (0, 1) or t.shape[1] == 1 for _, t in layouts)


def _has_border(spec: Conv2d, problem: Problem) -> bool:
    x = problem.input(0)
    return x.border.covers(spec.window.border(x.type.shape, 0.0))


def _fits_depthwise(spec: Conv2d, problem: Problem) -> bool:
    channels = problem.input(0).type.shape[1]
    alone = spec.group == channels == problem.outputs[0].type.shape[1]
    return alone and spec.group > 1 and _has_border(spec, problem)


def _images(problem: Problem) -> tuple[TensorLayout, TensorLayout]:
    return image(problem.input(0).layout), image(problem.outputs[0].layout)


def _label(kind: str, spec: Conv2d, extra: str) -> str:
    k, s = "x".join(map(str, spec.window.kernel)), "x".join(map(str, spec.window.strides))
    return f"{kind}_f32_nhwc_k{k}_s{s}_{extra}"


def _common(spec: Conv2d, problem: Problem) -> dict[str, Any]:
    src, dst = _images(problem)
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.steps).items()
    }
    return {"src": src, "dst": dst, **spec.window.pairs(), "steps": spec.steps,
            "operands": operands}  # fmt: skip


def _extents(spec: Conv2d, problem: Problem) -> tuple[int, int, int, int, int]:
    """Return what tiles depend on: output pixels, channels of a group, vector, multiply-adds."""
    src, dst = _images(problem)
    products = int(np.prod(spec.window.kernel)) * src.shape[1] // spec.group
    return dst.shape[2], dst.shape[3], dst.shape[1] // spec.group, problem.target.vector, products


def _direct(
    spec: Conv2d, problem: Problem, tile: Tile | None = None, first: bool | None = None,
    cycles: float | None = None,
) -> Variant:  # fmt: skip
    """Return the kernel with `tile`; first: blocks of channels are neighbours, not pixels."""
    params = _common(spec, problem)
    src, dst = params["src"], params["dst"]
    oc, ic = dst.shape[1] // spec.group, src.shape[1] // spec.group
    extents = _extents(spec, problem)
    tile = tile or conv_tile(*extents[:4])
    cycles = conv_cycles(*extents) if cycles is None else cycles
    mode = tile.mode if _has_border(spec, problem) else "checked"
    blocks = -(-oc // tile.channels) * spec.group
    tiles = (
        dst.shape[2] * dst.shape[3] // tile.mr
        if mode == "row"
        else (-(-dst.shape[2] * dst.shape[3] // tile.mr))
    )
    weights = problem.input(1).const
    assert weights is not None
    better = weights.nbytes <= L2_BYTES
    first = better if first is None else first
    cost = cycles * spec.group * dst.shape[0] / problem.target.compute_units
    sizes = (blocks, tiles) if first else (tiles, blocks)
    global_size, local = grid(problem.target, *sizes, dst.shape[0])
    has_bias = problem.has(BIAS)
    args: list[Arg] = [In(0), Const(lambda: pack_weights(weights, spec.group, tile))]
    if has_bias:
        bias = problem.input(BIAS).const
        assert bias is not None
        args.append(Const(lambda: pack_bias(bias, spec.group, tile)))
    if mode == "checked":
        args.append(Const(lambda: np.zeros(max(ic, 1), np.float32)))
    order = "blocks" if first else "pixels"
    name = _label("conv2d_direct", spec, f"t{tile.mr}x{tile.channels}_{mode}_{order}")
    params |= {"name": name, "ic": ic, "oc": oc, "groups": spec.group, "mode": mode,
               "blocks_first": first, "has_bias": has_bias, "wg": local, "mr": tile.mr,
               "nv": tile.nv, "vw": tile.vw, "staged": heavy(spec.steps)}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_direct.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost if first == better else cost * OTHER_ORDER)


def pack_weights(weights: Array, group: int, tile: Tile) -> Array:
    """Return weights (oc, ic, kernel...) as [group * blocks][kernel...][ic][channels of a block]."""
    oc, ic = weights.shape[:2]
    per, taps = oc // group, int(np.prod(weights.shape[2:], dtype=np.int64))
    blocks = -(-per // tile.channels)
    full = np.zeros((group, blocks * tile.channels, ic, taps), np.float32)
    full[:, :per] = weights.reshape(group, per, ic, taps)
    split = full.reshape(group, blocks, tile.channels, ic, taps)
    return np.ascontiguousarray(split.transpose(0, 1, 4, 3, 2))


def pack_bias(bias: Array, group: int, tile: Tile) -> Array:
    """Return bias (oc) padded with zeros to whole blocks per group."""
    per = bias.shape[0] // group
    blocks = -(-per // tile.channels)
    full = np.zeros((group, blocks * tile.channels), np.float32)
    full[:, :per] = bias.reshape(group, per)
    return full


def _depthwise_tile(problem: Problem) -> tuple[int, int, int]:
    """Return the vector width, columns at a time and rows of a work-item that are estimated best."""
    channels, oh, ow = _images(problem)[1].shape[1:]
    vw = max(w for w in (16, 8, 4, 2, 1) if channels % w == 0 and w <= problem.target.vector)
    tx = next((t for t in (7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    band = max(1, min(oh, 4 * oh * channels // vw // 256)) if problem.target.is_cpu else 1
    return vw, tx, band


def _depthwise_tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """Return the tiles that are worth a measurement, the estimated best one among them."""
    vw, tx, band = _depthwise_tile(problem)
    _, oh, ow = _images(problem)[1].shape[1:]
    bands = sorted({band, 1, 2, 4, 8, -(-oh // problem.target.compute_units), oh})
    columns = sorted({tx, 2, 4, 6, 7, 8})
    return [
        (w, t, b)
        for w in sorted({vw, max(vw // 2, 1)})
        for t in columns
        if t <= ow
        for b in (bands if problem.target.is_cpu else [1])
        if b <= oh
    ]


def _depthwise(spec: Conv2d, problem: Problem, vw: int = 0, tx: int = 0, band: int = 0) -> Variant:
    params = _common(spec, problem)
    dst = params["dst"]
    channels, oh, ow = dst.shape[1:]
    best = _depthwise_tile(problem)
    vw, tx, band = (vw, tx, band) if vw else best
    # Reads of a column of inputs are shared by its outputs; the estimated best tile comes first.
    columns = (tx - 1) * params["strides"][1] + (params["kernel"][1] - 1) * params["dilations"][1]
    slots = max(2 * params["kernel"][0] * (columns + 1) + tx, tx * int(np.prod(params["kernel"])))
    cost = dst.shape[0] * oh * -(-ow // tx) * (channels // vw) * slots / 2
    cost *= (1 + 0.05 * ((vw, tx, band) != best)) / problem.target.compute_units
    rows = -(-oh // band) * dst.shape[0] * (channels // vw)
    cost *= -(-rows // problem.target.compute_units) * problem.target.compute_units / rows
    global_size, local = grid(problem.target, channels // vw, -(-oh // band), dst.shape[0])
    weights, has_bias = problem.input(1).const, problem.has(BIAS)
    assert weights is not None
    taps = int(np.prod(weights.shape[2:]))
    args: list[Arg] = [In(0), Const(lambda: weights.reshape(channels, taps).T.copy())]
    if has_bias:
        bias = problem.input(BIAS).const
        assert bias is not None
        args.append(Const(lambda: bias))
    name = _label("depthwise", spec, f"v{vw}x{tx}_b{band}")
    params |= {"name": name, "has_bias": has_bias, "wg": local, "vw": vw, "tx": tx,
               "band": band}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("depthwise.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost)


def _winograd(spec: Conv2d, problem: Problem, every: bool = False) -> list[Variant]:
    """Return Winograd's convolution where it fits: the best plan, or `every` one worth a try."""
    win, target = spec.window, problem.target
    plain = (win.kernel, win.strides, win.dilations) == ((3, 3), (1, 1), (1, 1)) and spec.group == 1
    if not (plain and target.winograd and target.is_cpu and _has_border(spec, problem)):
        return []
    params = _common(spec, problem)
    src, dst = params["src"], params["dst"]
    ic, vw = src.shape[1], target.vector
    if ic % vw or dst.shape[1] % vw:
        return []
    best = plan(dst.shape, ic, target, vw)
    found = plans(dst.shape, ic, target, vw) if every else [best] if best else []
    return [
        _winograd_variant(spec, problem, params, made, made.cycles * MARGINS[made.m])
        for made in found
    ]


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
    tile = f"f{made.m}_t{made.mr}x{made.nv * made.vw}"
    name = _label("winograd", spec, f"{tile}_p{made.parts}")
    reach = tuple(src.shape[a] + src.after[a] - 1 for a in (2, 3))
    params = params | {"name": name, "ic": src.shape[1], "oc": dst.shape[1], "reach": reach, "m": made.m,
               "bt": kernel.bt, "at": kernel.at, "has_bias": problem.has(BIAS), "wg": local,
               "mr": made.mr, "nv": made.nv, "vw": made.vw, "parts": made.parts,
               "stride": made.stride}  # fmt: skip
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_winograd.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost, ERRORS[made.m])


def _reference(spec: Conv2d, problem: Problem) -> Variant:
    params = _common(spec, problem)
    bias = problem.input(BIAS).layout if problem.has(BIAS) else None
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    name = _label("conv2d_reference", spec, "any")
    params |= {"name": name, "weights": image(problem.input(1).layout), "bias": bias,
               "groups": spec.group, "wg": local}  # fmt: skip
    args: list[Arg] = [In(0), In(1), *([In(BIAS)] if bias is not None else [])]
    args += [*operand_args(problem, spec.steps), Out(0)]
    launch = Launch("conv2d_reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))


@onnx_op("Conv")
def _conv(node: OnnxNode) -> Source:
    x, w = node.type(0), node.type(1)
    if x.rank not in (3, 4):
        raise Unsupported(f"convolution of an input with {x.rank} axes; 3 and 4 are supported")
    kernel = node.attr("kernel_shape", w.shape[2:])
    window = window_of(node, kernel, x.shape[2:])
    spec = Conv2d(window, int(node.attr("group", 1)))
    return Emit(spec, [0, 1, 2 if node.has(2) else None])
