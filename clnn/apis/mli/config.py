"""Configuration structures of embARC MLI 2.0, with the fields of the C ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from clnn.apis.mli.enums import (
    MliReluType,
    MliRnnActivation,
    MliRnnDirection,
    MliRnnResults,
)
from clnn.records import dataclass

MAX_RANK = 4
MAX_INPUTS = 4


@dataclass
class MliReluCfg:
    """mli_relu_cfg: the kind of ReLU."""

    type: int = MliReluType.MLI_RELU_NONE


@dataclass
class MliFullyConnectedCfg:
    """mli_fully_connected_cfg."""

    relu: MliReluCfg = field(default_factory=MliReluCfg)


@dataclass
class MliConv2dCfg:
    """mli_conv2d_cfg: strides, padding and dilation in elements."""

    relu: MliReluCfg = field(default_factory=MliReluCfg)
    stride_width: int = 1
    stride_height: int = 1
    padding_left: int = 0
    padding_right: int = 0
    padding_top: int = 0
    padding_bottom: int = 0
    dilation_width: int = 1
    dilation_height: int = 1


@dataclass
class MliPoolCfg:
    """mli_pool_cfg: window, strides and padding in elements."""

    kernel_width: int = 1
    kernel_height: int = 1
    stride_width: int = 1
    stride_height: int = 1
    padding_left: int = 0
    padding_right: int = 0
    padding_top: int = 0
    padding_bottom: int = 0


@dataclass
class MliAxisCfg:
    """mli_prelu_cfg, mli_softmax_cfg, mli_l2_normalize_cfg: an axis, or -1 for the whole tensor."""

    axis: int = -1


@dataclass
class MliArgmaxCfg:
    """mli_argmax_cfg: for each index of `axis` (-1: of the whole tensor) the `topk` largest."""

    axis: int = -1
    topk: int = 1


@dataclass
class MliPermuteCfg:
    """mli_permute_cfg: axis `perm_dim[k]` of the input becomes axis k of the output."""

    perm_dim: Sequence[int] = (0, 1, 2, 3)


@dataclass
class MliRnnDenseCfg:
    """mli_rnn_dense_cfg: how many inputs, each with weights of its own."""

    inputs_num: int = 1


@dataclass
class MliRnnCellCfg:
    """mli_rnn_cell_cfg. Scratch memory is the engine's own."""

    direction: int = MliRnnDirection.RNN_DIR_FORWARD
    results: int = MliRnnResults.RNN_OUT_LAST
    act: int = MliRnnActivation.RNN_ACT_TANH


@dataclass
class MliMovCfg:
    """mli_mov_cfg: slice, subsample, permute, pad and place a tensor, one number for each axis.

    offset, size: of the part that is taken (size 0: to the end). sub_sample_step: every such
    element. perm_dim: axis of the source for each axis of the destination. padding_pre,
    padding_post: zeros around it, by axes of the source. dst_offset: where it begins in the
    destination.
    """

    offset: Sequence[int] = (0, 0, 0, 0)
    size: Sequence[int] = (0, 0, 0, 0)
    sub_sample_step: Sequence[int] = (1, 1, 1, 1)
    dst_offset: Sequence[int] = (0, 0, 0, 0)
    perm_dim: Sequence[int] = (0, 1, 2, 3)
    padding_pre: Sequence[int] = (0, 0, 0, 0)
    padding_post: Sequence[int] = (0, 0, 0, 0)
