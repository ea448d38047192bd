"""ONNX operators that are matrix products."""

from __future__ import annotations

from clnn.errors import ShapeError
from clnn.ops.gemm.spec import Gemm
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op


@onnx_op("MatMul")
def _matmul(node: OnnxNode) -> Source:
    _check_node(node)
    return Emit(Gemm(), [0, 1, None])


@onnx_op("Gemm")
def _gemm(node: OnnxNode) -> Source:
    _check_node(node)
    if node.type(0).rank != 2 or node.type(1).rank != 2:
        raise ShapeError(
            f"Gemm of {node.type(0).shape} and {node.type(1).shape}: both must be matrices."
        )
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 1.0))
    if not node.type(0).dtype.is_float and not (alpha.is_integer() and beta.is_integer()):
        raise Unsupported(f"alpha {alpha} and beta {beta} of an integer product are not whole")
    spec = Gemm(alpha, beta, bool(node.attr("transA", 0)), bool(node.attr("transB", 0)))
    return Emit(spec, [0, 1, 2 if node.has(2) else None])


def _check_node(node: OnnxNode) -> None:
    if len(node.inputs) < 2:
        raise Unsupported("a matrix product needs two inputs")
