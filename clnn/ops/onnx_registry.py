"""Which function imports which ONNX op: filled by the op files, read by the importer."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any

from clnn.errors import ClnnError
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, DType, TensorType


class Unsupported(ClnnError):
    """Raised by an importer function: this form of the op is not supported, for this reason."""


@dataclass(frozen=True, eq=False)
class Emit:
    """One node that an importer function wants: spec and inputs (see Source)."""

    spec: OpSpec
    inputs: Sequence[Source]

    def out(self, index: int) -> EmitOutput:
        """Return output `index` of this node (the node itself stands for output 0)."""
        return EmitOutput(self, index)


@dataclass(frozen=True, eq=False)
class EmitOutput:
    """One output of a node with several."""

    emit: Emit
    index: int


Source = int | Array | Emit | EmitOutput | None
"""What feeds an input or an ONNX output: ONNX input index, constant, emitted node, or nothing."""


class Attributes(dict[str, Any]):
    """A node's attributes by name, which lists of other things may refer to without holding them."""


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node as the op files see it: plain Python, no onnx objects.

    attrs: attribute values (ints, floats, str, lists, numpy arrays). inputs: type of each input,
    None where it is left out. consts: data of the inputs that are constant. narrow: of inputs whose
    element type is carried by another (clnn.types.CARRIERS), which it is. varying: constant inputs that are
    others where the network has other extents, which it may. open_images: its images may have other extents,
    too. computed: data of an input that quantisation of constants makes, None for others; of such inputs
    only that which must be a constant is asked for. is_dequantised: whether DequantizeLinear makes an input.
    """

    op_type: str
    opset: int
    attrs: Mapping[str, Any]
    inputs: tuple[TensorType | None, ...]
    consts: Mapping[int, Array]
    n_outputs: int = 1
    narrow: Mapping[int, DType] = field(default_factory=dict)
    varying: frozenset[int] = frozenset()
    open_images: bool = False
    computed: Callable[[int], Array | None] = field(default=lambda index: None)
    is_dequantised: Callable[[int], bool] = field(default=lambda index: False)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return attribute `name`, or `default` where the node has none."""
        value = self.attrs.get(name)
        return default if value is None else value

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def type(self, index: int) -> TensorType:
        """Return the type of input `index`, which must be given."""
        kind = self.inputs[index] if index < len(self.inputs) else None
        if kind is None:
            raise Unsupported(f"input {index} is missing")
        return kind

    def const(self, index: int, what: str) -> Array:
        """Return input `index`, which must be a constant; `what` names it in the reason."""
        if index in self.consts:
            return self.consts[index]
        found = self.computed(index)
        if found is None:
            raise Unsupported(f"{what} (input {index}) is not a constant")
        return found


OnnxImporter = Callable[[OnnxNode], "Source | Sequence[Source]"]
_IMPORTERS: dict[str, OnnxImporter] = {}


def onnx_op(*op_types: str) -> Callable[[OnnxImporter], OnnxImporter]:
    """Register a function that turns an ONNX node of `op_types` into one Source per output."""

    def register(function: OnnxImporter) -> OnnxImporter:
        for name in op_types:
            _IMPORTERS[name] = function
        return function

    return register


@cache
def onnx_importers() -> Mapping[str, OnnxImporter]:
    """Return the importer functions of all op files, by ONNX op type (domain:: where not ai.onnx)."""
    package = importlib.import_module("clnn.ops")
    for module in pkgutil.walk_packages(package.__path__, "clnn.ops."):
        importlib.import_module(module.name)
    return dict(_IMPORTERS)
