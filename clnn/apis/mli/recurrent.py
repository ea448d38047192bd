"""Recurrent kernels of MLI: the dense layer of several inputs, LSTM and GRU cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.images import digest
from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, FORMATS, SHAPE, TENSORS, need
from clnn.apis.mli.config import MAX_INPUTS, MliRnnCellCfg, MliRnnDenseCfg
from clnn.apis.mli.engine import compute, named, run
from clnn.apis.mli.enums import MliRnnActivation, MliRnnDirection, MliRnnResults
from clnn.apis.mli.mac import typed
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import MliTensor
from clnn.arith.mli_dense import DenseRule, MliDense, gate_quant, gru_gate_quant
from clnn.arith.mli_fused import DenseSum, gru_new_state, gru_reset, lstm_cell, lstm_out
from clnn.arith.mli_quant import Quant
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.movement.views import slice_of
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import I8, I16, Array, DType, TensorType

POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
LSTM_GATES, GRU_GATES = 4, 3


def _spec(
    in_: Quant, weights: MliTensor, gates: Sequence[int], wanted: Quant, bias: MliTensor | None
) -> Conv2d:
    """Return the op that computes some gates' scaled products; weights (gates, inputs, units)."""
    quants = weights.quants()
    chosen = [quants[g % len(quants)] for g in gates]
    rule = DenseRule(
        in_,
        quants[0].bits,
        tuple((q.scale, q.frac) for q in chosen),
        wanted,
        None if bias is None or in_.affine else bias.quant().frac,
        modes().full_accu,
        modes().up,
    )
    return Conv2d(POINT, arith=MliDense(rule, len(gates)))


def _dtype(quant: Quant) -> DType:
    return I16 if quant.bits == 16 else I8


def _kernel(weights: Array) -> Array:
    """Return weights (gates, inputs, units) as those of a convolution."""
    gates, inputs, units = weights.shape
    return np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(gates * units, inputs, 1, 1)


def _rnn_dense(
    fmt: str,
    inputs: Sequence[MliTensor],
    weights: Sequence[MliTensor],
    bias: MliTensor,
    cfg: MliRnnDenseCfg,
    out: MliTensor,
) -> None:
    """Add the products of several inputs with weights of their own, and one bias."""
    checks.config(cfg, MliRnnDenseCfg)
    need(1 <= cfg.inputs_num <= MAX_INPUTS, CONFIG, f"inputs_num {cfg.inputs_num} is not 1..4.")
    enough = min(len(inputs), len(weights)) >= cfg.inputs_num
    need(enough, CONFIG, f"{len(inputs)} inputs and {len(weights)} weights for {cfg.inputs_num}.")
    pairs = list(zip(inputs, weights, strict=False))[: cfg.inputs_num]
    for x, w in pairs:
        _dense_checks(fmt, x, w, bias, out)
    specs = [
        _spec(x.quant(), w, (0,), out.quant(), None if k else bias)
        for k, (x, w) in enumerate(pairs)
    ]
    long = specs[0].arith.acc == "long"
    total = DenseSum(len(pairs), long, out.quant().bits, out.quant().zero)
    kernels = [_kernel(w.view()[None]) for _, w in pairs]
    biases = np.ascontiguousarray(bias.view())

    def ops(build: GraphBuilder, *values: str) -> str:
        parts = []
        for k, (value, spec, kernel) in enumerate(zip(values, specs, kernels, strict=True)):
            consts = [build.const(kernel), *([] if k else [build.const(biases)])]
            parts.append(build.add(spec, value, *consts))
        return build.add(FixedMap(total), *parts)

    key = ("rnn_dense", tuple(specs), total, digest(*kernels, biases))
    arrays = [x.view().reshape(1, -1, 1, 1) for x, _ in pairs]
    out.view()[...] = compute(key, ops, *arrays).reshape(out.shape)


