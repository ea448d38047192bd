"""Quantisation around the operators of a float32 graph, as quantised ONNX models have it.

    operator        becomes        dequantise -> operator -> quantise -> dequantise

Which operators, steps, and integers of constants are those of `clnn quantize` (clnn/importers/onnx/qdq/), for
networks that are no ONNX model. The other passes make operators of integers of it, as of any quantised model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import Quantisation
from clnn.graph.calibration import missing_range
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes._quantised import IntegerGraph, limits_of
from clnn.graph.passes.apart import steps_apart
from clnn.graph.rounding import Range, Rounded, bytes_of, rounded, step_of
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import ADDEND, Gemm
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised import build
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.records import dataclass
from clnn.types import F32, I8, I32, U8, Array, TensorType

PRODUCTS = (Conv2d, ConvTranspose, Gemm)
BIAS = 2  # input of a product
BINARY = ("add", "mul")
FUNCTIONS = ("leaky_relu", "sigmoid", "hard_swish")


def quantise(graph: Graph, ranges: Mapping[str, Range]) -> Graph:
    """Return `graph` with quantisation around what can compute in bytes.

    ranges: of observed(graph). Raises SettingError for one that is missing.
    """
    parts = _Parts.of(graph)
    return _Writer(parts, parts.steps(ranges)).run()


def observed(graph: Graph) -> list[str]:
    """Return the values of `graph` whose ranges quantisation must know."""
    return _Parts.of(graph).wanted


def in_steps(graph: Graph) -> Graph:
    """Return `graph` as quantisation sees it: it has the values that are observed."""
    return _folded(steps_apart(graph))


@dataclass
class _Parts:
    """What of a graph becomes integers. taken: nodes by their result. wanted: values, in the graph's order."""

    graph: Graph
    taken: dict[str, Node]
    wanted: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, given: Graph) -> _Parts:
        graph = in_steps(given)
        made = cls(graph, {n.outputs[0]: n for n in graph.nodes if _fits(n, graph)})
        made.readers, made.producers = graph.consumers(), graph.producers()
        names = (n for node in made.taken.values() for n in (*_reads(node), *node.outputs[:1]))
        made.wanted = [n for n in dict.fromkeys(names) if made._is_real(n) and not made.inside(n)]
        return made

    def __post_init__(self) -> None:
        self.readers: dict[str, list[Node]] = {}
        self.producers: dict[str, Node] = {}

    def _is_real(self, name: str) -> bool:
        return self.graph.types[name].dtype == F32 and name not in self.graph.consts

    def inside(self, name: str) -> bool:
        """Whether a value goes to the clipping behind it alone, from a product, a sum, or what stays float32."""
        readers, maker = self.readers[name], self.producers.get(name)
        public = name in self.graph.outputs.values()
        if len(readers) != 1 or public or limits_of(readers[0]) is None or maker is None:
            return False
        sums = isinstance(maker.spec, PRODUCTS) or _function(maker.spec) == "add"
        return sums or maker.outputs[0] not in self.taken

    def steps(self, ranges: Mapping[str, Range]) -> dict[str, Quantisation]:
        """Return value -> what its bytes stand for; what keeps elements shares that of its input."""
        missing = [name for name in self.wanted if name not in ranges]
        if missing:
            raise missing_range(missing)
        found: dict[str, Quantisation] = {}
        joined = self._joined({name: ranges[name] for name in self.wanted})
        for name in self.wanted:
            maker = self.producers.get(name)
            kept = maker is not None and name in self.taken and _keeps(maker.spec)
            source = (maker.inputs[0] or "") if kept and maker is not None else ""
            scale, zero = step_of(joined[name])
            found[name] = found.get(source) or Quantisation(U8, (float(scale),), (zero,))
        return found

    def _joined(self, ranges: dict[str, Range]) -> dict[str, Range]:
        """Return the ranges, with that of the whole for what Concat alone reads."""
        for node in reversed(self.taken.values()):
            whole = node.outputs[0]
            if not isinstance(node.spec, Concat) or whole not in ranges:
                continue
            parts = [n for n in node.inputs if n in ranges and self._only_joined(n)]
            ends = [ranges[n] for n in (whole, *parts)]
            both = min(low for low, _ in ends), max(high for _, high in ends)
            ranges = ranges | dict.fromkeys((whole, *parts), both)
        return ranges

    def _only_joined(self, name: str) -> bool:
        """Whether Concat alone reads a value."""
        public = name in self.graph.outputs.values()
        return not public and all(isinstance(n.spec, Concat) for n in self.readers[name])


