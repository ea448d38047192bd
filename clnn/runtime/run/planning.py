"""From a graph to what a session is made of: plan, packed constants, fused launches.

Sessions of stored networks take none of it (clnn.runtime.run.loaded), and import nothing that plans.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.plan.schedule import Chooser, first_variant, make_plan
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import explained
from clnn.runtime.device.target import allowed, products, target_of
from clnn.runtime.drivers.trim import trim_opened
from clnn.runtime.run.arena import one_arena
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.fusing import fuse_plan
from clnn.runtime.run.parts import Parts
from clnn.runtime.run.small import helpers_of, is_long, is_small, placed_on
from clnn.runtime.run.spills import replace_endless_kernels, replace_spilling_kernels
from clnn.runtime.run.universal import planner
from clnn.settings import setting
from clnn.timeline import mark

if TYPE_CHECKING:
    from clnn.runtime.run.family import Family


@dataclass(frozen=True)
class Planned:
    """A session's parts. before: the device's programs, from the cache and built, until then.

    times: when planning began, and when plan and constants were there, in seconds of perf_counter.
    """

    parts: Parts
    before: tuple[int, int]
    times: tuple[float, float, float]


def planned(
    graph: Graph,
    info: DeviceInfo,
    options: Options,
    choose: Chooser | None = None,
    hints: Hints | None = None,
    family: Family | None = None,
    device: Device | None = None,
) -> Planned:
    """Return what a session of a graph is made of; arguments are those of Session.

    Raises PlanError, ShapeError, DeviceError, OutOfDeviceMemoryError, HostMemoryError, and BuildError where
    kernels are built to learn whether they have the registers they need.
    """
    started, choose = time.perf_counter(), choose or first_variant
    separate = (options.arena or setting("CLNN_ARENA")) == "separate"
    info = info if family or device else placed_on(graph, info, options)
    target = allowed(target_of(info), options)
    how = partial(make_plan, target=target, separate=separate, guard=options.guard, hints=hints)
    plan_by = partial(planner(how, family, options, target), graph)
    plan = plan_by(choose=choose)
    planned_at = time.perf_counter()
    mark("plan")
    opened = family.open(info) if family else device or Device.open(info)
    with explained(opened, "the compilation of the model"):
        before = opened.counts.pair
        if not any(before):
            trim_opened(info.driver)
        for replaced in (replace_endless_kernels, replace_spilling_kernels):
            plan = replaced(plan, lambda other: plan_by(choose=other), choose, opened)
        merge = options.merge and target.can_fuse and not options.guard
        merge = merge and int(setting("CLNN_DEBUG")) < 2 and one_arena(plan, opened)
        constants = (family.pack if family else Constants)(opened, plan, merge)
        packed_at = time.perf_counter()
        mark("packing")
        plan = constants.plan
        helpers = _helpers(graph, info, options, family, device)
        is_open = family is not None
        fused = fuse_plan(plan, constants, False, is_open, helpers) if merge else None
        if fused is not None and family is not None:
            small = is_small(graph, info, options)
            fused = replace(fused, is_long=is_long(graph), in_turns=family.close, is_small=small)
    parts = Parts(opened, plan, constants, fused, products(target, options))
    return Planned(parts, before, (started, planned_at, packed_at))


def _helpers(
    graph: Graph, info: DeviceInfo, options: Options, family: Family | None, device: Device | None
) -> int:
    """Return how many threads may help the one that calls. Sessions of a family share their kernels' texts."""
    if family is None:
        return 0 if device else helpers_of(graph, info, options)
    if family.helpers is None:
        family.helpers = helpers_of(graph, info, options) if family.close else 0
    return family.helpers