def _dense_checks(fmt: str, x: MliTensor, w: MliTensor, bias: MliTensor, out: MliTensor) -> None:
    typed(fmt, x, w, bias, out)
    checks.rank(w, "weights", 2)
    need(
        w.shape == (x.count, bias.count),
        SHAPE,
        f"weights are {w.shape}, must be ({x.count}, {bias.count}).",
    )
    need(
        bias.rank == 1 and out.count == bias.count, SHAPE, f"bias is {bias.shape}, out {out.shape}."
    )
    checks.apart(x, out, "in")
    checks.unit_stride(w, "weights")
    for tensor, name in ((x, "in"), (out, "out")):
        need(tensor.is_contiguous, TENSORS, f"{name} must be contiguous.")
        checks.per_tensor(tensor, name)
    if x.affine:
        checks.symmetric(w, "weights", 1)
        checks.symmetric(bias, "bias", 0)
        need(len(w.quants()) == 1, TENSORS, "weights must have one scale.")


@dataclass(frozen=True)
class _Cell:
    """What a cell's graph is made of, for `steps` items of a sequence."""

    in_: Quant
    state: Quant
    out: Quant
    memory: Quant | None
    gates: Quant
    act: int
    steps: int
    inputs: int
    units: int
    every: bool


def _cell_checks(
    fmt: str,
    count: int,
    in_: MliTensor,
    prev_out: MliTensor,
    weights_in: MliTensor,
    weights_out: MliTensor,
    bias: MliTensor,
    cfg: MliRnnCellCfg,
    out: MliTensor,
) -> None:
    """Refuse what the cells exclude."""
    checks.config(cfg, MliRnnCellCfg)
    need(cfg.direction in list(MliRnnDirection), CONFIG, f"direction {cfg.direction} is unknown.")
    need(cfg.results in list(MliRnnResults), CONFIG, f"results {cfg.results} is unknown.")
    need(cfg.act in list(MliRnnActivation), CONFIG, f"activation {cfg.act} is unknown.")
    typed(fmt, in_, weights_in, bias, out)
    typed(fmt, prev_out, weights_out, bias, out)
    need(in_.rank >= 1, SHAPE, "in is a scalar: its first axis is the sequence.")
    steps, inputs = in_.shape[0], in_.count // in_.shape[0]
    units = bias.shape[-1] if bias.rank else 0
    need(bias.shape == (count, units), SHAPE, f"bias is {bias.shape}, must be ({count}, units).")
    need(
        weights_in.shape == (count, inputs, units),
        SHAPE,
        f"weights_in are {weights_in.shape}, must be ({count}, {inputs}, {units}).",
    )
    need(
        weights_out.shape == (count, units, units),
        SHAPE,
        f"weights_out are {weights_out.shape}, must be ({count}, {units}, {units}).",
    )
    need(
        prev_out.count == units,
        SHAPE,
        f"prev_out is {prev_out.shape}: it must have {units} elements.",
    )
    rows = steps if cfg.results == MliRnnResults.RNN_OUT_ALL else 1
    need(
        out.count == rows * units,
        SHAPE,
        f"out is {out.shape}: it must have {rows * units} elements.",
    )
    for tensor, name in ((in_, "in"), (prev_out, "prev_out")):
        checks.apart(tensor, out, name)
    for tensor, name in ((in_, "in"), (prev_out, "prev_out"), (out, "out")):
        need(tensor.is_contiguous, TENSORS, f"{name} must be contiguous.")
        checks.per_tensor(tensor, name)
    for tensor, name in ((weights_in, "weights_in"), (weights_out, "weights_out"), (bias, "bias")):
        checks.unit_stride(tensor, name)
        if tensor.affine:
            checks.symmetric(tensor, name, 0)


