"""Support vector machines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from clnn.ops.host.ml.features import as_rows
from clnn.ops.host.ml.scores import (
    COMPLEMENT,
    MIRRORED,
    labels_of,
    logistic,
    picked,
    transformed,
    two_columns,
)
from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

_LEAST = 1e-7  # of a probability
_ROUNDS = 100


def _kernel(node: HostNode, x: Array, vectors: Array) -> Array:
    """Return the kernel of rows of x (n, features) and vectors (m, features), as (n, m)."""
    gamma, offset, degree = node.attr("kernel_params") or (0.0, 0.0, 0.0)
    name = node.attr("kernel_type", "LINEAR")
    if name == "RBF":
        distances = np.square(x[:, None] - vectors[None]).sum(-1)
        return np.asarray(np.exp(-np.float32(gamma) * distances))
    products = x @ vectors.T
    if name == "LINEAR":
        return np.asarray(products)
    scaled = np.float32(gamma) * products + np.float32(offset)
    if name == "POLY":
        return np.asarray(np.power(scaled, np.float32(degree)))
    if name == "SIGMOID":
        return np.asarray(np.tanh(scaled))
    raise ValueError(f"there is no kernel {name!r}")


def _table(values: list[float], width: int, what: str) -> Array:
    if not width or len(values) % width:
        raise ValueError(f"{len(values)} {what} do not make rows of {width}")
    return np.array(values, np.float32).reshape(-1, width)


@host_op("ai.onnx.ml::SVMRegressor")
def _svm_regressor(node: HostNode, x: Array) -> Array:
    x = as_rows(x)
    coefficients = node.attr("coefficients") or []
    rho = np.float32((node.attr("rho") or [0.0])[0])
    if node.attr("n_supports", 0):
        vectors = _table(node.attr("support_vectors") or [], x.shape[1], "support vectors")
        sums = _kernel(node, x, vectors) @ np.array(coefficients, np.float32)[:, None] + rho
    else:
        sums = x @ _table(coefficients, x.shape[1], "coefficients").T + rho
    if node.attr("one_class", 0):
        return np.where(sums > 0, 1, -1).astype(np.float32)
    return transformed(sums.astype(np.float32), node.attr("post_transform", "NONE"))


@host_op("ai.onnx.ml::SVMClassifier")
def _svm_classifier(node: HostNode, x: Array) -> tuple[Array, Array]:
    x, labels = as_rows(x), labels_of(node, "classlabels_ints")
    name = node.attr("post_transform", "NONE")
    counts = [int(c) for c in node.attr("vectors_per_class") or []]
    if not counts:
        return _linear(node, x, labels, name)
    scores, votes = _pairs(node, x, counts)
    found, slopes = picked(labels, np.argmax(votes, 1)), node.attr("prob_a")
    if slopes:
        pairs = _pair_probabilities(node, scores, slopes)
        scores = np.array([_coupled(row, len(counts)) for row in pairs], np.float32)
        return found, transformed(scores, name)
    if scores.shape[1] > 1:
        return found, transformed(scores, name)
    return found, two_columns(scores, MIRRORED if name == "NONE" else COMPLEMENT, name)


def _linear(node: HostNode, x: Array, labels: Sequence[Any], name: str) -> tuple[Array, Array]:
    """Return labels and scores of rows of coefficients without support vectors, as onnxruntime does."""
    table = _table(node.attr("coefficients") or [], x.shape[1], "coefficients")
    if len(table) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(table)} rows of coefficients")
    sums = x @ table.T + np.float32((node.attr("rho") or [0.0])[0])
    places = np.argmax(sums, 1)
    if len(labels) == 2:
        enough = sums.max(1) >= 0.5 if (table >= 0).all() else sums.max(1) > 0
        places = np.where(enough, 1, places)
    return picked(labels, places), transformed(sums, name)


def _pairs(node: HostNode, x: Array, counts: list[int]) -> tuple[Array, Array]:
    """Return the decision of each pair of classes, and how many pairs each class won."""
    vectors = _table(node.attr("support_vectors") or [], x.shape[1], "support vectors")
    coefficients = _table(node.attr("coefficients") or [], len(vectors), "coefficients")
    if sum(counts) != len(vectors) or len(coefficients) != len(counts) - 1:
        raise ValueError(f"{len(vectors)} vectors, {coefficients.shape} coefficients for {counts}")
    kernels = _kernel(node, x, vectors)
    starts = np.concatenate([[0], np.cumsum(counts)])
    rho = node.attr("rho") or []
    columns, votes = [], np.zeros((len(x), len(counts)), np.int64)
    for number, (i, j) in enumerate(combinations(range(len(counts)), 2)):
        of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        total = kernels[:, of_i] @ coefficients[j - 1, of_i]
        total = total + kernels[:, of_j] @ coefficients[i, of_j] + np.float32(rho[number])
        votes[np.arange(len(x)), np.where(total > 0, i, j)] += 1
        columns.append(total)
    return np.stack(columns, 1).astype(np.float32), votes


def _pair_probabilities(node: HostNode, scores: Array, slopes: list[float]) -> Array:
    """Return, for each pair, how likely the first of both is, by Platt's scaling."""
    a, b = np.array(slopes, np.float32), np.array(node.attr("prob_b") or [], np.float32)
    return np.clip(logistic(-(scores * a + b)), _LEAST, 1 - _LEAST)


def _coupled(pairs: Array, count: int) -> Array:
    """Return the probabilities of classes that fit those of pairs.

    Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling"
    (2004), second method.
    """
    against = np.zeros((count, count))
    for (i, j), value in zip(combinations(range(count), 2), pairs, strict=True):
        against[i, j], against[j, i] = value, 1 - value
    q = -(against * against.T)
    np.fill_diagonal(q, np.square(against).sum(0))
    found = np.full(count, 1 / count)
    for _ in range(max(_ROUNDS, count)):
        product = q @ found
        total = found @ product
        if np.abs(product - total).max() < 0.005 / count:
            break
        for t in range(count):
            step = (total - product[t]) / q[t, t]
            found[t] += step
            total = (total + step * (step * q[t, t] + 2 * product[t])) / (1 + step) ** 2
            product = (product + step * q[t]) / (1 + step)
            found /= 1 + step
    return found
