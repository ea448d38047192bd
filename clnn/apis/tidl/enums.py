"""Enumerations of TIDL's interface, and the numpy types of its elements."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np


class ElementType(IntEnum):
    """eTIDL_ElementType: the type of a tensor's elements."""

    TIDL_UnsignedChar = 0
    TIDL_SignedChar = 1
    TIDL_UnsignedShort = 2
    TIDL_SignedShort = 3
    TIDL_UnsignedWord = 4
    TIDL_SignedWord = 5
    TIDL_SinglePrecFloat = 6
    TIDL_UnsignedDoubleWord = 7
    TIDL_SignedDoubleWord = 8


class TensorOrder(IntEnum):
    """eTIDL_TensorLayout: which axis lies innermost."""

    TIDL_LT_NCHW = 0
    TIDL_LT_NHWC = 1


class InDataFormat(IntEnum):
    """eTIDL_inDataFormat: what the channels of an image are."""

    TIDL_inDataFormatBGRPlanar = 0
    TIDL_inDataFormatRGBPlanar = 1


class InResizeType(IntEnum):
    """eTIDL_inResizeType: how an image is brought to the input's size."""

    TIDL_inResizeTypeDefault = 0
    TIDL_inResizeTypeKeepAR = 1


class InferenceMode(IntEnum):
    """eTIDL_inferenceMode: how several cores share the work."""

    TIDL_inferenceModeDefault = 0
    TIDL_inferenceModeHighThroughput = 1
    TIDL_inferenceModeLowLatency = 2


class ObjectType(IntFlag):
    """Bits of odObjectType: what a detected object holds."""

    Detect2DBox = 1
    Detect3DBox = 2
    DetectKeyPoints = 4
    DetectObjectPose = 8


_NUMPY = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8")
NUMPY_TYPES: dict[int, np.dtype[np.generic]] = {
    int(kind): np.dtype(f"<{text}") for kind, text in zip(ElementType, _NUMPY, strict=True)
}
ELEMENT_TYPES = {dtype: ElementType(number) for number, dtype in NUMPY_TYPES.items()}
