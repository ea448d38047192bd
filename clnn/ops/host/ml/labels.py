"""Operators that change labels to labels: dictionaries over tensors of numbers and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.records import dataclass
from clnn.types import Array

_KINDS: dict[str, Any] = {"int64s": np.int64, "floats": np.float32, "strings": object}
_SINGULAR = {"int64s": "int64", "floats": "float", "strings": "string"}
_DEFAULTS: dict[str, Any] = {"int64s": -1, "floats": -0.0, "strings": "_Unused"}
FEW = 32  # elements that are looked up one by one
_NAN = ("NaN",)  # stands for NaN as a key, which is not equal to itself


@host_op("ai.onnx.ml::LabelEncoder")
def _label_encoder(node: HostNode, x: Array) -> Array:
    table, other, dtype = node.once("table", lambda: _label_table(node, x.dtype))
    if x.dtype.kind == "i" and x.size > FEW:
        whole = node.once("numbers", lambda: _Numbers.of(table, other, dtype))
        if whole.keys is not None:
            return whole.encoded(x)
    return _encoded(x, table, other, dtype)


@dataclass(frozen=True)
class _Numbers:
    """Whole numbers as keys in rising order, None where other keys are among them, and values, the other last."""

    keys: Array | None
    values: Array

    @staticmethod
    def of(table: Mapping[Any, Any], other: Any, dtype: Any) -> _Numbers:
        """Return a table's."""
        keys = sorted(table) if _are_whole(table) else []
        values = np.array([*(table[key] for key in keys), other], dtype)
        return _Numbers(np.array(keys, np.int64) if keys else None, values)

    def encoded(self, x: Array) -> Array:
        """Return the values of keys."""
        assert self.keys is not None
        places = np.searchsorted(self.keys, x)
        known = self.keys.take(places, mode="clip") == x
        return np.asarray(self.values[np.where(known, places, len(self.keys))])


def _are_whole(table: Mapping[Any, Any]) -> bool:
    ends = np.iinfo(np.int64)
    return all(type(key) is int and ends.min <= key <= ends.max for key in table)


def _label_table(node: HostNode, given: np.dtype[Any]) -> tuple[Mapping[Any, Any], Any, Any]:
    """Return the values by key, what stands for all other keys, and the type of values."""
    if node.attr("classes_strings"):
        return _classes(node, given)
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if keys is None or values is None:
        raise ValueError("it has no keys or no values")
    if len(keys[0]) != len(values[0]):
        raise ValueError(f"{len(keys[0])} keys for {len(values[0])} values")
    table: dict[Any, Any] = {}
    for key, value in zip(keys[0], values[0], strict=True):
        table.setdefault(_key(key), value)
    return table, _default(node, values[1]), values[2]


def _classes(node: HostNode, given: np.dtype[Any]) -> tuple[Mapping[Any, Any], Any, Any]:
    """Return the table of the operator's first version: texts by their places, or the other way."""
    texts = node.attr("classes_strings")
    if given.kind in "OUS":
        return {t: k for k, t in enumerate(texts)}, node.attr("default_int64", -1), np.int64
    return dict(enumerate(texts)), node.attr("default_string", _DEFAULTS["strings"]), object


def _listed(node: HostNode, what: str) -> tuple[list[Any], str, Any] | None:
    tensor = node.attr(f"{what}_tensor")
    if tensor is not None:
        return tensor.reshape(-1).tolist(), "tensor", tensor.dtype
    for kind, dtype in _KINDS.items():
        found = node.attr(f"{what}_{kind}")
        if found is not None:
            return list(found), kind, dtype
    return None


def _default(node: HostNode, kind: str) -> Any:
    tensor = node.attr("default_tensor")
    if tensor is not None:
        return tensor.reshape(-1).tolist()[0]
    if kind != "tensor":
        return node.attr(f"default_{_SINGULAR[kind]}", _DEFAULTS[kind])
    dtype = node.attr("values_tensor").dtype
    names = {"O": "strings", "i": "int64s", "f": "floats"}
    return _DEFAULTS[names.get(dtype.kind, "floats")]


def _key(value: Any) -> Any:
    return _NAN if value != value else value


def _encoded(x: Array, table: Mapping[Any, Any], other: Any, dtype: Any) -> Array:
    found = [table.get(_key(v), other) for v in x.reshape(-1).tolist()]
    return np.array(found, dtype).reshape(x.shape)


@host_op("ai.onnx.ml::CategoryMapper")
def _category_mapper(node: HostNode, x: Array) -> Array:
    texts, numbers = node.attr("cats_strings") or [], node.attr("cats_int64s") or []
    if not texts or len(texts) != len(numbers):
        raise ValueError(f"{len(texts)} texts for {len(numbers)} numbers")
    if x.dtype.kind in "OUS":
        table = dict(zip(texts, numbers, strict=True))
        return _encoded(x, table, node.attr("default_int64", -1), np.int64)
    named = dict(zip(numbers, texts, strict=True))
    return _encoded(x, named, node.attr("default_string", _DEFAULTS["strings"]), object)


@host_op("ai.onnx.ml::OneHotEncoder")
def _one_hot_encoder(node: HostNode, x: Array) -> Array:
    categories = node.attr("cats_strings") or node.attr("cats_int64s")
    if not categories:
        raise ValueError("it has no categories")
    items = x.reshape(-1) if x.dtype.kind in "OUS" else x.reshape(-1).astype(np.int64)
    table = {c: k for k, c in enumerate(categories)}
    places = np.array([table.get(v, -1) for v in items.tolist()], np.int64)
    if not node.attr("zeros", 1) and (places < 0).any():
        wrong = items[int(np.argmax(places < 0))]
        raise ValueError(f"{wrong!r} is not one of its {len(categories)} categories")
    hot: Array = places[:, None] == np.arange(len(categories))
    return hot.astype(np.float32).reshape(*x.shape, len(categories))
