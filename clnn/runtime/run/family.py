"""What the sessions of one network at different extents share: device, kernels, choices, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clnn.codegen.runtime_numbers import Texts
from clnn.graph.ir import Graph
from clnn.ops.launch import Launch
from clnn.plan.open_extents import opened
from clnn.plan.repeat import Choices
from clnn.plan.schedule import Chooser, Plan, PlannedLaunch, ScheduledNode
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo

PlanBy = Callable[..., Plan]  # make_plan of one target and Options: graph, choose, repeat


@dataclass
class Family:
    """Sessions of one network.

    others: returns the network at extents that differ from the first session's in every open
    dimension, from which is learned what differs between launches.
    """

    others: Callable[[], Sequence[Graph]]
    choices: Choices = field(default_factory=Choices)
    texts: Texts = field(default_factory=Texts)
    constants: Any = None
    _device: Device | None = None
    _first: Graph | None = None
    _others: Sequence[Graph] = ()

    def open(self, info: DeviceInfo) -> Device:
        """Return the device that all sessions use."""
        if self._device is None:
            self._device = Device.open(info)
        return self._device

    def plan(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of the network at some extents, as like the plans before as can be."""
        learns = self._first is None
        if self._first is None:
            self._first, self._others = graph, self.others()
        first, others = self._first, self._others
        graph = opened(graph, others[0], first) if others else graph
        graphs = [opened(one, others[0], first) for one in others] if learns else []
        for one in graphs:
            self.choices.expect(plan_by(one, choose, repeat=lambda node, problem: None))
        again = self.choices.repeat
        plan = plan_by(graph, self.choices.chooser(choose), repeat=again)
        for one in graphs:
            self._with_texts(plan_by(one, choose, repeat=again), self._see)
        return self._with_texts(plan, self._text)

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
