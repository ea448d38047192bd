"""The choices of one plan, repeated in plans of the same network at other extents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter

from clnn.errors import ClnnError
from clnn.graph.ir import Node
from clnn.ops.launch import EMPTY, RANKED, Variant
from clnn.ops.problem import Problem
from clnn.plan.plan import Plan
from clnn.plan.schedule import Chooser, DoesNotFitError, Repeat
from clnn.records import changed, dataclass

Key = tuple[str, str]
# Times the lowest cost at the first extents, that a choice may take for better ones elsewhere, and to
# fit all extents that count.
NEAR, FITTING = 1.04, 1.15
MISFIT = 2.0  # cost, of the lowest, that counts where a choice does not fit
LESS = 0.97  # share of what one set of choices costs at some extents, below which another is taken


@dataclass
class Problems:
    """The problems of a network's nodes at some extents, without what computes them.

    tried: of nodes, the variant that was repeated last, and as what.
    """

    problems: dict[Key, tuple[Node, Problem]]
    tried: dict[Key, tuple[Variant, Variant | None]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Callable[[Repeat], Plan]) -> tuple[Problems, Plan]:
        """Return the problems of what `plan` plans, given what repeats choices, and that plan.

        Its variants are empty. Raises as `plan` does.
        """
        problems: dict[Key, tuple[Node, Problem]] = {}

        def note(node: Node, problem: Problem) -> Variant:
            problems[_key(node)] = node, problem
            return EMPTY

        empty = plan(note)
        return Problems(problems), empty

    def repeat(self, key: Key, variant: Variant) -> Variant | None:
        """Return how a node's choice computes its problem here, None where it does not fit."""
        before = self.tried.get(key)
        if before is None or before[0] is not variant:
            node, problem = self.problems[key]
            before = self.tried[key] = variant, node.spec.repeat(problem, variant)
        return before[1]

    def costs(self, key: Key, variants: Sequence[Variant]) -> list[float] | None:
        """Return what choices cost a node here, infinite where one does not fit; None where nothing tells."""
        node, problem = self.problems.get(key, (None, None))
        if node is None or problem is None or not problem.outputs[0].type.size:
            return None
        try:
            found = node.spec.costs(problem, variants)
        except ClnnError:
            return None
        return [math.inf if cost is None else cost for cost in found]

    def fits(self, key: Key, variant: Variant) -> bool:
        """Whether a choice computes a node's problem here; True where nothing has to or can be computed."""
        _, problem = self.problems.get(key, (None, None))
        if problem is None or not problem.outputs[0].type.size:
            return True
        try:
            return self.repeat(key, variant) is not None
        except ClnnError:
            return True


