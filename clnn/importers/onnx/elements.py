"""Which results of a node the model has in an element type that is computed in a wider one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clnn.errors import ClnnError
from clnn.ops.elementwise.cast import dtype_numbered
from clnn.types import CARRIERS, DType, TensorType

# Operators whose attributes or parameters decide on the element type of the result.
DECIDING = ("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear")
# Outputs that are float32, whatever the inputs are: means, and factors of normalisations.
_MOMENTS = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (1, 2),
    "SkipSimplifiedLayerNormalization": (1, 2),
}


def element_of(
    op_type: str,
    attrs: Mapping[str, Any],
    given: Sequence[DType | None],
    kinds: Sequence[TensorType | None],
    result: DType,
    place: int = 0,
) -> DType | None:
    """Return the element type of a result that is computed as `result`, None where it is that.

    given: of each input, its element type where that is carried by another; kinds: what inputs are
    computed as; place: which result it is. Unless an operator decides otherwise, results are what
    the first input of their kind is.
    """
    if place in _MOMENTS.get(op_type, ()):
        return None
    named = {"Cast": "to", "QuantizeLinear": "output_dtype", "DequantizeLinear": "output_dtype"}
    number = int(attrs.get(named.get(op_type, ""), 0) or 0)
    if number:
        element = _numbered(number)
    elif op_type in DECIDING or op_type == "OneHot":
        place = 2 if op_type in ("QuantizeLinear", "OneHot") else 1
        element = given[place] if place < len(given) else None
    else:
        alike = (
            e for e, k in zip(given, kinds, strict=True) if k is not None and k.dtype == result
        )
        element = next(alike, None)
    return element if element is not None and CARRIERS[element] == result else None


def _numbered(number: int) -> DType | None:
    """Return the element type of a number of ONNX's where it is one that is carried."""
    try:
        element = dtype_numbered(number)
    except ClnnError:
        return None
    return element if element in CARRIERS else None
