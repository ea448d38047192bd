"""The functions that add nodes to a graph, with the names and parameters of the documents."""

from __future__ import annotations

from clnn.apis.openvx.model import Graph, Node, add_node
from clnn.apis.openvx.objects import Lut, Scalar
from clnn.apis.openvx.tensor import Tensor


def vxActivationLayer(
    graph: Graph, inputs: Tensor, func: int, a: int, b: int, outputs: Tensor
) -> Node:
    """Add an activation: one of nine functions of each element, with parameters a and b."""
    return add_node(graph, "activation", locals())


def vxConvolutionLayer(
    graph: Graph,
    inputs: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    pad_x: int,
    pad_y: int,
    accumulator_bits: int,
    overflow_policy: int,
    rounding_policy: int,
    down_scale_size_rounding: int,
    outputs: Tensor,
    dilation_x: int = 0,
    dilation_y: int = 0,
) -> Node:
    """Add a convolution.

    inputs: [w, h, ifm] or [w, h, ifm, batch]. weights: [kernel_x, kernel_y, ifm, ofm]. biases:
    [ofm], or [out_w, out_h, ofm] for one per place, or None. The stride along x and y is the
    smallest that gives the size of outputs. dilation: elements left out between taps.
    """
    return add_node(graph, "convolution", locals())


def vxDeconvolutionLayer(
    graph: Graph,
    inputs: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    padding_x: int,
    padding_y: int,
    overflow_policy: int,
    rounding_policy: int,
    a_x: int,
    a_y: int,
    outputs: Tensor,
) -> Node:
    """Add a deconvolution (a later addition to the extension).

    Shapes as of vxConvolutionLayer. The upscaling follows from the sizes:
    out = (in - 1) * upscale - 2 * padding + kernel + a, with a below upscale.
    """
    return add_node(graph, "deconvolution", locals())


def vxFullyConnectedLayer(
    graph: Graph,
    inputs: Tensor,
    weights: Tensor,
    biases: Tensor | None,
    pad: int,
    accumulator_bits: int,
    overflow_policy: int,
    rounding_policy: int,
    down_scale_size_rounding: int,
    outputs: Tensor,
) -> Node:
    """Add a fully connected layer.

    inputs: the 1 to 3 dimensions of a single input, then those of the batch. weights: those of a
    single input (each spatial one larger by 2 * pad) and ofm, or [elements of one input, ofm].
    biases: [ofm] or None. outputs: [ofm, batch...], or with leading ones in place of the single
    input's dimensions but the last.
    """
    return add_node(graph, "fully_connected", locals())


def vxNormalizationLayer(
    graph: Graph,
    inputs: Tensor,
    type: int,
    norm_size: int,
    alpha: float,
    beta: float,
    outputs: Tensor,
) -> Node:
    """Add a local response normalisation over one map or across maps."""
    return add_node(graph, "normalization", locals())


def vxPoolingLayer(
    graph: Graph,
    inputs: Tensor,
    pool_type: int,
    pool_size_x: int,
    pool_size_y: int,
    pool_pad_x: int,
    pool_pad_y: int,
    rounding: int,
    outputs: Tensor,
) -> Node:
    """Add a maximum or average over windows; the stride follows from the size of outputs."""
    return add_node(graph, "pooling", locals())


def vxSoftmaxLayer(graph: Graph, inputs: Tensor, outputs: Tensor) -> Node:
    """Add a softmax along dimension 2 where there are more than two, else along dimension 0."""
    return add_node(graph, "softmax", locals())


def vxTensorAddNode(graph: Graph, in1: Tensor, in2: Tensor, policy: int, out: Tensor) -> Node:
    """Add a sum of elements; dimensions of extent 1 are repeated."""
    return add_node(graph, "add", locals())


def vxTensorSubtractNode(graph: Graph, in1: Tensor, in2: Tensor, policy: int, out: Tensor) -> Node:
    """Add a difference of elements; dimensions of extent 1 are repeated."""
    return add_node(graph, "subtract", locals())


def vxTensorMultiplyNode(
    graph: Graph,
    in1: Tensor,
    in2: Tensor,
    scale: Scalar | float,
    overflow_policy: int,
    rounding_policy: int,
    out: Tensor,
) -> Node:
    """Add a product of elements and a scale, which is read when the graph runs."""
    return add_node(graph, "multiply", locals())


def vxTensorTableLookupNode(graph: Graph, in1: Tensor, lut: Lut, out: Tensor) -> Node:
    """Add a look-up; an element outside of the table leaves the output's element as it was."""
    return add_node(graph, "table_lookup", locals())


def vxTensorTransposeNode(graph: Graph, input: Tensor, out: Tensor, dim1: int, dim2: int) -> Node:
    """Add a swap of two dimensions (counted from 0); the document calls the first tensor `in`."""
    return add_node(graph, "transpose", {"in": input, **locals()})


def vxTensorConvertDepthNode(
    graph: Graph,
    input: Tensor,
    policy: int,
    norm: Scalar | float,
    offset: Scalar | float,
    output: Tensor,
) -> Node:
    """Add a conversion between element types: (input - offset) / norm (a later addition)."""
    return add_node(graph, "convert_depth", locals())


def vxTensorMatrixMultiplyNode(
    graph: Graph,
    input1: Tensor,
    input2: Tensor,
    input3: Tensor | None,
    output: Tensor,
    transpose_input1: bool = False,
    transpose_input2: bool = False,
    transpose_input3: bool = False,
) -> Node:
    """Add a matrix product input1 * input2 + input3, each transposed or not (a later addition)."""
    return add_node(graph, "matrix_multiply", locals())
