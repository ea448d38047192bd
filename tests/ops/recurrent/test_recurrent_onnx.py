"""RNN, GRU and LSTM of ONNX: equal to onnxruntime's kernels."""

from __future__ import annotations

import random

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnx_models import INT64, value
from recurrent_layers import GATES, onnx_layer

import clnn
from clnn.errors import ShapeError, UnsupportedOpError
from clnn.options import Options
from clnn.runtime.run.session import Session

PLAIN = ("B", "h0", "c0")
FUNCTIONS = {  # name -> parameters that it takes: alpha, beta
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"), (0, 0)),
    **dict.fromkeys(("LeakyRelu", "ThresholdedRelu", "Elu"), (1, 0)),
    **dict.fromkeys(("ScaledTanh", "HardSigmoid", "Affine"), (1, 1)),
}


def others(proto, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    engine = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return engine.run(None, feeds)


def compared(device, proto, feeds, tolerance=1e-5, **options):
    want = others(proto, feeds)
    with clnn.compile_model(proto, device, Options(**options)) as session:
        assert isinstance(session, Session)
        got = session.run(None, feeds)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, strict=True)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("given", [(), ("B", "lengths"), PLAIN, ("lengths", *PLAIN, "P")])
def test_directions_and_inputs(device, op, direction, given):
    compared(device, *onnx_layer(op, given=given, direction=direction))


@pytest.mark.parametrize(
    "op,given,attrs",
    [
        ("GRU", PLAIN, {"linear_before_reset": 1}),
        ("GRU", (), {"linear_before_reset": 1}),
        ("GRU", PLAIN, {"linear_before_reset": 1, "clip": 0.4}),
        ("GRU", PLAIN, {"clip": 0.4}),
        ("GRU", PLAIN, {"activations": ["Sigmoid", "Relu"]}),
        ("RNN", PLAIN, {"activations": ["Relu"], "clip": 0.5}),
        ("LSTM", (*PLAIN, "P"), {"clip": 0.4}),
        ("LSTM", (*PLAIN, "P"), {"input_forget": 1}),
        ("LSTM", PLAIN, {"activations": ["Sigmoid", "Softsign", "Relu"]}),
    ],
)
def test_forms(device, op, given, attrs):
    compared(device, *onnx_layer(op, given=given, **attrs))


def drawn(seed):
    """A layer with random extents, inputs, outputs and attributes."""
    r = random.Random(seed)
    op, direction = r.choice([*GATES]), r.choice(["forward", "reverse", "bidirectional"])
    count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op] * (2 if direction == "bidirectional" else 1)
    functions = r.choices([*FUNCTIONS], k=count)
    attrs = {"direction": direction}
    if r.random() < 0.6:
        attrs["activations"] = functions
        for place, name in enumerate(("activation_alpha", "activation_beta")):
            given = [round(r.uniform(0.1, 0.9), 2) for f in functions if FUNCTIONS[f][place]]
            attrs |= {name: given} if given else {}
    attrs |= {"clip": r.choice([0.1, 0.5, 2.0])} if r.random() < 0.4 else {}
    if op == "GRU":
        attrs["linear_before_reset"] = r.randrange(2)
    if op == "LSTM":
        attrs["input_forget"] = r.randrange(2)
    sizes = [(1, 2, 3, 7), (1, 2, 3, 5, 8, 9, 17), (1, 3, 8), (1, 3, 8, 16, 17, 40, 64)]
    steps, batch, width, hidden = map(r.choice, sizes)
    return onnx_layer(
        op,
        steps,
        batch,
        width,
        hidden,
        given=[n for n in ("B", "lengths", *PLAIN[1:], "P") if r.random() < 0.5],
        outputs=[k for k in (0, 1, 2) if r.random() < 0.7] or [0, 1],
        fed=[n for n in ("W", "R", "B", "P") if r.random() < 0.25],
        seed=seed,
        **attrs,
    )


