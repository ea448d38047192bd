"""What passes over quantised graphs share: which integers a value is made of, and nodes from sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import Dequantise, Quantise
from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.onnx_registry import Emit, EmitOutput, Source
from clnn.types import Array, TensorType


def function_of(node: Node) -> str:
    """Return "quantise" or "dequantise" for such a node, else ""."""
    function = node.spec.function if isinstance(node.spec, FixedMap) else None
    if isinstance(function, Dequantise):
        return "dequantise"
    plain = isinstance(function, Quantise) and not (
        function.late or function.whole or function.limits
    )
    return "quantise" if plain else ""


def limits_of(node: Node) -> tuple[float | None, float | None] | None:
    """Return what a node clips real numbers to, None where it does something else."""
    spec = node.spec
    if not isinstance(spec, Eltwise) or len(spec.post_ops) != 1:
        return None
    step = spec.post_ops[0]
    if step.operand is not None:
        return None
    low, high = (*step.params, 0.0, 0.0)[:2]
    known = {
        "relu": (0.0, None),
        "clip": (low, high),
        "at_least": (low, None),
        "at_most": (None, low),
    }
    return known.get(step.fn)


def without_repeats(graph: Graph) -> Graph:
    """Return `graph` with one quantisation of a value for all whose parameters are one tensor of the model.

    ONNX Runtime merges these, too, and so counts what reads one of them as readers of the same integers;
    those of other tensors that hold the same numbers it leaves.
    """
    first, renamed = dict[object, str](), dict[str, str]()
    public, nodes = set(graph.outputs.values()), list[Node]()
    for node in graph.nodes:
        inputs = tuple(renamed.get(n, n) if n else n for n in node.inputs)
        nodes.append(node if inputs == node.inputs else replace(node, inputs=inputs))
        if function_of(node) != "quantise" or node.outputs[0] in public:
            continue
        tensors = (_tensor_of(graph, name) for name in inputs[1:])
        same = first.setdefault((node.spec, inputs[0], *tensors), node.outputs[0])
        if same != node.outputs[0]:
            renamed[node.outputs[0]] = same
    return graph.with_nodes(nodes) if renamed else graph


def _tensor_of(graph: Graph, name: str | None) -> object:
    """Return what is the same for constants that are views of one array."""
    array = graph.consts.get(name or "")
    return name if array is None else array.__array_interface__["data"]


class IntegerGraph:
    """A graph being rewritten: `put` adds nodes, the integers behind values are looked up."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.producers, self.nodes = graph.producers(), list[Node]()
        self.viewed = dict[
            str, str
        ]()  # views of integers that are made here: the integers behind them
        self.consumers = graph.consumers()
        self.uses = {name: len(found) for name, found in self.consumers.items()}
        for name in graph.outputs.values():
            self.uses[name] = self.uses.get(name, 0) + 1

    def finished(self) -> Graph:
        """Return the graph with the nodes that were added."""
        return self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts)

    def folded(self, graph: Graph) -> Graph:
        """Return a graph whose dequantised constants are constants."""
        consts, nodes = dict(graph.consts), list[Node]()
        for node in graph.nodes:
            values = [None if n is None else consts.get(n) for n in node.inputs]
            missing = [n for n, v in zip(node.inputs, values, strict=True) if n and v is None]
            if missing or function_of(node) != "dequantise":
                nodes.append(node)
            else:
                consts[node.outputs[0]] = node.spec.reference(*values)[0]
        return graph.with_nodes(nodes, consts=consts)

    def wanted(self, node: Node) -> Quantisation | None:
        """Return what a quantisation makes, None where its parameters are computed or several."""
        found = self._parameters(node, node.outputs[0])
        return found if found is not None and found.per_tensor else None

    def integers(self, value: str) -> tuple[str, Quantisation] | None:
        """Return the integers that a value is made of by dequantisation, and what they stand for."""
        node = self.producers.get(value)
        if node is None or function_of(node) != "dequantise":
            return None
        name = node.inputs[0] or ""
        found = self._parameters(node, name)
        return None if found is None else (name, found)

    def seen_as(self, value: str) -> tuple[str, Quantisation] | None:
        """Return integers like `integers`, also behind views, which then are views of integers."""
        found = self.integers(value)
        node = self.producers.get(value)
        if found is not None or node is None or not isinstance(node.spec, (Reshape, Transpose)):
            return found
        inner = self.seen_as(node.inputs[0] or "")
        if inner is None or not inner[1].per_tensor:
            return None
        name = f"{value}:integers"
        if name not in self.types:
            self.viewed[name] = self.viewed.get(inner[0], inner[0])
            (self.types[name],) = node.spec.infer([self.types[inner[0]]])
            title = f"{node.name}:integers"
            self.nodes.append(Node(title, node.spec, (inner[0],), (name,), node.origin))
        return name, inner[1]

    def _parameters(self, node: Node, integers: str) -> Quantisation | None:
        """Return scales and zero points of at most one axis of the tensor `integers`."""
        kind = self.types[integers]
        scale = self.consts.get(node.inputs[1] or "")
        given = node.inputs[2] if len(node.inputs) > 2 else None
        zero = np.zeros((), kind.dtype.numpy) if given is None else self.consts.get(given)
        if scale is None or zero is None:
            return None
        axes = {a.ndim - 1 - int(np.argmax(a.shape)) for a in (scale, zero) if a.size > 1}
        along = all(a.size == max(a.shape, default=1) for a in (scale, zero))
        if not along or len(axes) > 1 or not (np.isfinite(scale) & (scale > 0)).all():
            return None
        axis = kind.rank - 1 - axes.pop() if axes else None
        steps = tuple(map(float, scale.reshape(-1)))
        return Quantisation(kind.dtype, steps, tuple(map(int, zero.reshape(-1))), axis)

    def weights(self, value: str) -> tuple[Array, Quantisation] | None:
        """Return constant integers behind a value, perhaps seen with other axes."""
        found = self.integers(value)
        if found is not None:
            return (self.consts[found[0]], found[1]) if found[0] in self.consts else None
        node = self.producers.get(value)
        if node is None or not isinstance(node.spec, (Reshape, Transpose)):
            return None
        inner = self.weights(node.inputs[0] or "")
        if inner is None:
            return None
        array, given = inner
        (seen,) = node.spec.reference(array)
        if given.axis is None:
            return seen, given
        if isinstance(node.spec, Reshape):
            return None
        return seen, replace(given, axis=node.spec.perm.index(given.axis))

    def real(self, value: str) -> Array:
        """Return the real numbers of a constant that may be dequantised."""
        known = self.consts.get(value)
        if known is not None:
            return known
        node = self.producers[value]
        return node.spec.reference(*(self.consts[n] for n in node.inputs if n is not None))[0]

    def real_constant(self, value: str) -> Array | None:
        """Return the real numbers of a value, None where it is computed."""
        node = self.producers.get(value)
        known = value in self.consts or (
            node is not None and all(n is None or n in self.consts for n in node.inputs)
        )
        return self.real(value) if known else None

    def put(self, source: Source, inputs: Sequence[str], node: Node) -> None:
        """Add nodes that compute `source` from values, as the result of `node`."""
        made = source if isinstance(source, Emit) else Emit(Reshape(self._shape(node)), [source])
        _Placer(self, inputs, node).add(made, node.outputs)

    def _shape(self, node: Node) -> tuple[int, ...]:
        return self.types[node.outputs[0]].shape


