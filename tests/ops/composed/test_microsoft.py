"""Operators of com.microsoft, and ones that ONNX removed, give onnxruntime's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnxruntime_nodes import check, normal

ACTIVATIONS = {
    "Relu": [],
    "Tanh": [],
    "Sigmoid": [],
    "HardSwish": [],
    "LeakyRelu": [0.1],
    "Clip": [-0.2, 0.3],
    "HardSigmoid": [0.2, 0.4],
}
OF_PRODUCTS = {
    "Softplus": {},
    "Softsign": {},
    "Elu": {"activation_alpha": 0.3},
    "ThresholdedRelu": {"activation_alpha": 0.3},
    "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.2},
}
PADS = np.array([0, 1, 1, 0, 1, 2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_convolution_and_activation(device, activation, added):
    params = ACTIVATIONS[activation]
    attrs = {"activation": activation} | ({"activation_params": params} if params else {})
    feeds, consts = {"x": normal(1, 2, 5, 5)}, {"w": normal(4, 2, 3, 3), "b": normal(4, seed=1)}
    feeds |= {"z": normal(1, 4, 5, 5, seed=2)} if added else {}
    order = ["x", "w", "b", *(["z"] if added else [])]
    check(device, "FusedConv", feeds, consts, order=order, pads=[1, 1, 1, 1], **attrs)


@pytest.mark.parametrize("activation", OF_PRODUCTS)
def test_product_and_activation(device, activation):
    feeds = {"a": normal(3, 4), "b": normal(5, 4, seed=1), "c": normal(5, seed=2)}
    check(
        device,
        "FusedGemm",
        feeds,
        activation=activation,
        transB=1,
        alpha=0.5,
        **OF_PRODUCTS[activation],
    )


@pytest.mark.parametrize(
    "op, feeds, consts, attrs",
    [
        ("Trilu", {"x": normal(2, 4, 5)}, {"k": np.array(-1)}, {"upper": 0}),
        ("ExpandDims", {"x": normal(2, 3)}, {"axis": np.array(-2, np.int32)}, {}),
        ("Pad", {"x": normal(2, 3, 4)}, {"pads": PADS}, {"mode": "reflect"}),
        ("Pad", {"x": normal(2, 3, 4)}, {"pads": PADS, "v": normal(1)}, {}),
        ("GatherND", {"x": normal(3, 4, 5), "i": np.array([[0, 3], [2, 1]])}, {}, {}),
        (
            "GridSample",
            {"x": normal(1, 2, 5, 6), "g": normal(1, 3, 4, 2)},
            {},
            {"mode": "bilinear"},
        ),
        ("Range", {"a": np.array(2.0), "b": np.array([7.0]), "c": np.array(0.5)}, {}, {}),
        ("Range", {"a": np.array(2), "b": np.array(7)}, {}, {}),
        ("Inverse", {"x": normal(2, 3, 3) + 3 * np.eye(3, dtype=np.float32)}, {}, {}),
        ("CDist", {"a": normal(5, 3), "b": normal(4, 3, seed=1)}, {}, {"metric": "euclidean"}),
        ("CDist", {"a": normal(5, 3), "b": normal(4, 3, seed=1)}, {}, {"metric": "sqeuclidean"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_like_those_of_onnx(device, op, feeds, consts, attrs):
    check(device, op, feeds, consts, **attrs)


def test_unique(device):
    feeds = {"x": rng(0).integers(0, 4, 9).astype(np.float32)}
    check(device, "Unique", feeds, outputs=("y", "places", "counts"))


def test_ngram_repeat_block(device):
    feeds = {"words": rng(0).integers(0, 3, (2, 9)), "scores": normal(2, 5)}
    for size in (1, 2, 3):
        check(device, "NGramRepeatBlock", feeds, ngram_size=size)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("Affine", {"alpha": 2.0, "beta": 0.5}),
        ("Scale", {"scale": 0.3}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.3}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.3}),
        ("ImageScaler", {"scale": 0.5, "bias": [0.1, 0.2, 0.3]}),
        ("Crop", {"border": [1, 2, 2, 1]}),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [3, 4]}),
    ],
)
def test_removed_from_onnx(device, op, attrs):
    check(device, op, {"x": normal(2, 3, 6, 7)}, domain="", opset=9, **attrs)
