"""Operators of onnxruntime's own domain that are computed on the host."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, Value, host_op, host_ops
from clnn.types import Array

MICROSOFT = "com.microsoft::"


@host_op(MICROSOFT + "Range")
def _range(node: HostNode, start: Array, stop: Array, step: Array | None = None) -> Value:
    pace = np.ones(1, start.dtype) if step is None else step
    return host_ops()["Range"](node, start, stop, pace)


@host_op(MICROSOFT + "Unique")
def _unique(node: HostNode, x: Array) -> tuple[Array, Array, Array]:
    """Return what differs in the order of its first places, which of it each is, and how often it is there."""
    values, _, places, counts = host_ops()["Unique"](HostNode("Unique", 11, {"sorted": 0}), x)
    return values, places, counts


@host_op(MICROSOFT + "Inverse")
def _inverse(node: HostNode, x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(np.linalg.inv(wide), x.dtype)


@host_op(MICROSOFT + "NGramRepeatBlock")
def _ngram_repeat_block(node: HostNode, words: Array, scores: Array) -> Array:
    """Return scores with -infinity for each word that would end a run of words a second time."""
    size, made = int(node.attrs["ngram_size"]), scores.copy()
    length = words.shape[1]
    if size < 1:
        raise ValueError(f"ngram_size is {size}, must be at least 1")
    for row, line in zip(words, made, strict=True):
        last = row[length - size + 1 :] if size > 1 else row[:0]
        for begin in range(length - size + 1):
            if (row[begin : begin + size - 1] == last).all():
                line[row[begin + size - 1]] = -np.inf
    return made
