"""Random numbers: the same for the same seed in every run, and other ones where a node has none.

They are not onnxruntime's, whose generators differ.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

MAX_ELEMENTS = 2**28
_REAL: dict[int, Any] = {1: np.float32, 10: np.float16, 11: np.float64}
_ANY: dict[int, Any] = _REAL | {
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
}
_ANY |= {9: np.bool_, 12: np.uint32, 13: np.uint64}


def _generator(node: HostNode) -> np.random.Generator:
    seed = node.attr("seed")
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _element(node: HostNode, default: Any, known: dict[int, Any]) -> np.dtype[Any]:
    number = int(node.attr("dtype", 0))
    if number and number not in known:
        raise ValueError(f"dtype {number} is not supported")
    kind: np.dtype[Any] = np.dtype(known[number] if number else default)
    return kind


@host_op("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def _random(node: HostNode, like: Array | None = None) -> Array:
    shape = tuple(int(d) for d in node.attrs["shape"]) if like is None else like.shape
    if min(shape, default=0) < 0 or prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"no tensor of random numbers has extents {shape}")
    kind = _element(node, np.float32 if like is None else like.dtype, _REAL)
    if kind.kind != "f":
        raise ValueError(f"random numbers are real, not {kind}")
    draw = _generator(node)
    if node.op_type.startswith("RandomNormal"):
        return draw.normal(node.attr("mean", 0.0), node.attr("scale", 1.0), shape).astype(kind)
    return draw.uniform(node.attr("low", 0.0), node.attr("high", 1.0), shape).astype(kind)


@host_op("Bernoulli")
def _bernoulli(node: HostNode, chances: Array) -> Array:
    kind = _element(node, chances.dtype, _ANY)
    return np.asarray(_generator(node).random(chances.shape) < chances).astype(kind)


@host_op("Multinomial")
def _multinomial(node: HostNode, x: Array) -> Array:
    """Return (batch, sample_size) classes, drawn by the exponentials of (batch, classes) logarithms."""
    count, kind = (
        int(node.attr("sample_size", 1)),
        _element(node, np.int32, {6: np.int32, 7: np.int64}),
    )
    if x.ndim != 2 or not x.shape[1] or not 0 <= count * x.shape[0] <= MAX_ELEMENTS:
        raise ValueError(f"{count} samples cannot be drawn from it")
    weights = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    edges = np.cumsum(weights, 1)
    drawn = _generator(node).random((x.shape[0], count)) * edges[:, -1:]
    found = [np.searchsorted(e, d, "right") for e, d in zip(edges, drawn, strict=True)]
    return np.asarray(found, kind).reshape(x.shape[0], count).clip(0, x.shape[1] - 1)
