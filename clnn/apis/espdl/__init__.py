"""ESP-DL in its own terms: tensors with exponents, layers that are built and called, models, files.

from clnn import espdl
x = espdl.Tensor(np.int16).set_exponent(-12).set_shape((28, 28, 3)).set_element(array)
conv = espdl.Conv2D(-10, espdl.Filter(weights, -13, (3, 3, 3, 16)))
conv.build(x)
print(conv.call(x).view())
"""

from __future__ import annotations

from clnn.apis.espdl.base import Layer, Model
from clnn.apis.espdl.constants import (
    Activation,
    ActivationType,
    Bias,
    Constant,
    Filter,
    PaddingType,
)
from clnn.apis.espdl.elementwise import (
    Add2D,
    LeakyReLU,
    Max2D,
    Min2D,
    Mul2D,
    PReLU,
    ReLU,
    Sigmoid,
    Softmax,
    Sub2D,
    Tanh,
)
from clnn.apis.espdl.files import compile_model, read, write
from clnn.apis.espdl.mac import Conv2D, DepthwiseConv2D, FullyConnected
from clnn.apis.espdl.modes import Modes, configure, modes, using
from clnn.apis.espdl.movement import (
    Concat2D,
    ExpandDims,
    Flatten,
    Pad,
    Reshape,
    Squeeze,
    Transpose,
)
from clnn.apis.espdl.pooling import AvgPool2D, GlobalAvgPool2D, GlobalMaxPool2D, MaxPool2D
from clnn.apis.espdl.shapes import get_output_shape, get_pad_size
from clnn.apis.espdl.tensor import Tensor, settle
from clnn.apis.espdl.values import clear
from clnn.importers.espdl.model import EspModel, EspNode, EspTensor, EspValue

__all__ = [
    "Activation",
    "ActivationType",
    "Add2D",
    "AvgPool2D",
    "Bias",
    "Concat2D",
    "Constant",
    "Conv2D",
    "DepthwiseConv2D",
    "EspModel",
    "EspNode",
    "EspTensor",
    "EspValue",
    "ExpandDims",
    "Filter",
    "Flatten",
    "FullyConnected",
    "GlobalAvgPool2D",
    "GlobalMaxPool2D",
    "Layer",
    "LeakyReLU",
    "Max2D",
    "MaxPool2D",
    "Min2D",
    "Model",
    "Modes",
    "Mul2D",
    "PReLU",
    "Pad",
    "PaddingType",
    "ReLU",
    "Reshape",
    "Sigmoid",
    "Softmax",
    "Squeeze",
    "Sub2D",
    "Tanh",
    "Tensor",
    "Transpose",
    "clear",
    "compile_model",
    "configure",
    "get_output_shape",
    "get_pad_size",
    "modes",
    "read",
    "settle",
    "using",
    "write",
]
