"""One choice of kernels for a network at all extents: which they are, their texts, and their constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial

from clnn.codegen.runtime_numbers import Texts
from clnn.errors import ClnnError
from clnn.graph.ir import Graph, Node
from clnn.ops.launch import Launch, Variant
from clnn.plan.plan import Plan, PlannedLaunch, ScheduledNode
from clnn.plan.repeat import Choices, Problems
from clnn.plan.schedule import Chooser, Repeat
from clnn.records import changed, dataclass
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.kept_sets import KeptSet

PlanBy = Callable[..., Plan]  # make_plan for a target and Options; takes a graph, choose=, repeat=


@dataclass
class KernelSet:
    """One choice of kernels: which they are, their texts for all extents, and their constants."""

    choices: Choices = field(default_factory=Choices)
    texts: Texts = field(default_factory=Texts)
    constants: Constants | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # where choices were made

    @staticmethod
    def recalled(kept: KeptSet) -> KernelSet:
        """Return a set that another process learned."""
        choices = Choices(names=dict(kept.names), misfits=set(kept.misfits))
        return KernelSet(choices, Texts(known=dict(kept.known)), shapes=kept.shapes)

    @property
    def size(self) -> tuple[int, ...]:
        """What grows with all that is learned."""
        return len(self.choices.all_names()), len(self.choices.misfits), self.texts.learned

    def kept(self) -> KeptSet:
        """Return what another process needs to take this set."""
        with self.lock:
            misfits = tuple(sorted(self.choices.misfits))
            names, known = self.choices.all_names(), self.texts.all_known()
            return KeptSet(self.shapes, names, misfits, known)

    def learn(
        self,
        plan_by: PlanBy,
        graph: Graph,
        choose: Chooser,
        others: Sequence[Graph],
        uneven: Sequence[Graph],
        beside: Sequence[Graph] = (),
    ) -> Plan:
        """Choose kernels for a graph that fit others, too, and note in which numbers they differ.

        uneven: further ones, which kernels need not fit. beside: where they should be fast, as at the
        first of the others. Returns the graph's plan, which has no texts.
        """
        choices, self.shapes = self.choices, shapes_of(graph)

        def noted(graphs: Sequence[Graph]) -> Iterator[tuple[Problems, Plan]]:
            for other in graphs:
                # What is larger than the caller's network may not fit a device.
                with suppress(ClnnError):
                    yield Problems.of(partial(planned, plan_by, other, choose))

        there = [*noted(others)]
        choices.others += [problems for problems, _ in there]
        choices.weighed += [*choices.others[:1], *(problems for problems, _ in noted(beside))]
        plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat)
        with_texts_by(plan, self._see)
        for problems, empty in (*there, *noted(uneven)):
            with suppress(ClnnError):
                self._see_all(empty, [*choices.repeated(problems, choose)])
            problems.tried.clear()
        return plan

    def _see_all(self, empty: Plan, chosen: Sequence[tuple[Node, Variant]]) -> None:
        """Note the launches of a plan without variants, which fill borders, and those of variants."""
        with_texts_by(empty, self._see)
        for node, variant in chosen:
            for k, launch in enumerate(variant.launches):
                self._see((*_key_of(node, variant), k), launch)

    def with_texts(self, plan: Plan) -> Plan:
        """Return a plan whose launches have the texts for all extents."""
        with self.lock:
            return with_texts_by(plan, self._text)

    def _see(self, key: object, launch: Launch) -> Launch:
        self.texts.see(key, launch.template, launch.params)
        return launch

    def _text(self, key: object, launch: Launch) -> Launch:
        return changed(launch, text=self.texts.kernel(key, launch.template, launch.params))


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return input name -> shape."""
    return {name: tuple(map(int, graph.types[name].shape)) for name in graph.inputs}


def _key_of(node: Node, variant: Variant) -> tuple[str, str, str]:
    """Return what tells a node's launches from others of the network."""
    return node.name, node.spec.kind, variant.name


def with_texts_by(plan: Plan, change: Callable[[object, Launch], Launch]) -> Plan:
    """Return a plan with changed launches; each is told by what it is."""
    borders: dict[int, Launch] = {}  # those that stand at both places are changed once

    def with_change(key: object, planned: PlannedLaunch) -> PlannedLaunch:
        return changed(planned, launch=change(key, planned.launch))

    def filled(planned: PlannedLaunch) -> PlannedLaunch:
        launch = borders.get(id(planned.launch))
        if launch is None:
            launch = change(("border", planned.args), planned.launch)
            borders[id(planned.launch)] = launch
        return changed(planned, launch=launch)

    def fills(planned: Sequence[PlannedLaunch]) -> tuple[PlannedLaunch, ...]:
        return tuple(map(filled, planned))

    def step(one: ScheduledNode) -> ScheduledNode:
        key = _key_of(one.node, one.variant)
        launches = tuple(with_change((*key, k), p) for k, p in enumerate(one.launches))
        return changed(one, launches=launches, fills=fills(one.fills))

    return changed(
        plan, scheduled=tuple(map(step, plan.scheduled)), first_fills=fills(plan.first_fills)
    )


def planned(plan_by: PlanBy, graph: Graph, choose: Chooser, repeat: Repeat) -> Plan:
    """Return a graph's plan, whose choices `repeat` makes where it does."""
    return plan_by(graph, choose=choose, repeat=repeat)
