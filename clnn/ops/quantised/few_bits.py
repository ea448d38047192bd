"""Products with weights of a few bits each, and rows of such tables, which are unpacked to float32 at import."""

from __future__ import annotations

import numpy as np

from clnn.budget import take_table
from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.shared.functions import PostOp
from clnn.types import F32, U8, Array, normalise_axis

F = np.float32
# The numbers of bitsandbytes: floats of a sign, two bits of exponent and one of mantissa over the largest of
# them, and the middles of 16 parts of a normal distribution of one probability, over the largest.
_FP4 = [0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25]
_NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]
BNB4 = (np.array([*_FP4, *(-v for v in _FP4)], F), np.array(_NF4, F))  # by quant_type


@onnx_op("com.microsoft::MatMulNBits")
def _few_bits(node: OnnxNode) -> Source:
    """Inputs a, b (n, blocks, bytes), scales, zero points, indices of groups, bias.

    accuracy_level is the least accuracy that is asked for; products and sums are those of float32 for all.
    """
    bits, block = int(node.attrs["bits"]), int(node.attrs["block_size"])
    k, n = int(node.attrs["K"]), int(node.attrs["N"])
    if bits not in (2, 4, 8) or node.has(4):
        raise Unsupported(f"{bits} bits in groups that are listed; 2, 4 or 8 bits, in blocks")
    if node.type(0).dtype != F32:
        raise Unsupported(f"a of type {node.type(0).dtype.name}; it must be float32")
    blocks = -(-k // block)
    steps = node.const(2, "the scales").astype(np.float32).reshape(n, blocks, 1)
    weights = unpacked(node.const(1, "b"), bits).reshape(n, blocks, block)
    zero = np.full((n, blocks, 1), 1 << (bits - 1), np.float32)
    if node.has(3):
        zero = _zeros_of_blocks(node.const(3, "the zero points"), bits, (n, blocks))[..., None]
    real = ((weights - zero) * steps).reshape(n, blocks * block)[:, :k]
    return Emit(Gemm(), [0, np.ascontiguousarray(real.T), 5 if node.has(5) else None])


@onnx_op("com.microsoft::MatMulBnb4")
def _of_four_bits(node: OnnxNode) -> Source:
    """Inputs a, b (two numbers a byte, the first one above, of rows of n x k), largest magnitudes of blocks."""
    k, n = int(node.attrs["K"]), int(node.attrs["N"])
    block, which = int(node.attrs["block_size"]), int(node.attrs["quant_type"])
    if which not in (0, 1) or not node.attr("transB", 1):
        raise Unsupported(f"quant_type {which} or a b that is not transposed; 0 (FP4) or 1 (NF4)")
    if node.type(0).dtype != F32:
        raise Unsupported(f"a of type {node.type(0).dtype.name}; it must be float32")
    packed, largest = node.const(1, "b").reshape(-1), node.const(2, "absmax").reshape(-1)
    if 2 * packed.size < n * k or block < 1 or largest.size * block < n * k:
        raise ShapeError(
            f"{packed.size} bytes and {largest.size} blocks of {block} do not hold weights of {n} x {k}."
        )
    numbers = BNB4[which][np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: n * k]]
    real = numbers * np.repeat(largest.astype(F), block)[: n * k]
    return Emit(Gemm(), [0, np.ascontiguousarray(real.reshape(n, k).T), None])


@onnx_op("com.microsoft::GatherBlockQuantized")
def _gathered(node: OnnxNode) -> Source:
    """Inputs data, indices, scales, zero points; an index outside of the axis gives zeros."""
    table = _table(node)
    axis = normalise_axis(int(node.attr("gather_axis", 0)), table.ndim)
    count = table.shape[axis]
    edge = np.zeros_like(table.take([0], axis))
    table = np.concatenate([edge, table, edge], axis)
    if 1 in node.consts:
        index = node.consts[1].astype(np.int64)
        index = np.clip(np.where(index < 0, index + count, index), -1, count) + 1
        return Emit(Gather(axis), [table, index.astype(np.int32)])
    kind = node.type(1).dtype
    zero, most = np.zeros((), kind.numpy), np.array(count, kind.numpy)
    behind = Emit(Eltwise((PostOp("add", operand=1),)), [1, most])
    from_front = Emit(Logic("where"), [Emit(Logic("less"), [1, zero]), behind, 1])
    steps = (PostOp("clip", (-1, count)), PostOp("add", (1,)))
    return Emit(Gather(axis), [table, Emit(Eltwise(steps), [from_front])])


def _table(node: OnnxNode) -> Array:
    """Return the data of a GatherBlockQuantized in float32."""
    element, bits = node.narrow.get(0, node.type(0).dtype), int(node.attr("bits", 4))
    if node.type(2).dtype != F32 or 2 in node.narrow:
        raise Unsupported("scales that are not float32")
    data, scales = node.const(0, "data"), node.const(2, "the scales")
    zero: Array = node.const(3, "the zero points") if node.has(3) else np.zeros((), F)
    if element == U8:
        zero = unpacked(zero, bits) if node.has(3) else np.array(1 << (bits - 1), F)
        data = unpacked(data, bits)
    axis = normalise_axis(int(node.attr("quantize_axis", 1)), data.ndim)
    block = int(node.attr("block_size", 128)) or data.shape[axis]
    take_table(data.size * F(0).itemsize, f"{node.op_type} of {data.shape}")
    if scales.ndim != data.ndim or scales.shape[axis] != -(-data.shape[axis] // block):
        raise ShapeError(
            f"scales of {scales.shape} for blocks of {block} along axis {axis} of {data.shape}."
        )

    def each(given: Array) -> Array:
        along = given.astype(F).repeat(block, axis) if given.ndim else given
        return along.take(range(data.shape[axis]), axis) if given.ndim else along

    zeros = zero.take(range(scales.shape[axis]), axis) if zero.ndim else zero
    return np.asarray((data.astype(F) - each(zeros)) * each(scales))


def _zeros_of_blocks(given: Array, bits: int, shape: tuple[int, int]) -> Array:
    """Return zero points (n, blocks) as float32, of numbers or of packed bits."""
    if given.dtype.kind == "f":
        return given.astype(np.float32).reshape(shape)
    return unpacked(given.reshape(shape[0], -1), bits)[:, : shape[1]]


def unpacked(packed: Array, bits: int) -> Array:
    """Return numbers of so many bits, low ones first, as float32."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed.view(np.uint8)[..., None] >> shifts & ((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float32)
