"""Whether all tensors of a run lie in one buffer."""

from __future__ import annotations

from clnn.plan.plan import Plan
from clnn.runtime.build.program import Device

LARGEST_ARENA = 2**31 - 1  # bytes; kernels take offsets as int


def one_arena(plan: Plan, device: Device) -> bool:
    """Whether all tensors of a state lie in one buffer."""
    largest = min(device.info.max_alloc, LARGEST_ARENA)
    return not plan.separate and plan.memory.total <= largest
