"""Which function computes which ONNX operator on the host: filled by the files beside this one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, TypeVar

from clnn.errors import ModelError
from clnn.records import dataclass

Value = Any
"""An array (of objects where it is text), a list of values (a sequence), a dict (a map), or None for an
optional value that is not there."""
T = TypeVar("T")


@dataclass(frozen=True)
class HostNode:
    """An ONNX node as the functions here see it: plain Python, no onnx objects.

    op_type: with its domain and "::" before it where that is not ONNX's own.
    """

    op_type: str
    opset: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    n_outputs: int = 1
    name: str = ""
    _kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returns, made once for this node: tables of its attributes."""
        found: T | None = self._kept.get(name)
        if found is None:
            found = self._kept[name] = make()
        return found

    def attr(self, name: str, default: Any = None) -> Any:
        """Return attribute `name`, or `default` where the node has none."""
        value = self.attrs.get(name)
        return default if value is None else value


HostFunction = Callable[..., "Value | tuple[Value, ...]"]
_FUNCTIONS: dict[str, HostFunction] = {}


def host_op(*op_types: str) -> Callable[[HostFunction], HostFunction]:
    """Register a function of (HostNode, *inputs) for operators; it returns one or all outputs.

    op_types: of other domains than ONNX's own as DOMAIN::TYPE.
    """

    def register(function: HostFunction) -> HostFunction:
        for name in op_types:
            _FUNCTIONS[name] = function
        return function

    return register


@cache
def host_ops() -> Mapping[str, HostFunction]:
    """Return the functions of all files in this folder and below, by ONNX op type."""
    package = importlib.import_module("clnn.ops.host")
    for module in pkgutil.walk_packages(package.__path__, "clnn.ops.host."):
        importlib.import_module(module.name)
    return dict(_FUNCTIONS)


def compute(
    node: HostNode, inputs: Sequence[Value], function: HostFunction | None = None
) -> tuple[Value, ...]:
    """Return the outputs of a node. Raises ModelError where its inputs do not fit.

    function: in the registered one's place.
    """
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    try:
        outputs = (function or host_ops()[node.op_type])(node, *inputs)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as err:
        kinds = ", ".join(_kind(value) for value in inputs)
        raise ModelError(f"node {node.name!r} ({node.op_type}) of ({kinds}): {err}.") from err
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _kind(value: Value) -> str:
    if isinstance(value, dict):
        return f"map of {len(value)}"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return "-" if value is None else f"{value.dtype}{list(value.shape)}"
