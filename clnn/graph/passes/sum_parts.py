"""A sum over some parts of an image's channels, as split attention has it, becomes an addition of slices.

    x (n, r * c, h, w)   Reshape   (n, r, c, h, w)   times gates (n, r, c, 1, 1)   ReduceSum over r

Of five axes nothing says that channels are to be innermost; slices of the image are views of it as it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Reshape, Slice
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.traced import is_open
from clnn.types import F32, TensorType

PARTS = 1  # the axis of parts
MOST_PARTS = 4  # that are added one by one
LEAST_RANK = 5  # of an image with an axis of parts


def sum_parts(graph: Graph) -> Graph:
    """Return `graph` with sums over parts of channels as additions of these parts.

    The sum is of an image that was split (Reshape), or of a function of such images and of gates that has no
    other reader.
    """
    if not any(isinstance(node.spec, Reduce) for node in graph.nodes):
        return graph
    made, uses, public = graph.producers(), graph.consumers(), set(graph.outputs.values())
    types, nodes = dict(graph.types), list[Node]()
    for node in graph.nodes:
        source = made.get(node.inputs[0] or "") if _sums_parts(node, graph) else None
        term: Node | None = None
        if source is not None and _is_split(source, graph):
            term = node
        elif source is not None and isinstance(source.spec, Eltwise):
            alone = len(uses[source.outputs[0]]) == 1 and source.outputs[0] not in public
            term = source if alone and _is_of_parts(source, made, graph) else None
        nodes += [node] if term is None else _added(node, term, made, types)
    return graph.with_nodes(nodes, types=types)


def _sums_parts(node: Node, graph: Graph) -> bool:
    spec = node.spec
    if not isinstance(spec, Reduce) or spec.fn != "sum" or spec.axes != (PARTS,):
        return False
    x = graph.types[node.inputs[0] or ""]
    if spec.keepdims or spec.post_ops or x.dtype != F32 or x.rank < LEAST_RANK:
        return False
    parts, channels = x.shape[PARTS : PARTS + 2]
    return not is_open(parts) and not is_open(channels) and 1 < parts <= MOST_PARTS


def _is_split(node: Node, graph: Graph) -> bool:
    """Whether a node makes parts out of the channels of an image, all else as it is."""
    source = node.inputs[0] if isinstance(node.spec, Reshape) else None
    if source is None or source in graph.consts:
        return False
    x, split = graph.types[source], graph.types[node.outputs[0]].shape
    joined = (split[0], split[PARTS] * split[PARTS + 1], *split[PARTS + 2 :])
    return x.rank == len(split) - 1 and x.shape == joined


def _is_of_parts(node: Node, made: Mapping[str, Node], graph: Graph) -> bool:
    """Whether a function's operands have an axis of parts, and one at least is a split image."""
    parts = graph.types[node.outputs[0]]
    if any(name is None or name in graph.consts for name in node.inputs):
        return False
    types = [graph.types[name] for name in node.inputs if name is not None]
    fits = all(t.rank == parts.rank and t.dtype == F32 for t in types)
    whole = [n for n, t in zip(node.inputs, types, strict=True) if t.shape == parts.shape]
    return fits and any(n in made and _is_split(made[n], graph) for n in whole if n is not None)


def _added(
    total: Node, term: Node, made: Mapping[str, Node], types: dict[str, TensorType]
) -> Iterator[Node]:
    """Yield the nodes of a term of each part, and of their sum; new values are added to `types`.

    term: the function of parts that is summed, `total` where these are summed as they are.
    """
    result = total.outputs[0]
    count = types[total.inputs[0] or ""].shape[PARTS]
    so_far = ""
    for part in range(count):
        name, operands = f"{result}:part{part}", list[str]()
        for k, operand in enumerate(term.inputs):
            assert operand is not None
            yield from _part(operand, part, f"{name}:{k}", made, types)
            operands.append(f"{name}:{k}")
        if term is total:
            name = operands[0]
        else:
            types[name] = types[result]
            yield Node(name, term.spec, tuple(operands), (name,), term.origin)
        if part:
            last = part == count - 1
            summed = result if last else f"{result}:sum{part}"
            types[summed] = types[result]
            label = total.name if last else summed
            spec = Eltwise((PostOp("add", operand=1),))
            yield Node(label, spec, (so_far, name), (summed,), total.origin)
            name = summed
        so_far = name


def _part(
    operand: str, part: int, name: str, made: Mapping[str, Node], types: dict[str, TensorType]
) -> Iterator[Node]:
    """Yield the nodes of one part of an operand: a slice of the image that was split, or of what there is."""
    shape, split = types[operand].shape, made.get(operand)
    at = part if shape[PARTS] > 1 else 0
    left = (shape[0], *shape[PARTS + 1 :])
    source = split.inputs[0] if split is not None and isinstance(split.spec, Reshape) else None
    joined = (shape[0], shape[PARTS] * shape[PARTS + 1], *shape[PARTS + 2 :])
    if source is not None and types[source].shape == joined:
        types[name] = TensorType(left)
        starts = (0, at * left[1], *(0,) * (len(left) - 2))
        yield Node(name, _slice(starts, left), (source,), (name,))
        return
    cut, one = f"{name}:cut", (shape[0], 1, *shape[PARTS + 1 :])
    types[cut], types[name] = TensorType(one), TensorType(left)
    yield Node(cut, _slice((0, at, *(0,) * (len(one) - 2)), one), (operand,), (cut,))
    yield Node(name, Reshape(left), (cut,), (name,))


def _slice(starts: Sequence[int], extents: Sequence[int]) -> Slice:
    return Slice(tuple(starts), tuple(extents), (1,) * len(extents))
