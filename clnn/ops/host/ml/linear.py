"""Linear regression and classification."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.ml.features import as_rows
from clnn.ops.host.ml.scores import COMPLEMENT, labels_of, picked, transformed, two_columns
from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array


def _sums(node: HostNode, x: Array, rows: int) -> Array:
    """Return x (n, features) times the coefficients (rows, features), and the intercepts."""
    x = as_rows(x)
    coefficients = np.array(node.attr("coefficients") or [], np.float32)
    if coefficients.size != rows * x.shape[1]:
        raise ValueError(
            f"{coefficients.size} coefficients for {rows} rows of {x.shape[1]} features"
        )
    sums = x @ coefficients.reshape(rows, -1).T
    intercepts = node.attr("intercepts")
    return np.asarray(sums + np.array(intercepts, np.float32) if intercepts else sums)


@host_op("ai.onnx.ml::LinearRegressor")
def _linear_regressor(node: HostNode, x: Array) -> Array:
    sums = _sums(node, x, int(node.attr("targets", 1)))
    return transformed(sums, node.attr("post_transform", "NONE"))


@host_op("ai.onnx.ml::LinearClassifier")
def _linear_classifier(node: HostNode, x: Array) -> tuple[Array, Array]:
    labels, name = labels_of(node, "classlabels_ints"), node.attr("post_transform", "NONE")
    rows = len(node.attr("intercepts") or ()) or len(labels)
    if len(labels) < rows or (rows == 1 and len(labels) != 2):
        raise ValueError(f"{len(labels)} labels for {rows} rows of coefficients")
    sums = _sums(node, x, rows)
    if rows > 1:
        return picked(labels, np.argmax(sums, 1)), transformed(sums, name)
    places = (sums[:, 0] > 0).astype(np.int64)
    return picked(labels, places), two_columns(sums, COMPLEMENT, name)
