"""Rotary positions of onnxruntime's transformers: pairs of values turned by an angle of their token's place."""

from __future__ import annotations

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value, concat
from clnn.ops.movement.gather import Gather
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.ops.transformer import MICROSOFT
from clnn.recorded import integer
from clnn.recorded_arrays import counted
from clnn.types import I32


def rotated(x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """Return x with the first values of its last axis turned, as many as `cos` and `sin` have, twice.

    cos, sin: (..., half), broadcast with x. interleaved: pairs lie side by side, else half by half.
    """
    size, half, last = x.shape[-1], integer(cos.shape[-1]), x.type.rank - 1
    turned = x if size == 2 * half else x.part(last, 0, 2 * half)
    if interleaved:
        pairs = turned.reshape((*x.shape[:-1], half, 2))
        one, two = (pairs.part(last + 1, k, 1).reshape((*x.shape[:-1], half)) for k in (0, 1))
    else:
        one, two = (turned.part(last, k * half, half) for k in (0, 1))
    real = one.binary("mul", cos).binary("sub", two.binary("mul", sin))
    other = one.binary("mul", sin).binary("add", two.binary("mul", cos))
    if interleaved:
        apart = [v.reshape((*x.shape[:-1], half, 1)) for v in (real, other)]
        made = [concat(apart, last + 1).reshape((*x.shape[:-1], 2 * half))]
    else:
        made = [real, other]
    rest = size - 2 * half
    return concat([*made, x.part(last, 2 * half, rest)] if rest else made, last)


def at_places(cache: Value, places: Value) -> Value:
    """Return the rows of a cache (most, half) at places of any shape."""
    return cache.apply(Gather(0), places)


@onnx_op(MICROSOFT + "RotaryEmbedding")
def _rotary_embedding(node: OnnxNode) -> Source:
    """Inputs: x (b, s, d) or (b, heads, s, size), first place or places (b, s), cosines, sines (most, half)."""
    x, places, cos, sin = (Value.of(node, k) for k in range(4))
    if cos.type.rank != 2 or cos.shape != sin.shape:
        raise ShapeError(
            f"{node.op_type}: tables {cos.shape} and {sin.shape} must be (most, half)."
        )
    batch, length, size = _sizes(node, x, 2 * cos.shape[1])
    if places.shape == (1,):
        places = places.cast(I32).binary("add", Value.const(counted(length)))
    elif places.shape != (batch, length):
        raise ShapeError(
            f"{node.op_type} of {x.shape}: places {places.shape} must be (1,) or one each."
        )
    cos, sin = at_places(cos, places), at_places(sin, places)
    turned = bool(node.attr("interleaved", 0))
    if x.type.rank == 4:
        cos, sin = (v.reshape((*v.shape[:-2], 1, *v.shape[-2:])) for v in (cos, sin))
        return rotated(x, cos, sin, turned).source
    apart = x.reshape((batch, length, x.shape[2] // size, size))
    cos, sin = (v.reshape((*v.shape[:-1], 1, v.shape[-1])) for v in (cos, sin))
    return rotated(apart, cos, sin, turned).reshape(x.shape).source


def _sizes(node: OnnxNode, x: Value, turned: int) -> tuple[int, int, int]:
    """Return batch, length and the size of heads, of which `turned` values are turned."""
    heads, given = int(node.attr("num_heads", 0)), int(node.attr("rotary_embedding_dim", 0))
    if x.type.rank not in (3, 4) or (given and not heads):
        raise ShapeError(
            f"{node.op_type} of {x.shape}, {given} of {heads} heads: it lacks axes or heads."
        )
    width = x.shape[2] if x.type.rank == 3 else x.shape[1] * x.shape[3]
    size = turned
    if given:
        size = x.shape[3] if x.type.rank == 4 else width // heads
    if not size or width % size or (given or size) > size or turned != (given or size):
        raise ShapeError(
            f"{node.op_type} of {x.shape}: tables turn {turned} of heads of {size}, {given} asked for."
        )
    return x.shape[0], x.shape[1 if x.type.rank == 3 else 2], size
