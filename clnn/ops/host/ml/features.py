"""Operators that scale, fill, pick and join features."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array


def as_rows(x: Array, dtype: type = np.float32) -> Array:
    """Return features as (n, features): one axis is one row. Raises ValueError for others."""
    if x.ndim == 1:
        x = x[None]
    if x.ndim != 2:
        raise ValueError(f"features are (n, features), not of {x.ndim} axes")
    return x.astype(dtype, copy=False)


def _spread(values: list[float], features: int, what: str) -> Array:
    """Return one value for each feature. Raises ValueError where they do not fit."""
    if len(values) not in (1, features):
        raise ValueError(f"{len(values)} {what} for {features} features")
    return np.array(values, np.float32)


@host_op("ai.onnx.ml::ArrayFeatureExtractor")
def _array_feature_extractor(node: HostNode, x: Array, places: Array) -> Array:
    taken = np.take(x, _inside(places.reshape(-1), x.shape[-1]), -1)
    return taken.reshape(1, -1) if x.ndim == 1 else taken


def _inside(places: Array, extent: int) -> Array:
    if places.size and (places.min() < 0 or places.max() >= extent):
        raise IndexError(f"features {places.min()} to {places.max()} of {extent}")
    return places


@host_op("ai.onnx.ml::Binarizer")
def _binarizer(node: HostNode, x: Array) -> Array:
    above: Array = x > x.dtype.type(node.attr("threshold", 0.0))
    return above.astype(x.dtype)


@host_op("ai.onnx.ml::FeatureVectorizer")
def _feature_vectorizer(node: HostNode, *inputs: Array) -> Array:
    widths = node.attr("inputdimensions") or [None] * len(inputs)
    if len(widths) != len(inputs):
        raise ValueError(f"{len(widths)} widths for {len(inputs)} inputs")
    columns = []
    for x, width in zip(inputs, widths, strict=True):
        rows = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
        wanted = rows.shape[1] if width is None else int(width)
        filled = np.zeros((len(rows), wanted), np.float32)
        filled[:, : min(wanted, rows.shape[1])] = rows[:, :wanted]
        columns.append(filled)
    return np.concatenate(columns, 1)


@host_op("ai.onnx.ml::Imputer")
def _imputer(node: HostNode, x: Array) -> Array:
    whole = x.dtype.kind == "i"
    filled = node.attr("imputed_value_int64s" if whole else "imputed_value_floats") or []
    wrong = node.attr("replaced_value_int64" if whole else "replaced_value_float", 0)
    if len(filled) not in (1, x.shape[-1]):
        raise ValueError(f"{len(filled)} imputed values for {x.shape[-1]} features")
    missing = np.isnan(x) if wrong != wrong else x == x.dtype.type(wrong)
    return np.where(missing, np.array(filled, x.dtype), x)


@host_op("ai.onnx.ml::Normalizer")
def _normalizer(node: HostNode, x: Array) -> Array:
    x = x.astype(np.float32)
    rows = as_rows(x)
    norm = node.attr("norm", "MAX")
    if norm == "MAX":
        size = rows.max(1, keepdims=True)
    elif norm == "L1":
        size = np.abs(rows).sum(1, keepdims=True)
    elif norm == "L2":
        size = np.sqrt(np.square(rows).sum(1, keepdims=True))
    else:
        raise ValueError(f"there is no norm {norm!r}")
    return np.asarray(np.where(size == 0, rows, rows / np.where(size == 0, 1, size))).reshape(
        x.shape
    )


@host_op("ai.onnx.ml::Scaler")
def _scaler(node: HostNode, x: Array) -> Array:
    features = x.shape[-1]
    offset = _spread(node.attr("offset") or [0.0], features, "offsets")
    scale = _spread(node.attr("scale") or [1.0], features, "scales")
    return np.asarray((x.astype(np.float32) - offset) * scale)
