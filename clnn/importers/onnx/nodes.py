"""One node: the op file that knows it, onnx's own check of it, and errors that say its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import onnx

from clnn.errors import ClnnError, HostMemoryError, ModelError, ModelNodeError, ShapeError
from clnn.importers.onnx.limits import NEWEST_OPSET, show
from clnn.importers.onnx.scope import Call
from clnn.ops.onnx_registry import OnnxImporter, Unsupported, onnx_importers
from clnn.types import Array, TensorType


class Consts(dict[int, Array]):
    """The constant inputs of a node; notes which others were asked for."""

    def __init__(self, known: Mapping[int, Array]) -> None:
        super().__init__(known)
        self.missed: set[int] = set()

    def __contains__(self, key: object) -> bool:
        known = super().__contains__(key)
        if not known and isinstance(key, int):
            self.missed.add(key)
        return known

    def get(self, key: int, default: Any = None) -> Any:
        """Return the constant, or `default` (noting that it was asked for)."""
        known = key in self
        return self[key] if known else default

    def __missing__(self, key: int) -> Array:
        self.missed.add(key)
        raise KeyError(key)


def complete(values: Sequence[str | None], call: Call) -> Sequence[str | None]:
    """Return `values` where they are every output that the node wants. Raises Unsupported."""
    for place, name in enumerate(call.node.output):
        if name and (place >= len(values) or values[place] is None):
            raise Unsupported(f"output {place} is not supported")
    return values


def find_importer(call: Call) -> OnnxImporter | None:
    """Return the op file's function for a node, None where clnn has none of its form."""
    if call.opset is None or (call.is_standard and not has_form(call.op_type, call.opset)):
        return None
    key = call.op_type if call.domain == "ai.onnx" else f"{call.domain}::{call.op_type}"
    return onnx_importers().get(key)


def has_form(op_type: str, opset: int) -> bool:
    """Whether an operator of ONNX's domain may have a form here: one of ONNX, or of onnxruntime alone."""
    return _known(op_type, opset) or (not onnx.defs.has(op_type) and op_type in onnx_importers())


@lru_cache(maxsize=4096)
def _known(op_type: str, opset: int) -> bool:
    """Whether an operator, as of `opset`, has a form that clnn was written for."""
    try:
        since: int = onnx.defs.get_schema(op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return False
    return since <= NEWEST_OPSET


def check_node(call: Call, ir_version: int) -> None:
    """Check a node with onnx's own checker, where it knows the operator. Raises ModelError.

    The checker refuses forms that a later one has replaced, of whatever operator set the model is.
    """
    if not _known(call.op_type, call.opset or 0):
        return
    schema, named = onnx.defs.get_schema(call.op_type, call.opset, ""), len(call.node.output)
    if named > schema.max_output:
        most = schema.max_output
        raise ModelNodeError(f"it names {named} outputs, but the operator makes at most {most}.")
    replaced = schema.deprecated and not onnx.defs.get_schema(call.op_type).deprecated
    beyond = any(
        a.HasField("t") or a.HasField("g") or a.graphs or a.ref_attr_name
        for a in call.node.attribute
    )
    if beyond or replaced:
        return
    context = onnx.checker.C.CheckerContext()
    context.ir_version = ir_version
    context.opset_imports = {"": call.opset, "ai.onnx": call.opset}
    try:
        onnx.checker.check_node(call.node, context)
    except onnx.checker.ValidationError as err:
        lines = [line.strip() for line in str(err).splitlines() if line.strip()]
        raise ModelNodeError(f"{lines[0].rstrip('.') if lines else 'it is not valid'}.") from err


@contextmanager
def blamed(call: Call, kinds: Sequence[TensorType | None]) -> Iterator[None]:
    """Say which node an error comes from; errors of wrong values become ModelError."""
    where = f"node {show(call.name)} ({call.op_type[:80]})"
    try:
        yield
    except Unsupported:
        raise
    except (ShapeError, ModelError, HostMemoryError) as err:
        raise type(err)(f"{where}: {err}") from err
    except (ClnnError, MemoryError):
        raise
    except Exception as err:  # whatever an op file meets in a node that makes no sense
        raise ModelNodeError(
            f"{where} of opset {call.opset} is not valid: {type(err).__name__}: {err}. Its inputs "
            f"are {[repr(k) for k in kinds]}, its attributes {_short(call.attrs)}."
        ) from err


def _short(attrs: Mapping[str, Any]) -> str:
    shown = {
        name: value for name, value in attrs.items() if isinstance(value, (int, float, str, list))
    }
    return show(str(dict(list(shown.items())[:8]))[:160])
