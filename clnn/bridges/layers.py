"""What a bridge knows of tensors and layers: the integers of a value, and products with their constants."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from clnn.arith.mli_quant import Quant
from clnn.bridges.bias import average_error
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, DType

RELU, RELU6 = "relu", "relu6"


def clipped(spec: OpSpec) -> str:
    """Return RELU or RELU6 for an op that is one of them, else ""."""
    if not isinstance(spec, Eltwise) or len(spec.post_ops) != 1:
        return ""
    step = spec.post_ops[0]
    if step.operand is not None:
        return ""
    known = {("relu", ()): RELU, ("at_least", (0.0,)): RELU, ("clip", (0.0, 6.0)): RELU6}
    return known.get((step.fn, tuple(step.params)), "")


def integers(values: Array, limit: int) -> Array:
    """Return values rounded to nearest, ties to even, and clipped to -limit..limit."""
    return np.clip(np.rint(values), -limit, limit)


@dataclass(frozen=True)
class Grid:
    """What the integers of a tensor stand for: (q - zero) * step.

    quant: the same in MLI's terms, None where the system has none.
    """

    dtype: DType
    step: float
    zero: int = 0
    quant: Quant | None = None

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest integer of the type."""
        info = np.iinfo(self.dtype.numpy)  # type: ignore[type-var]
        return int(info.min), int(info.max)

    def real(self, values: Array) -> Array:
        """Return integers as float64."""
        return (values.astype(np.float64) - self.zero) * self.step

    def saturated(self, values: Array) -> Array:
        """Return which integers lie at an end of the type that is not the number 0."""
        low, high = self.limits
        ends: Array = (values == high) | ((values == low) & (low != self.zero))
        return ends

    def __str__(self) -> str:
        return f"{self.dtype.name}, step {self.step:.6g}" + (
            f", zero {self.zero}" * bool(self.zero)
        )


@dataclass(frozen=True)
class Products:
    """A convolution, or a fully connected layer as one of 1x1 windows, of float constants.

    weights (oc, c / group, kh, kw), bias (oc). activation: "", RELU or RELU6. limits: of the result's
    values. means: averages (c, kh, kw) of what the weights meet, None where biases are not corrected.
    """

    weights: Array
    bias: Array
    window: Window
    group: int
    activation: str
    limits: tuple[float, float]
    means: Array | None = None

    def settled(self, weights: Array) -> Array:
        """Return the bias for these real weights, which integers stand for, in place of the given ones."""
        if self.means is None:
            return self.bias
        error = weights.astype(np.float64) - self.weights
        return self.bias - average_error(error, self.group, self.means)


@dataclass(frozen=True)
class Layer:
    """A layer of a simulation.

    value: of the float network; integers: of the simulation, "" where it is computed in float.
    inputs: the simulation's values that it reads. data: integer constants (weights as for Products,
    bias) and what else the system was given, by name.
    """

    name: str
    op: str
    value: str
    integers: str
    grid: Grid | None
    inputs: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    data: dict[str, Any] = field(default_factory=dict, repr=False)
