"""DynamicQuantizeLSTM: an LSTM whose weights are bytes, and inputs and states by each call's ranges."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import FLOAT, INT32, model, tensor, value
from reference_engines import exact_session

import clnn
from clnn.errors import ShapeError, UnsupportedOpError

STEPS, BATCH, WIDTH, HIDDEN = 9, 3, 20, 24
NAMES = ["X", "W", "R", "B", "L", "h", "c", "P", "W_scale", "W_zero", "R_scale", "R_zero"]
USUAL = {"B"}


def parameters(rng, turns, unsigned, by_gate):
    """Weights of both products, their scales and zero points by name."""
    gates, found = 4 * HIDDEN, {}
    kind, low = (np.uint8, 0) if unsigned else (np.int8, -128)
    shape = (turns, gates) if by_gate else (turns,)
    for name, terms in (("W", WIDTH), ("R", HIDDEN)):
        zero = rng.integers(100, 150, shape) if unsigned else np.zeros(shape)
        found |= {
            name: rng.integers(low + 28, low + 228, (turns, terms, gates)).astype(kind),
            f"{name}_scale": (0.004 * rng.uniform(0.5, 1.5, shape)).astype(np.float32),
            f"{name}_zero": zero.astype(kind),
        }
    return found


def lstm(direction="forward", unsigned=False, by_gate=False, seed=4, given=USUAL, fed=(), **others):
    """A model of one layer, and its feeds. given: optional inputs it has; fed: those not constant."""
    rng = np.random.default_rng(seed)
    turns, gates = 2 if direction == "bidirectional" else 1, 4 * HIDDEN
    found = parameters(rng, turns, unsigned, by_gate)

    def normal(*shape, scale=0.3):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    state = (turns, BATCH, HIDDEN)
    optional = {"B": normal(turns, 2 * gates), "P": normal(turns, 3 * HIDDEN)}
    optional |= {"h": normal(*state), "c": normal(*state), "L": np.array([6, 2, 5], np.int32)}
    found |= {name: optional[name] for name in optional if name in given} | others
    feeds = {"X": normal(STEPS, BATCH, WIDTH, scale=1.0), **{n: found.pop(n) for n in fed}}
    names = [n if n in found or n in feeds else "" for n in NAMES]
    outs = ["Y", "Y_h", "Y_c"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        names,
        outs,
        name="layer",
        domain="com.microsoft",
        hidden_size=HIDDEN,
        direction=direction,
    )
    inputs = [value(n, a.shape, INT32 if n == "L" else FLOAT) for n, a in feeds.items()]
    made = model([node], inputs, outs, [tensor(n, a) for n, a in found.items()], opset=17)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made.SerializeToString(), feeds


def run_onnxruntime(made, feeds):
    """With as many threads as sequences: each sequence's states have a scale of their own."""
    session = exact_session(made, BATCH)
    return session.run(None, feeds)


def check(device, made, feeds):
    """A difference of one step in one state shows: it is 1e-4 and more, from its step on.

    A state in the middle between two steps may go to either side by its last digit: of one sequence.
    """
    want = run_onnxruntime(made, feeds)
    with clnn.compile_model(made, device) as session:
        got = session.run(None, feeds)
    for one, other in zip(got, want, strict=True):
        off = np.abs(one - other)
        others = tuple(axis for axis in range(off.ndim) if axis != off.ndim - 2)
        assert np.sum(off.max(axis=others) > 1e-5) <= 1 and off.max() < 5e-3


@pytest.mark.parametrize(("unsigned", "by_gate"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_it_is_what_onnxruntime_computes(device, direction, unsigned, by_gate):
    check(device, *lstm(direction, unsigned, by_gate))


@pytest.mark.parametrize("seed", range(3))
def test_first_states_and_peepholes(device, seed):
    check(device, *lstm("bidirectional", given={"B", "h", "c", "P"}, seed=seed, fed=("h", "c")))


@pytest.mark.parametrize("fed", [(), ("L",)])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lengths(device, direction, fed):
    """What lies behind the longest sequence has no part in the range of the inputs."""
    made, feeds = lstm(direction, given={"L"}, fed=fed)
    feeds["X"][6:] = 40
    check(device, made, feeds)


def test_zero_points_of_gates_that_onnxruntime_refuses(device):
    """It is the layer of the same integers counted from one zero point."""
    made, feeds = lstm(unsigned=True)
    rng = np.random.default_rng(4)
    held = parameters(rng, 1, True, False)
    moved = {f"{n}_zero": np.broadcast_to(held[f"{n}_zero"], (1, 4 * HIDDEN)) for n in "WR"}
    scales = {f"{n}_scale": np.broadcast_to(held[f"{n}_scale"], (1, 4 * HIDDEN)) for n in "WR"}
    same, _ = lstm(unsigned=True, **moved, **scales)
    with clnn.compile_model(made, device) as one, clnn.compile_model(same, device) as other:
        for a, b in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_what_does_not_fit_is_refused(device):
    def refused(kind, message, **others):
        with pytest.raises(kind, match=message):
            clnn.compile_model(lstm(**others)[0], device)

    refused(ShapeError, "scale of W", W_scale=np.ones(3, np.float32))
    refused(ShapeError, "zero point of R", R_zero=np.zeros(5, np.int8))
    refused(ShapeError, "does not fit W", W=np.zeros((1, WIDTH + 1, 4 * HIDDEN), np.int8))
    refused(UnsupportedOpError, "W is float32", W=np.zeros((1, WIDTH, 4 * HIDDEN), np.float32))
