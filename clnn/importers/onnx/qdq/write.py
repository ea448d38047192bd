"""Writes a model with quantisation around its nodes: QuantizeLinear, DequantizeLinear, constant integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.graph.rounding import Range, Step, bytes_of
from clnn.importers.onnx.qdq.model import PRODUCTS, QdqModel
from clnn.importers.onnx.qdq.weights import array_of
from clnn.types import Array

UNASKED = ("Conv", "ConvTranspose", "Gemm")  # whose float32 weights behind bytes onnxruntime rounds
WITH_BYTES = ("Add", "Mul", "Concat")  # whose constant operands become bytes


def quantised(source: QdqModel, ranges: Mapping[str, Range]) -> onnx.ModelProto:
    """Return the quantised model; ranges: of the values that are wanted."""
    made = emptied(source.model)
    Writer(source, made, source.steps(ranges)).write()
    return made


def emptied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without nodes, values and constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.value_info[:], made.graph.initializer[:]
    return made


class Writer:
    """Writes the nodes of a model, with quantisation around those that are taken, into `made`."""

    def __init__(self, source: QdqModel, made: onnx.ModelProto, steps: Mapping[str, Step]) -> None:
        self.source, self.graph, self.steps = source, made.graph, steps
        self.added: dict[tuple[str, str], str] = {}
        self.inputs = {v.name for v in made.graph.input}
        sums = {source.biased(n): n.output[0] for n in source.products()}
        self.sums = {name: key for name, key in sums.items() if name not in ("", "own")}

    def write(self) -> None:
        """Write all nodes."""
        for name in self.steps:
            if name in self.inputs:
                self.pair(name, name, f"{name}:quantised")
        for node in self.source.model.graph.node:
            made = onnx.NodeProto()
            made.CopyFrom(node)
            for place, name in enumerate(made.input):
                if name in self.inputs and name in self.steps:
                    made.input[place] = f"{name}:quantised"
            results = [name for name in node.output if name in self.steps]
            for place, name in enumerate(made.output):
                made.output[place] = f"{name}:real" if name in self.steps else name
            if self.source.takes(node):
                self._operands(node, made)
            else:
                if self.source.is_excluded(node) and node.op_type in UNASKED:
                    made.input[0] = self.apart(node.input[0], made.input[0])
                self.graph.node.append(made)
            for name in results:
                self.pair(f"{name}:real", name, name)
        read = {name for node in self.graph.node for name in node.input}
        for tensor in self.source.model.graph.initializer:
            if tensor.name in read:
                self.graph.initializer.append(tensor)

    def apart(self, value: str, name: str) -> str:
        """Return a rounded value behind a Clip over its whole range, which changes nothing.

        Engines that find DequantizeLinear in front of float32 weights may round them, too, all by one scale.
        """
        if value not in self.steps:
            return name
        made = f"{value}:apart"
        if made not in self.added.values():
            step, zero = self.steps[value]
            ends = [np.float32(whole) * step for whole in (-zero, 255 - zero)]
            limits = [
                self.const(f"{made}:{what}", np.array(end, np.float32))
                for what, end in zip(("least", "most"), ends, strict=True)
            ]
            self.graph.node.append(helper.make_node("Clip", [name, *limits], [made], made))
            self.added[(made, "")] = made
        return made

    def product(self, node: onnx.NodeProto, made: onnx.NodeProto) -> None:
        """Add a product `node`, of which `made` has the right inputs and outputs, with integers."""
        found = self.source.rounded(node, float(self.steps[node.input[0]][0]))
        stem = node.output[0]
        name = self._dequantised(f"{stem}:weights", found.integers, found.scale, found.axis)
        made.input[1] = name
        if found.bias is not None:
            name = self._dequantised(f"{stem}:bias", found.bias, found.bias_scale, 0)
            if len(made.input) < 3:
                made.input.append(name)
            made.input[2] = name
        self.graph.node.append(made)

    def constant(self, node: onnx.NodeProto, name: str) -> str:
        """Return a constant operand of a node in uint8 over its own range."""
        array, key = self.operand(node, name)
        if array.dtype != np.float32:
            return name
        if key not in self.added:
            integers, step, zero = bytes_of(array)
            stem = f"{key[1]}:{name}:bytes" if key[1] else f"{name}:bytes"
            self.added[key] = self._dequantised(stem, integers, np.array([step]), 0, zero)
        return self.added[key]

    def operand(self, node: onnx.NodeProto, name: str) -> tuple[Array, tuple[str, str]]:
        """Return a constant operand of a node, corrected, and what tells it from others."""
        array, product = array_of(self.source.consts[name]), self.sums.get(node.output[0])
        more = self.source.corrections.get(product) if product else None
        if more is None:
            return array, (name, "")
        return array + more.astype(np.float32).reshape(array.shape), (name, node.output[0])

    def pair(self, given: str, value: str, made: str) -> None:
        """Add quantisation of `given` by the steps of a value, and dequantisation as `made`."""
        step, zero = self.steps[value]
        pair = [
            self.const(f"{value}:scale", np.array(step, np.float32)),
            self.const(f"{value}:zero", np.array(zero, np.uint8)),
        ]
        middle = f"{value}:integers"
        self.graph.node.append(helper.make_node("QuantizeLinear", [given, *pair], [middle], middle))
        self.graph.node.append(
            helper.make_node("DequantizeLinear", [middle, *pair], [made], f"{value}:dequantise")
        )

    def const(self, name: str, array: Array) -> str:
        """Add a constant; returns its name."""
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def _operands(self, node: onnx.NodeProto, made: onnx.NodeProto) -> None:
        """Add a node that is taken, with constant operands as integers."""
        if node.op_type in PRODUCTS:
            self.product(node, made)
            return
        for place, name in enumerate(node.input):
            if node.op_type in WITH_BYTES and name in self.source.consts:
                made.input[place] = self.constant(node, name)
        self.graph.node.append(made)

    def _dequantised(
        self, stem: str, integers: Array, scale: Array, axis: int, zero: int = 0
    ) -> str:
        """Add constant integers and what makes them real; returns the value's name."""
        flat = scale.reshape(()) if scale.size == 1 else scale
        zeros: Array = np.full(flat.shape, zero, integers.dtype)
        parts = {"integers": integers, "scale": flat.astype(np.float32), "zero": zeros}
        names = [self.const(f"{stem}:{what}", array) for what, array in parts.items()]
        along = {} if scale.size == 1 else {"axis": axis}
        self.graph.node.append(helper.make_node("DequantizeLinear", names, [stem], stem, **along))
        return stem
