"""Enumerations of OpenVX and of its neural-network extension, by their names in the documents.

Values are those of the OpenVX headers: (vendor << 20) | (enumeration << 12) + number for
enumerations, (vendor << 20) | (object type << 8) + number for attributes. Where the extension's
document names a member without a number, the number is clnn's own.
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """vx_status_e."""

    VX_SUCCESS = 0
    VX_FAILURE = -1
    VX_ERROR_NOT_IMPLEMENTED = -2
    VX_ERROR_NOT_SUPPORTED = -3
    VX_ERROR_NOT_SUFFICIENT = -4
    VX_ERROR_NOT_ALLOCATED = -5
    VX_ERROR_NOT_COMPATIBLE = -6
    VX_ERROR_NO_RESOURCES = -7
    VX_ERROR_NO_MEMORY = -8
    VX_ERROR_OPTIMIZED_AWAY = -9
    VX_ERROR_INVALID_PARAMETERS = -10
    VX_ERROR_INVALID_MODULE = -11
    VX_ERROR_INVALID_REFERENCE = -12
    VX_ERROR_INVALID_LINK = -13
    VX_ERROR_INVALID_FORMAT = -14
    VX_ERROR_INVALID_DIMENSION = -15
    VX_ERROR_INVALID_VALUE = -16
    VX_ERROR_INVALID_TYPE = -17
    VX_ERROR_INVALID_GRAPH = -18
    VX_ERROR_INVALID_NODE = -19
    VX_ERROR_INVALID_SCOPE = -20
    VX_ERROR_GRAPH_SCHEDULED = -21
    VX_ERROR_GRAPH_ABANDONED = -22
    VX_ERROR_MULTIPLE_WRITERS = -23
    VX_ERROR_REFERENCE_NONZERO = -24


class Type(IntEnum):
    """vx_type_e: element types, and types of objects."""

    VX_TYPE_INVALID = 0x000
    VX_TYPE_CHAR = 0x001
    VX_TYPE_INT8 = 0x002
    VX_TYPE_UINT8 = 0x003
    VX_TYPE_INT16 = 0x004
    VX_TYPE_UINT16 = 0x005
    VX_TYPE_INT32 = 0x006
    VX_TYPE_UINT32 = 0x007
    VX_TYPE_INT64 = 0x008
    VX_TYPE_UINT64 = 0x009
    VX_TYPE_FLOAT32 = 0x00A
    VX_TYPE_FLOAT64 = 0x00B
    VX_TYPE_ENUM = 0x00C
    VX_TYPE_SIZE = 0x00D
    VX_TYPE_DF_IMAGE = 0x00E
    VX_TYPE_BOOL = 0x010
    VX_TYPE_REFERENCE = 0x800
    VX_TYPE_CONTEXT = 0x801
    VX_TYPE_GRAPH = 0x802
    VX_TYPE_NODE = 0x803
    VX_TYPE_LUT = 0x807
    VX_TYPE_SCALAR = 0x80D
    VX_TYPE_IMAGE = 0x80F
    VX_TYPE_OBJECT_ARRAY = 0x813
    VX_TYPE_TENSOR = 0x815
    VX_TYPE_TENSOR_VIEW = 0x8F0
    VX_TYPE_TENSOR_ADDRESSING = 0x8F1
    VX_TYPE_IMPORT = 0x814


class ConvertPolicy(IntEnum):
    """vx_convert_policy_e."""

    VX_CONVERT_POLICY_WRAP = (0x0A << 12) + 0
    VX_CONVERT_POLICY_SATURATE = (0x0A << 12) + 1


class RoundPolicy(IntEnum):
    """vx_round_policy_e."""

    VX_ROUND_POLICY_TO_ZERO = (0x12 << 12) + 1
    VX_ROUND_POLICY_TO_NEAREST_EVEN = (0x12 << 12) + 2


class Accessor(IntEnum):
    """vx_accessor_e."""

    VX_READ_ONLY = (0x11 << 12) + 1
    VX_WRITE_ONLY = (0x11 << 12) + 2
    VX_READ_AND_WRITE = (0x11 << 12) + 3


class MemoryType(IntEnum):
    """vx_memory_type_e."""

    VX_MEMORY_TYPE_NONE = (0x0E << 12) + 0
    VX_MEMORY_TYPE_HOST = (0x0E << 12) + 1


class SizeRounding(IntEnum):
    """vx_convolutional_networks_rounding_type_e."""

    VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_FLOOR = (0x1A << 12) + 0
    VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING = (0x1A << 12) + 1


class PoolType(IntEnum):
    """vx_convolutional_network_pooling_type_e."""

    VX_CONVOLUTIONAL_NETWORK_POOLING_MAX = (0x1B << 12) + 0
    VX_CONVOLUTIONAL_NETWORK_POOLING_AVG = (0x1B << 12) + 1


class NormType(IntEnum):
    """vx_convolutional_network_norm_type_e."""

    VX_CONVOLUTIONAL_NETWORK_NORM_SAME_MAP = (0x1C << 12) + 0
    VX_CONVOLUTIONAL_NETWORK_NORM_ACROSS_MAPS = (0x1C << 12) + 1


class Activation(IntEnum):
    """vx_convolutional_network_activation_func_e."""

    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_LOGISTIC = (0x1D << 12) + 0
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_HYPERBOLIC_TAN = (0x1D << 12) + 1
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_RELU = (0x1D << 12) + 2
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_BRELU = (0x1D << 12) + 3
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_SOFTRELU = (0x1D << 12) + 4
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_ABS = (0x1D << 12) + 5
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_SQUARE = (0x1D << 12) + 6
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_SQRT = (0x1D << 12) + 7
    VX_CONVOLUTIONAL_NETWORK_ACTIVATION_LINEAR = (0x1D << 12) + 8


class TensorAttribute(IntEnum):
    """vx_tensor_attribute_e."""

    VX_TENSOR_NUM_OF_DIMS = (0x815 << 8) + 0
    VX_TENSOR_DIMS = (0x815 << 8) + 1
    VX_TENSOR_DATA_TYPE = (0x815 << 8) + 2
    VX_TENSOR_FIXED_POINT_POS = (0x815 << 8) + 4


class ContextAttribute(IntEnum):
    """vx_context_attribute_e; the document gives the one attribute two names."""

    VX_CONTEXT_MAX_TENSOR_DIMENSIONS = (0x801 << 8) + 0xF
    VX_CONTEXT_TENSOR_MAX_DIMENSION = (0x801 << 8) + 0xF
    VX_CONTEXT_REFERENCES = (0x801 << 8) + 0x3


class ReferenceAttribute(IntEnum):
    """vx_reference_attribute_e."""

    VX_REFERENCE_COUNT = (0x800 << 8) + 0
    VX_REFERENCE_TYPE = (0x800 << 8) + 1
    VX_REFERENCE_NAME = (0x800 << 8) + 2


class GraphAttribute(IntEnum):
    """vx_graph_attribute_e."""

    VX_GRAPH_NUMNODES = (0x802 << 8) + 0


class ImageAttribute(IntEnum):
    """vx_image_attribute_e."""

    VX_IMAGE_WIDTH = (0x80F << 8) + 0
    VX_IMAGE_HEIGHT = (0x80F << 8) + 1
    VX_IMAGE_FORMAT = (0x80F << 8) + 2


class ObjectArrayAttribute(IntEnum):
    """vx_object_array_attribute_e."""

    VX_OBJECT_ARRAY_ITEMTYPE = (0x813 << 8) + 0
    VX_OBJECT_ARRAY_NUMITEMS = (0x813 << 8) + 1


class LutAttribute(IntEnum):
    """vx_lut_attribute_e."""

    VX_LUT_TYPE = (0x807 << 8) + 0
    VX_LUT_COUNT = (0x807 << 8) + 1
    VX_LUT_SIZE = (0x807 << 8) + 2
    VX_LUT_OFFSET = (0x807 << 8) + 3


def _four(code: str) -> int:
    return int.from_bytes(code.encode("ascii"), "little")


class DfImage(IntEnum):
    """vx_df_image_e, as far as elements of tensors have one."""

    VX_DF_IMAGE_VIRT = _four("VIRT")
    VX_DF_IMAGE_U8 = _four("U008")
    VX_DF_IMAGE_U16 = _four("U016")
    VX_DF_IMAGE_S16 = _four("S016")
    VX_DF_IMAGE_U32 = _four("U032")
    VX_DF_IMAGE_S32 = _four("S032")


GROUPS: tuple[type[IntEnum], ...] = (
    Status,
    Type,
    ConvertPolicy,
    RoundPolicy,
    Accessor,
    MemoryType,
    SizeRounding,
    PoolType,
    NormType,
    Activation,
    TensorAttribute,
    ContextAttribute,
    ReferenceAttribute,
    GraphAttribute,
    ImageAttribute,
    ObjectArrayAttribute,
    LutAttribute,
    DfImage,
)
