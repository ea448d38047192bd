"""RNN, GRU and LSTM run as Scan: equal to onnxruntime's kernels."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import INT64, model, tensor, value

import clnn
from clnn.errors import UnsupportedOpError
from clnn.runtime.stages.session import StagedSession

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FULL = ("X", "W", "R", "B", "lengths", "h0", "c0", "P")


def layer(op, turns=1, given=FULL, steps=STEPS, **attrs):
    """A model of one recurrent node, whose weights are constants; its feeds."""
    rng, gates = np.random.default_rng(5), GATES[op]

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32) / 2

    arrays = {
        "X": normal(STEPS, BATCH, WIDTH),
        "W": normal(turns, gates * HIDDEN, WIDTH),
        "R": normal(turns, gates * HIDDEN, HIDDEN),
        "B": normal(turns, 2 * gates * HIDDEN),
        "lengths": np.array([5, 2, 3], np.int32),
        "h0": normal(turns, BATCH, HIDDEN),
        "c0": normal(turns, BATCH, HIDDEN),
        "P": normal(turns, 3 * HIDDEN),
    }
    names = FULL if op == "LSTM" else FULL[:6]
    inputs = [n if n in given else "" for n in names]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, inputs, outputs, name="layer", hidden_size=HIDDEN, **attrs)
    fed = {n: arrays[n] for n in ("X", "lengths", "h0", "c0") if n in inputs}
    kinds = {n: TensorProto.INT32 if n == "lengths" else TensorProto.FLOAT for n in fed}
    proto = model(
        [node],
        [
            value(n, (steps, *a.shape[1:]) if n == "X" else a.shape, kinds[n])
            for n, a in fed.items()
        ],
        outputs,
        [tensor(n, a) for n, a in arrays.items() if n in inputs and n not in fed],
        opset=17,
    )
    del proto.graph.output[:]
    proto.graph.output.extend(value(n, None) for n in outputs)
    return proto, fed


def compared(device, proto, feeds):
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    want = engine.run(None, feeds)
    with clnn.compile_model(proto, device) as session:
        assert isinstance(session, StagedSession)
        got = session.run(None, feeds)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, strict=True)


PLAIN = ("X", "W", "R", "B", "h0", "c0")


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction,turns", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
def test_directions(device, op, direction, turns):
    compared(device, *layer(op, turns, PLAIN, direction=direction))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("given", [("X", "W", "R"), ("X", "W", "R", "B", "lengths"), PLAIN])
def test_inputs_that_are_left_out(device, op, given):
    compared(device, *layer(op, 1, given))


@pytest.mark.parametrize(
    "op,given,attrs",
    [
        ("GRU", PLAIN, {"linear_before_reset": 1}),
        ("GRU", ("X", "W", "R"), {"linear_before_reset": 1}),
        ("GRU", PLAIN, {"clip": 0.4}),
        ("GRU", PLAIN, {"activations": ["Sigmoid", "Relu"]}),
        ("RNN", PLAIN, {"activations": ["Relu"], "clip": 0.5}),
        ("LSTM", FULL, {}),
        ("LSTM", (*PLAIN, "P"), {"clip": 0.4}),
        ("LSTM", PLAIN, {"input_forget": 1}),
        ("LSTM", PLAIN, {"activations": ["Sigmoid", "Softsign", "Relu"]}),
    ],
)
def test_forms(device, op, given, attrs):
    compared(device, *layer(op, 1, given, **attrs))


def test_both_directions_have_functions_of_their_own(device):
    functions = ["Tanh", "Relu"]
    compared(device, *layer("RNN", 2, PLAIN, direction="bidirectional", activations=functions))


def test_open_lengths(device):
    proto, feeds = layer("LSTM", 1, PLAIN, "steps")
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, device) as session:
        for steps in (5, 1, 3):
            feed = {**feeds, "X": feeds["X"][:steps]}
            for a, b in zip(engine.run(None, feed), session.run(None, feed), strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, strict=True)
        (body,) = [stage for stage in session.stages if "body" in stage.name]
        assert (body.runs, body.plans) == (9, 1)


def test_forms_without_a_scan_are_refused(any_device):
    for attrs in ({"activations": ["ThresholdedRelu"]}, {"direction": "reverse"}):
        proto, _ = layer("RNN", 1, FULL, **attrs)
        with pytest.raises(UnsupportedOpError, match="RNN"):
            clnn.compile_model(proto, any_device)


def test_whole_numbers_pass_by(device):
    """A node beside the recurrent one, of another type, is left as it is."""
    proto, feeds = layer("RNN", 1, PLAIN)
    proto.graph.node.append(helper.make_node("Abs", ["n"], ["m"]))
    proto.graph.input.append(value("n", (3,), INT64))
    proto.graph.output.append(value("m", (3,), INT64))
    compared(device, proto, {**feeds, "n": np.array([-1, 2, -3])})
