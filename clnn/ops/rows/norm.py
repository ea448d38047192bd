"""Normalisation by mean and variance of the data itself: layer, instance, group and RMS norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from clnn.budget import take_table
from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant
from clnn.ops.movement.views import Expand, Reshape
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.rows import Rows, and_plain, make_rows, operands_of, real_rows, repeated
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import is_open
from clnn.types import Array, TensorType, normalise_axis


@dataclass(frozen=True)
class Normalise(OpSpec):
    """(x - mean) / sqrt(variance + epsilon) over `axes` taken together, then `post_ops`.

    groups: where not 0, axis 1 is split into as many groups of channels, each normalised on its
    own together with `axes`. centre False: x / sqrt(mean of x squared + epsilon).
    """

    axes: tuple[int, ...]
    epsilon: float = 1e-5
    groups: int = 0
    centre: bool = True
    post_ops: tuple[PostOp, ...] = ()

    kind = "normalise"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises ShapeError or DTypeError where it does not fit."""
        x = real_rows("normalisation", required(inputs), self.axes)
        if self.groups and (x.rank < 2 or x.shape[1] % self.groups):
            raise ShapeError(f"channels of {x.shape} do not divide into {self.groups} groups.")
        return (x,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's normalisation."""
        x = required(inputs)
        seen = x.reshape(self._split_shape(x.shape)) if self.groups else x
        axes = self._split_axes()
        with np.errstate(all="ignore"):
            mean = seen.mean(axis=axes, keepdims=True) if self.centre else 0 * seen
            power = np.mean(np.square(seen - mean), axis=axes, keepdims=True)
            y = (seen - mean) / np.sqrt(power + x.dtype.type(self.epsilon))
        return (apply_post_ops(y.reshape(x.shape), self.post_ops, inputs),)

    def _split_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], self.groups, shape[1] // self.groups, *shape[2:])

    def _split_axes(self) -> tuple[int, ...]:
        return (2, *(a + 1 for a in self.axes)) if self.groups else self.axes

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes of a row, of a layout `as_rows`."""
        return self._split_axes()

    def as_rows(self, layout: TensorLayout) -> TensorLayout:
        """Return a layout with its channels in groups, where there are groups."""
        layout = layout.unpadded()
        return _split_channels(layout, self.groups) if self.groups else layout

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a vector kernel (in two launches where rows are few and long), and a plain one."""
        return and_plain(partial(_variant, self, problem))

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the one of the variants that has the same name."""
        return repeated(partial(_variant, self, problem), variant)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Seven operations per element: sum, squared distance and its sum, shift and scale."""
        return 7 * outputs[0].size


def _split_channels(layout: TensorLayout, groups: int) -> TensorLayout:
    """Return a layout with axis 1 seen as (groups, channels of a group)."""
    shape, pitches, each = layout.shape, layout.pitches, layout.shape[1] // groups
    return TensorLayout.of_pitches(
        (shape[0], groups, each, *shape[2:]),
        (pitches[0], pitches[1] * each, pitches[1], *pitches[2:]),
        layout.offset,
        layout.size,
    )


def _variant(spec: Normalise, problem: Problem, plain: bool) -> Variant:
    x, out = problem.input(0), problem.outputs[0]
    _, extras = operands_of(problem, spec.post_ops)
    layouts = [x.layout.unpadded(), *extras, out.layout.unpadded()]
    if spec.groups:
        layouts = [_split_channels(la, spec.groups) for la in layouts]
    rows = make_rows(
        layouts,
        spec._split_axes(),
        problem.target,
        x.type.dtype.itemsize,
        plain=plain,
        split=not plain,
        share=True,
        sweeps=3,
    )
    name = f"{'normalise' if spec.centre else 'rms_normalise'}_{x.label}_{rows.label}"
    operands = operand_args(problem, spec.post_ops)
    if not rows.divided:
        args: tuple[Arg, ...] = (In(0), *operands, Out(0))
        return Variant(name, (_launch(spec, problem, rows, name, "all", args),))
    name += "_parts" if is_open(rows.parts) else f"_p{rows.parts}"
    stats = Scratch("stats", 2 * rows.parts * rows.count * x.type.dtype.itemsize)
    first = _launch(spec, problem, rows, f"{name}_stats", "stats", (In(0), stats))
    second = _launch(spec, problem, rows, name, "apply", (In(0), stats, *operands, Out(0)))
    return Variant(name, (first, second))


def _launch(
    spec: Normalise, problem: Problem, rows: Rows, name: str, stage: str, args: tuple[Arg, ...]
) -> Launch:
    global_size, local = rows.sizes(problem.target)
    post_ops = () if stage == "stats" else spec.post_ops
    params = {
        "name": name,
        "ctype": problem.input(0).ctype,
        "rows": rows,
        "stage": stage,
        "centre": spec.centre,
        "epsilon": spec.epsilon,
        "post_ops": post_ops,
        "operands": operands_of(problem, post_ops)[0],
        "wg": local,
    }
    return Launch("rows/norm.cl.mako", params, args, global_size, local)


def _scaled(spec: Normalise, scale: Source, shift: Source) -> Emit:
    """Return the node with its scale and shift as fused post-ops."""
    post_ops, inputs = [PostOp("mul", operand=1)], [0, scale]
    if shift is not None:
        post_ops.append(PostOp("add", operand=2))
        inputs.append(shift)
    return Emit(replace(spec, post_ops=tuple(post_ops)), inputs)


