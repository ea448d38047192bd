"""Carried values that loops hand on as they are: their bodies read them from around.

Exporters carry weights from turn to turn. Read from around, they are constants of plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from clnn.importers.onnx.order import subgraphs
from clnn.importers.onnx.stages.branches import rename
from clnn.importers.onnx.stages.deciding import is_standard
from clnn.records import dataclass


@dataclass(frozen=True)
class Carried:
    """Where a loop's carried values stand: first of them among the node's inputs, the body's, its outputs."""

    given: int
    taken: int
    made: int
    count: int


def read_from_around(graph: onnx.GraphProto, opset: int) -> None:
    """Make what Loops and Scans carry unchanged a value that their bodies read from around, everywhere."""
    places = [place for place, node in enumerate(graph.node) if any(subgraphs(node))]
    added = []
    for place in places:
        node = graph.node[place]
        for inner in subgraphs(node):
            read_from_around(inner, opset)
        carried = _carried(node, opset)
        if carried is not None:
            added += [(place, one) for one in _released(node, carried)]
    for place, more in reversed(added):
        graph.node.insert(place + 1, more)


def _carried(node: onnx.NodeProto, opset: int) -> Carried | None:
    """Return where a node's carried values stand, None where it carries none that may be left out."""
    body = _body(node)
    if not is_standard(node) or body is None:
        return None
    if node.op_type == "Loop":
        found = Carried(2, 2, 1, len(node.input) - 2)
    elif node.op_type == "Scan" and opset > 8:
        swept = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
        found = Carried(0, 0, 0, len(node.input) - swept)
    else:
        return None
    fits = len(body.input) >= found.taken + found.count and len(node.output) >= found.count
    return found if fits and len(body.output) >= found.made + found.count else None


def _body(node: onnx.NodeProto) -> onnx.GraphProto | None:
    return next((a.g for a in node.attribute if a.name == "body" and a.HasField("g")), None)


def _released(node: onnx.NodeProto, carried: Carried) -> Iterator[onnx.NodeProto]:
    """Take what is handed on unchanged out of what a node carries; yield what makes its outputs."""
    body = _body(node)
    assert body is not None
    sources = {
        inner.output[0]: inner.input[0]
        for inner in body.node
        if inner.op_type == "Identity" and is_standard(inner) and inner.input and inner.output
    }
    for slot in reversed(range(carried.count)):
        before = body.input[carried.taken + slot].name
        outer = node.input[carried.given + slot]
        after = _source(body.output[carried.made + slot].name, sources)
        if not outer or after != before or _is_hidden(outer, before, body):
            continue
        final = node.output[slot]
        del node.input[carried.given + slot], node.output[slot]
        del body.input[carried.taken + slot], body.output[carried.made + slot]
        _read_as(body, before, outer)
        if final:
            title = f"{node.name}/output{slot}"
            yield onnx.helper.make_node("Identity", [outer], [final], title)


def _source(name: str, sources: Mapping[str, str]) -> str:
    seen = set()
    while name in sources and name not in seen:
        seen.add(name)
        name = sources[name]
    return name


def _is_hidden(outer: str, before: str, body: onnx.GraphProto) -> bool:
    """Whether a value of the body, or inside of it, has the name of one around it."""
    made = {v.name for v in body.input if v.name != before} | _inside(body)
    return outer in made


def _inside(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a graph, and those inside of it, give to constants and to what nodes make."""
    names = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        names.update(node.output)
        for inner in subgraphs(node):
            names |= {v.name for v in inner.input} | _inside(inner)
    return names


def _read_as(body: onnx.GraphProto, before: str, outer: str) -> None:
    for inner in body.node:
        rename(inner, {before: outer})
    for value in body.output:
        value.name = outer if value.name == before else value.name
