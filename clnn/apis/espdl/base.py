"""dl::layer::Layer and dl::Model: layers that are built for an input and called with it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from clnn.apis.espdl.modes import Modes, modes
from clnn.apis.espdl.tensor import Tensor, settle
from clnn.apis.espdl.values import made
from clnn.errors import DTypeError, ShapeError

BITS = {np.dtype(np.int8): 8, np.dtype(np.int16): 16}
_calls: contextvars.ContextVar[list[tuple[Tensor, tuple[Tensor, ...]]] | None] = (
    contextvars.ContextVar("clnn_espdl_calls", default=None)
)


class Layer:
    """A layer with one output. Subclasses have build(...) and call(...), which take its inputs."""

    def __init__(self, name: str | None = None, exponent: int | None = None) -> None:
        """exponent: of the output, where it is not the input's."""
        self.name = name or type(self).__name__
        self.output_exponent = exponent
        self.output = Tensor()
        self._inputs: list[list[int]] = []

    def preload(self) -> None:
        """Do nothing: constants are on the device already."""

    def built(self, shape: Sequence[int], *inputs: Tensor, kind: Any = None) -> None:
        """Set the output's shape, type and exponent for inputs of these shapes."""
        for tensor in inputs:
            if not tensor.shape or min(tensor.shape) < 1:
                raise ShapeError(f"{self.name} is built for an input of shape {tensor.shape}.")
        output, dtype = self.output, np.dtype(kind or inputs[0].dtype)
        if output.shape != list(shape) or output.dtype != dtype:
            output.reset()
            output.dtype = dtype
            output.set_shape(shape)
        known = self.output_exponent
        output.set_exponent(inputs[0].exponent if known is None else known)
        self._inputs = [list(tensor.shape) for tensor in inputs]

    def bits(self, tensor: Tensor) -> int:
        """Return the width of a tensor's elements. Raises DTypeError for other than int8 and int16."""
        if tensor.dtype not in BITS:
            raise DTypeError(f"{self.name} of {tensor.dtype}: it takes int8 or int16.")
        return BITS[tensor.dtype]

    def same_exponents(self, *tensors: Tensor) -> None:
        """Raise ShapeError unless exponents are equal."""
        found = [t.exponent for t in tensors]
        if len(set(found)) > 1:
            raise ShapeError(f"{self.name} of exponents {found}: they must be equal.")

    def run(self, key: Hashable, ops: Callable[..., str], *inputs: Tensor) -> Tensor:
        """Let the output be what `ops` make of the inputs; return it.

        Raises ShapeError where the layer was built for inputs of other shapes.
        """
        shapes = [list(tensor.shape) for tensor in inputs]
        if shapes != self._inputs:
            raise ShapeError(
                f"{self.name} is called with {shapes} and was built for {self._inputs or 'nothing'}:"
                " call build() first."
            )
        recorded = _calls.get()
        if recorded is not None:
            recorded.append((self.output, inputs))
        sources = [tensor.value() for tensor in inputs]
        return self.output.hold(made((type(self).__name__, key), ops, *sources))

    def modes(self) -> Modes:
        """Return how the layer computes here and now."""
        return modes()


class Model:
    """A network: a subclass has layers as attributes, build(input) and call(input).

    forward() builds where the input's shape is new, calls, and computes all results in one session.
    """

    def __init__(self) -> None:
        self.input_shape: list[int] = []
        self.outputs: list[Tensor] = []

    def build(self, input: Tensor) -> None:
        """Build all layers. Called by forward()."""
        raise NotImplementedError(f"{type(self).__name__} has no build(input).")

    def call(self, input: Tensor) -> Any:
        """Call all layers. Called by forward()."""
        raise NotImplementedError(f"{type(self).__name__} has no call(input).")

    def forward(self, input: Tensor, free_input: bool = False) -> Any:
        """Return what call() returns, with all outputs that no other layer takes computed."""
        if self.input_shape != list(input.shape):
            self.build(input)
            self.input_shape = list(input.shape)
        token = _calls.set([])
        try:
            result = self.call(input)
            self.outputs = _ends(_calls.get() or [])
        finally:
            _calls.reset(token)
        settle(*self.outputs)
        if free_input:
            input.free_element()
        return result


def _ends(calls: Sequence[tuple[Tensor, tuple[Tensor, ...]]]) -> list[Tensor]:
    """Return the outputs that no other call takes and that still wait."""
    waiting, taken = [t for _, inputs in calls for t in inputs], set[int]()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in taken:
            taken.add(id(tensor))
            waiting += tensor.members
    found = {id(output): output for output, _ in calls}
    return [t for key, t in found.items() if key not in taken and t.pending]
