"""Chains of real functions between quantised tensors, as one function of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from clnn.arith.quantised import quantised
from clnn.arith.quantised_maps import NARROW, QuantisedMap
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.records import dataclass
from clnn.types import F32, Array, DType

# What is rounded once, so that every device computes the same.
EXACT = frozenset(
    ("add", "sub", "mul", "min", "max", "abs", "neg", "relu", "clip", "at_least", "at_most")
)


@dataclass(frozen=True)
class WrittenSteps(QuantisedMap):
    """Real functions of a quantised tensor as they are written: dequantised, computed, quantised.

    kinds, zeros, steps: types, zero points and scales of the first operand and of the result. post_ops:
    the functions, whose operands are float32. Each step is rounded in float32.
    """

    kinds: tuple[DType, DType]
    zeros: tuple[int, int]
    steps: tuple[float, float] = field(metadata={"data": True})
    post_ops: tuple[PostOp, ...]

    name = "written_steps"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the result. Raises DTypeError where operands do not fit."""
        if any(k not in NARROW for k in self.kinds) or types[0] != self.kinds[0]:
            raise self.refused(types)
        if any(t != F32 for t in types[1:]):
            raise self.refused(types)
        return self.kinds[1]

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        (zero, begin), (step, last) = self.zeros, map(np.float32, self.steps)
        real = (operands[0].astype(np.int64) - zero).astype(np.float32) * step
        made = apply_post_ops(real, self.post_ops, operands)
        return quantised(made, last, np.int64(begin), self.kinds[1])
