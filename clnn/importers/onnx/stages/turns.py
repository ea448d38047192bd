"""What stays as it is from turn to turn of a loop's body: values, and extents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx

from clnn.importers.onnx.order import reads, subgraphs
from clnn.importers.onnx.stages.deciding import (
    CONTROL,
    SHAPE_OPS,
    deciding_inputs,
    is_standard,
    why_on_host,
)
from clnn.records import dataclass

CHANCE = (
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
    "RandomUniformLike",
)
# A value behind one of these does not have the extents of what it reads.
_OTHER_EXTENTS = frozenset(
    (
        *("ArgMax", "ArgMin", "Conv", "Einsum", "GRU", "Gather", "Gemm", "LSTM", "MatMul"),
        *("MatMulInteger", "OneHot", "QLinearConv", "QLinearMatMul", "RNN", "Shape", "Size"),
    )
)
_LONGER = frozenset(("Compress", "Concat", "Expand", "Pad", "Resize", "Slice", "Tile", "Upsample"))


@dataclass(frozen=True)
class Turns:
    """A loop's body. before, after: names of carried values at a turn's begin and end.

    others: its inputs besides. is_const: whether a name is a constant.
    """

    before: Sequence[str]
    after: Sequence[str]
    others: Sequence[str]
    is_const: Callable[[str], bool]

    def lasting(self, nodes: Sequence[onnx.NodeProto]) -> set[str]:
        """Return what is proven to have the same elements in all turns, constants apart."""
        changed = {*self.before, *self.others}
        found: set[str] = set()
        for node in nodes:
            names = {n for n in reads(node) if n}
            made = [n for n in node.output if n]
            if names & changed or not is_repeatable(node):
                changed.update(made)
            else:
                found |= {*made, *(n for n in names if not self.is_const(n))}
        return found

    def steady(self, nodes: Sequence[onnx.NodeProto]) -> set[str]:
        """Return values that are taken to have the same extents in all turns.

        A carried value is taken to change its extents where it is handed on longer or cut, as lists of
        what was found are: joined with others and no product in between.
        """
        pairs = dict(zip(self.before, self.after, strict=True))
        steady = {n for n in pairs if pairs[n] not in _longer(nodes, n)}
        while True:
            found = self._steady(nodes, steady)
            left = {n for n in steady if pairs[n] in found or pairs[n] == n}
            if left == steady:
                return found
            steady = left

    def _steady(self, nodes: Sequence[onnx.NodeProto], carried: Collection[str]) -> set[str]:
        """Return the steady values of a turn that begins with these."""
        changed = {*self.before, *self.others}  # elements
        moving = set(self.before) - set(carried)  # extents
        made: set[str] = {*carried, *self.others}
        for node in nodes:
            names = {n for n in reads(node) if n}
            outputs = [n for n in node.output if n]
            of_shapes = is_standard(node) and node.op_type in SHAPE_OPS
            same = is_repeatable(node) and not names & (moving if of_shapes else changed)
            if not same:
                changed.update(outputs)
            decided = any(n in changed for n in deciding_inputs(node))
            by_data = why_on_host(node) or node.op_type in CONTROL
            if not same and (by_data or decided or names & moving) and not of_shapes:
                moving.update(outputs)
            else:
                made.update(outputs)
        return made


def is_repeatable(node: onnx.NodeProto) -> bool:
    """Whether a node makes the same of the same inputs each time."""
    if is_standard(node) and node.op_type in CHANCE:
        return False
    return all(is_repeatable(inner) for graph in subgraphs(node) for inner in graph.node)


def _longer(nodes: Sequence[onnx.NodeProto], name: str) -> set[str]:
    """Return the values to which a value comes with other extents of the same axes."""
    alike, longer = {name}, set[str]()
    for node in nodes:
        if node.op_type in _OTHER_EXTENTS and is_standard(node):
            continue
        decides = set(deciding_inputs(node))
        names = {n for n in node.input if n and n not in decides}
        if names & longer or (node.op_type in _LONGER and names & alike):
            longer.update(node.output)
        elif names & alike:
            alike.update(node.output)
    return longer - {""}


def between(nodes: Sequence[onnx.NodeProto], places: Sequence[str], wanted: set[str]) -> set[str]:
    """Return the names of nodes on the host that read what the device made, and make what it reads.

    places: of the nodes, in order. wanted: of values; nodes that make others are left out.
    """
    behind: set[str] = set()
    for node, place in zip(nodes, places, strict=True):
        if place == "device" or (place in ("host", "shape") and behind & reads(node)):
            behind.update(node.output)
    ahead: set[str] = set()
    found: set[str] = set()
    for node, place in zip(reversed(nodes), reversed(places), strict=True):
        made = {n for n in node.output if n}
        if place == "device":
            ahead |= reads(node) - set(deciding_inputs(node))
        elif place == "host" and made & ahead and made <= wanted:
            ahead |= reads(node) - set(deciding_inputs(node))
            if made & behind:
                found.add(node.name)
    return found
