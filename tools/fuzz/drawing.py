"""Random valid ONNX networks: each node is drawn, evaluated by onnxruntime, and kept if that succeeds.

Numbers stay moderate: a node whose result is infinite, NaN or huge is dropped, so that what differs
between engines is a fault and not the fate of such numbers, which tests/ops/test_special_values.py checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

OPSETS = (21, 21, 21, 23, 24)
MOST_ELEMENTS, LARGEST = 20_000, 1e4
Feeds = dict[str, np.ndarray]
around: list[Callable[[], AbstractContextManager[None]]] = [nullcontext]  # calls of onnxruntime


@dataclass
class Network:
    """Nodes with their constants, and the value of everything that onnxruntime made of them."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    consts: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    opset: int = OPSETS[0]

    def model(
        self, outputs: Sequence[str], dims: Mapping[int, str] | None = None
    ) -> onnx.ModelProto:
        """Return the model that makes `outputs`; extents of inputs in `dims` have a name instead."""

        def info(name: str, shaped: bool = True) -> onnx.ValueInfoProto:
            array = self.values[name]
            shape = [(dims or {}).get(n, n) for n in array.shape] if shaped else None
            return helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), shape
            )

        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [info(n) for n in self.inputs],
            [info(n, dims is None) for n in outputs],
            [numpy_helper.from_array(self.values[n], n) for n in self.consts],
        )
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs' values."""
        return {name: self.values[name] for name in self.inputs}

    @property
    def made(self) -> list[str]:
        """Every value that a node makes."""
        return [name for node in self.nodes for name in node.output]


def reads(node: onnx.NodeProto) -> list[str]:
    """Return what a node reads, with what its subgraphs read of the graph around them."""
    found = list(node.input)
    for attribute in node.attribute:
        inner = attribute.g
        made = {v.name for v in (*inner.input, *inner.initializer)}
        made |= {name for n in inner.node for name in n.output}
        found += [name for n in inner.node for name in reads(n) if name not in made]
        found += [v.name for v in inner.output if v.name not in made]
    return [name for name in dict.fromkeys(found) if name]


def evaluate(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """Return onnxruntime's outputs, without its optimisations."""
    return evaluate_all(model, [feeds])[0]


def evaluate_all(model: onnx.ModelProto, many: Sequence[Feeds]) -> list[Feeds]:
    """Return onnxruntime's outputs for each of many feeds, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with around[0]():
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        return [dict(zip(names, session.run(None, feeds), strict=True)) for feeds in many]


class Drawer:
    """Draws one network from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.net = Network()

    def draw(self, nodes: int, kinds: Sequence[Callable[[Drawer], None]]) -> Network:
        """Return a network of about `nodes` nodes of these kinds, of one to three inputs."""
        self.net.opset = self.one_of(OPSETS)
        for _ in range(self.up_to(3)):
            self.net.inputs.append(self.array(self.shape()))
        tries = 0
        while len(self.net.nodes) < nodes and tries < 6 * nodes:
            tries += 1
            self.one_of(kinds)(self)
        return self.net

    def up_to(self, most: int, least: int = 1) -> int:
        return int(self.chance.integers(least, most + 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.chance.integers(len(choices)))]

    def shape(self) -> tuple[int, ...]:
        """Return a shape, most often of an image."""
        if self.chance.random() < 0.7:
            return (self.up_to(2), self.one_of((1, 2, 3, 4, 8, 17)), self.up_to(9), self.up_to(11))
        return tuple(self.up_to(9) for _ in range(self.up_to(5, 0)))

    def array(self, shape: Sequence[int], dtype: str = "float32", low: int = -16) -> str:
        """Add numbers that are multiples of 1/8, or small integers; return their name."""
        drawn = self.chance.integers(low, 17, tuple(shape))
        name = f"v{len(self.net.values)}"
        self.net.values[name] = np.asarray(drawn / 8 if dtype == "float32" else drawn, dtype)
        return name

    def const(self, array: Any, dtype: str = "int64") -> str:
        name = f"v{len(self.net.values)}"
        self.net.values[name] = np.asarray(array, dtype)
        self.net.consts.append(name)
        return name

    def weights(self, *shape: int) -> str:
        """Return a constant of numbers, at times an input."""
        name = self.array(shape)
        (self.net.inputs if self.chance.random() < 0.1 else self.net.consts).append(name)
        return name

    def pick(self, kind: str = "f", ranks: Sequence[int] = range(9)) -> str | None:
        """Return a value of a kind and rank, more often a late one; None where there is none."""
        names = [*self.net.inputs, *self.net.made]
        fits = [n for n in names if self.of(n).dtype.kind in kind and self.of(n).ndim in ranks]
        fits = [n for n in fits if self.of(n).size]
        return fits[-1 - int(len(fits) * self.chance.random() ** 2)] if fits else None

    def of(self, name: str) -> np.ndarray:
        return self.net.values[name]

    def node(self, op: str, inputs: Sequence[str], count: int = 1, **attrs: Any) -> list[str]:
        """Add a node where onnxruntime takes it and its numbers are moderate; return its outputs."""
        names = [f"v{len(self.net.values) + k}" for k in range(count)]
        made = helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", **attrs)
        alone = Network(dict(self.net.values), reads(made), [], [made], self.net.opset)
        shapeless = [onnx.ValueInfoProto(name=n) for n in names]
        model = alone.model([])
        model.graph.output.extend(shapeless)
        try:
            found = evaluate(model, {n: self.of(n) for n in alone.inputs})
        except Exception:  # whatever onnxruntime says of a node that it does not take
            return []
        if not all(moderate(a) for a in found.values()):
            return []
        self.net.values.update(found)
        self.net.nodes.append(made)
        return names


def moderate(array: np.ndarray) -> bool:
    """Tell whether an array is small, and of numbers that are."""
    if array.size > MOST_ELEMENTS:
        return False
    if array.dtype.kind != "f" or not array.size:
        return True
    return bool(np.isfinite(array).all() and np.abs(array).max() < LARGEST)
