"""What the sessions of one network at different extents share: device, kernels, choices, constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from clnn.codegen.runtime_numbers import Texts
from clnn.errors import ClnnError
from clnn.graph.ir import Graph, Node
from clnn.graph.replayed import Graphs, OfShapes
from clnn.ops.launch import Launch, Variant
from clnn.plan.open_extents import opened
from clnn.plan.repeat import Choices, Problems
from clnn.plan.schedule import (
    Chooser,
    DoesNotFitError,
    LaidOut,
    Plan,
    PlannedLaunch,
    Repeat,
    ScheduledNode,
    lay_out,
)
from clnn.records import changed
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import require
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.kept_sets import KeptSet, KeptSets
from clnn.runtime.run.lent_arena import Arenas
from clnn.target import Target


class KernelsNotReadyError(Exception):
    """The kernels for small images are still being made. graph: the network at the extents asked for."""

    def __init__(self, graph: Graph) -> None:
        super().__init__("kernels for small images are not ready")
        self.graph = graph


PlanBy = Callable[
    ..., Plan
]  # make_plan for a target and Options; takes a graph, choose= and repeat=


@dataclass
class _KernelSet:
    """One choice of kernels: which they are, their texts for all extents, and their constants."""

    choices: Choices = field(default_factory=Choices)
    texts: Texts = field(default_factory=Texts)
    constants: Constants | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # where choices were made

    @staticmethod
    def recalled(kept: KeptSet) -> _KernelSet:
        """Return a set that another process learned."""
        choices = Choices(names=dict(kept.names), misfits=set(kept.misfits))
        return _KernelSet(choices, Texts(known=dict(kept.known)), shapes=kept.shapes)

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
        choices, self.shapes = self.choices, _shapes(graph)

        def noted(graphs: Sequence[Graph]) -> Iterator[tuple[Problems, Plan]]:
            for other in graphs:
                # What is larger than the caller's network may not fit a device.
                with suppress(ClnnError):
                    yield Problems.of(partial(_planned, plan_by, other, choose))

        there = [*noted(others)]
        choices.others += [problems for problems, _ in there]
        choices.weighed += [*choices.others[:1], *(problems for problems, _ in noted(beside))]
        plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat)
        _with_texts(plan, self._see)
        for problems, empty in (*there, *noted(uneven)):
            with suppress(ClnnError):
                self._see_all(empty, [*choices.repeated(problems, choose)])
            problems.tried.clear()
        return plan

    def _see_all(self, empty: Plan, chosen: Sequence[tuple[Node, Variant]]) -> None:
        """Note the launches of a plan without variants, which fill borders, and those of variants."""
        _with_texts(empty, self._see)
        for node, variant in chosen:
            for k, launch in enumerate(variant.launches):
                self._see((*_key_of(node, variant), k), launch)

    def with_texts(self, plan: Plan) -> Plan:
        """Return a plan whose launches have the texts for all extents."""
        with self.lock:
            return _with_texts(plan, self._text)

    def _see(self, key: object, launch: Launch) -> Launch:
        self.texts.see(key, launch.template, launch.params)
        return launch

    def _text(self, key: object, launch: Launch) -> Launch:
        return changed(launch, text=self.texts.kernel(key, launch.template, launch.params))


@dataclass
class Family:
    """Sessions of one network.

    others: return the network at extents that differ from the first session's in every open
    dimension, from which is learned what differs between launches. small: the same at as small
    extents as the network takes, none where that is not known; half: at half of the first ones;
    uneven: at extents that strides divide with a rest and without, from which is learned only.
    kept: where sets are kept for later processes, and taken from, so that nothing is learned. at:
    returns the network for inputs of other shapes; graphs: the same, of extents that are noted.
    There are two sets of kernels: those that are best at the first session's extents, and, where
    these do not fit an image, those that are best at half of them and fit small ones, too. Any
    thread may plan once the first plan is made; others wait only for the set that they need, unless
    their `patience` is short. device: the one that all use; without it the first session opens one.
    small_is_made: set once nobody makes kernels for small images any more.
    """

    others: Callable[[], Iterable[Graph]]
    small: Callable[[], Iterable[Graph]] = list
    half: Callable[[], Iterable[Graph]] = list
    uneven: Callable[[], Iterable[Graph]] = list
    kept: KeptSets | None = None
    at: Callable[[Mapping[str, tuple[int, ...]]], Graph] | None = None
    graphs: Graphs | None = None
    knows_small: bool = False  # whether it is known that small images need a second set, or do not
    arenas: Arenas = field(default_factory=Arenas)
    device: Device | None = None
    _sets: list[_KernelSet] = field(default_factory=list)
    _unlike: list[Graph] = field(default_factory=list)
    _more_unlike: Iterator[Graph] = field(default_factory=lambda: iter(()))
    _recalled: list[KeptSet] = field(default_factory=list)
    _as_kept: object = None
    _there: tuple[list[KeptSet], bool] = field(default_factory=lambda: ([], False))  # in the cache
    _first: Graph | None = None
    _laid_out: tuple[Target, OfShapes[LaidOut]] | None = None
    _target: Target | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    small_is_made: threading.Event = field(default_factory=threading.Event)
    _patience: threading.local = field(default_factory=threading.local)
    _planned: threading.local = field(default_factory=threading.local)  # with which set

    @property
    def has_small(self) -> bool:
        """Whether nothing is left to make for small images: not even of what another process learned."""
        return self.knows_small and (len(self._sets) > 1 or not self._recalled)

    def open(self, info: DeviceInfo) -> Device:
        """Return the device that all sessions use."""
        if self.device is None:
            self.device = Device.open(info)
        return self.device

    def alive(self) -> None:
        """Raise DeviceLostError where that device is lost."""
        if self.device is not None:
            require(self.device)

    @contextmanager
    def patience(self, wait: bool) -> Iterator[None]:
        """Have this thread's plans `wait` for the second set, or raise KernelsNotReadyError instead."""
        self._patience.is_short = not wait
        try:
            yield
        finally:
            self._patience.is_short = False

    def plan(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of the network at some extents, as like the plans before as can be.

        Raises DeviceLostError where the sessions' device is lost, and as `patience` says.
        """
        self.alive()
        if self._first is None:
            self._first, self._more_unlike = graph, iter(self.others())
            self._unlike = [*islice(self._more_unlike, 1)]
        if self._sets:
            made = self._repeated(plan_by, graph, choose)
        else:
            graph = self._opened(graph)
            made = self._recall(plan_by, graph, choose) or self._learn(plan_by, graph, choose)
        self.keep()
        self._target = made.target
        return made

    def _learn(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the first plan, made with what is learned at other extents."""
        first = _KernelSet()
        half = [*map(self._opened, self.half())]
        plan = first.learn(plan_by, graph, choose, self._others(), self._uneven_ones(), half)
        self._sets.append(first)
        self._planned.chosen = first
        return first.with_texts(plan)

    def _recall(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan | None:
        """Return the first plan, made with the set of another process; None where there is none that fits."""
        kept, small = self.kept.load() if self.kept is not None else ([], False)
        if not kept:
            return None
        try:
            first = self._recalled_set(kept[0], plan_by, choose, graph)
            choices = first.choices
            plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat_or_raise)
        except (DoesNotFitError, ClnnError):
            return None
        self._recalled, self.knows_small, self._there = kept[1:], small, (kept, small)
        if small:
            self.small_is_made.set()
        self._sets.append(first)
        self._planned.chosen = first
        return first.with_texts(plan)

    def _recalled_set(
        self, kept: KeptSet, plan_by: PlanBy, choose: Chooser, graph: Graph
    ) -> _KernelSet:
        """Return a set of another process, its choices found where they were made.

        Raises DoesNotFitError where they are not there, or as the network does for these shapes.
        """
        made = _KernelSet.recalled(kept)
        if kept.shapes != _shapes(graph):
            if self.at is None:
                raise DoesNotFitError("another shape")
            there = self._opened(self.at(kept.shapes))
            problems, _ = Problems.of(partial(_planned, plan_by, there, choose))
            for node, problem in problems.problems.values():
                made.choices.repeat_or_raise(node, problem)
        return made

    def keep(self, small: bool = False) -> None:
        """Keep what is learned, where that is more than before. small: small images were looked at."""
        self.knows_small |= small
        state = self.knows_small, *(one.size for one in self._sets)
        if self.kept is not None and state != self._as_kept:
            self._as_kept = state
            sets = [one.kept() for one in self._sets]
            now = [*sets, *self._recalled[len(sets) - 1 :]], self.knows_small
            if now != self._there:
                self._there = now
                self.kept.save(*now)

    def _repeated(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of a graph as like those before as can be."""
        chosen = self._sets[0]

        def of_the_second_set() -> tuple[Chooser, Repeat]:
            nonlocal chosen
            if getattr(self._patience, "is_short", False) and not self.small_is_made.is_set():
                raise KernelsNotReadyError(graph)
            chosen = self._for_small(plan_by, graph, choose)
            return chosen.choices.chooser(choose), chosen.choices.repeat

        choices = chosen.choices
        plan = plan_by(
            graph,
            choose=choose,
            repeat=choices.repeat_or_raise,
            otherwise=of_the_second_set,
            doubtful=frozenset(choices.misfits),
            lay=self._lay_out,
        )
        self._planned.chosen = chosen
        return chosen.with_texts(plan)

    def _lay_out(self, graph: Graph, target: Target) -> LaidOut:
        """Return a graph laid out, with open extents that are known as such."""
        known, shapes = self._noted(target), _shapes(graph)
        if known is None or self.graphs is None or shapes.keys() != self.graphs.dims.keys():
            return lay_out(self._opened(graph), target)
        return known(shapes)

    def _noted(self, target: Target) -> OfShapes[LaidOut] | None:
        """Return what lays out the network at shapes, by notes."""
        graphs = self.graphs
        if graphs is not None and (self._laid_out is None or self._laid_out[0] != target):
            at = graphs.at
            made = OfShapes(
                lambda s: lay_out(self._opened(at(s)), target), graphs.dims, graphs.later
            )
            self._laid_out = target, made
        return None if graphs is None or self._laid_out is None else self._laid_out[1]

    def rehearse(self) -> None:
        """Take notes of shapes that are known, before a call asks for another."""
        if self._first is None or self._target is None or self.graphs is None:
            return
        known = self._noted(self._target)
        for graph in (self._first, *self._unlike):
            shapes = _shapes(graph)
            if known is not None and shapes.keys() == self.graphs.dims.keys():
                self.graphs.note(shapes)
                known.note(shapes)

    def forget(self) -> None:
        """Forget what is kept of shapes that were planned."""
        self._laid_out = None

    def _for_small(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> _KernelSet:
        """Return the second set, which is learned once."""
        with self._lock:
            if len(self._sets) == 1 and self._recalled:
                with suppress(DoesNotFitError, ClnnError):
                    found = self._recalled_set(self._recalled[0], plan_by, choose, graph)
                    self._sets.append(found)
            if len(self._sets) == 1:
                small = [*map(self._opened, self.small())]
                made = _KernelSet()
                usual = self._opened(next(iter(self.half()), graph))
                others = [*self._others(), *small]
                beside = [] if self._first is None else [self._opened(self._first)]
                made.learn(plan_by, usual, choose, others, self._uneven_ones(), beside)
                self._sets.append(made)
            return self._sets[1]

    def _others(self) -> list[Graph]:
        """Return the network at extents that differ from the first in every open dimension."""
        self._unlike += self._more_unlike
        return [*map(self._opened, self._unlike)]

    def _uneven_ones(self) -> list[Graph]:
        return [self._opened(graph) for graph in self.uneven()]

    def pack(self, device: Device, plan: Plan, together: bool) -> Constants:
        """Return the constants of the plan that this thread made last.

        Equal ones are those of the first plan with the same set of kernels.
        """
        chosen: _KernelSet = self._planned.chosen
        made = Constants(device, plan, together, chosen.constants, True)
        with chosen.lock:
            if chosen.constants is None:
                chosen.constants = made
        return made

    def _opened(self, graph: Graph) -> Graph:
        """Return a graph whose open extents are known as such."""
        assert self._first is not None
        return opened(graph, self._unlike[0], self._first) if self._unlike else graph


def _shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, graph.types[name].shape)) for name in graph.inputs}


def _key_of(node: Node, variant: Variant) -> tuple[str, str, str]:
    """Return what tells a node's launches from others of the network."""
    return node.name, node.spec.kind, variant.name


def _with_texts(plan: Plan, change: Callable[[object, Launch], Launch]) -> Plan:
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


def _planned(plan_by: PlanBy, graph: Graph, choose: Chooser, repeat: Repeat) -> Plan:
    return plan_by(graph, choose=choose, repeat=repeat)
