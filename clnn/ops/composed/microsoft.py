"""Operators of com.microsoft that are ones of ONNX: with an activation behind them, under another domain, or close."""

from __future__ import annotations

from dataclasses import replace

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_importers, onnx_op
from clnn.ops.rows.distances import Distances
from clnn.ops.shared.functions import PostOp
from clnn.types import normalise_axis

MICROSOFT = "com.microsoft::"
LIKE = 18  # the operator set whose forms are meant
# Activation -> (function, how many parameters it has).
_ACTIVATIONS = {
    "Relu": ("relu", 0),
    "Tanh": ("tanh", 0),
    "Sigmoid": ("sigmoid", 0),
    "HardSwish": ("hard_swish", 0),
    "Softplus": ("softplus", 0),
    "Softsign": ("softsign", 0),
    "LeakyRelu": ("leaky_relu", 1),
    "Elu": ("elu", 1),
    "ThresholdedRelu": ("thresholded_relu", 1),
    "Clip": ("clip", 2),
    "HardSigmoid": ("hard_sigmoid", 2),
}


def _as_standard(node: OnnxNode, op_type: str, inputs: int | None = None) -> Source:
    """Return output 0 of ONNX's operator, given the first `inputs` inputs."""
    like = replace(node, op_type=op_type, opset=LIKE, inputs=node.inputs[:inputs], n_outputs=1)
    made = onnx_importers()[op_type](like)
    return made[0] if isinstance(made, (list, tuple)) else made  # type: ignore[return-value]


def _activation(name: str, params: list[float]) -> PostOp:
    if name not in _ACTIVATIONS or len(params) < _ACTIVATIONS[name][1]:
        raise Unsupported(f"activation {name!r} with parameters {params}")
    function, count = _ACTIVATIONS[name]
    return PostOp(function, tuple(params[:count]))


@onnx_op(MICROSOFT + "FusedConv")
def _fused_conv(node: OnnxNode) -> Source:
    """Inputs: x, weights, bias, and what is added in front of the activation."""
    params = [float(p) for p in node.attr("activation_params", [])]
    act = _activation(str(node.attr("activation", "")), params)
    made = _as_standard(node, "Conv", 3)
    if not node.has(3):
        return Emit(Eltwise((act,)), [made])
    return Emit(Eltwise((PostOp("add", operand=1), act)), [made, 3])


@onnx_op(MICROSOFT + "FusedGemm")
def _fused_gemm(node: OnnxNode) -> Source:
    names = ("activation_alpha", "activation_beta")
    params = [float(node.attrs[n]) for n in names if node.attr(n) is not None]
    act = _activation(str(node.attr("activation", "")), params)
    return Emit(Eltwise((act,)), [_as_standard(node, "Gemm")])


@onnx_op(*(MICROSOFT + name for name in ("Trilu", "Pad", "GatherND", "GridSample")))
def _twin(node: OnnxNode) -> Source:
    return _as_standard(node, node.op_type.rpartition("::")[2])


@onnx_op(MICROSOFT + "ExpandDims")
def _expand_dims(node: OnnxNode) -> Source:
    x = Value.of(node, 0)
    axis = normalise_axis(int(node.const(1, "axis").item()), x.type.rank + 1)
    return x.reshape((*x.shape[:axis], 1, *x.shape[axis:])).source


@onnx_op(MICROSOFT + "CDist")
def _distances(node: OnnxNode) -> Source:
    """Distances of the rows of two matrices; rows of one element stand for any length."""
    a, b = Value.of(node, 0), Value.of(node, 1)
    metric = str(node.attr("metric", "sqeuclidean"))
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"metric {metric!r} is not euclidean or sqeuclidean")
    if a.type.rank != 2 or b.type.rank != 2 or len({a.shape[1], b.shape[1]} - {1}) > 1:
        raise ShapeError(f"CDist of {a.shape} and {b.shape}: they must be rows of one length.")
    if a.shape[1] != b.shape[1]:
        a, b = a.expand((1, b.shape[1])), b.expand((1, a.shape[1]))
    squares = a.apply(Distances(), b.transpose((1, 0)))
    return (squares.unary("sqrt") if metric == "euclidean" else squares).source
