"""Local response normalisation of fixed-point numbers as OpenVX has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.arith.openvx import Format, NormRule, normalise, normalise_sample
from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import I16, Array, TensorType


@dataclass(frozen=True)
class OpenVxNorm(OpSpec):
    """Input (n, c, h, w); each element over (1 + alpha / n * sum of squares) ** beta.

    The sum is over `size` maps around it (across), or size x size elements of its own map. sample:
    in the sample implementation's fixed point, of int16 in Q7.8 only; else in floating point, in
    double precision where the device has it.
    """

    size: int
    alpha: float
    beta: float
    across: bool
    source: Format
    result: Format
    sample: bool = False

    kind = "openvx_norm"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output's type. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if x.rank != 4 or self.size < 1:
            raise ShapeError(f"normalisation of {x.shape} over {self.size}: it needs 4 axes.")
        if x.dtype != self.source.dtype:
            raise DTypeError(f"normalisation of {x.dtype.name}, made for {self.source.dtype.name}.")
        if self.sample and {self.source, self.result} != {Format(I16, 8)}:
            raise DTypeError("the sample implementation normalises int16 in Q7.8 only.")
        return (TensorType(x.shape, self.result.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the normalisation with numpy."""
        x = required(inputs)
        if self.sample:
            return (normalise_sample(x, self.rule(), self.size, self.across),)
        return (
            normalise(x, self.alpha, self.beta, self.size, self.across, self.source, self.result),
        )

    def rule(self) -> NormRule:
        """Return the sample implementation's constants."""
        return NormRule.of(self.alpha, self.beta, self.size, self.across)

    def table(self) -> Array:
        """Return offsets and slopes of the power's chords, or nothing where there are none."""
        rule = self.rule()
        return np.array([rule.offsets, rule.slopes], np.int32)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts: a work-item computes an element."""
        x, out = problem.input(0), problem.outputs[0]
        global_size, local = grid(problem.target, out.type.size)
        real = "double" if "fp64" in problem.target.features else "float"
        name = f"openvx_norm_{x.type.dtype.cl}_{'sample' if self.sample else real}"
        share = self.alpha / (self.size if self.across else self.size**2)
        params = {
            "name": name,
            "source": self.source,
            "result": self.result,
            "src": x.layout,
            "dst": out.layout,
            "across": self.across,
            "wg": local,
            "real": real,
            "low": (self.size - 1) // 2,
            "high": self.size // 2,
            "sample": self.sample,
            "factor": self.rule().factor if self.sample else 0,
            "beta": self.beta,
            "share": share / 4.0**self.source.fraction,
        }
        args: tuple[Arg, ...] = (In(0), Out(0))
        if self.sample:
            args = (In(0), Const(self.table), Out(0))
        launch = Launch("rows/openvx_norm.cl.mako", params, args, global_size, local)
        return [Variant(name, (launch,))]
