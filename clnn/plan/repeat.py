"""The choices of one plan, repeated in plans of the same network at other extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clnn.graph.ir import Node
from clnn.ops.launch import EMPTY, Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.plan.schedule import Chooser, Plan

Key = tuple[str, str]


@dataclass
class Choices:
    """Which variant each node of a network was given first.

    others: problems of the same nodes at other extents, where a choice should fit, too.
    """

    others: list[dict[Key, tuple[OpSpec, Problem]]] = field(default_factory=list)
    _made: dict[Key, Variant] = field(default_factory=dict)

    def expect(self, plan: Plan) -> None:
        """Prefer choices that fit the extents of this plan as well."""
        self.others.append({_key(s.node): (s.node.spec, s.problem) for s in plan.scheduled})

    def repeat(self, node: Node, problem: Problem) -> Variant | None:
        """Return the node's choice for a problem, None where there is none, or it does not fit."""
        made = self._made.get(_key(node))
        if not problem.outputs[0].type.size:
            return EMPTY
        variant = None if made is None else node.spec.repeat(problem, made)
        return variant and replace(variant, why=made.why if made else variant.why)

    def chooser(self, choose: Chooser) -> Chooser:
        """Return what chooses as `choose`, but for a choice that fits other extents where one does."""

        def chosen(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
            best = choose(node, problem, variants)
            for variant in (best, *variants):
                if self._fits(node, variant):
                    best = variant
                    break
            self._made.setdefault(_key(node), best)
            return best

        return chosen

    def _fits(self, node: Node, variant: Variant) -> bool:
        found = (other.get(_key(node)) for other in self.others)
        return all(one is None or one[0].repeat(one[1], variant) for one in found)


def _key(node: Node) -> Key:
    return node.name, node.spec.kind
