"""Layer by layer: the unfused network with every value as an output, against another engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clnn.compile import Shapes, compile_fixed, load_graph
from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.types import Array
from clnn.verification.compare import difference
from clnn.verification.onnxruntime import OnnxRuntime
from clnn.verification.reference import reference_node, reference_values, widen
from clnn.verification.report import Layer

# What the storage of constants and of the result adds to the error of one layer.
LAYER_ROUNDING = {"f32": 0.0, "tf32": 0.0, "f16": 8 * 2**-11, "bf16": 8 * 2**-8, "int8": 8 * 2**-8}


def with_values(graph: Graph, names: Sequence[str]) -> Graph:
    """Return `graph` with the values `names` as its outputs, under their own names."""
    return replace(graph, outputs={name: name for name in names})


def reference_layers(
    graph: Graph,
    computed: Graph,
    device: str | int | None,
    options: Options,
    feeds: Mapping[str, Array],
    rounding: float,
) -> tuple[Layer, ...]:
    """Compare every value of `graph` that `computed` has, too, with the reference in double precision.

    Each node's own difference is to its reference fed with what the device gave that node. rounding: of
    a result, besides that of its op.
    """
    names = [n for node in graph.nodes for n in node.outputs if n in computed.types]
    with compile_fixed(with_values(computed, names), device, options) as session:
        got = session(feeds)
        chosen = {step.node.layer: step.variant for step in session.plan.scheduled}
    producers = computed.producers()
    right = reference_values(graph, feeds)
    device_values = {name: widen(array) for name, array in {**graph.consts, **feeds, **got}.items()}
    layers = []
    for number, node in enumerate(graph.nodes):
        known = [n for n in node.inputs if n is not None]
        if not all(n in device_values for n in (*known, *node.outputs)):
            continue
        alone = reference_node(graph, node, device_values)
        for name in node.outputs:
            variant = chosen[producers[name].name]
            limit = max(node.spec.tolerance(graph.input_types(node)), variant.error) + rounding
            total = difference(name, got[name], right[name], limit)
            own = difference(name, got[name], alone[name], limit)
            layers.append(Layer(number, node.name, node.spec.kind, variant.name, total, own))
    return tuple(layers)


def onnxruntime_layers(
    model: str | os.PathLike[str] | bytes,
    computed: Any,
    shapes: Shapes,
    device: str | int | None,
    options: Options,
    feeds: Mapping[str, Array],
    tolerance: float,
) -> tuple[Layer, ...]:
    """Compare the results of all nodes of an ONNX file, as `computed` has them, with ONNX Runtime's, unoptimised."""
    from clnn.importers.onnx.outputs import with_all_outputs

    opened = with_all_outputs(model)
    data = opened.data if computed is model else with_all_outputs(computed.SerializeToString()).data
    graph = load_graph(data, shapes)
    outputs = {n: v for n, v in graph.outputs.items() if v not in graph.consts}
    graph = replace(graph, outputs=outputs)
    with compile_fixed(graph, device, options) as session:
        got = session(feeds)
        variants = {step.node.layer: step.variant.name for step in session.plan.scheduled}
    wanted = [name for name in opened.makers if name in outputs]
    right = OnnxRuntime(opened.data, optimise=False)(feeds, wanted)
    producers = graph.producers()
    layers = []
    for number, name in enumerate(wanted):
        node = producers.get(outputs[name])
        total = difference(name, got[name], right[name], tolerance)
        kind = node.spec.kind if node else "input"
        variant = variants[node.name] if node else ""
        layers.append(Layer(number, opened.makers[name], kind, variant, total, None))
    return tuple(layers)
