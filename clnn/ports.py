"""Inputs and outputs of models, of which dimensions may be open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.runtime.run.open_ports import OpenTensorInfo


def ports_of(
    model: Any, shapes: Mapping[str, Sequence[int] | int] | None
) -> tuple[list[OpenTensorInfo], list[OpenTensorInfo]]:
    """Return the inputs and outputs of a model, with dimensions that stay open by name."""
    from clnn.importers.onnx.info import read_info
    from clnn.importers.onnx.shapes import with_shapes

    info = read_info(model)
    rows = (with_shapes(info.inputs, shapes or {}), info.outputs)
    inputs, outputs = (
        [OpenTensorInfo(v.name, v.dims, np.dtype(v.dtype) if v.dtype else None) for v in values]
        for values in rows
    )
    return inputs, outputs
