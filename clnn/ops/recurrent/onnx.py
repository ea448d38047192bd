"""ONNX's RNN, GRU and LSTM: one product of all inputs by W, and the steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape, Slice
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.recurrent.cells import CELLS, LAST_CELL, LAST_STATE, STATES, Chain
from clnn.ops.recurrent.spec import Recurrent
from clnn.ops.shared.functions import PostOp
from clnn.types import F32

X, W, R, B, LENGTHS, STATE, CELL, PEEPHOLES, MASK = range(9)
NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P", "mask")
USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
BACKWARD = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
PLAIN = {name.lower(): name.lower() for name in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")}
# Functions with parameters: alpha and beta where the node gives none.
ALPHA: dict[str, float | None] = {
    "affine": None,
    "elu": 1.0,
    "hardsigmoid": 0.2,
    "leakyrelu": 0.01,
    "scaledtanh": None,
    "thresholdedrelu": 1.0,
}
BETA: dict[str, float | None] = {"affine": None, "hardsigmoid": 0.5, "scaledtanh": None}


@onnx_op("RNN", "GRU", "LSTM")
def _layer(node: OnnxNode) -> list[Source]:
    return layer(node)


@onnx_op("clnn::RNN", "clnn::GRU", "clnn::LSTM")
def _masked_layer(node: OnnxNode) -> list[Source]:
    """Import a layer with a mask, its ninth input, whatever the kind (see Recurrent)."""
    if not node.has(MASK):
        raise Unsupported("it has no mask (input 8), which layers of this domain have")
    return layer(replace(node, op_type=node.op_type.removeprefix("clnn::")), mask=MASK)


def layer(
    node: OnnxNode,
    weights: Source = R,
    products: Source | None = None,
    scales: Source | None = None,
    mask: Source | None = None,
) -> list[Source]:
    """Return the outputs of a layer.

    weights: R, where it is not the node's own input. products: those of X and W, without the bias,
    where they are not of float32. scales: what integer weights are worth. mask: which steps are (Recurrent).
    """
    backward = BACKWARD.get(str(node.attr("direction", "forward")))
    if backward is None:
        raise Unsupported(
            f"direction is {node.attr('direction')!r}; known are {', '.join(BACKWARD)}"
        )
    late = node.op_type == "GRU" and bool(node.attr("linear_before_reset", 0))
    cell = "late_gru" if late else node.op_type.lower()
    _check(node, len(backward))
    is_lstm = node.op_type == "LSTM"
    outputs = (STATES, LAST_STATE, LAST_CELL) if is_lstm else (STATES, LAST_STATE)
    if not _steps(node):
        return _first_states(node, len(backward), len(outputs))
    products, late_bias = _products(node, cell, products)
    spec = Recurrent(
        cell,
        _functions(node, len(backward)),
        backward,
        is_lstm and bool(node.attr("input_forget", 0)),
        bool(node.attr("layout", 0)),
        outputs,
    )
    rest = (LENGTHS, STATE, *((CELL, PEEPHOLES) if is_lstm or mask is not None else ()))
    given = [k if node.has(k) else None for k in rest]
    more = [] if scales is None and mask is None else [scales]
    more += [] if mask is None else [mask]
    emit = Emit(spec, [products, weights, late_bias, *given, *more])
    return [emit.out(k) for k in range(len(outputs))]


def _steps(node: OnnxNode) -> int:
    return node.type(X).shape[1 if node.attr("layout", 0) else 0]


def _first_states(node: OnnxNode, turns: int, count: int) -> list[Source]:
    """Return the outputs of no steps: no states, and the first as the last; zeros where lengths are given.

    That is what steps leave of sequences of length 0. ONNX does not say it.
    """
    outer, inner = node.type(X).shape[:2]
    hidden, by_batch = int(node.attr("hidden_size", node.type(R).shape[2])), node.attr("layout", 0)
    every = (outer, inner, turns, hidden) if by_batch else (outer, turns, inner, hidden)
    last = (outer, turns, hidden) if by_batch else (turns, inner, hidden)
    found: list[Source] = [np.zeros(every, np.float32)]
    for k in (STATE, CELL)[: count - 1]:
        if node.has(k) and node.type(k).shape != last:
            raise ShapeError(f"{node.op_type}: {NAMES[k]} is {node.type(k).shape}, must be {last}.")
        found.append(k if node.has(k) and not node.has(LENGTHS) else np.zeros(last, np.float32))
    return found


def _check(node: OnnxNode, turns: int) -> None:
    """Check the shapes that the steps do not check by themselves. Raises ShapeError, Unsupported."""
    x, w, r = (node.type(k).shape for k in (X, W, R))
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise ShapeError(f"{node.op_type}: X {x}, W {w} and R {r} must have three axes each.")
    gates = CELLS[node.op_type.lower()].gates
    hidden = int(node.attr("hidden_size", r[2]))
    shapes = {
        W: (turns, gates * hidden, x[2]),
        R: (turns, gates * hidden, hidden),
        B: (turns, 2 * gates * hidden),
    }
    for k, wanted in shapes.items():
        if node.has(k) and node.type(k).shape != wanted:
            raise ShapeError(
                f"{node.op_type}: {NAMES[k]} is {node.type(k).shape}, must be {wanted} for "
                f"X {x}, {hidden} hidden units and {turns} direction{'s' * (turns > 1)}."
            )
    steps = _steps(node)
    lengths = node.consts[LENGTHS] if LENGTHS in node.consts else np.zeros(0)
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise ShapeError(
            f"{node.op_type}: sequence_lens are {lengths.min()} to {lengths.max()}, must be 0 to {steps}, "
            "the steps of X."
        )
    for k, kind in enumerate(node.inputs):
        if kind is not None and k not in (LENGTHS, MASK) and kind.dtype != F32:
            raise Unsupported(f"{NAMES[k]} is {kind.dtype}; it must be float32")


def _products(node: OnnxNode, cell: str, made: Source | None) -> tuple[Source, Source]:
    """Return the products of X and W, where they are not made, with their bias; late_gru's own bias."""
    turns, rows, width = node.type(W).shape
    flat = (turns * rows, width)
    bias, late = None, None
    if node.has(B):
        bias, late = (_const_bias if B in node.consts else _made_bias)(node, cell)
    if made is not None:
        biased = Emit(Eltwise((PostOp("add", operand=1),)), [made, bias])
        return made if bias is None else biased, late
    weights: Source = node.consts[W].reshape(flat) if W in node.consts else Emit(Reshape(flat), [W])
    return Emit(Gemm(trans_b=True), [X, weights, bias]), late


