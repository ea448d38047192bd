"""Models of old operator sets as such that have scales of channels."""

from __future__ import annotations

import onnx
from onnx import version_converter

from clnn.errors import ModelError

OLDEST_OPSET = 13  # per-axis scales


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of a model's operator set."""
    return int(max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")))


def newer(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model converted to OLDEST_OPSET where its set is older. Raises ModelError where that fails."""
    opset = opset_of(model)
    if opset >= OLDEST_OPSET:
        return model
    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as err:  # the converter's own kinds
        words = str(err).splitlines() or [type(err).__name__]
        raise ModelError(
            f"the model's operator set is {opset}; quantised models need {OLDEST_OPSET}, and onnx cannot convert"
            f" it: {words[-1][:200]}"
        ) from err
