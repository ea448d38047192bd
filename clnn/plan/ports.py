"""Where the host meets a network: inputs and outputs, and copies into its own layouts and back."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.plan.plan import Placed, Port


def add_ports(
    graph: Graph, placed: dict[str, Placed]
) -> tuple[Graph, dict[str, Placed], tuple[Port, ...], tuple[Port, ...]]:
    """Add copies between dense host values and the network's own layouts where they differ."""
    from clnn.ops.movement.views import Copy  # stored plans have ports, and need no ops

    placed, types = dict(placed), dict(graph.types)
    head, tail, inputs, outputs = [], [], [], []
    given = {*graph.inputs, *graph.consts}

    def dense(name: str, value: str) -> str:
        host = f"{name}:host"
        types[host] = types[value]
        placed[host] = Placed(host, TensorLayout.make(types[value].shape))
        return host

    for name in graph.inputs:
        host = name
        if not _is_plain(placed[name], name):
            host = dense(name, name)
            head.append(Node(f"io:{name}", Copy(), (host,), (name,), f"input {name}"))
        inputs.append(Port(name, types[name], name, host))
    for public, value in graph.outputs.items():
        host = value
        if value in given or not placed[value].layout.is_dense or 0 in placed[value].layout.pitches:
            host = dense(f"out:{public}", value)
            tail.append(Node(f"io:{public}", Copy(), (value,), (host,), f"output {public}"))
        outputs.append(Port(public, types[value], value, host))
    hosts = tuple(p.host for p in inputs)
    graph = replace(graph, nodes=(*head, *graph.nodes, *tail), types=types, inputs=hosts)
    return graph, placed, tuple(inputs), tuple(outputs)


def _is_plain(where: Placed, name: str) -> bool:
    return where.storage == name and where.layout.is_dense and not where.layout.has_padding
