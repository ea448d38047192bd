"""Convolutions of volumes against sums written out in numpy, and against onnxruntime."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn.errors import ShapeError

ALL = (slice(None),) * 2  # of batch and channels
# shape, kernel, strides, dilations, pads, group, outputs
CONV = [
    ((1, 3, 5, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1), 1, 8),
    ((2, 4, 6, 5, 5), (3, 1, 1), (2, 1, 1), (2, 1, 1), (2, 0, 0, 1, 0, 0), 2, 6),
    ((1, 6, 4, 6, 5), (2, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1, 1, 1, 1), 6, 6),
    ((1, 4, 1, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1), 1, 8),
    ((1, 4, 2, 6, 7), (3, 1, 1), (2, 1, 1), (1, 1, 1), (1, 0, 0, 1, 0, 0), 1, 8),
    ((2, 4, 2, 5, 5), (5, 1, 1), (1, 1, 1), (1, 1, 1), (3, 0, 0, 4, 0, 0), 2, 6),
    ((1, 4, 1, 5, 5), (3, 1, 1), (3, 1, 1), (3, 1, 1), (1, 0, 0, 6, 0, 0), 1, 6),
    ((2, 3, 3, 8, 8), (1, 3, 3), (1, 1, 1), (1, 2, 2), (0, 2, 2, 0, 2, 2), 1, 5),
    ((1, 2, 3, 4, 4, 5), (2, 2, 3, 2), (1, 1, 1, 1), (1, 1, 1, 1), (1, 0, 1, 0, 0, 1, 1, 1), 1, 3),
]
# shape, kernel, strides, dilations, pads, output_padding, group, outputs of a group
TRANSPOSED = [
    ((1, 3, 3, 4, 5), (2, 2, 2), (2, 2, 2), (1, 1, 1), (0,) * 6, (0, 0, 0), 1, 4),
    ((2, 4, 4, 3, 3), (3, 3, 3), (2, 1, 2), (1, 1, 1), (1, 1, 0, 1, 0, 1), (1, 0, 1), 2, 3),
    ((1, 2, 3, 4, 4), (3, 2, 2), (1, 1, 1), (2, 1, 1), (3, 0, 0, 0, 0, 0), (0, 0, 0), 1, 2),
]


def model(op, shape, weights, bias, **attributes):
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"], ["y"], **attributes)],
        "volume",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def convolved(x, w, b, strides, dilations, pads, group):
    """Sum over the taps of the window, in double precision."""
    axes = x.ndim - 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:axes], pads[axes:], strict=True)])
    reach = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    counts = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    parts = np.split(x, group, 1), np.split(w.astype(np.float64), group, 0)
    total = 0
    for place in product(*map(range, w.shape[2:])):
        read = tuple(
            slice(k * d, k * d + (c - 1) * s + 1, s)
            for k, d, c, s in zip(place, dilations, counts, strides, strict=True)
        )
        rows = [
            np.einsum("nc...,oc->no...", one[ALL + read], kernel[ALL + place])
            for one, kernel in zip(*parts, strict=True)
        ]
        total = total + np.concatenate(rows, 1)
    return total + b.reshape(-1, *[1] * axes)


@pytest.mark.parametrize("case", CONV, ids=str)
def test_convolution(case, device):
    shape, kernel, strides, dilations, pads, group, outputs = case
    rng = np.random.default_rng(sum(shape))
    w = rng.standard_normal((outputs, shape[1] // group, *kernel)).astype(np.float32)
    x, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, outputs))
    attributes = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    with clnn.compile_model(model("Conv", shape, w, b, **attributes), device) as session:
        got = session({"x": x})["y"]
    want = convolved(x, w, b, strides, dilations, pads, group)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_convolution(case, device):
    """It is the gradient of a convolution: <conv(y), x> == <y, transposed(x)> for any y."""
    shape, kernel, strides, dilations, pads, extra, group, outputs = case
    rng = np.random.default_rng(sum(shape))
    w = rng.standard_normal((shape[1], outputs, *kernel)).astype(np.float32)
    x, b = rng.standard_normal(shape).astype(np.float32), np.zeros(outputs * group, np.float32)
    attributes = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "output_padding": extra,
        "group": group,
    }
    data = model("ConvTranspose", shape, w, b, **attributes)
    with clnn.compile_model(data, device) as session:
        got = session({"x": x})["y"]
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert got.shape == peer.run(None, {"x": x})[0].shape
    y = rng.standard_normal(got.shape)
    none = np.zeros(shape[1])
    back = np.concatenate(
        [
            convolved(part, kernels, none[: len(kernels)], strides, dilations, pads, 1)
            for part, kernels in zip(np.split(y, group, 1), np.split(w, group, 0), strict=True)
        ],
        1,
    )[ALL + tuple(slice(0, n) for n in shape[2:])]
    want, size = float((back * x).sum()), np.abs(got).max() * np.abs(y).sum()
    assert abs(float((got.astype(np.float64) * y).sum()) - want) <= 1e-5 * size


def test_open_extents(device):
    shape, kernel = ("n", 3, "depth", "height", "width"), (3, 3, 3)
    rng = np.random.default_rng(4)
    w, b = rng.standard_normal((4, 3, *kernel)).astype(np.float32), np.ones(4, np.float32)
    with clnn.compile_model(model("Conv", shape, w, b, pads=[1] * 6), device) as session:
        for extents in ((1, 4, 5, 6), (2, 3, 6, 5), (1, 7, 4, 4)):
            x = rng.standard_normal((extents[0], 3, *extents[1:])).astype(np.float32)
            want = convolved(x, w, b, (1, 1, 1), (1, 1, 1), (1,) * 6, 1)
            assert np.abs(session({"x": x})["y"] - want).max() <= 1e-5 * np.abs(want).max()


def test_weights_that_do_not_fit_are_named(device):
    w, b = np.ones((4, 2, 3, 3, 3), np.float32), np.ones(4, np.float32)
    with pytest.raises(ShapeError, match="take 2 channels, not 3"):
        clnn.compile_model(model("Conv", (1, 3, 5, 5, 5), w, b), device)
