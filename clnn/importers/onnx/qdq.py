"""A float32 ONNX model as a quantised one in QDQ form, from the ranges of its values.

Weights become int8 with a scale per output channel, activations uint8 with a scale and a zero point,
biases int32 in steps of the sums. What is not quantised stays float32. Batch normalisations behind
convolutions are taken into their weights first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.errors import ModelError
from clnn.importers.onnx.batchnorm import without_batchnorm
from clnn.records import dataclass
from clnn.types import Array

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Operators whose results are elements of their first input, or lie between them.
KEEPING = [
    "MaxPool",
    "Reshape",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Pad",
    "Identity",
]
OTHERS = [
    "Add",
    "Mul",
    "AveragePool",
    "GlobalAveragePool",
    "Concat",
    "LeakyRelu",
    "Sigmoid",
    "HardSwish",
    "Resize",
]
CLIPPING = ("Relu", "Clip")
OLDEST_OPSET = 13  # per-axis scales
BIAS_STEPS = 2.0**30  # that a bias takes at most
Range = tuple[float, float]


@dataclass
class QdqModel:
    """A model to be quantised: `wanted` tells which values must be measured, `quantised` makes it."""

    model: onnx.ModelProto
    per_channel: bool = True
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the model. Raises ModelError where its operator set is too old."""
        opset = max(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))
        if opset < OLDEST_OPSET:
            raise ModelError(
                f"the model's operator set is {opset}; quantised models need {OLDEST_OPSET}. "
                "Convert it: onnx.version_converter.convert_version(model, 17)."
            )
        self.model = onnx.shape_inference.infer_shapes(without_batchnorm(self.model))
        graph = self.model.graph
        self.consts = {t.name: t for t in graph.initializer}
        known = (*graph.input, *graph.value_info, *graph.output)
        real = onnx.TensorProto.FLOAT
        self.real = {v.name for v in known if v.type.tensor_type.elem_type == real}
        self.real -= set(self.consts)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.producers = {name: node for node in graph.node for name in node.output}
        self.outputs = {v.name for v in graph.output}

    def wanted(self) -> list[str]:
        """Return the values whose ranges quantisation must know, in the order of the model."""
        found = dict.fromkeys(
            name
            for node in self.model.graph.node
            if self._takes(node)
            for name in (*self._reads(node), *node.output)
            if name in self.real and not self._inside(name)
        )
        return list(found)

    def observed(self) -> onnx.ModelProto:
        """Return the float32 model with these values as outputs."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        del made.graph.output[:]
        for name in self.wanted():
            made.graph.output.append(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            )
        return made

    def quantised(self, ranges: Mapping[str, Range]) -> onnx.ModelProto:
        """Return the quantised model; ranges: of the values that are wanted."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        del made.graph.node[:], made.graph.value_info[:], made.graph.initializer[:]
        writer = _Writer(self, made, self._steps(ranges))
        writer.write()
        return made

    def _steps(self, ranges: Mapping[str, Range]) -> dict[str, tuple[np.float32, int]]:
        """Return value -> (scale, zero point); results of operators that keep elements share them."""
        found: dict[str, tuple[np.float32, int]] = {}
        ranges = self._joined(ranges)
        keeping = {n.output[0]: n.input[0] for n in self.model.graph.node if n.op_type in KEEPING}
        for name in self.wanted():
            source = keeping.get(name, "")
            if source in found:
                found[name] = found[source]
                continue
            low, high = min(ranges[name][0], 0.0), max(ranges[name][1], 0.0)
            step = np.float32((high - low) / 255) if high > low else np.float32(1)
            step = max(step, np.finfo(np.float32).tiny)
            found[name] = step, int(np.clip(np.rint(-low / step), 0, 255))
        return found

    def _joined(self, ranges: Mapping[str, Range]) -> dict[str, Range]:
        """Return the ranges, with one for all that Concat joins and nothing else reads, and for what it makes.

        Its elements are rounded once then, where they would be again to the steps of the whole.
        """
        group = {name: name for name in ranges}

        def first(name: str) -> str:
            while group[name] != name:
                name = group[name]
            return name

        for node in self.model.graph.node:
            if node.op_type != "Concat" or node.output[0] not in ranges:
                continue
            for name in node.input:
                if name in ranges and self._only_joined(name):
                    group[first(name)] = first(node.output[0])
        found = dict(ranges)
        for name in ranges:
            (low, high), (least, most) = ranges[name], found[first(name)]
            found[first(name)] = min(low, least), max(high, most)
        return {name: found[first(name)] for name in ranges}

    def _only_joined(self, name: str) -> bool:
        """Whether Concat alone reads a value."""
        return name not in self.outputs and all(n.op_type == "Concat" for n in self.readers[name])

    def _takes(self, node: onnx.NodeProto) -> bool:
        """Whether a node is to compute in integers."""
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in PRODUCTS:
            return node.input[0] in self.real and self._weights(node) is not None
        listed = node.op_type in (*KEEPING, *OTHERS, *CLIPPING)
        return listed and bool(node.input) and node.input[0] in self.real

    def _reads(self, node: onnx.NodeProto) -> Iterable[str]:
        """Return the inputs of a node that are to be integers."""
        alone = node.op_type in PRODUCTS or node.op_type in (*KEEPING, *CLIPPING, "Resize")
        return list(node.input[:1] if alone else node.input)

    def _weights(self, node: onnx.NodeProto) -> Array | None:
        """Return the constant weights of a product, None where it has none that fit."""
        if len(node.input) < 2 or node.input[1] not in self.consts:
            return None
        array = numpy_helper.to_array(self.consts[node.input[1]])
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        plain = not attrs.get("transA") and attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0
        matrix = node.op_type in ("Conv", "ConvTranspose") or array.ndim == 2
        bias = node.input[2] if len(node.input) > 2 else ""
        known = not bias or bias in self.consts
        fits = array.dtype == np.float32 and np.isfinite(array).all() and array.size
        return array if fits and plain and matrix and known else None

    def _inside(self, name: str) -> bool:
        """Whether a value goes to the clipping behind it alone, from a product, a sum, or what stays float32."""
        readers, maker = self.readers.get(name, []), self.producers.get(name)
        if len(readers) != 1 or name in self.outputs or readers[0].op_type not in CLIPPING:
            return False
        if maker is None:
            return False
        return maker.op_type in (*PRODUCTS, "Add") or not self._takes(maker)


