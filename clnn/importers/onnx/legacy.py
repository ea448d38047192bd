"""Operators as they were before opset 7, written in the form of opset 7."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from clnn.ops.onnx_registry import Unsupported
from clnn.types import TensorType

OLDEST_OPSET = 7
Kinds = Sequence["TensorType | None"]
Adapter = Callable[[dict[str, Any], Kinds], "tuple[int, ...] | None"]


def modernise(
    op_type: str, opset: int, attrs: Mapping[str, Any], kinds: Kinds
) -> tuple[dict[str, Any], tuple[int, ...] | None]:
    """Return (attributes, new shape of input 1 or None) of an older op in opset 7's form.

    Raises Unsupported for an op whose older form clnn does not know.
    """
    changed = dict(attrs)
    if _since(op_type, opset) == _since(op_type, OLDEST_OPSET):
        return changed, None
    adapter = _ADAPTERS.get(op_type)
    if adapter is None:
        raise Unsupported(
            f"this op had another form before opset {OLDEST_OPSET}; convert the model with "
            "onnx.version_converter or export it again"
        )
    changed.pop("consumed_inputs", None)
    return changed, adapter(changed, kinds)


def _since(op_type: str, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return -1


def _broadcast(attrs: dict[str, Any], kinds: Kinds) -> tuple[int, ...] | None:
    """The second operand's axes match the first's from `axis` on (default: its last ones)."""
    enabled, axis = attrs.pop("broadcast", 0), attrs.pop("axis", None)
    left, right = kinds[0], kinds[1]
    if left is None or right is None:
        return None
    if not enabled and left.shape != right.shape:
        raise Unsupported(f"operands {left.shape} and {right.shape} differ without `broadcast`")
    if axis is None:
        return None
    start = axis + left.rank if axis < 0 else axis
    behind = left.rank - start - right.rank
    if behind < 0 or start < 0:
        raise Unsupported(f"axis {axis} does not place {right.shape} inside {left.shape}")
    return (*right.shape, *(1,) * behind)


def _prelu(attrs: dict[str, Any], kinds: Kinds) -> tuple[int, ...] | None:
    """A slope of one number per channel is per channel (axis 1)."""
    data, slope = kinds[0], kinds[1]
    if data is None or slope is None or slope.rank != 1 or slope.size == 1 or data.rank < 2:
        return None
    return (*slope.shape, *(1,) * (data.rank - 2))


def _same(attrs: dict[str, Any], kinds: Kinds) -> None:
    attrs.pop("broadcast", None)


def _inference_only(attrs: dict[str, Any], kinds: Kinds) -> None:
    if not attrs.pop("is_test", 0):
        raise Unsupported("it is in training mode (is_test is 0); clnn runs inference only")


_ADAPTERS: dict[str, Adapter] = {
    **dict.fromkeys(
        ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"),
        _broadcast,
    ),
    "PRelu": _prelu,
    "Gemm": _same,
    "AveragePool": _same,
    "BatchNormalization": _inference_only,
    "Dropout": _inference_only,
}
