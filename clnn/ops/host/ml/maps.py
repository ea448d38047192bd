"""Operators on maps, which are Python dicts here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

LONGEST = 2**24  # elements of a map made a tensor
_ITEMS = ((str, object), (int, np.int64))  # values of other types are reals
_CASTS: dict[str, Any] = {"TO_FLOAT": np.float32, "TO_INT64": np.int64, "TO_STRING": object}


@host_op("ai.onnx.ml::ZipMap")
def _zip_map(node: HostNode, x: Array) -> list[dict[Any, float]]:
    labels = node.attr("classlabels_strings") or node.attr("classlabels_int64s") or []
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise ValueError(f"{len(labels)} labels for scores of shape {x.shape}")
    return [dict(zip(labels, row, strict=True)) for row in rows.tolist()]


@host_op("ai.onnx.ml::DictVectorizer")
def _dict_vectorizer(node: HostNode, x: Mapping[Any, Any]) -> Array:
    words = node.attr("string_vocabulary") or node.attr("int64_vocabulary") or []
    first = next(iter(x.values()), 0.0)
    kind: Any = next((k for of, k in _ITEMS if isinstance(first, of)), np.float32)
    nothing: Any = "" if kind is object else 0
    return np.array([[x.get(word, nothing) for word in words]], kind)


@host_op("ai.onnx.ml::CastMap")
def _cast_map(node: HostNode, x: Mapping[int, Any]) -> Array:
    name = node.attr("cast_to", "TO_FLOAT")
    if name not in _CASTS:
        raise ValueError(f"cast_to is {name!r}")
    dtype, nothing = _CASTS[name], "0.f" if name == "TO_STRING" else 0
    keys = sorted(x)
    if node.attr("map_form", "DENSE") == "DENSE":
        return np.array([[_cast(x[k], dtype) for k in keys]], dtype)
    width = int(node.attr("max_map", 1))
    if width > LONGEST or (keys and (keys[0] < 0 or width < 1)):
        raise ValueError(f"keys {keys[:1]} ... have no place in a map of {width}")
    return np.array([[_cast(x[k], dtype) if k in x else nothing for k in range(width)]], dtype)


def _cast(value: Any, dtype: Any) -> Any:
    if dtype is object:
        return value if isinstance(value, str) else f"{float(value):f}"
    return int(float(value)) if dtype is np.int64 else float(value)
