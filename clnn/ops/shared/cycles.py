"""What estimates of CPU kernels count by: slots of multiply-adds and loads, and bytes a cycle."""

from __future__ import annotations

from clnn.target import Target

LOOP_SLOTS = 3  # of a step of the inner loop, besides its loads and multiply-adds
# Bytes per cycle and core: of what is read as it is used, and of weights that are read ahead.
MEMORY_RATE, STREAM_RATE = 3, 5
EXPOSED = 0.5  # share of the time that weights take from memory which products do not hide


def loop_slots(mr: int, nv: int, more: int = 0, each: int = 1) -> int:
    """Return the slots of a step: mr x nv multiply-adds, and `more`, run beside mr * each + nv loads."""
    return max(mr * nv + more, mr * each + nv + 1) + LOOP_SLOTS


def block_slots(mr: int, nv: int, vectors: int, more: int = 0) -> int:
    """Return the slots of a step of all blocks of channels, of which the last has the vectors that are left."""
    left = vectors % nv
    last = loop_slots(mr, left, more) if left else 0
    return vectors // nv * loop_slots(mr, nv, more) + last


def takes_half(target: Target) -> bool:
    """Whether a vector of products takes a core as long as two do elsewhere."""
    return "half_rate" in target.features


def bytes_a_cycle(rate: int, target: Target) -> float:
    """Return what a cycle of estimates, which is the time of two slots, brings of `rate` bytes a cycle."""
    return rate * (2 if takes_half(target) else 1)


def cold_cycles(nbytes: float, target: Target) -> float:
    """Return the cycles that weights cost because they come from memory."""
    return EXPOSED * nbytes / (bytes_a_cycle(MEMORY_RATE, target) * target.compute_units)
