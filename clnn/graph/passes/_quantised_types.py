"""What ONNX Runtime has operators of bytes for, on x86, in graphs that are being rewritten."""

from __future__ import annotations

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.graph.ir import Node
from clnn.graph.passes._quantised import IntegerGraph, function_of
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.onnx_registry import Source
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised import build
from clnn.ops.resize.spec import Resize
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.types import I8, U8, Array, DType

BYTES = (I8, U8)
MOVING = (ViewSpec, Gather, Pad, Resize)
Limits = tuple[float | None, float | None]
Made = tuple[Source, list[str]] | None


class ByteGraph(IntegerGraph):
    """A graph being rewritten, of which operators of bytes are asked for."""

    def alike(self, node: Node, y: Quantisation) -> bool:
        """Whether ONNX Runtime on x86 has an operator of bytes here."""
        return self.computed_in(node, y) is not None

    def shifted(self, node: Node, y: Quantisation) -> bool:
        """Whether ONNX Runtime on x86 has an operator of uint8 where the model has int8 alone."""
        found = (self.bytes_of(name) for name in node.inputs)
        alone = {y.dtype, *(f[1].dtype for f in found if f is not None)} == {I8}
        return alone and self.computed_in(node, y) == U8

    def computed_in(self, node: Node, y: Quantisation) -> DType | None:
        """Return the type of ONNX Runtime's operator of bytes on x86, None where types are not one.

        It makes int8 that is read once uint8, so that types differ around constants and what is read twice.
        """
        is_product = isinstance(node.spec, (Conv2d, Gemm))
        whole = node.inputs[:1] if is_product else node.inputs
        found = [self.bytes_of(n) for n in whole]
        read = [f for f in found if f is not None]
        if len(read) < len(found):
            return None
        kinds = {self.kind_of(f[0], f[1]) for f in (*read, (self.quantised_by(node), y))}
        if len(kinds) > 1 or (is_product and kinds == {I8}):
            return None
        return kinds.pop()

    def kind_of(self, integers: str, given: Quantisation) -> DType:
        """Return the type that ONNX Runtime gives integers on x86: int8 that is read once becomes uint8."""
        return U8 if given.dtype == U8 or self.readers(integers) == 1 else I8

    def readers(self, integers: str) -> int:
        """Return how many operators read a value through dequantisation; it counts as read as output.

        Inputs, what operators of bytes make, and what they read count as read twice: only what lies between
        QuantizeLinear and DequantizeLinear changes its type.
        """
        readers, maker = self.consumers.get(integers, []), self.producers.get(integers)
        if integers in self.viewed:  # quantised anew there, unless it is of a constant
            return 2 if self.viewed[integers] in self.consts else 1
        if maker is None or function_of(maker) != "quantise":
            return 2
        count = sum(
            self.uses.get(r.outputs[0], 0) for r in readers if function_of(r) == "dequantise"
        )
        return (
            count
            + sum(
                1 if _moves_bytes(r.spec) else 2 for r in readers if function_of(r) != "dequantise"
            )
            + (2 * (integers in self.graph.outputs.values()))
        )

    def quantised_by(self, node: Node) -> str:
        """Return the integers that a node's result becomes."""
        (reader,) = self.consumers[node.outputs[0]]
        while function_of(reader) != "quantise":
            (reader,) = self.consumers[reader.outputs[0]]
        return reader.outputs[0]

    def weights_of(self, node: Node) -> tuple[Array, Quantisation] | None:
        """Return the constant integers of a product's weights.

        Float32 weights between bytes ONNX Runtime makes int8, unless they are a MatMul's, or the bias is computed.
        """
        known, bias = self.weights(node.inputs[1] or ""), (*node.inputs, None, None)[2]
        real = self.consts.get(node.inputs[1] or "")
        if known is not None or real is None or not node.origin.startswith(("Conv", "Gemm")):
            return known
        row = bias is None or (bias in self.consts and self.consts[bias].ndim == 1)
        fits = row and real.dtype == np.float32 and real.size and np.isfinite(real).all()
        return build.in_bytes(real) if fits else None

    def bytes_of(self, value: str | None) -> tuple[str, Quantisation] | None:
        """Return the bytes with one scale that a value is made of."""
        found = self.seen_as(value or "")
        fits = found is not None and found[1].per_tensor and found[1].dtype in BYTES
        return found if fits else None


def _moves_bytes(spec: OpSpec) -> bool:
    """Whether an operator of bytes gives some of those that it reads: DequantizeLinear may change places with it."""
    return isinstance(spec, MOVING) or (isinstance(spec, Pool) and spec.mode == "max")
