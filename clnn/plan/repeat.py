"""The choices of one plan, repeated in plans of the same network at other extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clnn.errors import ClnnError
from clnn.graph.ir import Node
from clnn.ops.launch import EMPTY, Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.plan.schedule import Chooser, DoesNotFitError, Repeat
from clnn.records import changed

Key = tuple[str, str]


@dataclass
class Choices:
    """Which variant each node of a network was given first.

    others: problems of the same nodes at other extents, where a choice should fit, too. misfits: names
    of the nodes whose choice did not fit some extents.
    """

    others: list[dict[Key, tuple[OpSpec, Problem]]] = field(default_factory=list)
    misfits: set[str] = field(default_factory=set)
    _made: dict[Key, Variant] = field(default_factory=dict)

    def expect(self, plan: Callable[[Repeat], object]) -> None:
        """Prefer choices that fit other extents as well: those that `plan` makes a plan at.

        Raises what `plan` raises.
        """
        problems: dict[Key, tuple[OpSpec, Problem]] = {}

        def note(node: Node, problem: Problem) -> Variant:
            problems[_key(node)] = node.spec, problem
            return EMPTY  # what computes them here is not looked for

        plan(note)
        self.others.append(problems)

    def repeat(self, node: Node, problem: Problem) -> Variant | None:
        """Return the node's choice for a problem, None where there is none, or it does not fit."""
        if not problem.outputs[0].type.size:
            return EMPTY
        made = self._made.get(_key(node))
        if made is None:
            return None
        variant = node.spec.repeat(problem, made)
        return None if variant is None else changed(variant, why=made.why)

    def repeat_or_raise(self, node: Node, problem: Problem) -> Variant | None:
        """Return as `repeat`. Raises DoesNotFitError where there is a choice that does not fit."""
        variant = self.repeat(node, problem)
        if variant is None and _key(node) in self._made:
            self.misfits.add(node.name)
            raise DoesNotFitError(node.name)
        return variant

    def chooser(self, choose: Chooser) -> Chooser:
        """Return what chooses as `choose`, but for a choice that fits other extents where one does."""

        def chosen(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
            best = choose(node, problem, variants)
            if not self._fits(node, best):
                # The last variant takes anything, and is slow; candidates are not.
                others = (*variants[:-1], *node.spec.candidates(problem), variants[-1])
                best = next((v for v in others if self._fits(node, v)), best)
            if variants[0] is not EMPTY:
                self._made.setdefault(_key(node), best)
            return best

        return chosen

    def _fits(self, node: Node, variant: Variant) -> bool:
        found = (other.get(_key(node)) for other in self.others)
        problems = [one for one in found if one is not None and one[1].outputs[0].type.size]
        return all(_repeats(spec, problem, variant) for spec, problem in problems)


def _repeats(spec: OpSpec, problem: Problem, variant: Variant) -> bool:
    """Whether a variant computes a problem; True for one that nothing computes on the device."""
    try:
        return spec.repeat(problem, variant) is not None
    except ClnnError:
        return True


def _key(node: Node) -> Key:
    return node.name, node.spec.kind
