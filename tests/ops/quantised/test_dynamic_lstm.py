"""DynamicQuantizeLSTM: an LSTM whose weights are bytes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnx_models import FLOAT, model, tensor, value

import clnn
from clnn.errors import ShapeError

STEPS, BATCH, WIDTH, HIDDEN = 9, 3, 20, 24
NAMES = ["X", "W", "R", "B", "", "", "", "", "W_scale", "W_zero", "R_scale", "R_zero"]


def lstm(direction="forward", unsigned=False, by_gate=False, bad_scale=False):
    """Return (the model, the same as a plain LSTM of the dequantised weights)."""
    rng = np.random.default_rng(4)
    turns, gates = 2 if direction == "bidirectional" else 1, 4 * HIDDEN
    kind, low = (np.uint8, 0) if unsigned else (np.int8, -128)
    shape = (turns, gates) if by_gate else (turns,)
    held, plain = [], []
    for name, terms in (("W", WIDTH), ("R", HIDDEN)):
        bytes_ = rng.integers(low + 28, low + 228, (turns, terms, gates)).astype(kind)
        scale = (0.004 * rng.uniform(0.5, 1.5, shape)).astype(np.float32)
        zero = rng.integers(100, 150, shape).astype(kind) if unsigned else np.zeros(shape, kind)
        real = (bytes_.astype(np.float32) - zero.reshape(turns, 1, -1)) * scale.reshape(
            turns, 1, -1
        )
        plain.append(tensor(name, np.ascontiguousarray(real.transpose(0, 2, 1))))
        if bad_scale:
            scale = np.ones((turns + 2,), np.float32)
        held += [tensor(name, bytes_), tensor(f"{name}_scale", scale), tensor(f"{name}_zero", zero)]
    bias = tensor("B", (0.3 * rng.standard_normal((turns, 2 * gates))).astype(np.float32))
    x = value("X", (STEPS, BATCH, WIDTH), FLOAT)
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    outs = ["Y", "Y_h", "Y_c"]
    made = []
    for op, inputs, constants, domain in (
        ("DynamicQuantizeLSTM", NAMES, held, "com.microsoft"),
        ("LSTM", NAMES[:4], plain, ""),
    ):
        node = helper.make_node(op, inputs, outs, name="layer", domain=domain, **attributes)
        one = model([node], [x], outs, [*constants, bias], opset=17)
        if domain:
            one.opset_import.append(helper.make_opsetid(domain, 1))
        made.append(one.SerializeToString())
    return made


def feed():
    return {"X": np.random.default_rng(0).standard_normal((STEPS, BATCH, WIDTH)).astype(np.float32)}


def run_onnxruntime(made: bytes) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(None, feed()), strict=True))


@pytest.mark.parametrize("by_gate", [False, True])
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_it_is_the_lstm_of_the_dequantised_weights(device, direction, unsigned, by_gate):
    """And near onnxruntime's, which rounds inputs and states to bytes."""
    held, plain = lstm(direction, unsigned, by_gate)
    want = run_onnxruntime(plain)
    near = want if unsigned and by_gate else run_onnxruntime(held)  # which it does not take
    with clnn.compile_model(held, device) as session:
        got = session(feed())
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)
        np.testing.assert_allclose(got[name], near[name], atol=0.05)


def test_scales_of_other_shapes_are_refused(device):
    with pytest.raises(ShapeError, match="scale of W"):
        clnn.compile_model(lstm(bad_scale=True)[0], device)
