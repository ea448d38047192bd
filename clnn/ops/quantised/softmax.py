"""Softmax of bytes as ONNX Runtime computes it: exponentials from a table, divided, rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import is_open
from clnn.types import I8, U8, Array, TensorType

LARGEST = np.finfo(np.float32).max
RESERVED = 5.0  # of the logarithm of float32's range, that sums have left
LONG = 32  # elements of a row from which on results are looked up by distance, on CPUs
HELD = 4  # rows that a work-item adds up in turn there
SHRINK = 2.0**-30  # what kernels multiply sums and steps with: products stay finite


@dataclass(frozen=True)
class ByteSoftmax(OpSpec):
    """Softmax of each row of x (rows, length), in bytes of the same type.

    step: scale of the input. scale: whole steps of the result that 1 is. zero: of the result.
    """

    kind_of: str
    step: float = field(metadata={"data": True})
    scale: float = field(metadata={"data": True})
    zero: int = 0

    kind = "byte_softmax"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises ShapeError or DTypeError for another input."""
        x = required(inputs)
        if x.rank != 2 or not x.shape[1]:
            raise ShapeError(f"softmax of bytes of {x.shape}: it needs rows with elements.")
        if x.dtype not in (I8, U8) or x.dtype.name != self.kind_of:
            raise DTypeError(f"softmax of bytes of {x.dtype.name}: it needs {self.kind_of}.")
        return (x,)

    @cached_property
    def _low(self) -> int:
        return -128 if self.kind_of == "int8" else 0

    def exponentials(self, length: int) -> Array:
        """Return float32 exponentials by how far an element lies above the largest less 255.

        They are as large as float32 holds their sums; how large is told by a logarithm in float32.
        """
        room = np.float32(np.log(np.float64(LARGEST / np.float32(length))))
        step = np.float64(np.float32(self.step))
        shift = max(0.0, float(room) - RESERVED) / step
        return np.asarray(np.exp((np.arange(256) - 255.0 + shift) * step), np.float32)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the softmax with numpy: float32 sums from the first on, quotients in float64."""
        x = required(inputs).astype(np.int64)
        if not x.size:
            return (required(inputs),)
        terms = self.exponentials(x.shape[1])[x - x.max(axis=1, keepdims=True) + 255]
        total = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1:]
        parts = np.rint(terms.astype(np.float64) * np.float64(self.scale) / total)
        steps = np.clip(parts, 0, 511).astype(np.int64) + self.zero
        return (np.clip(steps, self._low, self._low + 255).astype(required(inputs).dtype),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel: a work-item for each row, or for a few where results are looked up."""
        x, out = problem.input(0), problem.outputs[0]
        length, target = x.type.shape[1], problem.target
        vw = (
            min(target.vector, 16)
            if target.is_cpu and not is_open(length) and length >= LONG
            else 0
        )
        vw = vw if vw > 1 else 0
        held = HELD if vw else 1
        global_size, local = grid(target, -(-x.type.shape[0] // held))
        name = f"byte_softmax_{x.type.dtype.cl}{f'_v{vw}' * bool(vw)}"
        params = {
            "name": name,
            "ctype": x.type.dtype.cl,
            "src": x.layout,
            "dst": out.layout,
            "scale": self.scale * SHRINK,
            "shrink": SHRINK,
            "zero": self.zero,
            "low": self._low,
            "vw": vw,
            "held": held,
            "wg": local,
        }
        args = (In(0), Const(lambda: self.exponentials(length)), Out(0))
        launch = Launch("quantised/softmax.cl.mako", params, args, global_size, local)
        return [Variant(name, (launch,))]


def byte_softmax(x: Quantisation, y: Quantisation) -> ByteSoftmax:
    """Return the op for an input and a result of one type."""
    whole = np.floor(np.float32(1) / y.step)
    return ByteSoftmax(x.dtype.name, float(x.step), float(whole), y.zero[0])
