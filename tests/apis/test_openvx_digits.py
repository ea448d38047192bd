"""The trained network of the demo, layer by layer through clnn.openvx: in float32 and in fixed point."""

from __future__ import annotations

import numpy as np
import pytest
from common import ROOT
from openvx_tools import AVG, EVEN, FLOOR, MAX, RELU, SAT, empty, read, tensor

import clnn
from clnn import openvx as vx

COUNT, WEIGHTS, VALUES = 48, 12, 8  # images; fraction bits of weights and of everything else


@pytest.fixture(scope="module")
def digits():
    """Every 17th of scikit-learn's digits (n, 1, 8, 8) in 0..1, and what they are."""
    pixels, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    chosen = slice(0, 17 * COUNT, 17)
    return (pixels[chosen] / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels[chosen]


@pytest.fixture(scope="module")
def parameters():
    """Weights and biases by layer, batch normalisation folded into them."""
    import onnx
    from onnx.numpy_helper import to_array

    model = onnx.load(ROOT / "tools" / "examples" / "models" / "digits.onnx")
    raw = {t.name: to_array(t).astype(np.float64) for t in model.graph.initializer}
    found = {"classifier": (raw["classifier_weight"], raw["classifier_bias"])}
    for name in ("stem", "depthwise", "pointwise", "wide"):
        scale, shift, mean, variance = (
            raw[f"{name}_bn_{what}"] for what in ("scale", "shift", "mean", "variance")
        )
        rate = scale / np.sqrt(variance + 1e-5)
        found[name] = (raw[f"{name}_weight"] * rate.reshape(-1, 1, 1, 1), shift - mean * rate)
    weights, bias = found["depthwise"]
    dense = np.zeros((32, 32, 3, 3))
    dense[np.arange(32), np.arange(32)] = weights[:, 0]
    found["depthwise"] = (dense, bias)
    return found


class Network:
    """The digit classifier as an OpenVX graph; real: float32, else int16."""

    def __init__(self, context, parameters, real):
        self.context, self.parameters, self.real = context, parameters, real
        self.graph = vx.vxCreateGraph(context)
        self.image = self.tensor(8, 8, 1, COUNT)
        self.result = self.tensor(10, COUNT)
        self.build()

    def tensor(self, *dims):
        return empty(self.context, *dims, kind="f4" if self.real else "i2")

    def virtual(self, *dims):
        kind = vx.VX_TYPE_FLOAT32 if self.real else vx.VX_TYPE_INT16
        return vx.vxCreateVirtualTensor(
            self.graph, len(dims), dims, kind, 0 if self.real else VALUES
        )

    def held(self, array, position):
        """Return a tensor of real numbers, rounded to the format."""
        if self.real:
            return tensor(self.context, array.astype(np.float32))
        raw = np.clip(np.rint(array * 2.0**position), -32768, 32767).astype(np.int16)
        return tensor(self.context, raw, position)

    def layer(self, name, x, maps, side, pad):
        weights, bias = self.parameters[name]
        y = self.virtual(side, side, maps, COUNT)
        vx.vxConvolutionLayer(
            self.graph,
            x,
            self.held(weights, WEIGHTS),
            self.held(bias, VALUES),
            pad,
            pad,
            32,
            SAT,
            EVEN,
            FLOOR,
            y,
        )
        return y

    def active(self, x, maps, side):
        y = self.virtual(side, side, maps, COUNT)
        vx.vxActivationLayer(self.graph, x, RELU, 0, 0, y)
        return y

    def build(self):
        g = self.graph
        stem = self.active(self.layer("stem", self.image, 32, 8, 1), 32, 8)
        inner = self.active(self.layer("depthwise", stem, 32, 8, 1), 32, 8)
        joined, pooled = self.virtual(8, 8, 32, COUNT), self.virtual(4, 4, 32, COUNT)
        vx.vxTensorAddNode(g, stem, self.layer("pointwise", inner, 32, 8, 0), SAT, joined)
        vx.vxPoolingLayer(g, self.active(joined, 32, 8), MAX, 2, 2, 0, 0, FLOOR, pooled)
        wide = self.active(self.layer("wide", pooled, 64, 4, 1), 64, 4)
        mean, scores = self.virtual(1, 1, 64, COUNT), self.virtual(10, COUNT)
        vx.vxPoolingLayer(g, wide, AVG, 4, 4, 0, 0, FLOOR, mean)
        weights, bias = self.parameters["classifier"]
        vx.vxFullyConnectedLayer(
            g,
            mean,
            self.held(weights, WEIGHTS),
            self.held(bias, VALUES),
            0,
            32,
            SAT,
            EVEN,
            FLOOR,
            scores,
        )
        vx.vxSoftmaxLayer(g, scores, self.result)

    def __call__(self, images):
        """Return probabilities (n, 10)."""
        raw = images if self.real else np.rint(images * 2**VALUES).astype(np.int16)
        vx.vxCopyTensorPatch(self.image, None, None, np.ascontiguousarray(raw), vx.VX_WRITE_ONLY)
        vx.vxProcessGraph(self.graph)
        return read(self.result) / (1 if self.real else 2.0**VALUES)


def test_float32_agrees_with_the_onnx_file(device, digits, parameters):
    images, labels = digits
    with clnn.compile_model(
        ROOT / "tools" / "examples" / "models" / "digits.onnx",
        device,
        shapes={"image": images.shape},
    ) as session:
        (want,) = session({"image": images}).values()
    with vx.vxCreateContext(device) as context:
        got = Network(context, parameters, True)(images)
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert (got.argmax(1) == labels).mean() > 0.95


def test_fixed_point_recognises_the_digits(device, digits, parameters):
    images, labels = digits
    with vx.vxCreateContext(device) as context:
        got = Network(context, parameters, False)(images)
    assert (got.argmax(1) == labels).mean() > 0.95
    assert np.abs(got.sum(1) - 1).max() < 0.05
