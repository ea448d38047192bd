"""Values of 16 bits between those of other tensors, as channels are that a shuffle puts there."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal
from onnx import TensorProto as Types
from onnx import helper as make
from onnx_models import model, tensor, value

import clnn
from clnn.options import Options

pytestmark = pytest.mark.dealt  # kernels that are slow to build


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("sides", "channels"), [(2, 24), (3, 20), (4, 37), (2, 8)])
def test_shuffled_channels(device, dtype, sides, channels):
    """Convolutions write every second, third or fourth channel: the shuffle behind them is a view."""
    size = (5, 6)
    weights = [
        normal((channels, channels, 1, 1), k) / np.float32(channels) ** 0.5 for k in range(sides)
    ]
    names = [f"part{k}" for k in range(sides)]
    nodes = [make.make_node("Conv", ["x", f"w{k}"], [names[k]]) for k in range(sides)]
    nodes += [
        make.make_node("Concat", names, ["all"], axis=1),
        make.make_node("Reshape", ["all", "apart"], ["sides"]),
        make.make_node("Transpose", ["sides"], ["turned"], perm=[0, 2, 1, 3, 4]),
        make.make_node("Reshape", ["turned", "whole"], ["y"]),
    ]
    constants = [tensor(f"w{k}", w) for k, w in enumerate(weights)]
    constants += [
        tensor("apart", np.array([1, sides, channels, *size])),
        tensor("whole", np.array([1, sides * channels, *size])),
    ]
    x = value("x", (1, channels, *size), Types.FLOAT)
    made = model(nodes, [x], ("y",), constants).SerializeToString()
    given = normal((1, channels, *size), 9)
    parts = [np.einsum("oi,nihw->nohw", w[:, :, 0, 0], given, dtype=np.float64) for w in weights]
    want = np.stack(parts, 2).reshape(1, sides * channels, *size)
    with clnn.compile_model(made, device, Options(dtype=dtype)) as session:
        (got,) = session({"x": given}).values()
    limit = {"f32": 1e-6, "f16": 2e-3, "bf16": 2e-2}[dtype]
    assert np.abs(got - want).max() <= limit * np.abs(want).max()
