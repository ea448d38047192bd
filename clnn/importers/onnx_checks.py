"""Limits and structure of an ONNX model that nobody vouches for. No tensor data is touched here.

Everything is counted in Python integers, which do not wrap, and before anything is allocated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from clnn.errors import ModelError, ShapeError
from clnn.settings import setting
from clnn.types import TensorType

MAX_RANK = 8
MAX_EXTENT = 2**31 - 1
MAX_NODES = 200_000
MAX_DEPTH = 16
NEWEST_OPSET = 28
_SHOWN = 80

_WINDOW_OPS = frozenset(
    """
    AveragePool Conv ConvInteger ConvTranspose DeformConv LpPool MaxPool MaxUnpool QLinearConv
    """.split()
)


def show(name: str) -> str:
    """Return a name of the model for a message: quoted, escaped, not too long."""
    return repr(name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "...")


def default_domain(domain: str) -> str:
    """Return the domain with ONNX's two spellings of its own made one."""
    return domain or "ai.onnx"


@dataclass
class Budget:
    """What one import may still use: nodes (inlined ones count each time) and bytes of constants."""

    max_bytes: int = field(default_factory=lambda: int(setting("CLNN_MAX_BYTES")))
    nodes: int = 0
    bytes: int = 0

    def take_node(self) -> None:
        """Count one node. Raises ModelError beyond the limit."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ModelError(
                f"the model has more than {MAX_NODES} nodes after its functions are inlined. "
                "Files that grow like this are refused."
            )

    def take_bytes(self, count: int, what: str) -> None:
        """Count bytes of one constant. Raises ModelError beyond the limit."""
        self.bytes += count
        if self.bytes > self.max_bytes:
            raise ModelError(
                f"{what} wants {count} bytes, which makes {self.bytes} bytes of constants; the limit "
                f"is {self.max_bytes}. Raise CLNN_MAX_BYTES if that is meant."
            )


def check_dims(what: str, dims: Sequence[int]) -> int:
    """Return the number of elements. Raises ModelError for a rank or an extent out of range."""
    if len(dims) > MAX_RANK:
        raise ModelError(f"{what} has {len(dims)} axes. clnn takes at most {MAX_RANK}.")
    wrong = [d for d in dims if not 0 <= d <= MAX_EXTENT]
    if wrong:
        raise ModelError(
            f"{what} has shape {list(dims)}: extent {wrong[0]} is not from 0 to {MAX_EXTENT}. "
            "The file is not valid."
        )
    return math.prod(dims)


def check_type(what: str, kind: TensorType) -> None:
    """Refuse a tensor that kernels could not index. Raises ShapeError with the numbers."""
    limit = int(setting("CLNN_MAX_BYTES"))
    reason = ""
    if kind.rank > MAX_RANK:
        reason = f"clnn takes at most {MAX_RANK} axes"
    elif kind.size > MAX_EXTENT or any(d > MAX_EXTENT for d in kind.shape):
        reason = f"kernels index with 32 bits, at most {MAX_EXTENT} elements"
    elif kind.nbytes > limit:
        reason = f"the limit is {limit} bytes (CLNN_MAX_BYTES)"
    if reason:
        raise ShapeError(
            f"{what} is {kind!r}: {kind.size} elements, {kind.nbytes} bytes; {reason}. "
            "Make the batch or the image smaller."
        )


def check_model(proto: onnx.ModelProto) -> None:
    """Check versions, limits, names and attributes of a parsed model. Raises ModelError."""
    _check_versions(proto)
    keys = [(f.domain, f.name, f.overload) for f in proto.functions]
    if len(set(keys)) != len(keys):
        raise ModelError("the model defines a function twice. The file is not valid.")
    counted = _check_graph(proto.graph, 0)
    for function in proto.functions:
        counted += _check_nodes(function.node, 0)
        _check_made_once(function.node, list(function.input), f"function {show(function.name)}")
    if counted > MAX_NODES:
        raise ModelError(f"the model has {counted} nodes. clnn takes at most {MAX_NODES}.")


def _check_versions(proto: onnx.ModelProto) -> None:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"the model is of IR version {proto.ir_version}; onnx {onnx.__version__} knows 1 to "
            f"{onnx.IR_VERSION}. Update the onnx package, or export with an older IR version."
        )
    if not proto.opset_import:
        raise ModelError("the model names no operator set (opset_import). The file is not valid.")
    seen: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = default_domain(entry.domain)
        if seen.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"the model names domain {show(domain)} with opsets {seen[domain]} and "
                f"{entry.version}. The file is not valid."
            )
    version = seen.get("ai.onnx", 0)
    if version > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"the model uses opset {version}; onnx {onnx.__version__} knows up to "
            f"{onnx.defs.onnx_opset_version()}. Update the onnx package."
        )


def _check_graph(graph: onnx.GraphProto, depth: int) -> int:
    """Check one graph and those inside of it; return how many nodes they have."""
    given = [v.name for v in graph.input]
    stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    for kind, names in (("input", given), ("initializer", stored)):
        _check_names(kind, names)
    outputs = [v.name for v in graph.output]
    if len(set(outputs)) != len(outputs):
        raise ModelError(f"the graph lists an output twice: {outputs[:8]}. The file is not valid.")
    known = [*given, *(n for n in stored if n not in set(given))]
    _check_made_once(graph.node, known, f"graph {show(graph.name)}")
    return _check_nodes(graph.node, depth)


def _check_names(kind: str, names: Sequence[str]) -> None:
    if "" in names:
        raise ModelError(f"an {kind} of the model has no name. The file is not valid.")
    if len(set(names)) != len(names):
        twice = next(n for place, n in enumerate(names) if n in names[:place])
        raise ModelError(f"the model has two {kind}s named {show(twice)}. The file is not valid.")


def _check_made_once(nodes: Sequence[onnx.NodeProto], known: Sequence[str], where: str) -> None:
    made = set(known)
    for node in nodes:
        for name in node.output:
            if name and name in made:
                raise ModelError(
                    f"value {show(name)} in {where} is made twice, the second time by node "
                    f"{show(node.name)} ({node.op_type[:_SHOWN]}). The file is not valid."
                )
            made.add(name)


def _check_nodes(nodes: Sequence[onnx.NodeProto], depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ModelError(f"graphs are nested deeper than {MAX_DEPTH}. Such files are refused.")
    count = len(nodes)
    for node in nodes:
        _check_attributes(node)
        for inner in subgraphs(node):
            count += _check_graph(inner, depth + 1)
    return count


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attr in node.attribute:
        if attr.HasField("g"):
            yield attr.g
        yield from attr.graphs


def _check_attributes(node: onnx.NodeProto) -> None:
    """Check what window ops and splits may ask for, whatever their importer does with it."""
    names = [a.name for a in node.attribute]
    if len(set(names)) != len(names):
        raise _wrong(node, f"an attribute is given twice among {names[:8]}")
    values = {a.name: a for a in node.attribute if not a.ref_attr_name}
    for name, attr in values.items():
        _check_attribute(node, name, attr)
    if node.op_type in _WINDOW_OPS:
        _check_window(node, values)


def _check_attribute(node: onnx.NodeProto, name: str, attr: Any) -> None:
    if name in ("group", "blocksize", "num_outputs") and attr.i < 1:
        raise _wrong(node, f"{name} is {attr.i}, must be at least 1")
    if name == "num_outputs" and attr.i != len(node.output):
        raise _wrong(node, f"num_outputs is {attr.i} but the node has {len(node.output)} outputs")
    lowest = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 0, "output_padding": 0}.get(name)
    if lowest is None or node.op_type not in _WINDOW_OPS:
        return
    if any(not lowest <= v <= MAX_EXTENT for v in attr.ints):
        listed = list(attr.ints)[: 2 * MAX_RANK]
        raise _wrong(node, f"{name} are {listed}: each must be from {lowest} to {MAX_EXTENT}")


def _check_window(node: onnx.NodeProto, values: dict[str, Any]) -> None:
    rank = 0
    for name, factor in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
        count = len(values[name].ints) if name in values else 0
        if not count:
            continue
        rank = rank or count // factor
        if count != rank * factor or rank > MAX_RANK - 2:
            raise _wrong(
                node, f"{name} has {count} numbers, which does not fit a window of {rank} axes"
            )


def _wrong(node: onnx.NodeProto, what: str) -> ModelError:
    return ModelError(
        f"node {show(node.name)} ({node.op_type[:_SHOWN]}): {what}. The file is not valid."
    )


def ordered(
    nodes: Sequence[onnx.NodeProto], known: Callable[[str], bool]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes so that each comes after what it reads; sorted ones stay as they are.

    known: whether a name is visible before the first node. Raises ModelError for a name that
    nothing makes and for a cycle.
    """
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needs: list[set[int]] = []
    for node in nodes:
        reads = {n for n in _reads(node) if n and (n in makers or not known(n))}
        lost = sorted(n for n in reads if n not in makers)
        if lost:
            raise ModelError(
                f"node {show(node.name)} ({node.op_type[:_SHOWN]}) reads {show(lost[0])}, which "
                "nothing makes. The file is not valid."
            )
        needs.append({makers[n] for n in reads})
    if all(max(n, default=-1) < place for place, n in enumerate(needs)):
        return nodes
    return [nodes[place] for place in _sorted_places(nodes, needs)]


def _sorted_places(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]]) -> list[int]:
    readers: dict[int, list[int]] = {}
    for place, wanted in enumerate(needs):
        for maker in wanted:
            readers.setdefault(maker, []).append(place)
    left = [len(wanted) for wanted in needs]
    ready = [place for place, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers.get(place, ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [show(n.name or n.op_type) for n, count in zip(nodes, left, strict=True) if count]
        raise ModelError(
            f"{len(stuck)} nodes wait for each other in a cycle: {', '.join(stuck[:8])}. "
            "The file is not valid."
        )
    return order


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those that its graphs take from outside included."""
    found = set(node.input)
    for graph in subgraphs(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {t.values.name for t in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        inside = {v.name for v in graph.output}
        for inner in graph.node:
            inside |= _reads(inner)
        found |= inside - own
    return found
