"""A float32 ONNX model as a quantised one in QDQ form, from the ranges of its values.

Weights become int8 with a scale per output channel, activations uint8 with a scale and a zero point,
biases int32 in steps of the sums. What is not quantised stays float32. Batch normalisations behind
convolutions are taken into their weights first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import field

import numpy as np
import onnx
from onnx import helper

from clnn.graph.rounding import Range, Rounded, Step, step_of
from clnn.importers.onnx.batchnorm import without_batchnorm
from clnn.importers.onnx.order import reads, subgraphs
from clnn.importers.onnx.qdq.newer import newer, opset_of
from clnn.importers.onnx.qdq.weights import array_of, channels_of, rounded
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


@dataclass(frozen=True)
class Unit:
    """What is quantised or left float32 as one: a node, and the clipping that alone reads it.

    key: the first node's result. op: of both, as "Conv+Relu". results: of both.
    """

    key: str
    name: str
    op: str
    results: tuple[str, ...]

    @property
    def result(self) -> str:
        """The value behind the clipping."""
        return self.results[-1]


@dataclass
class QdqModel:
    """A model to be quantised: `wanted` tells which values must be measured, `steps` what follows for them.

    outputs: the model's, and what subgraphs read. corrections: what is added to the bias of a product, for
    each output channel, by its result; see `biased`.
    """

    model: onnx.ModelProto
    per_channel: bool = True
    corrections: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the model. Raises ModelError where its operator set is too old and cannot be converted."""
        self.model = newer(self.model)
        self.opset = opset_of(self.model)
        self.model = onnx.shape_inference.infer_shapes(without_batchnorm(_named(self.model)))
        graph = self.model.graph
        self.consts = {t.name: t for t in graph.initializer}
        known = (*graph.input, *graph.value_info, *graph.output)
        real = onnx.TensorProto.FLOAT
        self.types = {v.name: v.type.tensor_type for v in known}
        self.real = {n for n, t in self.types.items() if t.elem_type == real}
        self.real -= set(self.consts)
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.producers = {name: node for node in graph.node for name in node.output}
        # What a branch or a loop's body reads may be read by anything.
        self.outputs = {v.name for v in graph.output}
        self.outputs |= {n for node in graph.node if any(subgraphs(node)) for n in reads(node)}
        self._arrays: dict[str, Array] = {}
        self._left: set[str] = set()
        self._fitting = {n.output[0] for n in graph.node if self._fits(n)}

    def excluding(self, units: Iterable[str]) -> QdqModel:
        """Return the model of which these units, by key, stay float32.

        With them stays what only moves elements, or clips, and has no other unit beside it.
        """
        made = copy.copy(self)
        made._left = set(self._left)
        for unit in self.units():
            if unit.key in units:
                made._left.update(unit.results)
        if made._left:
            made._left |= made._stranded()
        return made

    def replaced(self, model: onnx.ModelProto) -> QdqModel:
        """Return another model of the same nodes and values, of which the same stay float32."""
        made = QdqModel(model, self.per_channel)
        made._left = set(self._left)
        return made

    def units(self) -> list[Unit]:
        """Return what is to be quantised, in the order of the model."""
        behind = {}
        for node in self.model.graph.node:
            if node.op_type in CLIPPING and self.takes(node):
                maker = self.producers.get(node.input[0])
                if maker is not None and self.takes(maker) and self._inside(node.input[0]):
                    behind[node.input[0]] = node
        inner = {node.output[0] for node in behind.values()}
        found = []
        for node in self.model.graph.node:
            key = next(iter(node.output), "")
            if self.takes(node) and key not in inner:
                clip = behind.get(key)
                more = () if clip is None else (clip.output[0],)
                op = node.op_type if clip is None else f"{node.op_type}+{clip.op_type}"
                found.append(Unit(key, node.name, op, (key, *more)))
        return found

    def wanted(self) -> list[str]:
        """Return the values whose ranges quantisation must know, in the order of the model."""
        found = dict.fromkeys(
            name
            for node in self.model.graph.node
            if self.takes(node)
            for name in (*self._reads(node), *node.output)
            if name in self.real and not self._inside(name)
        )
        return list(found)

    def steps(self, ranges: Mapping[str, Range]) -> dict[str, Step]:
        """Return value -> (scale, zero point); results of operators that keep elements share them."""
        found: dict[str, Step] = {}
        ranges = self._joined(ranges)
        keeping = {n.output[0]: n.input[0] for n in self.model.graph.node if n.op_type in KEEPING}
        for name in self.wanted():
            source = keeping.get(name, "")
            if source in found:
                found[name] = found[source]
                continue
            found[name] = step_of(ranges[name])
        return found

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether a node is to compute in integers."""
        key = next(iter(node.output), "")
        return key in self._fitting and key not in self._left

    def is_excluded(self, node: onnx.NodeProto) -> bool:
        """Whether a node that could compute in integers is to stay float32."""
        return next(iter(node.output), "") in self._left

    def products(self) -> list[onnx.NodeProto]:
        """Return the products that are to compute in integers."""
        return [n for n in self.model.graph.node if n.op_type in PRODUCTS and self.takes(n)]

    def weights(self, node: onnx.NodeProto) -> Array:
        """Return the weights of a product."""
        return self.array(node.input[1])

    def bias(self, node: onnx.NodeProto) -> Array | None:
        """Return the bias of a product as the model has it, flat; None where it has none."""
        name = node.input[2] if len(node.input) > 2 else ""
        return self.array(name).reshape(-1) if name else None

    def biased(self, node: onnx.NodeProto) -> str:
        """Return whose constant the correction of a product enters: "own", the result of the sum behind, or "".

        A MatMul has no bias of its own; a sum with a constant for each column, which alone reads it, is one.
        """
        if node.op_type != "MatMul":
            return "own"
        readers = self.readers.get(node.output[0], [])
        if len(readers) != 1 or node.output[0] in self.outputs or readers[0].op_type != "Add":
            return ""
        other = next((n for n in readers[0].input if n != node.output[0]), "")
        columns = self.weights(node).shape[1]
        fits = other in self.consts and list(self.consts[other].dims)[-1:] == [columns]
        fits = fits and np.prod(self.consts[other].dims) == columns
        return str(readers[0].output[0]) if fits and self.takes(readers[0]) else ""

    def corrected(self, corrections: Mapping[str, Array]) -> QdqModel:
        """Return the model with these corrections of biases, by the results of products."""
        made = copy.copy(self)
        made.corrections = dict(corrections)
        return made

    def rounded(self, node: onnx.NodeProto, step: float) -> Rounded:
        """Return a product's weights and bias in integers, with its correction. step: of its input."""
        weights, bias = self.weights(node), self.bias(node)
        more = self.corrections.get(node.output[0])
        if more is not None and self.biased(node) == "own":
            given = 0.0 if bias is None else bias.astype(np.float64)
            bias = np.broadcast_to(given + more, (channels_of(node, weights),)).astype(np.float32)
        return rounded(node, weights, bias, step, self.per_channel)

    def array(self, name: str) -> Array:
        """Return a constant."""
        if name not in self._arrays:
            self._arrays[name] = array_of(self.consts[name])
        return self._arrays[name]

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
            if node.op_type != "Concat" or node.output[0] not in ranges or not self.takes(node):
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

    def _fits(self, node: onnx.NodeProto) -> bool:
        """Whether a node can compute in integers."""
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in PRODUCTS:
            return node.input[0] in self.real and self._has_weights(node)
        listed = node.op_type in (*KEEPING, *OTHERS, *CLIPPING)
        return listed and bool(node.input) and node.input[0] in self.real

    def _reads(self, node: onnx.NodeProto) -> Iterable[str]:
        """Return the inputs of a node that are to be integers."""
        alone = node.op_type in PRODUCTS or node.op_type in (*KEEPING, *CLIPPING, "Resize")
        return list(node.input[:1] if alone else node.input)

    def _has_weights(self, node: onnx.NodeProto) -> bool:
        """Whether a product has constant weights that fit, and a bias that does, or none."""
        if len(node.input) < 2 or node.input[1] not in self.consts:
            return False
        array = self.array(node.input[1])
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        plain = not attrs.get("transA") and attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0
        matrix = node.op_type in ("Conv", "ConvTranspose") or array.ndim == 2
        fits = array.dtype == np.float32 and np.isfinite(array).all() and array.size
        if not (fits and plain and matrix):
            return False
        bias = node.input[2] if len(node.input) > 2 else ""
        sizes = (1, channels_of(node, array))
        return not bias or (bias in self.consts and self.array(bias).size in sizes)

    def _inside(self, name: str) -> bool:
        """Whether a value goes to the clipping behind it alone, from a product, a sum, or what stays float32."""
        readers, maker = self.readers.get(name, []), self.producers.get(name)
        if len(readers) != 1 or name in self.outputs or readers[0].op_type not in CLIPPING:
            return False
        if maker is None:
            return False
        return maker.op_type in (*PRODUCTS, "Add") or not self.takes(maker)

    def _stranded(self) -> set[str]:
        """Return the results of what moves or clips elements between units that stay float32 alone."""
        moving = {
            n.output[0]: n
            for n in self.model.graph.node
            if n.op_type in (*KEEPING, *CLIPPING) and self.takes(n)
        }
        group = {name: name for name in moving}

        def first(name: str) -> str:
            while group[name] != name:
                name = group[name]
            return name

        for name, node in moving.items():
            if node.input[0] in moving:
                group[first(name)] = first(node.input[0])
        near: dict[str, list[bool]] = {}
        for name, node in moving.items():
            beside = [self.producers.get(node.input[0]), *self.readers.get(name, [])]
            near.setdefault(first(name), []).extend(
                n.output[0] in self._left
                for n in beside
                if n is not None and n.output[0] not in moving and n.output[0] in self._fitting
            )
        return {name for name in moving if near[first(name)] and all(near[first(name)])}


def _named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose nodes have names: what has none is named by its operator and place.

    Inputs that constants are the defaults of, as old models have them, are none.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {t.name for t in made.graph.initializer}
    given = [v for v in made.graph.input if v.name not in known]
    del made.graph.input[:]
    made.graph.input.extend(given)
    for place, node in enumerate(made.graph.node):
        node.name = node.name or f"{node.op_type}_{place}"
    return made