class _Writer(IntegerGraph):
    def __init__(self, parts: _Parts, steps: Mapping[str, Quantisation]) -> None:
        super().__init__(parts.graph)
        self.parts, self.steps, self.renamed = parts, steps, dict[str, str]()

    def run(self) -> Graph:
        for name in self.graph.inputs:
            if name in self.steps:
                self._pair(name, name, f"{name}:quantised")
                self.renamed[name] = f"{name}:quantised"
        for node in self.graph.nodes:
            made = replace(
                node,
                inputs=tuple(self.renamed.get(n or "", n) for n in node.inputs),
                outputs=tuple(self._real(n) for n in node.outputs),
            )
            self.nodes.append(self._in_integers(node, made))
            for name in node.outputs:
                if name in self.steps:
                    self._pair(f"{name}:real", name, name)
        return check(self.finished())

    def _real(self, name: str) -> str:
        if name not in self.steps:
            return name
        self.types[f"{name}:real"] = self.types[name]
        return f"{name}:real"

    def _pair(self, given: str, value: str, made: str) -> None:
        """Add quantisation of `given` by the steps of a value, and dequantisation as `made`."""
        wanted, kind, middle = self.steps[value], self.types[given], f"{value}:integers"
        for emit, source, name, dtype in (
            (build.quantise(0, wanted, kind.rank), given, middle, U8),
            (build.dequantise(0, wanted, kind.rank), middle, made, F32),
        ):
            self.types[name] = TensorType(kind.shape, dtype)
            self.put(emit, [source], Node(f"{name}:node", emit.spec, (source,), (name,)))

    def _in_integers(self, node: Node, made: Node) -> Node:
        """Return a node with constant operands as integers where it is taken."""
        if node.outputs[0] not in self.parts.taken:
            return made
        if isinstance(node.spec, PRODUCTS):
            return self._product(node, made)
        inputs = list(made.inputs)
        for place, name in enumerate(node.inputs):
            array = self.consts.get(name or "")
            if array is not None and array.dtype == np.float32 and len(node.inputs) > 1:
                integers, step, zero = bytes_of(array)
                given = Quantisation(U8, (float(step),), (zero,))
                inputs[place] = self._known(f"{node.outputs[0]}:{name}", integers, given)
        return replace(made, inputs=tuple(inputs))

    def _product(self, node: Node, made: Node) -> Node:
        """Return a product with weights and bias as integers."""
        found, stem = self._rounded(node), node.outputs[0]
        axis = None if found.scale.size == 1 else found.axis
        w = _counted(found.integers, found.scale, axis)
        inputs = [made.inputs[0], self._known(f"{stem}:weights", found.integers, w)]
        if found.bias is not None:
            axis = None if found.bias_scale.size == 1 else 0
            given = _counted(found.bias, found.bias_scale, axis)
            inputs.append(self._known(f"{stem}:bias", found.bias, given))
        return replace(made, inputs=tuple(inputs))

    def _rounded(self, node: Node) -> Rounded:
        weights, bias = self.consts[node.inputs[1] or ""], _bias_of(node, self.graph)
        axis, groups = _output_axis(node.spec), 1
        if isinstance(node.spec, ConvTranspose):
            groups = node.spec.group
        return rounded(weights, bias, float(self.steps[node.inputs[0] or ""].step), axis, groups)

    def _known(self, name: str, integers: Array, given: Quantisation) -> str:
        """Add constant integers and what makes them real; returns the value's name."""
        if name not in self.types and not integers.ndim:  # as the importer has single numbers
            self.consts[name], self.types[name] = given.dequantise(integers), TensorType(())
        elif name not in self.types:
            source = f"{name}:integers"
            self.consts[source], self.types[source] = integers, TensorType.of(integers)
            self.types[name] = TensorType(integers.shape)
            emit = build.dequantise(0, given, integers.ndim)
            self.put(emit, [source], Node(f"{name}:node", emit.spec, (source,), (name,)))
        return name


def _counted(integers: Array, scale: Array, axis: int | None) -> Quantisation:
    """Return what int8 or int32 around 0 stand for."""
    steps = tuple(map(float, scale.reshape(-1)))
    kind = I8 if integers.dtype == np.int8 else I32
    return Quantisation(kind, steps, (0,) * len(steps), axis)


