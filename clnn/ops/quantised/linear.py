"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

import numpy as np

from clnn.arith.quantised import limits_of
from clnn.arith.quantised_maps import NARROW, Dequantise, Quantise
from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import Cast, dtype_numbered, rounded_to
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.views import Expand, Reshape
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised.parameters import zero_type
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.types import BF16, CARRIERS, F16, F32, I32, U8, DType, TensorType, normalise_axis

BOTH = "", "com.microsoft::"


@onnx_op(*(f"{domain}DequantizeLinear" for domain in BOTH))
def _dequantise(node: OnnxNode) -> Source:
    kind = node.type(0).dtype
    scale = _spread(node, 1, "scale")
    if node.narrow.get(0) not in (None, F16, BF16) and kind == F32:
        return Emit(Eltwise((PostOp("mul", operand=1),)), [0, scale])
    if kind not in (*NARROW, I32):
        raise Unsupported(f"dequantisation of {kind.name}")
    zero = _spread(node, 2, "zero point") if node.has(2) else None
    if kind == I32 and zero is not None and not np.any(node.consts.get(2, 1)):
        zero = None
    return Emit(FixedMap(Dequantise()), [0, scale, zero])


@onnx_op(*(f"{domain}QuantizeLinear" for domain in BOTH))
def _quantise(node: OnnxNode) -> Source:
    given, wanted = int(node.attr("output_dtype", 0)), int(node.attr("precision", 0))
    if wanted not in (0, 1):
        raise Unsupported(f"precision {wanted}; division in float32 is supported")
    said = dtype_numbered(given) if given else U8
    element = node.narrow.get(2) or zero_type(node, 2, said)
    kind = CARRIERS.get(element, element)
    if kind not in (*NARROW, F32):
        raise Unsupported(f"quantisation to {kind.name}")
    x: Source = 0
    if node.type(0).dtype == I32:
        x = Emit(Cast(F32), [0])
    scale = _spread(node, 1, "scale")
    if kind == F32:
        return _small_floats(node, x, scale, element)
    zero = _spread(node, 2, "zero point") if node.has(2) else np.zeros((), kind.numpy)
    return Emit(
        FixedMap(Quantise(kind, limits=None if element == kind else limits_of(element))),
        [x, scale, zero],
    )


def _small_floats(node: OnnxNode, x: Source, scale: Source, element: DType) -> Source:
    """Return x / scale rounded to floats of 8 or 4 bits, which have no other zero point than 0."""
    if element in (F16, BF16):
        raise Unsupported(f"quantisation to {element.name}")
    if node.has(2) and np.any(node.const(2, "the zero point")):
        raise Unsupported(f"a zero point of {element.name} other than 0")
    ratio = Emit(Eltwise((PostOp("div", operand=1),)), [x, scale])
    return rounded_to(element, ratio, bool(node.attr("saturate", 1)))


def _spread(node: OnnxNode, index: int, what: str) -> Source:
    """Return a parameter in a shape that broadcasts over input 0: for all, along an axis, of blocks."""
    x, given, block = node.type(0), node.type(index), int(node.attr("block_size", 0))
    if index == 1 and given.dtype != F32:
        raise Unsupported(f"scales of type {given.dtype.name}; they must be float32")
    if given.size == 1 and given.rank <= 1:
        return _shaped(node, index, ())
    axis = normalise_axis(int(node.attr("axis", 1)), x.rank)
    if not block:
        axis = _axis_of(node, given, axis)
        if given.rank != 1 or given.shape[0] != x.shape[axis]:
            raise ShapeError(
                f"{what} has shape {given.shape}; axis {axis} of {x.shape} wants one for each index."
            )
        return _shaped(node, index, (given.shape[0], *(1,) * (x.rank - 1 - axis)))
    return _blocks(node, index, axis, block, what)


def _axis_of(node: OnnxNode, given: TensorType, axis: int) -> int:
    """Return the axis that a parameter goes along: of constants the only one that fits it.

    ONNX Runtime's quantiser says 0 of the biases of Gemm that have two axes, and means the columns.
    """
    if 0 not in node.consts or given.rank != 1 or given.shape[0] == node.type(0).shape[axis]:
        return axis
    fitting = [a for a, extent in enumerate(node.type(0).shape) if extent == given.shape[0]]
    return fitting[0] if len(fitting) == 1 else axis


def _shaped(node: OnnxNode, index: int, shape: tuple[int, ...]) -> Source:
    known = node.consts.get(index)
    if known is not None:
        return known.reshape(shape)
    return index if node.type(index).shape == shape else Emit(Reshape(shape), [index])


def _blocks(node: OnnxNode, index: int, axis: int, block: int, what: str) -> Source:
    """Return a parameter of blocks along an axis, repeated for each index of its block."""
    x, given = node.type(0), node.type(index)
    extents = [d if a != axis else -(-d // block) for a, d in enumerate(x.shape)]
    if list(given.shape) != extents:
        raise ShapeError(
            f"{what} has shape {given.shape}; blocks of {block} along axis {axis} of {x.shape} want "
            f"{tuple(extents)}."
        )
    known = node.consts.get(index)
    if known is not None:
        repeated = np.repeat(known, block, axis)
        return np.ascontiguousarray(repeated.take(range(x.shape[axis]), axis))
    if x.shape[axis] % block:
        raise Unsupported(f"blocks of {block} that do not divide axis {axis}, computed by the run")
    ahead, behind = given.shape[: axis + 1], given.shape[axis + 1 :]
    apart = Emit(Reshape((*ahead, 1, *behind)), [index])
    return Emit(Reshape(x.shape), [Emit(Expand((*ahead, block, *behind)), [apart])])


@onnx_op("DynamicQuantizeLinear")
def _dynamic(node: OnnxNode) -> list[Source]:
    return list(dynamic(node.type(0)))


def dynamic(
    x: TensorType, source: Source = 0, over: Source | None = None
) -> tuple[Source, Source, Source]:
    """Return a tensor in uint8 over its own range, widened to hold 0; its scale; its zero point.

    over: a tensor of that type whose range is taken instead.
    """
    axes = tuple(range(x.rank))
    ranged = source if over is None else over

    def end(fn: str, limit: str) -> Emit:
        return Emit(Reduce(fn, axes, False, 2.0, (PostOp(limit, (0.0,)),)), [ranged])

    low, high = end("min", "at_most"), end("max", "at_least")
    span = Emit(Eltwise((PostOp("sub", operand=1),)), [high, low])
    some = Emit(Logic("greater"), [span, np.zeros((), np.float32)])
    step = Emit(Eltwise((PostOp("div", (255.0,)),)), [span])
    scale = Emit(Logic("where"), [some, step, np.ones((), np.float32)])
    below = Emit(Eltwise((PostOp("div", operand=1), PostOp("neg"))), [low, scale])
    whole = Emit(Eltwise((PostOp("clip", (0.0, 255.0)), PostOp("round"))), [below])
    zero = Emit(Cast(U8), [whole])
    return Emit(FixedMap(Quantise(U8)), [source, scale, zero]), scale, zero


def above_zero(source: Source, zero: Source, kind: DType) -> Source:
    """Return integers counted from a zero point that is computed, as int32."""
    wide = Emit(Cast(I32), [source])
    return Emit(Eltwise((PostOp("sub", operand=1),)), [wide, Emit(Cast(I32), [zero])])
