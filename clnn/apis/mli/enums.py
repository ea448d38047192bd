"""Enumerations of embARC MLI 2.0, under their own names."""

from __future__ import annotations

from enum import IntEnum


class MliStatus(IntEnum):
    """What a function of MLI returns."""

    MLI_STATUS_OK = 0
    MLI_STATUS_BAD_TENSOR = 1
    MLI_STATUS_SHAPE_MISMATCH = 2
    MLI_STATUS_INCOMPATEBLE_TENSORS = 3
    MLI_STATUS_BAD_FUNC_CFG = 4
    MLI_STATUS_NOT_ENGH_MEM = 5
    MLI_STATUS_NOT_SUPPORTED = 6
    MLI_STATUS_SPEC_PARAM_MISMATCH = 7
    MLI_STATUS_ARGUMENT_ERROR = 8
    MLI_STATUS_LENGTH_ERROR = 9
    MLI_STATUS_SIZE_MISMATCH = 10
    MLI_STATUS_RANGE_ERROR = 11
    MLI_STATUS_TYPE_MISMATCH = 12
    MLI_STATUS_MEM_BANK_MISMATCH = 13
    MLI_STATUS_MISALIGNMENT_ERROR = 14


class MliElementType(IntEnum):
    """Formats of tensor elements."""

    MLI_EL_FX_8 = 0x008
    MLI_EL_FX_16 = 0x010
    MLI_EL_SA_8 = 0x108
    MLI_EL_SA_32 = 0x120
    MLI_EL_FP_32 = 0x220


class MliReluType(IntEnum):
    """ReLUs that a kernel may end with."""

    MLI_RELU_NONE = 0
    MLI_RELU_GEN = 1
    MLI_RELU_1 = 2
    MLI_RELU_6 = 3


class MliRnnDirection(IntEnum):
    """Order in which a recurrent cell takes the items of a sequence."""

    RNN_DIR_FORWARD = 0
    RNN_DIR_BACKWARD = 1


class MliRnnResults(IntEnum):
    """Which outputs of a recurrent cell are kept."""

    RNN_OUT_LAST = 0
    RNN_OUT_ALL = 1


class MliRnnActivation(IntEnum):
    """Activation of a recurrent cell's output."""

    RNN_ACT_NONE = 0
    RNN_ACT_TANH = 1
    RNN_ACT_SIGM = 2