class _Steps:
    """The graph of a cell, item by item."""

    def __init__(self, cell: _Cell, weights: Sequence[MliTensor], bias: MliTensor) -> None:
        self.cell, self.build = cell, GraphBuilder()
        self.weights_in, self.weights_out = weights
        self.bias = bias
        self.count = bias.shape[0]
        self.kernels: dict[tuple[int, ...], str] = {}
        self.scaled = self._scaled()

    @property
    def long(self) -> bool:
        """Whether scaled products have 64 bits."""
        return self.weights_in.quant().bits == 16

    def _scaled(self) -> str:
        """Return the scaled products of all items: (items, gates * units, 1, 1)."""
        c, build = self.cell, self.build
        x = build.input("x", TensorType((c.steps, c.inputs, 1, 1), _dtype(c.in_)))
        spec = _spec(c.in_, self.weights_in, range(self.count), c.gates, self.bias)
        bias = np.ascontiguousarray(self.bias.view()).reshape(-1)
        return build.add(spec, x, build.const(_kernel(self.weights_in.view())), build.const(bias))

    def item(self, step: int, gate: int) -> str:
        """Return an item's scaled products for a gate."""
        row = self.build.add(slice_of(self.build.shape(self.scaled), 0, step, 1), self.scaled)
        return self.gate(row, gate)

    def gate(self, row: str, place: int) -> str:
        """Return the units of one gate from a row of several."""
        units = self.cell.units
        return self.build.add(slice_of(self.build.shape(row), 1, place * units, units), row)

    def dense(self, state: str, quant: Quant, gates: tuple[int, ...]) -> str:
        """Return the scaled products of a state (1, units, 1, 1) for some gates."""
        if gates not in self.kernels:
            chosen = _kernel(self.weights_out.view()[list(gates)])
            self.kernels[gates] = self.build.const(chosen)
        spec = _spec(quant, self.weights_out, gates, self.cell.gates, None)
        return self.build.add(spec, state, self.kernels[gates])

    def lstm(self, step: int, state: str, quant: Quant, memory: str) -> tuple[str, str]:
        """Return the next state and memory."""
        c, add, up = self.cell, self.build.add, modes().up
        assert c.memory is not None
        own = self.dense(state, quant, (0, 1, 2, 3))
        pairs = [(self.item(step, g), self.gate(own, g)) for g in range(LSTM_GATES)]
        first = [value for pair in pairs[:3] for value in pair]
        memory = add(FixedMap(lstm_cell(c.gates, c.memory, self.long, up)), *first, memory)
        last = lstm_out(c.gates, c.memory, c.out, c.act, self.long, up)
        return add(FixedMap(last), *pairs[3], memory), memory

    def gru(self, step: int, state: str, quant: Quant) -> str:
        """Return the next state."""
        c, add, up = self.cell, self.build.add, modes().up
        own = self.dense(state, quant, (0, 1))
        reset = FixedMap(gru_reset(c.gates, quant, self.long, up))
        held = add(reset, self.item(step, 1), self.gate(own, 1), state)
        candidate = self.dense(held, quant, (2,))
        last = gru_new_state(c.gates, quant, c.out, c.act, self.long, up)
        return add(
            FixedMap(last),
            self.item(step, 0),
            self.gate(own, 0),
            self.item(step, 2),
            candidate,
            state,
        )

    def graph(self, memory: bool) -> Graph:
        """Return the graph: all items in order."""
        c, build = self.cell, self.build
        kind = TensorType((1, c.units, 1, 1), _dtype(c.out))
        state, quant = build.input("h", kind), c.state
        cell = build.input("c", kind) if memory else ""
        outputs = {}
        for step in range(c.steps):
            if memory:
                state, cell = self.lstm(step, state, quant, cell)
            else:
                state = self.gru(step, state, quant)
            quant = c.out
            if c.every or step == c.steps - 1:
                outputs[f"y{step}"] = state
        if memory:
            outputs["cell"] = cell
        return build.graph(outputs, "mli")


