"""What the sessions of one network at different extents share: device, kernels, choices, constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from clnn.codegen.runtime_numbers import Texts
from clnn.errors import ClnnError
from clnn.graph.ir import Graph, Node
from clnn.ops.launch import Launch, Variant
from clnn.plan.open_extents import opened
from clnn.plan.repeat import Choices, Problems
from clnn.plan.schedule import Chooser, Plan, PlannedLaunch, Repeat, ScheduledNode
from clnn.records import changed
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import require
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.lent_arena import Arenas


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

    def learn(
        self,
        plan_by: PlanBy,
        graph: Graph,
        choose: Chooser,
        others: Sequence[Graph],
        uneven: Sequence[Graph],
    ) -> Plan:
        """Choose kernels for a graph that fit others, too, and note in which numbers they differ.

        uneven: further ones, which kernels need not fit. Returns the graph's plan, which has no texts.
        """
        choices = self.choices

        def noted(graphs: Sequence[Graph]) -> Iterator[tuple[Problems, Plan]]:
            for other in graphs:
                # What is larger than the caller's network may not fit a device.
                with suppress(ClnnError):
                    yield Problems.of(partial(_planned, plan_by, other, choose))

        there = [*noted(others)]
        choices.others += [problems for problems, _ in there]
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
    There are two sets of kernels: those that are best at the first session's extents, and, where
    these do not fit an image, those that are best at half of them and fit small ones, too. Any
    thread may plan once the first plan is made; others wait only for the set that they need, unless
    their `patience` is short. small_is_made: set once nobody makes kernels for small images any more.
    """

    others: Callable[[], Sequence[Graph]]
    small: Callable[[], Sequence[Graph]] = list
    half: Callable[[], Sequence[Graph]] = list
    uneven: Callable[[], Sequence[Graph]] = list
    arenas: Arenas = field(default_factory=Arenas)
    _sets: list[_KernelSet] = field(default_factory=list)
    _others: list[Graph] = field(default_factory=list)
    _unlike: list[Graph] = field(default_factory=list)
    _first: Graph | None = None
    _device: Device | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    small_is_made: threading.Event = field(default_factory=threading.Event)
    _patience: threading.local = field(default_factory=threading.local)
    _planned: threading.local = field(default_factory=threading.local)  # with which set

    def open(self, info: DeviceInfo) -> Device:
        """Return the device that all sessions use."""
        if self._device is None:
            self._device = Device.open(info)
        return self._device

    def alive(self) -> None:
        """Raise DeviceLostError where that device is lost."""
        if self._device is not None:
            require(self._device)

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
            self._first, self._unlike = graph, list(self.others())
            self._others = [self._opened(other) for other in self._unlike]
        asked, graph = graph, self._opened(graph)
        if not self._sets:
            first = _KernelSet()
            plan = first.learn(plan_by, graph, choose, self._others, self._uneven_ones())
            self._sets.append(first)
            self._planned.chosen = first
            return first.with_texts(plan)
        chosen = self._sets[0]

        def of_the_second_set() -> tuple[Chooser, Repeat]:
            nonlocal chosen
            if getattr(self._patience, "is_short", False) and not self.small_is_made.is_set():
                raise KernelsNotReadyError(asked)
            chosen = self._for_small(plan_by, graph, choose)
            return chosen.choices.chooser(choose), chosen.choices.repeat

        choices = chosen.choices
        plan = plan_by(
            graph,
            choose=choose,
            repeat=choices.repeat_or_raise,
            otherwise=of_the_second_set,
            doubtful=frozenset(choices.misfits),
        )
        self._planned.chosen = chosen
        return chosen.with_texts(plan)

    def _for_small(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> _KernelSet:
        """Return the second set, which is learned once."""
        with self._lock:
            if len(self._sets) == 1:
                small = [*map(self._opened, self.small())]
                made = _KernelSet()
                usual = next(map(self._opened, self.half()), graph)
                others = [*self._others, *small]
                made.learn(plan_by, usual, choose, others, self._uneven_ones())
                self._sets.append(made)
            return self._sets[1]

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


def _key_of(node: Node, variant: Variant) -> tuple[str, str, str]:
    """Return what tells a node's launches from others of the network."""
    return node.name, node.spec.kind, variant.name


def _with_texts(plan: Plan, change: Callable[[object, Launch], Launch]) -> Plan:
    """Return a plan with changed launches; each is told by what it is."""

    def with_change(key: object, planned: PlannedLaunch) -> PlannedLaunch:
        return changed(planned, launch=change(key, planned.launch))

    def fills(planned: Sequence[PlannedLaunch]) -> tuple[PlannedLaunch, ...]:
        return tuple(with_change(("border", p.args), p) for p in planned)

    def step(one: ScheduledNode) -> ScheduledNode:
        key = _key_of(one.node, one.variant)
        launches = tuple(with_change((*key, k), p) for k, p in enumerate(one.launches))
        return changed(one, launches=launches, fills=fills(one.fills))

    return changed(
        plan, scheduled=tuple(map(step, plan.scheduled)), first_fills=fills(plan.first_fills)
    )


def _planned(plan_by: PlanBy, graph: Graph, choose: Chooser, repeat: Repeat) -> Plan:
    return plan_by(graph, choose=choose, repeat=repeat)
