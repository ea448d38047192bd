"""What classifiers and regressors do with their sums: post transforms, second columns, labels.

Where ONNX leaves a form open, results are those of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode
from clnn.types import Array

# A single sum of a classifier with two labels becomes two columns, in one of two ways.
COMPLEMENT, MIRRORED = "1 - s, s", "-s, s"
_NEAR_ZERO = 1e-7
_WINITZKI = 0.147  # of the approximation to the inverse error function that onnxruntime has


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    with np.errstate(all="ignore"):
        upper = 1 / (1 + np.exp(-np.abs(x)))
        return np.asarray(np.where(x < 0, 1 - upper, upper))


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _softmax_zero(x: Array) -> Array:
    """Softmax over what is not zero; zeros stay zeros, and are NaN where all are, as in onnxruntime."""
    top = x.max(-1, keepdims=True)
    counts = np.abs(x) > _NEAR_ZERO
    powers = np.where(counts, np.exp(x - top), x * np.exp(-top))
    sums = np.where(counts, powers, 0).sum(-1, keepdims=True)
    return np.asarray(powers / sums)


def _probit(x: Array) -> Array:
    turned = 2 * x - 1
    log = np.log((1 - turned) * (1 + turned))
    half = 2 / (np.pi * _WINITZKI) + log / 2
    root = np.sqrt(-half + np.sqrt(half * half - log / _WINITZKI))
    return np.asarray(np.sqrt(2) * np.sign(turned) * root).astype(x.dtype)


_TRANSFORMS = {
    "NONE": lambda x: x,
    "LOGISTIC": logistic,
    "SOFTMAX": _softmax,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
BY_NUMBER = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transformed(scores: Array, name: str) -> Array:
    """Return scores (n, columns) behind a post transform. Raises ValueError for an unknown one."""
    if name not in _TRANSFORMS:
        raise ValueError(f"there is no post transform {name!r}")
    if scores.shape[-1] < 2 and name != "PROBIT":
        return scores  # of one column, only columns made of it are transformed
    with np.errstate(all="ignore"):
        return np.asarray(_TRANSFORMS[name](scores))


def two_columns(scores: Array, way: str, name: str) -> Array:
    """Return one column (n, 1) as two, for the labels that it tells apart, behind a post transform."""
    if name == "PROBIT":  # which onnxruntime leaves alone in its column
        return np.concatenate([transformed(scores, name), np.zeros_like(scores)], 1)
    other = 1 - scores if way == COMPLEMENT and name != "LOGISTIC" else -scores
    both = np.concatenate([other, scores], 1)
    return logistic(both) if name == "LOGISTIC" else both


def labels_of(node: HostNode, ints: str, texts: str = "classlabels_strings") -> Sequence[Any]:
    """Return a classifier's labels: numbers or texts. Raises ValueError where it has none."""
    found = node.attr(texts) or node.attr(ints)
    if not found:
        raise ValueError("the classifier has no labels")
    return list(found)


def picked(labels: Sequence[Any], places: Array) -> Array:
    """Return the labels at places, as int64 or text."""
    kind: Any = object if isinstance(labels[0], str) else np.int64
    return np.asarray(np.array(labels, kind)[places])
