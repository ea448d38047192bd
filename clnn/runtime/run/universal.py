"""Sessions on the universal set: which are wanted so, and how they are planned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from clnn.options import Options
from clnn.plan.schedule import Plan
from clnn.plan.universal import universal_kernels
from clnn.runtime.run.family import Family
from clnn.settings import setting
from clnn.target import Target


def asks_for_set(options: Options) -> bool:
    """Whether a model of one shape is to run on the universal set, where its device is a CPU."""
    chosen = options.specialise or str(setting("CLNN_SPECIALISE"))
    return chosen == "never" and options.dtype == "f32" and options.tune not in ("quick", "full")


def planner(
    plan_by: Callable[..., Plan], family: Family | None, options: Options, target: Target
) -> Callable[..., Plan]:
    """Return make_plan for a target as a session uses it: of a family, or on the set, or as it is."""
    if family is not None:
        return partial(family.plan, plan_by)
    if not (asks_for_set(options) and target.is_cpu):
        return plan_by
    return partial(plan_by, instead=universal_kernels(target))
