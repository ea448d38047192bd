"""Scales of values stored in bytes as kernel arguments, so that equal layers share one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.ops._base import Const, Operand
from clnn.types import Stored


@dataclass
class Scales:
    """Names for the scales of a kernel's operands: scale0, inverse0, scale1, ..."""

    count: int = 0

    def named(self, ctype: str) -> str:
        """Return a type of bytes with names in place of its scale; any other as it is."""
        if not isinstance(ctype, Stored) or ctype.cell != "char":
            return ctype
        self.count += 1
        return Stored(ctype, "char", f"scale{self.count - 1}", f"inverse{self.count - 1}")


def scales_of(operands: Sequence[Operand]) -> list[Const]:
    """Return the argument with (scale, inverse) of each operand stored in bytes, none without any."""
    types = [o.memory.cl for o in operands]
    found = [(t.scale, t.inverse) for t in types if isinstance(t, Stored) and t.cell == "char"]
    return [Const(lambda: np.array(found, np.float32))] if found else []