def per_channel(node: OnnxNode, index: int, rank: int) -> Source:
    """Return input `index`, one value per channel, shaped to broadcast with (n, c, spatial...)."""
    parameter = node.type(index).shape
    if len(parameter) != 1:
        raise ShapeError(f"{node.op_type}: input {index} is {parameter}, must have one axis.")
    shape = parameter + (1,) * (rank - 2)
    if index in node.consts:
        return node.consts[index].reshape(shape)
    return Emit(Reshape(shape), [index])


def _check_channels(node: OnnxNode, channels: int, *indices: int) -> None:
    for index in indices:
        if node.type(index).shape != (channels,):
            raise ShapeError(
                f"{node.op_type}: input {index} is {node.type(index).shape}, must be ({channels},)."
            )


@onnx_op("LayerNormalization")
def _layer_norm(node: OnnxNode) -> Source | list[Source]:
    rank = node.type(0).rank
    axes = tuple(range(normalise_axis(int(node.attr("axis", -1)), rank), rank))
    epsilon = float(node.attr("epsilon", 1e-5))
    shift = 2 if node.has(2) else None
    if node.n_outputs == 1:
        return _scaled(Normalise(axes, epsilon), 1, shift)
    mean, distance, deviation = _moments(axes, (PostOp("add", (epsilon,)), PostOp("sqrt")))
    inverse = Emit(Eltwise((PostOp("reciprocal"),)), [deviation])
    post_ops = [PostOp("mul", operand=1), PostOp("mul", operand=2)]
    inputs: list[Source] = [distance, inverse, 1]
    if shift is not None:
        post_ops.append(PostOp("add", operand=3))
        inputs.append(shift)
    return [Emit(Eltwise(tuple(post_ops)), inputs), mean, inverse]


def _moments(axes: tuple[int, ...], post_ops: tuple[PostOp, ...]) -> tuple[Emit, Emit, Emit]:
    """Return nodes for the mean of input 0, the distance to it, and the variance after `post_ops`."""
    mean = Emit(Reduce("mean", axes), [0])
    distance = Emit(Eltwise((PostOp("sub", operand=1),)), [0, mean])
    square = Emit(Eltwise((PostOp("mul", operand=1),)), [distance, distance])
    return mean, distance, Emit(Reduce("mean", axes, post_ops=post_ops), [square])


@onnx_op("RMSNormalization")
def _rms_norm(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    axes = tuple(range(normalise_axis(int(node.attr("axis", -1)), rank), rank))
    return _scaled(Normalise(axes, float(node.attr("epsilon", 1e-5)), centre=False), 1, None)


@onnx_op("InstanceNormalization")
def _instance_norm(node: OnnxNode) -> Source:
    x = node.type(0)
    if x.rank < 3:
        raise Unsupported(f"an input of {x.rank} axes; it needs batch, channels and an image")
    _check_channels(node, x.shape[1], 1, 2)
    spec = Normalise(tuple(range(2, x.rank)), float(node.attr("epsilon", 1e-5)))
    return _scaled(spec, per_channel(node, 1, x.rank), per_channel(node, 2, x.rank))


@onnx_op("GroupNormalization")
def _group_norm(node: OnnxNode) -> Source:
    x = node.type(0)
    if x.rank < 2:
        raise ShapeError(f"group normalisation of {x.shape}: it needs batch and channels.")
    groups, channels = int(node.attrs["num_groups"]), x.shape[1]
    if groups < 1 or channels % groups:
        raise ShapeError(f"{channels} channels do not divide into {groups} groups.")
    spec = Normalise(tuple(range(2, x.rank)), float(node.attr("epsilon", 1e-5)), groups)
    if node.opset >= 21:
        _check_channels(node, channels, 1, 2)
        return _scaled(spec, per_channel(node, 1, x.rank), per_channel(node, 2, x.rank))
    _check_channels(node, groups, 1, 2)
    return _scaled(spec, _per_group(node, 1, x), _per_group(node, 2, x))


def _per_group(node: OnnxNode, index: int, x: TensorType) -> Source:
    """Return input `index`, one value per group, as one value per channel (before opset 21)."""
    groups = node.type(index).shape[0]
    each, shape = x.shape[1] // groups, (x.shape[1],) + (1,) * (x.rank - 2)
    if index in node.consts:
        take_table(node.consts[index].itemsize * x.shape[1], f"normalisation of {groups} groups")
        return np.repeat(node.consts[index], each).reshape(shape)
    wide = Emit(Expand((groups, each)), [Emit(Reshape((groups, 1)), [index])])
    return Emit(Reshape(shape), [wide])


@onnx_op("MeanVarianceNormalization")
def _mean_variance(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    axes = tuple(sorted({normalise_axis(int(a), rank) for a in node.attr("axes", [0, 2, 3])}))
    _, distance, deviation = _moments(axes, (PostOp("sqrt"), PostOp("add", (1e-9,))))
    return Emit(Eltwise((PostOp("div", operand=1),)), [distance, deviation])


@onnx_op("LpNormalization")
def _lp_norm(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.attr("axis", -1)), node.type(0).rank)
    power = int(node.attr("p", 2))
    if power not in (1, 2):
        raise Unsupported(f"p is {power}; 1 and 2 are defined")
    norm = Emit(Reduce(f"l{power}", (axis,)), [0])
    zero, infinity = (np.array(v, node.type(0).dtype.numpy) for v in (0, np.inf))
    none = Emit(Logic("equal"), [norm, zero])  # then results are 0
    norm = Emit(Logic("where"), [none, infinity, norm])
    return Emit(Eltwise((PostOp("div", operand=1),)), [0, norm])