class _Placer:
    """Turns sources into nodes; each emitted node is added once."""

    def __init__(self, graph: IntegerGraph, inputs: Sequence[str], node: Node) -> None:
        self.graph, self.inputs, self.node = graph, inputs, node
        self.made: dict[Emit, tuple[str, ...]] = {}
        self.count = 0

    def value(self, source: Source) -> str | None:
        """Return the value that a source stands for."""
        if source is None:
            return None
        if isinstance(source, int):
            return self.inputs[source]
        if isinstance(source, np.ndarray):
            name = self._fresh("const")
            self.graph.consts[name], self.graph.types[name] = source, TensorType.of(source)
            return name
        emit, index = (source.emit, source.index) if isinstance(source, EmitOutput) else (source, 0)
        if emit not in self.made:
            self.add(emit, None)
        return self.made[emit][index]

    def add(self, emit: Emit, outputs: tuple[str, ...] | None) -> None:
        """Add the node of `emit`; outputs: their names, None for new ones."""
        graph = self.graph
        inputs = tuple(self.value(s) for s in emit.inputs)
        kinds = emit.spec.infer([None if n is None else graph.types[n] for n in inputs])
        names = outputs or tuple(self._fresh("value") for _ in kinds)
        graph.types.update(zip(names, kinds, strict=True))
        title = self.node.name if outputs else f"{self.node.name}:{self.count}"
        self.count += 1
        graph.nodes.append(Node(title, emit.spec, inputs, names, self.node.origin))
        self.made[emit] = names

    def _fresh(self, what: str) -> str:
        self.count += 1
        return f"{self.node.outputs[0]}:{what}{self.count}"
