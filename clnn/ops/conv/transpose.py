"""Transposed convolution over one or two spatial axes, with fused post-ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.codegen.filters import image
from clnn.errors import DTypeError, PlanError, ShapeError
from clnn.ops.conv.transpose_phases import PACK, PhaseTile, by_output, pack_table, phase_tile
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Border, Problem
from clnn.ops.shared.epilogue import heavy, operand_args, operand_layouts
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec, batched
from clnn.types import Array, TensorType

BIAS = 2
NEAR_BYTES = 256 * 1024  # weights of this size stay close to a core


@dataclass(frozen=True)
class ConvTranspose(OpSpec):
    """Inputs: x (n, c, spatial...), weights (c, oc / group, kernel...), bias (oc) or None, others.

    Output (n, oc, extents...): input pixel i adds to output pixels i * stride + k * dilation -
    before. `before` is cut off in front; `extents` are given, as attributes leave them free.
    An arithmetic other than float32 needs constant weights and bias, and takes no steps.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    extents: tuple[int, ...]
    group: int = 1
    post_ops: tuple[PostOp, ...] = ()
    arith: Arithmetic = FLOAT

    kind = "conv_transpose"
    layout_rule = "image"
    fuses_post_ops = True
    first_operand = 3

    def __post_init__(self) -> None:
        if min((*self.kernel, *self.strides, *self.dilations, self.group)) < 1:
            raise ShapeError(f"kernel, strides, dilations and group must be at least 1: {self}.")
        if min((*self.before, *self.extents)) < 0:
            raise ShapeError(f"pads and output extents must not be negative: {self}.")

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, w = inputs[0], inputs[1]
        if x is None or w is None:
            raise ShapeError("transposed convolution needs an input and weights.")
        result = self.arith.output(x.dtype, w.dtype)
        if x.rank != len(self.kernel) + 2 or w.rank != x.rank:
            raise ShapeError(
                f"transposed convolution of {x.shape} with weights {w.shape}: ranks must match."
            )
        if x.shape[1] != w.shape[0] or w.shape[0] % self.group:
            raise ShapeError(
                f"transposed convolution of {x.shape} with weights {w.shape} in {self.group} "
                f"groups: weights want {w.shape[0]} input channels, input has {x.shape[1]}."
            )
        if w.shape[2:] != self.kernel:
            raise ShapeError(f"weights {w.shape} do not have kernel {self.kernel}.")
        channels = w.shape[1] * self.group
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None and bias.shape != (channels,):
            raise ShapeError(f"bias is {bias.shape}, must be ({channels},).")
        if bias is not None and bias.dtype != self.arith.bias(x.dtype, w.dtype):
            raise DTypeError(f"bias is {bias.dtype.name}, which {self.arith.name} does not take.")
        return (TensorType((x.shape[0], channels, *self.extents), result),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the sum of scattered products, in the arrays' own precision."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if self.arith is not FLOAT:
            return (self._exact(x, w, inputs[BIAS] if len(inputs) > BIAS else None),)
        n, ic, spatial = x.shape[0], x.shape[1], x.shape[2:]
        rank, per = len(spatial), w.shape[1]
        reach = [
            max((i - 1) * s + d * (k - 1) + 1, b + e)
            for i, s, d, k, b, e in zip(
                spatial,
                self.strides,
                self.dilations,
                self.kernel,
                self.before,
                self.extents,
                strict=True,
            )
        ]
        full = np.zeros((n, self.group, per, *reach), x.dtype)
        grouped = x.reshape(n, self.group, ic // self.group, *spatial)
        weights = w.reshape(self.group, ic // self.group, per, *self.kernel)
        for tap in np.ndindex(*self.kernel if x.size else (0,)):
            hit: tuple[Any, ...] = tuple(
                slice(t * d, t * d + (i - 1) * s + 1, s)
                for t, d, i, s in zip(tap, self.dilations, spatial, self.strides, strict=True)
            )
            part = weights[(..., *tap)]
            full[(..., *hit)] += np.einsum("ngc...,gco->ngo...", grouped, part)
        cut = tuple(slice(b, b + e) for b, e in zip(self.before, self.extents, strict=True))
        y = full.reshape(n, self.group * per, *reach)[(slice(None), slice(None), *cut)]
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None:
            y = y + bias.reshape(1, -1, *(1,) * rank)
        return (apply_post_ops(y, self.post_ops, inputs),)

    def _exact(self, x: Array, w: Array, bias: Array | None) -> Array:
        """Return what the arithmetic's own reference makes of each output's taps."""
        n, per = x.shape[0], w.shape[1]
        taps = list(np.ndindex(*self.kernel))
        columns = np.full((len(taps), n, x.shape[1], *self.extents), self.arith.padding, x.dtype)
        for place, tap in enumerate(taps):
            hits = [self._hits(axis, t, x.shape[2 + axis]) for axis, t in enumerate(tap)]
            outs, ins = zip(*hits, strict=True)
            taken = x[(slice(None), slice(None), *np.ix_(*ins))]
            columns[place][(slice(None), slice(None), *np.ix_(*outs))] = taken
        grouped = columns.reshape(len(taps), n, self.group, -1, *self.extents)
        weights = by_output(w, self.group).reshape(self.group, per, -1, len(taps))
        y = self.arith.reference(np.moveaxis(grouped, 0, 3), weights, bias)
        return y.reshape(n, self.group * per, *self.extents)

    def _hits(self, axis: int, tap: int, extent: int) -> tuple[Array, Array]:
        """Return the output indices that a tap reaches along an axis, and the inputs they take."""
        ins = np.arange(extent)
        outs = ins * self.strides[axis] + tap * self.dilations[axis] - self.before[axis]
        inside = (outs >= 0) & (outs < self.extents[axis])
        return outs[inside], ins[inside]

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border as wide as taps reach, of what the arithmetic takes for zero."""
        assert inputs[0] is not None
        border = self.border(inputs[0].shape)
        return {} if border is None else {0: border}

    def border(self, shape: Sequence[int]) -> Border | None:
        """Return the border that phases read around an input of `shape`.

        None where the output is so much larger than taps reach that checks cost less than memory.
        """
        low, high = [], []
        for axis, extent in enumerate(shape[2:]):
            s, d = self.strides[axis], self.dilations[axis]
            natural = (extent - 1) * s + d * (self.kernel[axis] - 1) + 1
            if self.before[axis] + self.extents[axis] >= natural + max(s, d):
                return None
            shifts = [e for p in range(s) for e in self.shifts(axis, p)] or [0]
            low.append(max(0, -min(shifts)))
            high.append(max(0, -(-self.extents[axis] // s) + max(shifts) - extent))
        return Border((0, 0, *low), (0, 0, *high), float(self.arith.padding))

    def shifts(self, axis: int, phase: int) -> list[int]:
        """Return, for each tap of an output phase, input pixel minus output pixel / stride."""
        s, start = self.strides[axis], phase + self.before[axis]
        reached = [start - k * self.dilations[axis] for k in range(self.kernel[axis])]
        return [at // s for at in reached if at % s == 0]

    def first_taps(self, axis: int) -> tuple[int, ...]:
        """Return the first tap of each phase; the kernel's extent where it has none."""
        s, d, k = self.strides[axis], self.dilations[axis], self.kernel[axis]
        return tuple(
            next((t for t in range(k) if (p + self.before[axis] - t * d) % s == 0), k)
            for p in range(s)
        )

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many."""
        return self, (0, *batched(inputs, len(self.kernel) + 2, self.first_operand))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add: each input element meets each of its weights."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        return 2 * x.size * int(np.prod(w.shape[1:]))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the phase kernels where weights are constant, and the reference kernel."""
        if problem.outputs[0].type.size == 0:
            return [Variant("empty", ())]
        constant = problem.input(1).const is not None
        constant = constant and (not problem.has(BIAS) or problem.input(BIAS).const is not None)
        if not constant and self.arith is not FLOAT:
            raise PlanError(
                f"transposed convolution in {self.arith.name}: weights and bias are computed by "
                "other nodes, and this arithmetic needs them when it is compiled. Give constants."
            )
        if not constant or problem.input(0).type.size == 0:
            return [_reference(self, problem)]
        modes = [*_special_modes(self, problem), "spread"]
        return [*(_phases(self, problem, mode) for mode in modes), _reference(self, problem)]


def _special_modes(spec: ConvTranspose, problem: Problem) -> list[str]:
    """Return the modes that suit one filter per channel, or few output channels."""
    x, channels = problem.input(0), problem.outputs[0].type.shape[1]
    inputs, per = x.type.shape[1] // spec.group, channels // spec.group
    if x.layout.pitches[1] != 1 or spec.arith is not FLOAT:
        return []
    if inputs == per == 1 and spec.group > 1:
        return ["depthwise"]
    return ["dot"] if inputs >= 4 and per <= max(problem.target.vector // 4, 1) else []


def _tile(spec: ConvTranspose, problem: Problem, qh: int, qw: int, mode: str) -> PhaseTile:
    target = problem.target
    inputs = problem.input(0).type.shape[1] // spec.group
    per = problem.outputs[0].type.shape[1] // spec.group
    vw = target.vector // 2 if spec.arith.acc == "long" else target.vector
    if mode == "spread":
        while vw > 4 and vw // 2 >= per:
            vw //= 2
        vectors = -(-per // vw)
        return phase_tile(qh, qw, vectors, range(1, min(4, vectors) + 1), vw, target)
    lanes = spec.group if mode == "depthwise" else inputs
    while vw > lanes:
        vw //= 2
    nv = 1 if mode == "depthwise" else per
    return phase_tile(min(qh, 2), min(qw, 8), nv, (nv,), vw, target)


def _common(spec: ConvTranspose, problem: Problem) -> dict[str, Any]:
    lead = 2 - len(spec.kernel)
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.post_ops).items()
    }
    x, w, y = problem.input(0).type, problem.input(1).type, problem.outputs[0].type
    table = "float" if spec.arith.acc == "float" else "int"
    return {
        "arith": spec.arith,
        "types": (x.dtype.cl, w.dtype.cl, table, y.dtype.cl),
        "src": image(problem.input(0).layout),
        "dst": image(problem.outputs[0].layout),
        "kernel": (1,) * lead + spec.kernel,
        "strides": (1,) * lead + spec.strides,
        "dilations": (1,) * lead + spec.dilations,
        "pads": (0,) * lead + spec.before,
        "groups": spec.group,
        "post_ops": spec.post_ops,
        "operands": operands,
    }


def _label(spec: ConvTranspose, kind: str) -> str:
    k, s = "x".join(map(str, spec.kernel)), "x".join(map(str, spec.strides))
    return f"conv_transpose_{spec.arith.name}_k{k}_s{s}_{kind}"


def _table(spec: ConvTranspose, problem: Problem) -> Array | None:
    """Return the arithmetic's constants per output channel; sums begin with nothing.

    The templates take the padding value from each input, so that a tap that meets no input counts
    nothing.
    """
    weights = problem.input(1).const
    bias = problem.input(BIAS).const if problem.has(BIAS) else None
    if spec.arith is FLOAT:
        return None if bias is None else bias.reshape(1, -1)
    assert weights is not None
    table = spec.arith.table(by_output(weights, spec.group), bias)
    assert table is not None
    return np.concatenate([np.zeros_like(table[:1]), table[1:]])


def _phases(spec: ConvTranspose, problem: Problem, mode: str) -> Variant:
    params = _common(spec, problem)
    src, dst, (sy, sx) = params["src"], params["dst"], params["strides"]
    qh, qw = -(-dst.shape[2] // sy), -(-dst.shape[3] // sx)
    tile = _tile(spec, problem, qh, qw, mode)
    groups = 1 if mode == "depthwise" else spec.group
    width = tile.nv if mode == "dot" else tile.nv * tile.vw
    phases = -(-dst.shape[1] // groups // width) * groups * sy * sx
    tiles = -(-qh // tile.ty) * -(-qw // tile.tx)
    border = spec.border(problem.input(0).type.shape)
    checked = border is None or not problem.input(0).border.covers(border)
    weights = problem.input(1).const
    assert weights is not None
    first = weights.nbytes <= NEAR_BYTES or not problem.target.is_cpu
    sizes = (phases, tiles) if first else (tiles, phases)
    global_size, local = grid(problem.target, *sizes, dst.shape[0])
    shape = f"t{tile.ty}x{tile.tx}x{width}" + f"_v{tile.vw}" * (mode == "dot")
    name = _label(spec, f"{mode}_{shape}_{'checked' if checked else 'bordered'}")
    whole = not (qh % tile.ty or qw % tile.tx or dst.shape[2] % sy or dst.shape[3] % sx)
    whole = whole and dst.shape[1] // groups % width == 0
    lead, table = 2 - len(spec.kernel), _table(spec, problem)
    firsts = ((0,),) * lead + tuple(spec.first_taps(a) for a in range(len(spec.kernel)))
    params |= {
        "name": name,
        "mode": mode,
        "ic": src.shape[1] // spec.group,
        "oc": dst.shape[1] // groups,
        "firsts": firsts,
        "checked": checked,
        "has_bias": problem.has(BIAS),
        "wg": local,
        "rows": 0 if table is None else len(table),
        "channels_fastest": first,
        "ty": tile.ty,
        "tx": tile.tx,
        "nv": tile.nv,
        "vw": tile.vw,
        "loop_epilogue": heavy(spec.post_ops) or not whole or spec.arith is not FLOAT,
    }
    args = _phase_args(spec, problem, tile, checked, mode)
    launch = Launch("conv/transpose.cl.mako", params, args, global_size, local)
    return Variant(name, (launch,))


def _phase_args(
    spec: ConvTranspose, problem: Problem, tile: PhaseTile, checked: bool, mode: str
) -> tuple[Arg, ...]:
    weights = problem.input(1).const
    assert weights is not None
    width = tile.nv * tile.vw if mode == "spread" else 1
    args: list[Arg] = [In(0), Const(lambda: PACK[mode](weights, spec.group, width))]
    table = _table(spec, problem)
    if table is not None:
        args.append(Const(lambda: pack_table(table, spec.group, width)))
    if checked:
        zeros = problem.input(0).type.dtype.numpy
        count = max(len(weights) // spec.group, tile.vw)
        args.append(Const(lambda: np.full(count, spec.arith.padding, zeros)))
    return (*args, *operand_args(problem, spec.post_ops), Out(0))


def _reference(spec: ConvTranspose, problem: Problem) -> Variant:
    params = _common(spec, problem)
    float_bias = problem.has(BIAS) and spec.arith is FLOAT
    bias = problem.input(BIAS).layout if float_bias else None
    table = None if spec.arith is FLOAT else _table(spec, problem)
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    name = _label(spec, "reference")
    params |= {
        "name": name,
        "weights": image(problem.input(1).layout),
        "bias": bias,
        "wg": local,
        "rows": int(float_bias) if table is None else len(table),
    }
    args: list[Arg] = [In(0), In(1), *([In(BIAS)] if bias is not None else [])]
    args += [] if table is None else [Const(lambda: table)]
    args += [*operand_args(problem, spec.post_ops), Out(0)]
    launch = Launch("conv/transpose_reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))