class _Writer:
    """Writes nodes with quantisation around them into a model."""

    def __init__(
        self, source: QdqModel, made: onnx.ModelProto, steps: Mapping[str, tuple[np.float32, int]]
    ) -> None:
        self.source, self.graph, self.steps = source, made.graph, steps
        self.added: dict[str, str] = {}
        self.inputs = {v.name for v in made.graph.input}

    def write(self) -> None:
        """Write all nodes."""
        for name in self.steps:
            if name in self.inputs:
                self._pair(name, name, f"{name}:quantised")
        for node in self.source.model.graph.node:
            made = onnx.NodeProto()
            made.CopyFrom(node)
            if self.source._takes(node):
                self._operands(made)
            for place, name in enumerate(made.input):
                if name in self.inputs and name in self.steps:
                    made.input[place] = f"{name}:quantised"
            results = [name for name in node.output if name in self.steps]
            for place, name in enumerate(made.output):
                made.output[place] = f"{name}:real" if name in self.steps else name
            self.graph.node.append(made)
            for name in results:
                self._pair(f"{name}:real", name, name)
        read = {name for node in self.graph.node for name in node.input}
        for tensor in self.source.model.graph.initializer:
            if tensor.name in read:
                self.graph.initializer.append(tensor)

    def _operands(self, node: onnx.NodeProto) -> None:
        """Replace constant operands by integers."""
        weights = self.source._weights(node) if node.op_type in PRODUCTS else None
        if weights is not None:
            self._product(node, weights)
            return
        for place, name in enumerate(node.input):
            fits = node.op_type in ("Add", "Mul", "Concat") and name in self.source.consts
            if fits:
                node.input[place] = self._constant(name)

    def _product(self, node: onnx.NodeProto, weights: Array) -> None:
        attrs = {a.name: a.i for a in node.attribute}
        axis = 0 if node.op_type == "Conv" or attrs.get("transB") else 1
        groups = attrs.get("group", 1) if node.op_type == "ConvTranspose" else 1
        step = np.float64(self.steps[node.input[0]][0])
        biased = len(node.input) > 2 and node.input[2]
        name = node.input[2] if biased else ""
        bias = numpy_helper.to_array(self.source.consts[name]).reshape(-1) if biased else None
        # One scale for all groups of a transposed convolution, whose weights have no axis of output channels.
        scale = _scales(weights, axis, bias, step, self.source.per_channel and groups == 1)
        wide = scale.reshape(
            [-1 if a == axis and scale.size > 1 else 1 for a in range(weights.ndim)]
        )
        integers = np.clip(np.rint(weights / wide), -127, 127).astype(np.int8)
        stem = f"{node.output[0]}:weights"
        node.input[1] = self._dequantised(stem, integers, scale, np.int8, axis)
        if bias is not None:
            steps = (np.float32(step) * scale).astype(np.float32)
            whole = np.rint(bias.astype(np.float64) / steps).astype(np.int32)
            whole = np.ascontiguousarray(np.broadcast_to(whole, (weights.shape[axis] * groups,)))
            node.input[2] = self._dequantised(f"{node.output[0]}:bias", whole, steps, np.int32, 0)

    def _constant(self, name: str) -> str:
        """Return a constant operand in uint8 over its own range."""
        if name not in self.added:
            array = numpy_helper.to_array(self.source.consts[name])
            if array.dtype != np.float32:
                return name
            low, high = float(array.min(initial=0.0)), float(array.max(initial=0.0))
            step = np.float32((high - low) / 255) if high > low else np.float32(1)
            zero = int(np.clip(np.rint(-low / step), 0, 255))
            integers = np.clip(np.rint(array / step) + zero, 0, 255).astype(np.uint8)
            self.added[name] = self._dequantised(
                f"{name}:bytes", integers, np.array([step]), np.uint8, 0, zero
            )
        return self.added[name]

    def _dequantised(
        self, stem: str, integers: Array, scale: Array, kind: type, axis: int, zero: int = 0
    ) -> str:
        """Add constant integers and what makes them real; returns the value's name."""
        flat = scale.reshape(()) if scale.size == 1 else scale
        zeros: Array = np.full(flat.shape, zero, kind)
        names = [
            self._const(f"{stem}:{what}", array)
            for what, array in (
                ("integers", integers),
                ("scale", flat.astype(np.float32)),
                ("zero", zeros),
            )
        ]
        along = {} if scale.size == 1 else {"axis": axis}
        self.graph.node.append(helper.make_node("DequantizeLinear", names, [stem], stem, **along))
        return stem

    def _pair(self, given: str, value: str, made: str) -> None:
        """Add quantisation of `given` by the steps of a value, and dequantisation as `made`."""
        step, zero = self.steps[value]
        pair = [
            self._const(f"{value}:scale", np.array(step, np.float32)),
            self._const(f"{value}:zero", np.array(zero, np.uint8)),
        ]
        middle = f"{value}:integers"
        self.graph.node.append(helper.make_node("QuantizeLinear", [given, *pair], [middle], middle))
        self.graph.node.append(
            helper.make_node("DequantizeLinear", [middle, *pair], [made], f"{value}:dequantise")
        )

    def _const(self, name: str, array: Array) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name


def _scales(
    weights: Array, axis: int, bias: Array | None, step: np.float64, per_channel: bool
) -> Array:
    """Return the scale of each output channel, or one; large enough that the bias fits 32 bits."""
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.float64)
    most = np.abs(rows).max(axis=1)
    least = np.zeros(1) if bias is None else np.abs(bias.astype(np.float64)) / (BIAS_STEPS * step)
    least = least if per_channel else least.max(keepdims=True)
    scale = np.maximum(np.maximum(most / 127, least), float(np.finfo(np.float32).tiny))
    scale = np.where(most > 0, scale, np.maximum(scale, 1 / 127))
    return np.asarray(scale if per_channel else scale.max(keepdims=True), np.float32)
