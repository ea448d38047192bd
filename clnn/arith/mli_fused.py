"""embARC MLI 2.0: functions made of several, computed together without memory between them."""

from __future__ import annotations

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_maps import (
    BY_BITS,
    PRODUCT,
    SUM,
    Complement,
    MliMap,
    binary,
)
from clnn.arith.mli_primitives import add, saturate
from clnn.arith.mli_quant import Quant
from clnn.arith.mli_tables import SIGMOID, TANH, activation, activation_quant
from clnn.records import dataclass
from clnn.types import I32, I64, DType

NO_ACTIVATION, TANH_ACTIVATION, SIGMOID_ACTIVATION = 0, 1, 2


@dataclass(frozen=True)
class DenseSum(MliMap):
    """The saturating sum of scaled products, moved by the zero point, cast to the output."""

    count: int
    long: bool
    bits: int
    zero: int = 0

    name = "dense_sum"

    @property
    def partial(self) -> str:
        """OpenCL type of the operands."""
        return "long" if self.long else "int"

    @property
    def types(self) -> tuple[DType, ...]:
        """The scaled products, and the output's."""
        return (*(I64 if self.long else I32 for _ in range(self.count)), BY_BITS[self.bits])

    def compute(self, *operands: Array) -> Array:
        """Return the sum."""
        total, width = operands[0], 64 if self.long else 32
        for operand in operands[1:]:
            total = add(total, operand, width)
        return saturate(add(total, self.zero, width), self.bits)


@dataclass(frozen=True)
class Fused(MliMap):
    """Functions in order: each reads operands (by number) and results (numbered behind those)."""

    inputs: tuple[DType, ...]
    parts: tuple[tuple[MliMap, tuple[int, ...]], ...]
    up: bool = False

    name = "fused"

    @property
    def types(self) -> tuple[DType, ...]:
        """The operands, and the last part's result."""
        return (*self.inputs, self.parts[-1][0].types[-1])

    def _tabled(self) -> list[MliMap]:
        """Return the distinct parts that read tables."""
        return list(dict.fromkeys(part for part, _ in self.parts if part.tables()))

    def first_table(self, part: MliMap) -> int:
        """Return the number of a part's first table."""
        count = 0
        for other in self._tabled():
            if other == part:
                return count
            count += len(other.tables())
        return 0

    def tables(self) -> tuple[Array, ...]:
        """Return the tables of all parts, each once."""
        return tuple(table for part in self._tabled() for table in part.tables())

    def compute(self, *operands: Array) -> Array:
        """Return the last part's result."""
        held = list(operands)
        for part, sources in self.parts:
            result = part.reference(
                *(held[k].astype(t.numpy) for k, t in zip(sources, part.types, strict=False))
            )
            held.append(result.astype(np.int64))
        return held[-1]


class _Chain:
    """Parts as they are added; values are the numbers of operands and results."""

    def __init__(self, inputs: tuple[DType, ...], up: bool) -> None:
        self.inputs, self.up = inputs, up
        self.parts: list[tuple[MliMap, tuple[int, ...]]] = []

    def add(self, part: MliMap, *sources: int) -> int:
        self.parts.append((part, sources))
        return len(self.inputs) + len(self.parts) - 1

    def gate(self, gates: Quant, long: bool, table: str, *partials: int) -> int:
        """Sum a gate's scaled products and apply its activation."""
        total = self.add(DenseSum(len(partials), long, gates.bits), *partials)
        chosen = SIGMOID if table == "sigmoid" else TANH
        return self.add(activation(chosen, gates, self.up), total)

    def done(self) -> Fused:
        return Fused(self.inputs, tuple(self.parts), self.up)


def lstm_cell(gates: Quant, cell: Quant, long: bool, up: bool) -> Fused:
    """Return the next cell state of LSTM.

    Operands: scaled products of input and of state for the input gate, the candidate and the
    forget gate (six in turn), and the cell state.
    """
    wide = I64 if long else I32
    chain = _Chain((*(wide,) * 6, BY_BITS[cell.bits]), up)
    given = chain.gate(gates, long, "sigmoid", 0, 1)
    candidate = chain.gate(gates, long, "tanh", 2, 3)
    forget = chain.gate(gates, long, "sigmoid", 4, 5)
    sigmoid, tanh = (activation_quant(t, gates) for t in (SIGMOID, TANH))
    kept = chain.add(binary(PRODUCT, cell, sigmoid, cell, up), 6, forget)
    new = chain.add(binary(PRODUCT, sigmoid, tanh, tanh, up), given, candidate)
    chain.add(binary(SUM, cell, tanh, cell, up), kept, new)
    return chain.done()


def lstm_out(gates: Quant, cell: Quant, out: Quant, act: int, long: bool, up: bool) -> Fused:
    """Return the next output of LSTM.

    Operands: scaled products of input and of state for the output gate, and the cell state.
    """
    wide = I64 if long else I32
    chain = _Chain((wide, wide, BY_BITS[cell.bits]), up)
    gate = chain.gate(gates, long, "sigmoid", 0, 1)
    value, quant = 2, cell
    if act != NO_ACTIVATION:
        table = TANH if act == TANH_ACTIVATION else SIGMOID
        value, quant = chain.add(activation(table, cell, up), 2), activation_quant(table, cell)
    chain.add(binary(PRODUCT, quant, activation_quant(SIGMOID, gates), out, up), value, gate)
    return chain.done()


def gru_reset(gates: Quant, state: Quant, long: bool, up: bool) -> Fused:
    """Return GRU's state times its reset gate.

    Operands: scaled products of input and of state for the reset gate, and the state.
    """
    wide = I64 if long else I32
    chain = _Chain((wide, wide, BY_BITS[state.bits]), up)
    gate = chain.gate(gates, long, "sigmoid", 0, 1)
    chain.add(binary(PRODUCT, state, activation_quant(SIGMOID, gates), state, up), 2, gate)
    return chain.done()


def gru_new_state(gates: Quant, state: Quant, out: Quant, act: int, long: bool, up: bool) -> Fused:
    """Return the next output of GRU.

    Operands: scaled products of input and of state for the update gate, those of input and of the
    reset state for the candidate, and the state.
    """
    wide = I64 if long else I32
    chain = _Chain((*(wide,) * 4, BY_BITS[state.bits]), up)
    update = chain.gate(gates, long, "sigmoid", 0, 1)
    candidate, quant = chain.add(DenseSum(2, long, gates.bits), 2, 3), gates
    if act != NO_ACTIVATION:
        table = TANH if act == TANH_ACTIVATION else SIGMOID
        candidate = chain.add(activation(table, gates, up), candidate)
        quant = activation_quant(table, gates)
    sigmoid = activation_quant(SIGMOID, gates)
    rest = chain.add(Complement(gates.bits, -1 if gates.affine else 32767), update)
    kept = chain.add(binary(PRODUCT, state, sigmoid, state, up), 4, update)
    new = chain.add(binary(PRODUCT, sigmoid, quant, out, up), rest, candidate)
    chain.add(binary(SUM, state, out, out, up), kept, new)
    return chain.done()
