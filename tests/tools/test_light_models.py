"""Whole classification networks with random weights against onnxruntime."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from common import ROOT

import clnn

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))
from make_light_models import light_folder, randomised

ort = pytest.importorskip("onnxruntime")

SHORT = ("shufflenet", "squeezenet")
LONG = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "vgg19",
    "zfnet512",
)


def before_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the softmax's input as its output: it shows more than probabilities."""
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        del model.graph.node[-1]
    return model


def check(name: str, device: str) -> clnn.Session:
    model = before_softmax(randomised(light_folder() / f"light_{name}.onnx"))
    source = model.graph.input[0]
    shape = [d.dim_value for d in source.type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    reference = ort.InferenceSession(model.SerializeToString(), options)
    want = reference.run(None, {source.name: x})[0]
    session = clnn.compile_model(model, device)
    got = session.run(None, {source.name: x})[0]
    error = np.abs(got - want).max() / np.abs(want).max()
    assert want.std() > 1e-3 * np.abs(want).max(), "the outputs are uniform: the test shows nothing"
    assert error < 1e-4, f"{name}: error {error:.2e} relative to the largest output"
    return session


@pytest.mark.parametrize("name", SHORT)
def test_small_networks(device, name):
    placement = check(name, device).placement
    assert placement.arena_bytes <= 1.1 * placement.arena_lower_bound
    if name == "squeezenet":
        assert placement.copied_bytes == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG)
def test_large_networks(device, name):
    placement = check(name, device).placement
    assert placement.arena_bytes <= 1.1 * placement.arena_lower_bound
    if name == "densenet121":
        assert placement.copied_bytes == 0
