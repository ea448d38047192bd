"""embARC MLI 2.0: look-up tables of sigmoid, tanh, exp and 1 / sqrt, and functions made of them.

An entry k of a table holds f((k - offset) / 2**in_frac) * 2**out_frac, rounded to even and
saturated to 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_maps import BY_BITS, MliMap
from clnn.arith.mli_primitives import cast, limits, round_shift, saturate, shift_left
from clnn.arith.mli_quant import Quant
from clnn.records import dataclass
from clnn.types import I8, DType

Real = Callable[[Array], Array]


@dataclass(frozen=True)
class Table:
    """A function sampled at (k - offset) / 2**in_frac for k below `length`."""

    name: str
    length: int
    in_frac: int
    offset: int
    out_frac: int

    @cached_property
    def values(self) -> Array:
        """The entries as int16."""
        at = (np.arange(self.length) - self.offset) / 2.0**self.in_frac
        with np.errstate(all="ignore"):
            exact = _REAL[self.name](at) * 2.0**self.out_frac
        return np.clip(np.rint(exact), -32768, 32767).astype(np.int16)


_REAL: dict[str, Real] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "exp": np.exp,
    "inverse_root": lambda x: 1 / np.sqrt(x),
}
SIGMOID = Table("sigmoid", 320, 4, 160, 15)
TANH = Table("tanh", 344, 5, 172, 15)
EXP = Table("exp", 358, 5, 356, 15)
INVERSE_ROOT = Table("inverse_root", 97, 0, -32, 17)


@dataclass(frozen=True)
class Lookup:
    """How a value with `frac` fraction bits is looked up.

    pre: bits dropped first. shift: fraction bits below the table's grid, between whose points
    values are interpolated; where it is not above 0 there are none, and values move left.
    """

    table: Table
    pre: int
    shift: int
    up: bool

    def __call__(self, x: Array) -> Array:
        """Return the looked-up values for int64 `x`."""
        entries = self.table.values.astype(np.int64)
        last = self.table.length - 1
        if self.shift <= 0:
            place = np.clip(shift_left(x, -self.shift, 32) + self.table.offset, 0, last)
            return np.asarray(entries[place])
        x = x >> self.pre
        place = np.clip((x >> self.shift) + self.table.offset, 0, last - 1)
        rest = x & ((1 << self.shift) - 1)
        low = entries[place]
        step = cast((low - entries[place + 1]) * rest, self.shift, 32, 16, self.up)
        return np.asarray(low - step)


def lookup(table: Table, frac: int, up: bool, interpolated: bool = False) -> Lookup:
    """Return the look-up of values with `frac` fraction bits.

    interpolated: also where the fraction is that of the table.
    """
    above = frac - table.in_frac
    if above > 0 or interpolated:
        return Lookup(table, min(max(above - 15, 0), 15), min(above, 15), up)
    return Lookup(table, 0, above, up)


def byte_fraction(table: Table) -> int:
    """Return the fraction bits that sa8 values get before they are looked up in `table`."""
    return 15 - (7 - table.in_frac)


@dataclass(frozen=True)
class Activation(MliMap):
    """Sigmoid or tanh of an fx16 tensor."""

    look: Lookup

    name = "activation"

    @property
    def up(self) -> bool:  # type: ignore[override]
        """The rounding mode."""
        return self.look.up

    @property
    def types(self) -> tuple[DType, ...]:
        """fx16 in and out."""
        return (BY_BITS[16], BY_BITS[16])

    def tables(self) -> tuple[Array, ...]:
        """Return the function's entries."""
        return (self.look.table.values,)

    def compute(self, *operands: Array) -> Array:
        """Return the interpolated entries."""
        return self.look(operands[0])


OUT = {"sigmoid": (8, -128), "tanh": (7, 0)}  # fraction bits and zero point of sa8 results


def activation_quant(table: Table, x: Quant) -> Quant:
    """Return the quantisation of sigmoid's or tanh's result for an input of quantisation `x`."""
    if x.affine:
        frac, zero = OUT[table.name]
        return Quant(8, frac, 1, zero, True)
    return Quant(x.bits, x.bits - 1)


@dataclass(frozen=True)
class WholeTable(MliMap):
    """Any function of an operand of few bits, as a table of all its results, which `made` computes."""

    made: Callable[[Array], Array]
    result: DType
    bits: int = 8

    name = "whole_table"

    @property
    def types(self) -> tuple[DType, ...]:
        """The operand's, and the result's."""
        return (BY_BITS[self.bits], self.result)

    def tables(self) -> tuple[Array, ...]:
        """Return the result for each operand, the least one first."""
        low, high = limits(self.bits)
        every = np.arange(low, high + 1, dtype=np.int64)
        return (self.compute(every).astype(self.result.numpy),)

    def compute(self, *operands: Array) -> Array:
        """Return the function with numpy."""
        return self.made(operands[0])


@dataclass(frozen=True)
class ByteActivation:
    """Sigmoid or tanh of an sa8 or fx8 tensor, as a callable."""

    table: Table
    quant: Quant
    up: bool

    def __call__(self, x: Array) -> Array:
        """Return the results for integers `x`."""
        if not self.quant.affine:
            return cast(lookup(self.table, self.quant.frac, self.up)(x), 8, 16, 8, self.up)
        frac = byte_fraction(self.table)
        wide = (x - self.quant.zero) * self.quant.scale
        value = lookup(self.table, frac, self.up)(
            round_shift(wide, self.quant.frac - frac, 32, self.up)
        )
        out, zero = OUT[self.table.name]
        return saturate(round_shift(value, self.table.out_frac - out, 32, self.up) + zero, 8)


@lru_cache(maxsize=512)
def activation(table: Table, quant: Quant, up: bool) -> MliMap:
    """Return sigmoid or tanh of a tensor of quantisation `quant`."""
    if quant.bits == 16:
        return Activation(lookup(table, quant.frac, up))
    return WholeTable(ByteActivation(table, quant, up), I8)


def tabled(function: MliMap) -> MliMap:
    """Return the same function with a table of all results, which pays for large tensors."""
    if isinstance(function, Activation):
        return WholeTable(function.look, BY_BITS[16], 16)
    return function
