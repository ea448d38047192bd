"""TIDL-RT's data formats: descriptor files, padded buffers, networks on them, detected objects."""

from __future__ import annotations

from clnn.apis.tidl.buffers import (
    TIDLRT_allocSharedMem,
    TIDLRT_isSharedMem,
    allocate,
    dequantise,
    quantise,
    sTIDLRT_Tensor_t,
)
from clnn.apis.tidl.descriptor import sTIDL_IOBufDesc_t
from clnn.apis.tidl.detection import (
    TIDL_ODLayerHeaderInfo,
    TIDL_ODLayerKeyPoint,
    TIDL_ODLayerObjInfo,
    parse_objects,
    write_objects,
)
from clnn.apis.tidl.enums import (
    ElementType,
    InDataFormat,
    InferenceMode,
    InResizeType,
    ObjectType,
    TensorOrder,
)
from clnn.apis.tidl.network import CopyReport, Network, describe
from clnn.apis.tidl.ssd import SsdParams, SsdPostProcess
from clnn.apis.tidl.structure import VERSIONS, Field, Version, version_of, version_of_size
from clnn.apis.tidl.tensors import IOTensor

__all__ = [
    "VERSIONS",
    "CopyReport",
    "ElementType",
    "Field",
    "IOTensor",
    "InDataFormat",
    "InResizeType",
    "InferenceMode",
    "Network",
    "ObjectType",
    "SsdParams",
    "SsdPostProcess",
    "TIDLRT_allocSharedMem",
    "TIDLRT_isSharedMem",
    "TIDL_ODLayerHeaderInfo",
    "TIDL_ODLayerKeyPoint",
    "TIDL_ODLayerObjInfo",
    "TensorOrder",
    "Version",
    "allocate",
    "dequantise",
    "describe",
    "parse_objects",
    "quantise",
    "sTIDLRT_Tensor_t",
    "sTIDL_IOBufDesc_t",
    "version_of",
    "version_of_size",
    "write_objects",
]
