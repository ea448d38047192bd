"""Recurrent layers for tests: inputs of the op, and ONNX models of one node with what they are fed."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_models import model, tensor, value

from clnn.ops.recurrent import cells
from clnn.ops.recurrent.cells import CELLS
from clnn.ops.recurrent.spec import Recurrent
from clnn.ops.shared.functions import PostOp

SIGMOID, TANH = (PostOp("sigmoid"),), (PostOp("tanh"),)
FUNCTIONS = {
    "rnn": (TANH,),
    "gru": (SIGMOID, TANH),
    "late_gru": (SIGMOID, TANH),
    "lstm": (SIGMOID, TANH, TANH),
}
FORWARD, REVERSE, BOTH = (False,), (True,), (False, True)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
NAMES = ("X", "W", "R", "B", "lengths", "h0", "c0", "P")


def layer(cell, backward=FORWARD, **fields):
    """The op with its usual activations and all outputs."""
    outputs = (0, 1, 2) if cell == "lstm" else (0, 1)
    usual = {"functions": (FUNCTIONS[cell],) * len(backward), "outputs": outputs}
    return Recurrent(cell, backward=backward, **usual | fields)


def arrays(cell, hidden, steps, batch, turns=1, lengths=None, given=True, batch_first=False):
    """Inputs of the op; given: whether the optional ones are there."""
    rng, gates = np.random.default_rng(hidden + steps), CELLS[cell].gates

    def normal(*shape):
        return (rng.standard_normal(shape) / max(hidden, 1) ** 0.5).astype(np.float32)

    def turned(array):
        return np.ascontiguousarray(array.swapaxes(0, 1)) if batch_first else array

    is_lstm = cell == "lstm"
    return [
        turned(rng.standard_normal((steps, batch, turns * gates * hidden)).astype(np.float32)),
        normal(turns, gates * hidden, hidden),
        normal(turns, hidden) if given and cell == "late_gru" else None,
        None if lengths is None else np.array(lengths, np.int32),
        turned(normal(turns, batch, hidden)) if given else None,
        turned(normal(turns, batch, hidden)) if given and is_lstm else None,
        normal(turns, 3 * hidden) if given and is_lstm else None,
    ]


def masked(cell, sizes, backward=FORWARD, given=True, batch_first=False):
    """Return inputs of a layer of (hidden, steps, batch) with a mask: gaps, all and none of a sequence."""
    _, steps, batch = sizes
    inputs = arrays(cell, *sizes, len(backward), None, given, batch_first)
    mask = np.random.default_rng(steps * batch).integers(0, 2, (steps, batch), np.int32)
    mask[:, 0], mask[:, -1] = (1, 0) if batch > 1 else (mask[:, 0], mask[:, 0])
    mask = np.where(mask, np.arange(steps, dtype=np.int32)[:, None] - steps, 0)  # any but 0 counts
    return [*inputs, *[None] * (8 - len(inputs)), mask.T.copy() if batch_first else mask]


def rounded_arrays(
    hidden, steps, batch, backward=FORWARD, lengths=None, given=True, reach=255, **fields
):
    """Inputs of an lstm with integer weights, whose states are rounded to bytes: none near a tie.

    What is nearer to one may be rounded to either side by a device's last digit. reach: of weights; up
    to 127 they are bytes.
    """
    spec = layer("lstm", backward, **fields)
    first = fields.get("batch_first", False)
    made = arrays("lstm", hidden, steps, batch, len(backward), lengths, given, first)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        made[0] = rng.standard_normal(made[0].shape).astype(np.float32)
        if made[4] is not None:
            made[4] = rng.uniform(-1, 1, made[4].shape).astype(np.float32)
        made[1] = rng.integers(-reach, reach + 1, made[1].shape).astype(np.float32)
        worth = rng.uniform(0.5, 1.5, made[1].shape[:2]) / (reach / 2) / hidden**0.5
        inputs = [*made, worth.astype(np.float32)]
        if nearest_tie(spec, inputs) > 3e-4:
            return inputs
    raise AssertionError("no seed without ties")


def nearest_tie(spec, inputs) -> float:
    """The least distance of a state from the middle between two steps, in steps."""
    plain, found = cells.in_steps, [1.0]

    def watched(state):
        made, worth = plain(state)
        off = np.abs(state.astype(np.float64) / worth % 1 - 0.5)
        found.append(float(off[state != 0].min(initial=1.0)))
        return made, worth

    with mock.patch.object(cells, "in_steps", watched):
        spec.reference(*inputs)
    return min(found)


def onnx_layer(
    op,
    steps=5,
    batch=3,
    width=4,
    hidden=6,
    given=NAMES,
    outputs=(0, 1, 2),
    fed=(),
    dims=None,
    seed=0,
    **attrs,
):
    """A model of one node, and its feeds. given: its inputs; fed: weights that are no constants.

    outputs: places of those that it makes. dims: of X, where some are open.
    """
    rng, gates = np.random.default_rng(seed), GATES[op]
    turns = 2 if attrs.get("direction") == "bidirectional" else 1

    def uniform(*shape, scale=1.7 / hidden**0.5):
        return (scale * rng.uniform(-1, 1, shape)).astype(np.float32)

    def turned(array):
        return np.ascontiguousarray(array.swapaxes(0, 1)) if attrs.get("layout") else array

    found = {
        "X": turned(uniform(steps, batch, width, scale=1.7)),
        "W": uniform(turns, gates * hidden, width),
        "R": uniform(turns, gates * hidden, hidden),
        "B": uniform(turns, 2 * gates * hidden),
        "lengths": rng.integers(0, steps + 1, batch).astype(np.int32),
        "h0": turned(uniform(turns, batch, hidden)),
        "c0": turned(uniform(turns, batch, hidden)),
        "P": uniform(turns, 3 * hidden),
    }
    names = [n if n in ("X", "W", "R", *given) else "" for n in NAMES]
    names = names if op == "LSTM" else names[:6]
    made = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    made = [n if k in outputs else "" for k, n in enumerate(made)]
    node = helper.make_node(op, names, made, name="layer", hidden_size=hidden, **attrs)
    feeds = {n: found[n] for n in names if n in ("X", "lengths", "h0", "c0", *fed)}
    inputs = [_value(n, a, dims) for n, a in feeds.items()]
    weights = [tensor(n, found[n]) for n in names if n and n not in feeds]
    proto = model([node], inputs, [], weights, opset=17)
    proto.graph.output.extend(value(n, None) for n in made if n)
    return proto, feeds


def _value(name: str, array: np.ndarray, dims: tuple[int | str, ...] | None) -> onnx.ValueInfoProto:
    kind = TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT
    shape = dims if dims and name == "X" else array.shape
    return value(name, shape, kind)