def _const_bias(node: OnnxNode, cell: str) -> tuple[Source, Source]:
    own, other = np.split(node.consts[B], 2, axis=1)
    late = None
    if cell == "late_gru":
        kept = 2 * other.shape[1] // 3
        late = other[:, kept:].copy()
        other = np.concatenate([other[:, :kept], np.zeros_like(late)], axis=1)
    return (own + other).reshape(-1), late


def _made_bias(node: OnnxNode, cell: str) -> tuple[Source, Source]:
    turns, both = node.type(B).shape
    rows = both // 2

    def part(begin: int, count: int) -> Emit:
        return Emit(Slice((0, begin), (turns, count), (1, 1)), [B])

    own, late = part(0, rows), None
    if cell == "late_gru":
        third = rows // 3
        late = part(rows + 2 * third, third)
        zeros = np.zeros((turns, third), np.float32)
        other = Emit(Concat(1), [part(rows, 2 * third), zeros])
    else:
        other = part(rows, rows)
    total = Emit(Eltwise((PostOp("add", operand=1),)), [own, other])
    return Emit(Reshape((turns * rows,)), [total]), late


def _functions(node: OnnxNode, turns: int) -> tuple[tuple[Chain, ...], ...]:
    """Return for each direction its activations, the gates' behind the clip. Raises Unsupported."""
    usual = USUAL[node.op_type]
    names = [str(n) for n in node.attr("activations", ())] or list(usual) * turns
    if len(names) != turns * len(usual):
        raise Unsupported(
            f"{len(names)} activations for {turns} direction{'s' * (turns > 1)} of "
            f"{node.op_type}, which has {len(usual)} each"
        )
    alphas, betas = (list(node.attr(f"activation_{k}", ())) for k in ("alpha", "beta"))
    clip = float(node.attr("clip", 0.0))
    chains = []
    for place, name in enumerate(names):
        chain = _chain(name.lower(), alphas, betas)
        if clip and place % len(usual) < 2:  # the third one, of an LSTM, takes the cell as it is
            chain = (PostOp("clip", (-clip, clip)), *chain)
        chains.append(chain)
    return tuple(tuple(chains[k : k + len(usual)]) for k in range(0, len(chains), len(usual)))


def _chain(name: str, alphas: list[float], betas: list[float]) -> Chain:
    """Return an activation; its parameters are taken off the front of the lists."""
    if name in PLAIN:
        return (PostOp(PLAIN[name]),)
    if name not in ALPHA:
        raise Unsupported(f"activation {name!r}; known are {', '.join(sorted({*PLAIN, *ALPHA}))}")
    alpha = _parameter(name, "alpha", ALPHA[name], alphas)
    beta = _parameter(name, "beta", BETA[name], betas) if name in BETA else 0.0
    return _with_parameters(name, alpha, beta)


def _parameter(name: str, which: str, usual: float | None, given: list[float]) -> float:
    """Return a function's parameter, the next of those given. Raises Unsupported for one without a default."""
    if given:
        return float(given.pop(0))
    if usual is None:
        raise Unsupported(
            f"activation {name!r} without activation_{which}, for which ONNX has no default"
        )
    return usual


def _with_parameters(name: str, alpha: float, beta: float) -> Chain:
    if name == "affine":
        return (PostOp("mul", (alpha,)), PostOp("add", (beta,)))
    if name == "scaledtanh":
        return (PostOp("mul", (beta,)), PostOp("tanh"), PostOp("mul", (alpha,)))
    if name == "hardsigmoid":
        return (PostOp("hard_sigmoid", (alpha, beta)),)
    fn = {"elu": "elu", "leakyrelu": "leaky_relu", "thresholdedrelu": "thresholded_relu"}[name]
    return (PostOp(fn, (alpha,)),)
