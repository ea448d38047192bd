"""Sessions on the universal set: which are wanted so, and how they are planned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clnn.errors import SettingError
from clnn.options import Options
from clnn.plan.plan import Plan
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import target_of
from clnn.target import Target

if TYPE_CHECKING:
    from clnn.runtime.run.family import Family


def asks_for_set(options: Options) -> bool:
    """Whether a model of one shape is to run on the universal set, where its device is a CPU.

    The option alone says so: CLNN_SPECIALISE is about models with open dimensions.
    """
    return options.specialise == "never" and _is_plain(options)


def begins_on_set(options: Options, info: DeviceInfo) -> bool:
    """Whether a model of one shape is to run on the universal set until its own kernels are there."""
    is_background = options.specialise == "background" and not options.guard
    return is_background and _is_plain(options) and target_of(info).is_cpu


def _is_plain(options: Options) -> bool:
    return options.dtype == "f32" and options.tune not in ("quick", "full")


def planner(
    plan_by: Callable[..., Plan], family: Family | None, options: Options, target: Target
) -> Callable[..., Plan]:
    """Return make_plan for a target as a session uses it: of a family, or on the set, or as it is."""
    if family is not None:
        return partial(family.plan, plan_by)
    if not (asks_for_set(options) and target.is_cpu):
        return plan_by
    from clnn.plan.universal import (
        universal_kernels,
    )  # which knows many ops: no start from a plan needs them

    return partial(plan_by, instead=universal_kernels(target))


def set_source(target: Target, program: str = "floats") -> str:
    """Return the text of a program of the universal set (clnn.ops.universal.functions.SETS)."""
    from clnn.cache.templates import use_cache
    from clnn.codegen.set_kernel import set_text
    from clnn.codegen.set_texts import set_sources

    use_cache()
    return set_text(set_sources(target, program)).source


def sets_of(target: Target) -> dict[str, str]:
    """Return title -> text of the programs of the universal set."""
    from clnn.ops.universal.functions import SETS

    return {f"universal set, {name}": set_source(target, name) for name in SETS}


def build_set(info: DeviceInfo) -> tuple[int, int]:
    """Build the programs of the universal set, unless the cache has them; return programs from there, and built.

    Raises SettingError for a device that is no CPU, BuildError, DeviceError, DeviceLostError.
    """
    target = target_of(info)
    if not target.is_cpu:
        raise SettingError(f"the universal set is for CPUs, and {info.title} is none.")
    device = Device.open(info)
    device.build(sets_of(target))
    return device.counts.pair