@dataclass
class Choices:
    """Which variant each node of a network was given first.

    others: problems of the same nodes at other extents, where a choice should fit, too. weighed: such
    at which its cost counts as much as at the first ones. misfits: names of the nodes whose choice did
    not fit some extents. names: of choices that another process made, each with why; they are taken by
    name at the first problem that they fit.
    """

    others: list[Problems] = field(default_factory=list)
    weighed: list[Problems] = field(default_factory=list)
    misfits: set[str] = field(default_factory=set)
    names: dict[Key, tuple[str, str]] = field(default_factory=dict)
    _made: dict[Key, Variant] = field(default_factory=dict)

    def repeated(self, there: Problems, choose: Chooser) -> Iterator[tuple[Node, Variant]]:
        """Yield each node at other extents with its choice, or where that does not fit, with another.

        choose: makes that. Raises as an op's variants do.
        """
        for key, (node, problem) in there.problems.items():
            has_elements, made = problem.outputs[0].type.size, self._made.get(key)
            found = there.repeat(key, made) if made is not None and has_elements else None
            if found is None and has_elements:
                found = choose(node, problem, node.spec.variants(problem))
            yield node, found or EMPTY

    def repeat(self, node: Node, problem: Problem) -> Variant | None:
        """Return the node's choice for a problem, None where there is none, or it does not fit."""
        if not problem.outputs[0].type.size:
            return EMPTY
        made = self._made.get(_key(node))
        if made is None:
            return self._recalled(node, problem)
        variant = node.spec.repeat(problem, made)
        is_same = variant is None or variant.why == made.why
        return variant if is_same else changed(variant, why=made.why)

    def _recalled(self, node: Node, problem: Problem) -> Variant | None:
        name, why = self.names.get(_key(node), ("", ""))
        found = node.spec.named(problem, name) if name else None
        if found is None:
            return None
        self._made[_key(node)] = found = changed(found, why=why)
        return found

    def all_names(self) -> dict[Key, tuple[str, str]]:
        """Return `names` with those of the choices made here."""
        return self.names | {key: (v.name, v.why) for key, v in list(self._made.items())}

    def repeat_or_raise(self, node: Node, problem: Problem) -> Variant | None:
        """Return as `repeat`. Raises DoesNotFitError where there is a choice that does not fit."""
        variant = self.repeat(node, problem)
        key = _key(node)
        if variant is None and (key in self._made or key in self.names):
            self.misfits.add(node.name)
            raise DoesNotFitError(node.name)
        return variant

    def chooser(self, choose: Chooser) -> Chooser:
        """Return what chooses as `choose`, but for a choice that fits other extents where one does.

        What was not measured, or does not fit all that is weighed, may give way to what costs little
        more, and less at the others.
        """

        def chosen(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
            best = choose(node, problem, variants)
            if best.why == RANKED or not _fits_all(self.weighed, node, best):
                best = self._balanced(node, problem, best)
            if not _fits_all(self.others, node, best):
                best = self._fitting(node, problem, variants) or best
            if variants[0] is not EMPTY:
                self._made.setdefault(_key(node), best)
            return best

        return chosen

    def over_best(self, there: Problems) -> float:
        """Return what these choices cost at other extents, of what the best ones there do; 1 at least."""
        costs = least = 0.0
        for key, (node, problem) in there.problems.items():
            made = self._made.get(key)
            found = None if made is None else there.costs(key, [made])
            if made is None or made.cost_at is None or found is None:
                continue
            best = min(v.cost for v in node.spec.candidates(problem))
            cost = found[0] if math.isfinite(found[0]) else MISFIT * best
            costs, least = costs + cost, least + best
        return costs / least if least else 1.0

    def unlike(self, other: Choices) -> frozenset[Key]:
        """Return the nodes that are computed otherwise by another set, where costs tell which is better."""
        return frozenset(
            key
            for key, made in self._made.items()
            if (there := other._made.get(key)) is not None
            and there.name != made.name
            and None not in (made.cost_at, there.cost_at)
        )

    def _fitting(self, node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant | None:
        """Return what fits other extents, None where nothing does: the cheapest where costs tell it.

        The last of `variants` takes anything, and is slow; candidates are not.
        """
        candidates = node.spec.candidates(problem)
        every = (*variants[:-1], *candidates, variants[-1])
        found = next((v for v in every if _fits_all(self.others, node, v)), None)
        if found is None or found.cost_at is None:
            return found
        cheaper = [v for v in candidates if v.cost_at is not None and v.cost < found.cost]
        ranked = sorted(cheaper, key=attrgetter("cost"))
        return self._balanced(
            node, problem, next((v for v in ranked if _fits_all(self.others, node, v)), found)
        )

    def _balanced(self, node: Node, problem: Problem, best: Variant) -> Variant:
        """Return what costs least at all extents that are weighed, of what costs little more than the best.

        What fits all of these may cost more than what does not: a network goes over to other kernels
        where one of its own does not fit.
        """
        if best.cost_at is None or not self.weighed:
            return best
        near = [
            v
            for v in node.spec.candidates(problem)
            if v.cost_at is not None and v.cost <= FITTING * best.cost
        ]
        every = [p.costs(_key(node), near) for p in (*self.others, *self.weighed)]
        there, weighed = every[: len(self.others)], every[len(self.others) :]
        fitting = [k for k in _finite(there, range(len(near))) if near[k].cost <= NEAR * best.cost]
        if more := _finite(every, range(len(near))):
            least = min(near[k].cost for k in more)
            fitting = [k for k in more if near[k].cost <= NEAR * least]
        if not fitting:
            return best
        shares = [_shares(row) for row in ([v.cost for v in near], *weighed) if row]
        return near[min(fitting, key=lambda k: sum(row[k] for row in shares))]


@dataclass
class Rivals:
    """Two sets of choices in one plan: the first is repeated, unless the other is estimated to cost less.

    nodes: those that they compute otherwise; a plan has to ask for these first. is_other: whether
    DoesNotFitError was raised since the other costs less.
    """

    first: Choices
    other: Choices
    nodes: frozenset[Key]
    is_other: bool = False
    _costs: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _asked: set[Key] = field(default_factory=set)

    def repeat(self, node: Node, problem: Problem) -> Variant | None:
        """Return as Choices.repeat_or_raise of the first set. Raises DoesNotFitError as is said above."""
        key = _key(node)
        if key in self.nodes and key not in self._asked:
            self._asked.add(key)
            both = [choices._made[key] for choices in (self.first, self.other)]
            found = node.spec.costs(problem, both)
            self._costs = [
                a + (math.inf if b is None else b) for a, b in zip(self._costs, found, strict=True)
            ]
            if len(self._asked) == len(self.nodes) and self._costs[1] < LESS * self._costs[0]:
                self.is_other = True
                raise DoesNotFitError(node.name)
        return self.first.repeat_or_raise(node, problem)


def _fits_all(there: Iterable[Problems], node: Node, variant: Variant) -> bool:
    return all(problems.fits(_key(node), variant) for problems in there)


def _finite(rows: Sequence[Sequence[float] | None], columns: Iterable[int]) -> list[int]:
    """Return the columns in which no row that tells something is infinite."""
    return [k for k in columns if all(row is None or row[k] < math.inf for row in rows)]


def _shares(costs: Sequence[float]) -> list[float]:
    """Return costs of the lowest one, MISFIT for infinite ones."""
    least = min(costs)
    return [c / least if math.isfinite(c) and least > 0 else MISFIT for c in costs]


def _key(node: Node) -> Key:
    return node.name, node.spec.kind
