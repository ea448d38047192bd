"""A model with all of its data inside, where some lies in files beside it."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from clnn.errors import ModelError
from clnn.importers.onnx.external import read_external
from clnn.importers.onnx.limits import check_dims, show
from clnn.importers.onnx.tensors import numpy_dtype, stored_bytes

MOST = 2**31 - 1  # bytes of a model with all of its data inside


def whole(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """Return the model with the data of its constants inside. folder: where they may lie; None: nowhere.

    Raises ModelError for data that is not there, or is too much for one file.
    """
    if not any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    total = made.ByteSize()
    for tensor in made.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        what = f"tensor {show(tensor.name)}"
        count = check_dims(what, tensor.dims)
        dtype = numpy_dtype(tensor.data_type, what)
        nbytes = stored_bytes(tensor.data_type, dtype, count)
        total += nbytes
        if total > MOST:
            raise ModelError(
                f"the model and its external data have more than {MOST} bytes, which one ONNX file holds."
            )
        tensor.raw_data = bytes(read_external(tensor, nbytes, folder))
        tensor.ClearField("data_location")
        del tensor.external_data[:]
    return made
