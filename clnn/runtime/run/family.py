"""What the sessions of one network at different extents share: device, kernels, choices, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from clnn.codegen.runtime_numbers import Texts
from clnn.errors import ClnnError
from clnn.graph.ir import Graph
from clnn.ops.launch import Launch
from clnn.plan.open_extents import opened
from clnn.plan.repeat import Choices, DoesNotFitError
from clnn.plan.schedule import Chooser, Plan, PlannedLaunch, ScheduledNode
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.run.constants import Constants

PlanBy = Callable[
    ..., Plan
]  # make_plan for a target and Options; takes a graph, choose= and repeat=


@dataclass
class Family:
    """Sessions of one network.

    others: return the network at extents that differ from the first session's in every open
    dimension, from which is learned what differs between launches. small: the same at as small
    extents as the network takes, none where that is not known. There are two choices of kernels: of
    those that are best at the first session's extents, and, where these do not fit an image, of
    those that fit small ones, too.
    """

    others: Callable[[], Sequence[Graph]]
    small: Callable[[], Sequence[Graph]] = list
    texts: Texts = field(default_factory=Texts)
    _choices: list[Choices] = field(default_factory=list)
    _others: list[Graph] = field(default_factory=list)
    _unlike: list[Graph] = field(default_factory=list)
    _first: Graph | None = None
    _device: Device | None = None
    _constants: dict[int, Constants] = field(default_factory=dict)
    _chosen: int = 0

    def open(self, info: DeviceInfo) -> Device:
        """Return the device that all sessions use."""
        if self._device is None:
            self._device = Device.open(info)
        return self._device

    def plan(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of the network at some extents, as like the plans before as can be."""
        if self._first is None:
            self._first, self._unlike = graph, list(self.others())
            self._others = [self._opened(other) for other in self._unlike]
        graph = self._opened(graph)
        if not self._choices:
            self._learn(plan_by, graph, choose, self._others)
        self._chosen = 0
        try:
            plan = plan_by(graph, choose=choose, repeat=self._choices[0].repeat_or_raise)
        except DoesNotFitError:
            if len(self._choices) == 1:
                small = map(self._opened, self.small())
                self._learn(plan_by, graph, choose, [*self._others, *small])
            self._chosen, choices = 1, self._choices[1]
            plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat)
        return self._with_texts(plan, self._text)

    def pack(self, device: Device, plan: Plan, together: bool) -> Constants:
        """Return the constants of the plan made last, equal ones being those of the first with its choices."""
        before = self._constants.get(self._chosen)
        made = Constants(device, plan, together, before, True)
        self._constants.setdefault(self._chosen, made)
        return made

    def _opened(self, graph: Graph) -> Graph:
        """Return a graph whose open extents are known as such."""
        assert self._first is not None
        return opened(graph, self._unlike[0], self._first) if self._unlike else graph

    def _learn(
        self, plan_by: PlanBy, graph: Graph, choose: Chooser, others: Sequence[Graph]
    ) -> None:
        """Choose kernels for a graph that fit others, too, and note in which numbers they differ."""
        choices, usable = Choices(), []
        for other in others:
            with suppress(
                ClnnError
            ):  # what is larger than the caller's network may not fit a device
                choices.expect(plan_by(other, choose=choose, repeat=_nothing))
                usable.append(other)
        plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat)
        self._with_texts(plan, self._see)
        for other in usable:
            with suppress(ClnnError):
                self._with_texts(plan_by(other, choose=choose, repeat=choices.repeat), self._see)
        self._choices.append(choices)

    def _see(self, key: object, launch: Launch) -> Launch:
        self.texts.see(key, launch.template, launch.params)
        return launch

    def _text(self, key: object, launch: Launch) -> Launch:
        return replace(launch, text=self.texts.kernel(key, launch.template, launch.params))

    def _with_texts(self, plan: Plan, change: Callable[[object, Launch], Launch]) -> Plan:
        def changed(key: object, planned: PlannedLaunch) -> PlannedLaunch:
            return replace(planned, launch=change(key, planned.launch))

        def fills(planned: Sequence[PlannedLaunch]) -> tuple[PlannedLaunch, ...]:
            return tuple(changed(("border", p.args), p) for p in planned)

        def step(one: ScheduledNode) -> ScheduledNode:
            key = (one.node.name, one.node.spec.kind, one.variant.name)
            launches = tuple(changed((*key, k), p) for k, p in enumerate(one.launches))
            return replace(one, launches=launches, fills=fills(one.fills))

        return replace(
            plan, scheduled=tuple(map(step, plan.scheduled)), first_fills=fills(plan.first_fills)
        )


def _nothing(node: object, problem: object) -> None:
    """Repeat no choice."""