@pytest.mark.dealt
@pytest.mark.parametrize("seed", range(24))
def test_random_layers(device, seed):
    proto, feeds = drawn(seed)
    if proto.graph.output:
        compared(device, proto, feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_random_layers(device, seed):
    proto, feeds = drawn(seed)
    if proto.graph.output:
        compared(device, proto, feeds)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(device, op):
    """onnxruntime has no layout 1: the same layer with axes exchanged."""
    given = ("B", "lengths", "h0", "c0", "P")
    proto, feeds = onnx_layer(op, given=given, direction="bidirectional", layout=1)
    plain, _ = onnx_layer(op, given=given, direction="bidirectional")
    turned = {n: a if n == "lengths" else a.swapaxes(0, 1).copy() for n, a in feeds.items()}
    every, *last = others(plain, turned)
    with clnn.compile_model(proto, device) as session:
        got = session.run(None, feeds)
    for a, b in zip(
        [every.transpose(2, 0, 1, 3), *(x.swapaxes(0, 1) for x in last)], got, strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("op", GATES)
def test_open_steps_and_batch(device, op):
    """One set of kernels serves all numbers of steps and sequences."""
    proto, feeds = onnx_layer(op, 30, 9, hidden=40, given=("B",), dims=("steps", "batch", 4))
    with clnn.compile_model(proto, device) as session:
        for steps, batch in ((5, 3), (1, 1), (30, 9), (3, 8), (2, 1), (7, 2)):
            feed = {"X": feeds["X"][:steps, :batch].copy()}
            for a, b in zip(others(proto, feed), session.run(None, feed), strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5, strict=True)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("given", [(), PLAIN, ("lengths", *PLAIN)])
@pytest.mark.parametrize("layout", [0, 1])
def test_no_steps_leave_the_first_states(any_device, op, given, layout):
    """ONNX does not say what they leave; onnxruntime gives what lay in memory."""
    dims = (2, "steps", 4) if layout else ("steps", 2, 4)
    proto, feeds = onnx_layer(
        op, 3, 2, given=given, fed=PLAIN, dims=dims, direction="bidirectional", layout=layout
    )
    empty = {n: np.zeros_like(a) if n == "lengths" else a for n, a in feeds.items()}
    empty["X"] = feeds["X"][:, :0] if layout else feeds["X"][:0]
    with clnn.compile_model(proto, any_device) as session:
        before = session.run(None, feeds)
        every, *last = session.run(None, empty)
        again = session.run(None, feeds)
    assert every.shape == tuple(0 if n == 3 else n for n in before[0].shape)
    states = [
        feeds[n] if n in feeds and "lengths" not in given else np.float32(0) for n in ("h0", "c0")
    ]
    for state, found, full in zip(states, last, before[1:], strict=False):
        np.testing.assert_array_equal(found, np.broadcast_to(state, full.shape), strict=True)
    for a, b in zip(before, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("merge", [True, False])
def test_many_steps(device, merge):
    compared(device, *onnx_layer("LSTM", 2100, 1, hidden=48, given=("B",)), merge=merge)


def test_profile_and_verify_know_the_layer(any_device, tmp_path):
    proto, feeds = onnx_layer("LSTM")
    path = tmp_path / "layer.onnx"
    path.write_bytes(proto.SerializeToString())
    with clnn.compile_model(path, any_device) as session, session.profile() as profile:
        session.run(None, feeds)
    assert "layer" in profile.table()
    assert clnn.verify(path, device=any_device, per_layer=True).passed


@pytest.mark.parametrize(
    "attrs,said",
    [
        ({"activations": ["Sine"]}, "sine"),
        ({"activations": ["Tanh", "Tanh"]}, "2 activations"),
        ({"activations": ["ScaledTanh"]}, "activation_alpha"),
        ({"direction": "sideways"}, "sideways"),
    ],
)
def test_forms_that_are_refused(any_device, attrs, said):
    proto, _ = onnx_layer("RNN", **attrs)
    with pytest.raises(UnsupportedOpError, match=said):
        clnn.compile_model(proto, any_device)


def test_weights_that_do_not_fit(any_device):
    proto, _ = onnx_layer("GRU", hidden=6)
    node = proto.graph.node[0]
    next(a for a in node.attribute if a.name == "hidden_size").i = 5
    with pytest.raises(ShapeError, match="must be"):
        clnn.compile_model(proto, any_device)


def test_parameters_by_default(any_device):
    """ThresholdedRelu takes 1, the default of ONNX's operator."""
    proto, feeds = onnx_layer("RNN", 1, hidden=8, given=(), activations=["ThresholdedRelu"])
    said, _ = onnx_layer(
        "RNN", 1, hidden=8, given=(), activations=["ThresholdedRelu"], activation_alpha=[1.0]
    )
    with clnn.compile_model(proto, any_device) as session:
        (every, _) = session.run(None, feeds)
    np.testing.assert_allclose(every, others(said, feeds)[0], atol=1e-6)


def test_whole_numbers_pass_by(device):
    """A node beside the recurrent one, of another type, is left as it is."""
    proto, feeds = onnx_layer("RNN", given=PLAIN)
    proto.graph.node.append(helper.make_node("Abs", ["n"], ["m"]))
    proto.graph.input.append(value("n", (3,), INT64))
    proto.graph.output.append(value("m", (3,), INT64))
    compared(device, proto, {**feeds, "n": np.array([-1, 2, -3])})
