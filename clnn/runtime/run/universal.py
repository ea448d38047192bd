"""Sessions on the universal set: which are wanted so, and how they are planned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from clnn.options import Options
from clnn.plan.schedule import Plan
from clnn.plan.universal import universal_kernels
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import kind_of, target_of
from clnn.runtime.run.family import Family
from clnn.settings import setting


def wants_set(options: Options, info: DeviceInfo) -> bool:
    """Whether a model of one shape is to run on the universal set, as far as that goes."""
    chosen = options.specialise or str(setting("CLNN_SPECIALISE"))
    plain = options.dtype == "f32" and options.tune not in ("quick", "full")
    return chosen == "never" and plain and kind_of(info) == "cpu"


def planner(
    plan_by: Callable[..., Plan], family: Family | None, options: Options, info: DeviceInfo
) -> Callable[..., Plan]:
    """Return make_plan for a target as a session uses it: of a family, or on the set, or as it is."""
    if family is not None:
        return partial(family.plan, plan_by)
    if not wants_set(options, info):
        return plan_by
    return partial(plan_by, instead=universal_kernels(target_of(info)))
