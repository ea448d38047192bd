"""IOBinding: inputs and outputs of runs given ahead, in memory of the caller's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.errors import ClnnError
from clnn.onnxruntime.errors import FeedError
from clnn.onnxruntime.values import OrtValue, checked_device, numpy_type
from clnn.types import Array


class IOBinding:
    """Values for a session's inputs, and where its outputs go. session: an InferenceSession."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._made: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array. Raises RuntimeError for an unknown name and what is no array."""
        if not isinstance(arr_on_cpu, np.ndarray):
            raise FeedError(f"input {name!r}: an array is bound, not {type(arr_on_cpu).__name__}.")
        self.bind_ortvalue_input(name, OrtValue(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory of the host at an address."""
        checked_device(device_type)
        self.bind_ortvalue_input(name, OrtValue(_at(buffer_ptr, element_type, shape)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value."""
        known = [p.name for p in self._session.get_inputs()]
        known += [p.name for p in self._session.get_overridable_initializers()]
        if name not in known:
            raise FeedError(f"Failed to find input {name!r}. The model's inputs are {known}.")
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, into memory of the host at an address where one is given."""
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        checked_device(device_type)
        if shape is None:
            raise FeedError(f"output {name!r} is bound to an address without a shape.")
        self._outputs[name] = OrtValue(_at(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output, into a value."""
        self._outputs[name] = ortvalue

    def run(self, run_options: Any = None) -> None:
        """Run the session. Raises RuntimeError where what is bound does not fit."""
        if not self._outputs:
            raise FeedError("Error in execution: no output is bound. Call bind_output.")
        names = list(self._outputs)
        try:
            made = self._run(names, run_options)
        except ClnnError as err:
            raise FeedError(f"Error in execution: {err}") from err
        self._made = [self._placed(name, value) for name, value in zip(names, made, strict=True)]

    def _run(self, names: list[str], run_options: Any) -> list[Any]:
        on_device = [n for n, v in self._inputs.items() if v.buffer is not None]
        if not on_device:
            made: list[Any] = self._session.run(names, self._inputs, run_options)
            return made
        shapes = {n: v.shape() for n, v in self._inputs.items()}
        feeds = {n: v.numpy() for n, v in self._inputs.items() if n not in on_device}
        return list(self._session.run_bound(names, feeds, shapes))

    def _placed(self, name: str, value: Any) -> OrtValue:
        """Return an output where it was asked for."""
        target = self._outputs[name]
        if target is None:
            return OrtValue(value)
        into = target.numpy()
        if target.buffer is not None or into.shape != value.shape or into.dtype != value.dtype:
            raise FeedError(
                f"Error in execution: output {name!r} is {value.dtype}{value.shape}, bound is memory "
                f"for {into.dtype}{into.shape} on {target.device_name()!r}."
            )
        into[...] = value
        return target

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run."""
        return list(self._made)

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        """Return the outputs of the last run."""
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays."""
        return [value.numpy() for value in self._made]

    def clear_binding_inputs(self) -> None:
        """Bind no input."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no output."""
        self._outputs.clear()
        self._made = []

    def synchronize_inputs(self) -> None:
        """Do nothing: copies into values have ended when they return."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run has ended when it returns."""


def _at(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """Return memory of the host as an array."""
    dtype = numpy_type(element_type)
    count = int(np.prod(tuple(shape), dtype=np.int64)) * dtype.itemsize
    raw = memoryview((ctypes.c_byte * count).from_address(address))
    array: Array = np.frombuffer(raw, dtype).reshape(tuple(shape))
    return array
