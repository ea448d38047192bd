"""What fitted models of ai.onnx.ml do with features, and linear ones: arithmetic in float32.

What is left out here, as labels of text and features in doubles, is computed on the host (clnn.ops.host.ml).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clnn.ops.composed.values import Value, concat
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.onnx_registry import OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.rows.arg import ArgExtreme
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.types import F32, F64, I64, Array

_TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX")


def in_plans(op_type: str, attrs: Mapping[str, Any]) -> bool:
    """Whether kernels compute a node of domain ai.onnx.ml, but for trees, of float32 or whole numbers."""
    what = _FORMS.get(op_type)
    return what is not None and what(attrs)


def _is_transformed(attrs: Mapping[str, Any]) -> bool:
    return attrs.get("post_transform", "NONE") in _TRANSFORMS


def _is_classifier(attrs: Mapping[str, Any]) -> bool:
    labels, rows = attrs.get("classlabels_ints") or (), attrs.get("intercepts") or ()
    fits = len(labels) == max(len(rows), 2) and not attrs.get("classlabels_strings")
    return fits and _is_transformed(attrs)


_FORMS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "Scaler": lambda attrs: True,
    "Normalizer": lambda attrs: attrs.get("norm", "MAX") in ("MAX", "L1", "L2"),
    "LinearRegressor": _is_transformed,
    "LinearClassifier": _is_classifier,
}


LINEAR = tuple(_FORMS)  # operators


def _features(node: OnnxNode) -> Value:
    """Return a node's features in float32. Raises Unsupported for doubles and forms that are left out."""
    if not in_plans(node.op_type, node.attrs):
        raise Unsupported("a form without a kernel")
    x = Value.of(node, 0)
    if x.type.dtype == F64:
        raise Unsupported("features in doubles are computed on the host")
    return x.cast(F32)


def _rows(node: OnnxNode) -> Value:
    """Return features as (n, features): one axis is one row. Raises Unsupported."""
    x = _features(node)
    if x.type.rank == 1:
        x = x.reshape((1, x.shape[0]))
    if x.type.rank != 2:
        raise Unsupported(f"features {x.shape}")
    return x


def _number(value: float) -> Value:
    return Value.const(np.array(value, np.float32))


@onnx_op("ai.onnx.ml::Scaler")
def _scaler(node: OnnxNode) -> Source:
    x = _features(node)
    if not x.type.rank:
        raise Unsupported("a scalar has no features")
    offset, scale = node.attr("offset") or [0.0], node.attr("scale") or [1.0]
    for values in (offset, scale):
        if len(values) not in (1, x.shape[-1]):
            raise Unsupported(f"{len(values)} values for {x.shape[-1]} features")
    moved = x.binary("sub", Value.const(np.array(offset, np.float32)))
    return moved.binary("mul", Value.const(np.array(scale, np.float32))).source


@onnx_op("ai.onnx.ml::Normalizer")
def _normalizer(node: OnnxNode) -> Source:
    x = _rows(node)
    norm = node.attr("norm", "MAX")
    kind = {"MAX": "max", "L1": "l1", "L2": "l2"}[norm]
    size = x.apply(Reduce(kind, (1,), True))
    none = size.apply(Logic("equal"), Value.const(np.zeros((1, 1), np.float32)))
    made = x.binary("div", size.binary("add", none.apply(Cast(F32))))  # rows of zeros stay
    return made.reshape(node.type(0).shape).source


def _sums(node: OnnxNode, rows: int) -> Value:
    """Return features times the coefficients (rows, features), and the intercepts. Raises Unsupported."""
    x = _rows(node)
    coefficients = np.array(node.attr("coefficients") or [], np.float32)
    intercepts = node.attr("intercepts") or ()
    if coefficients.size != rows * x.shape[1] or len(intercepts) not in (0, 1, rows):
        raise Unsupported(f"{coefficients.size} coefficients for {x.shape[1]} features")
    columns = np.ascontiguousarray(coefficients.reshape(rows, -1).T)
    added = Value.const(np.array(intercepts, np.float32)) if intercepts else None
    return x.apply(Gemm(), Value.const(columns), added)


def transformed(scores: Value, name: str) -> Value:
    """Return scores (n, columns) behind a post transform."""
    if scores.shape[1] < 2 or name == "NONE":
        return scores  # of one column, only columns made of it are transformed
    return scores.unary("sigmoid") if name == "LOGISTIC" else scores.apply(Softmax((1,)))


def picked(labels: Array, places: Value) -> Value:
    """Return labels at places."""
    if np.array_equal(labels, np.arange(len(labels))):
        return places
    return Value.const(labels).apply(Gather(0), places)


@onnx_op("ai.onnx.ml::LinearRegressor")
def _linear_regressor(node: OnnxNode) -> Source:
    sums = _sums(node, int(node.attr("targets", 1)))
    return transformed(sums, node.attr("post_transform", "NONE")).source


@onnx_op("ai.onnx.ml::LinearClassifier")
def _linear_classifier(node: OnnxNode) -> Sequence[Source]:
    labels = np.array(node.attr("classlabels_ints") or [], np.int64)
    name, rows = node.attr("post_transform", "NONE"), len(node.attr("intercepts") or ())
    rows = rows or len(labels)
    sums = _sums(node, rows)
    if rows > 1:
        places, scores = sums.apply(ArgExtreme(True, 1, False)), transformed(sums, name)
    else:
        above = sums.apply(Logic("greater"), Value.const(np.zeros((1, 1), np.float32)))
        places = above.apply(Cast(I64)).reshape((sums.shape[0],))
        scores = _two_columns(sums, name)
    return [picked(labels, places).source, scores.source][: node.n_outputs]


def _two_columns(sums: Value, name: str) -> Value:
    """Return one column as two, for the labels that it tells apart."""
    if name == "LOGISTIC":
        return concat([sums.unary("neg"), sums], 1).unary("sigmoid")
    return concat([_number(1).binary("sub", sums), sums], 1)
