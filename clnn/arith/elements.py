"""Element types that networks carry in wider ones, made of those and back (clnn.types.CARRIERS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from clnn.arith._base import Array, Elementwise
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import BF16, CARRIERS, F16, F32, DType


class _Element(Elementwise):
    library = "_arith/elements.cl.mako"
    kind: DType

    def _only(self, types: Sequence[DType], wanted: DType) -> None:
        if list(types) != [wanted] or self.kind not in CARRIERS or self.kind == F16:
            names = ", ".join(t.name for t in types)
            raise DTypeError(f"{self.name} {self.kind.name} of {names}: it takes {wanted.name}.")


@dataclass(frozen=True)
class Widen(_Element):
    """Elements of `kind` as the type that carries them; exact."""

    kind: DType

    name = "widen"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the carrier. Raises DTypeError for another operand."""
        self._only(types, self.kind)
        return CARRIERS[self.kind]

    def tables(self) -> tuple[Array, ...]:
        """Return what each byte stands for; nothing of bfloat16."""
        if self.kind == BF16:
            return ()
        codes = np.arange(256, dtype=np.uint8) & (2**self.bits - 1)
        return (codes.view(self.kind.numpy).astype(CARRIERS[self.kind].numpy),)

    @property
    def bits(self) -> int:
        """Bits of a byte that count."""
        return bits_of(self.kind)

    def reference(self, *operands: Array) -> Array:
        """Return the values in the wider type."""
        return np.asarray(operands[0]).astype(CARRIERS[self.kind].numpy)


@dataclass(frozen=True)
class Narrow(_Element):
    """Values of the carrier as elements of `kind`.

    Real numbers are rounded to nearest, ties to even; those too large become the largest element
    where it saturates, and where not infinity, or NaN in a type without one. Of types of integers the
    low bits are kept.
    """

    kind: DType
    saturate: bool = True

    name = "narrow"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type. Raises DTypeError for another operand."""
        self._only(types, CARRIERS[self.kind])
        return self.kind

    @property
    def format(self) -> tuple[int, int, int, int, int, int]:
        """Of a float: bits of the mantissa, bias, largest code, code of infinity, of NaN, least zero.

        The last is 1 where there is no negative zero. All but the sign, of NaN the whole byte.
        """
        return _FORMATS[self.kind.name]

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return bits_of(self.kind)

    def reference(self, *operands: Array) -> Array:
        """Return the elements."""
        x = np.asarray(operands[0])
        with np.errstate(all="ignore"):
            if CARRIERS[self.kind] == F32:
                made = x.astype(self.kind.numpy)
                if self.saturate and self.kind != BF16:
                    most = _largest(self.kind)
                    inside = np.clip(x, -most, most).astype(self.kind.numpy)
                    made = np.where(np.isnan(x), made, inside)
                return np.asarray(made, self.kind.numpy)
        kept: Array = x.view(np.uint8) & (2**self.bits - 1)
        return kept.view(self.kind.numpy)


def _largest(kind: DType) -> np.float32:
    info: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]
    return np.float32(info.max)


def bits_of(kind: DType) -> int:
    """Return the bits that an element of a carried type has."""
    digits = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4e2m1": 4}
    return digits.get(kind.name, 8 * kind.itemsize)


# OCP 8-bit and 4-bit formats, and those with one zero ("fnuz"), whose only NaN is the code of -0.
_FORMATS = {
    "float8e4m3fn": (3, 7, 0x7E, 0x7F, 0x7F, 0),
    "float8e4m3fnuz": (3, 8, 0x7F, 0x80, 0x80, 1),
    "float8e5m2": (2, 15, 0x7B, 0x7C, 0x7E, 0),
    "float8e5m2fnuz": (2, 16, 0x7F, 0x80, 0x80, 1),
    "float4e2m1": (1, 1, 0x7, 0x7, 0x8, 0),
}
