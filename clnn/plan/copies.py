"""Reshapes that are copies in the memory order of what they copy, where no reader minds.

The tokens of an image with a border are no view of it. Products take rows and columns of any pitches, so
a copy of whole pixels makes rows for them; one that turns pixels into planes would read one element at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.movement.views import Concat, Reshape, refine
from clnn.ops.spec import ViewSpec
from clnn.plan.alias import Link
from clnn.plan.plan import Placed
from clnn.records import dataclass
from clnn.traced import is_open

READERS = ("gemm", "attention", "eltwise", "pad")  # kinds of ops that take any pitches


@dataclass(frozen=True)
class Copies:
    """Asked for the orders of reshapes that turned out to be no views.

    links: of all views that geometry may allow.
    """

    graph: Graph
    links: Mapping[str, Link]

    @cached_property
    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it."""
        return self.graph.consumers()

    @cached_property
    def public(self) -> set[str]:
        """The values that are outputs of the network."""
        return {*self.graph.outputs.values()}

    def order(
        self, name: str, own: tuple[int, ...], placed: Mapping[str, Placed]
    ) -> tuple[int, ...]:
        """Return the order that a copy had best have: its own, or that of its source."""
        link, shape = self.links.get(name), self.graph.types[name].shape
        if link is None or link.backward or not isinstance(link.view, Reshape):
            return own
        if own != tuple(range(len(shape))) or name in self.public:
            return own
        order = order_behind(placed[link.parent].layout, shape)
        if order is None or not self._suits(name, TensorLayout.make(shape, order)):
            return own
        return order

    def _suits(self, name: str, layout: TensorLayout) -> bool:
        """Whether all readers of a value take this layout, and views of it are views still."""
        return all(self._takes(node, layout) for node in self.consumers[name])

    def _takes(self, node: Node, layout: TensorLayout) -> bool:
        if not isinstance(node.spec, ViewSpec):
            return node.spec.kind in READERS
        seen = None if isinstance(node.spec, Concat) else node.spec.forward(layout)
        return seen is not None and all(
            name not in self.public and self._suits(name, seen) for name in node.outputs
        )


def order_behind(source: TensorLayout, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the axes of a reshaped copy by falling pitch of what they are made of.

    None where that is row-major order, where no axis but the last has neighbours in memory, and of open extents.
    """
    if any(map(is_open, (*source.shape, *source.pitches, *shape))):
        return None
    fine = refine(source.shape, tuple(shape))
    seen = None if fine is None else source.unpadded().reshape(fine)
    if fine is None or seen is None:
        return None
    pitches, at = dict[int, int](), len(fine)
    for axis in reversed(range(len(shape))):
        size = 1
        while size < shape[axis]:
            at -= 1
            size *= fine[at]
            if fine[at] > 1:
                pitches.setdefault(axis, seen.pitches[at])
    moved = sorted(pitches, key=lambda axis: -pitches[axis])
    if not moved or moved == sorted(moved) or pitches[moved[-1]] != 1:
        return None
    return (*(axis for axis in range(len(shape)) if axis not in pitches), *moved)