def _folded(graph: Graph) -> Graph:
    """Return `graph` with the factors of constant matrices and rows in these."""
    nodes, types, consts = list[Node](), dict(graph.types), dict(graph.consts)

    def scaled(name: str, by: float) -> str:
        made = f"{name}:times{by:g}"
        consts[made] = np.asarray(consts[name] * np.float32(by), np.float32)
        types[made] = types[name]
        return made

    for node in graph.nodes:
        spec, inputs = node.spec, list(node.inputs)
        if isinstance(spec, Gemm) and (spec.alpha, spec.beta) != (1, 1) and inputs[1] in consts:
            addend = inputs[ADDEND] if len(inputs) > ADDEND else None
            if addend is None or addend in consts:
                inputs[1] = scaled(inputs[1] or "", spec.alpha)
                inputs[ADDEND:] = [scaled(addend, spec.beta)] if addend else []
                node = replace(node, spec=replace(spec, alpha=1.0, beta=1.0), inputs=tuple(inputs))
        nodes.append(node)
    return graph.with_nodes(nodes, types=types, consts=consts)


def _fits(node: Node, graph: Graph) -> bool:
    """Whether a node can compute in bytes."""
    spec, x = node.spec, node.inputs[0] if node.inputs else None
    if x is None or x in graph.consts or graph.types[x].dtype != F32:
        return False
    if isinstance(spec, PRODUCTS):
        return _has_weights(node, graph)
    if isinstance(spec, Pool):
        return spec.mode in ("max", "average") and not (spec.indices or spec.rule)
    if isinstance(spec, Reduce):
        return node.origin.startswith("GlobalAveragePool")
    if isinstance(spec, Eltwise):
        function = _function(spec)
        binary = function in BINARY and len(node.inputs) > 1
        return binary or function in FUNCTIONS or limits_of(node) is not None
    return isinstance(spec, (ViewSpec, Pad, Resize))


def _has_weights(node: Node, graph: Graph) -> bool:
    """Whether a product has constant weights that fit, and a bias that does, or none."""
    spec = node.spec
    assert isinstance(spec, PRODUCTS)
    w = graph.consts.get(node.inputs[1] or "")
    if w is None or not w.size or w.dtype != np.float32 or not np.isfinite(w).all():
        return False
    if isinstance(spec, Gemm):
        fits = w.ndim == 2 and not spec.trans_a and spec.alpha == spec.beta == 1
    else:
        fits = spec.arith is FLOAT
    return fits and _bias_fits(node, graph, w)


def _bias_fits(node: Node, graph: Graph, weights: Array) -> bool:
    name = node.inputs[BIAS] if len(node.inputs) > BIAS else None
    if name is None:
        return True
    bias, spec = graph.consts.get(name), node.spec
    groups = spec.group if isinstance(spec, ConvTranspose) else 1
    sizes = (1, weights.shape[_output_axis(spec)] * groups)
    row = bias is not None and bias.size in sizes and bias.shape[-1:] in ((), (bias.size,))
    return row and bias is not None and bool(np.isfinite(bias).all())


def _bias_of(node: Node, graph: Graph) -> Array | None:
    name = node.inputs[BIAS] if len(node.inputs) > BIAS else None
    return None if name is None else graph.consts[name].reshape(-1)


def _output_axis(spec: OpSpec) -> int:
    """Return the axis of a product's weights along which its output channels lie."""
    return 0 if isinstance(spec, Conv2d) or (isinstance(spec, Gemm) and spec.trans_b) else 1


def _keeps(spec: OpSpec) -> bool:
    """Whether results are elements of the first input."""
    if isinstance(spec, Pool):
        return spec.mode == "max"
    return isinstance(spec, (ViewSpec, Pad)) and not isinstance(spec, Concat)


def _function(spec: OpSpec) -> str:
    """Return the function of an elementwise op of one step, else ""."""
    return spec.post_ops[0].fn if isinstance(spec, Eltwise) and len(spec.post_ops) == 1 else ""


def _reads(node: Node) -> Iterator[str]:
    """Yield the inputs of a node that are to be integers."""
    whole = isinstance(node.spec, (Eltwise, Concat))
    yield from (n for n in (node.inputs if whole else node.inputs[:1]) if n is not None)