def _run_cell(
    cell: _Cell,
    in_: MliTensor,
    prev_out: MliTensor,
    weights: Sequence[MliTensor],
    bias: MliTensor,
    memory: MliTensor | None,
    cfg: MliRnnCellCfg,
    out: MliTensor,
) -> None:
    x = in_.view().reshape(cell.steps, cell.inputs, 1, 1)
    if cfg.direction == MliRnnDirection.RNN_DIR_BACKWARD:
        x = x[::-1]
    feeds = {"x": x, "h": prev_out.view().reshape(1, -1, 1, 1)}
    if memory is not None:
        feeds["c"] = memory.view().reshape(1, -1, 1, 1)
    quants = tuple(tuple(w.quants()) for w in (*weights, bias))
    key = ("cell", cell, quants, digest(*(w.view() for w in weights), bias.view()))
    outputs = run(key, lambda: _Steps(cell, weights, bias).graph(memory is not None), feeds)
    rows = [outputs[name].reshape(-1) for name in outputs if name != "cell"]
    out.view()[...] = np.concatenate(rows).reshape(out.shape)
    if memory is not None:
        memory.view()[...] = outputs["cell"].reshape(memory.shape)


def _cell(
    gates: Quant,
    in_: MliTensor,
    prev_out: MliTensor,
    memory: MliTensor | None,
    cfg: MliRnnCellCfg,
    out: MliTensor,
    units: int,
) -> _Cell:
    return _Cell(
        in_.quant(),
        prev_out.quant(),
        out.quant(),
        None if memory is None else memory.quant(),
        gates,
        int(cfg.act),
        in_.shape[0],
        in_.count // in_.shape[0],
        units,
        cfg.results == MliRnnResults.RNN_OUT_ALL,
    )


def _lstm_cell(
    fmt: str,
    in_: MliTensor,
    prev_out: MliTensor,
    weights_in: MliTensor,
    weights_out: MliTensor,
    bias: MliTensor,
    cfg: MliRnnCellCfg,
    cell: MliTensor,
    out: MliTensor,
) -> None:
    """Run LSTM over a sequence (items, inputs...); `cell` is its memory, before and after.

    Gates lie in the order input, candidate, forget, output. Results of a sequence are in the order
    in which it is taken.
    """
    _cell_checks(fmt, LSTM_GATES, in_, prev_out, weights_in, weights_out, bias, cfg, out)
    checks.typed(cell, "cell", FORMATS[fmt][0])
    checks.per_tensor(cell, "cell")
    units = bias.shape[1]
    need(
        cell.count == units and cell.is_contiguous,
        SHAPE,
        f"cell is {cell.shape}: it must have {units} elements without gaps.",
    )
    for tensor, name in ((in_, "in"), (prev_out, "prev_out"), (out, "out")):
        checks.apart(tensor, cell, f"cell as out: {name}")
    gates = gate_quant(in_.quant(), weights_in.quant().frac)
    about = _cell(gates, in_, prev_out, cell, cfg, out, units)
    _run_cell(about, in_, prev_out, (weights_in, weights_out), bias, cell, cfg, out)


def _gru_cell(
    fmt: str,
    in_: MliTensor,
    prev_out: MliTensor,
    weights_in: MliTensor,
    weights_out: MliTensor,
    bias: MliTensor,
    cfg: MliRnnCellCfg,
    out: MliTensor,
) -> None:
    """Run GRU over a sequence (items, inputs...).

    Gates lie in the order update, reset, candidate; the state is reset before its product with the
    candidate's weights. Results of a sequence are in the order in which it is taken.
    """
    _cell_checks(fmt, GRU_GATES, in_, prev_out, weights_in, weights_out, bias, cfg, out)
    gates = gru_gate_quant(in_.quant(), weights_in.quant().frac)
    about = _cell(gates, in_, prev_out, None, cfg, out, bias.shape[1])
    _run_cell(about, in_, prev_out, (weights_in, weights_out), bias, None, cfg, out)


_KINDS: dict[str, Any] = {"rnn_dense": _rnn_dense, "lstm_cell": _lstm_cell, "gru_cell": _gru_cell}
globals().update(
    {
        f"mli_krn_{stem}_{fmt}": named(function, f"mli_krn_{stem}_{fmt}", fmt)
        for stem, function in _KINDS.items()
        for fmt in FORMATS
    }
)
