"""What an op makes for a device: kernel launches with their arguments and work sizes, and variants of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from clnn.records import dataclass
from clnn.target import Target
from clnn.types import Array


@dataclass(frozen=True)
class In:
    """Kernel argument: input `index` of the node, its offset moved by `shift` elements."""

    index: int
    shift: int = 0


@dataclass(frozen=True)
class Out:
    """Kernel argument: output `index` of the node, its offset moved by `shift` elements."""

    index: int = 0
    shift: int = 0


@dataclass(frozen=True)
class Const:
    """Kernel argument: data made once from constants (packed weights, tables)."""

    make: Callable[[], Array]


@dataclass(frozen=True)
class Scratch:
    """Kernel argument: memory of `nbytes` that only this node's launches use.

    itemsize: bytes of the elements in which its offset is counted.
    """

    name: str
    nbytes: int
    itemsize: int = 4


Arg = In | Out | Const | Scratch
RANKED = "ranked"  # why a variant was chosen: by cost


@dataclass(frozen=True)
class KernelText:
    """A kernel made from a launch's parameters: its source, its name, and the numbers it takes last."""

    source: str
    name: str
    numbers: tuple[int | float, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One kernel launch: template, its parameters, arguments and work geometry.

    Each tensor argument (In, Out) is passed as a buffer and an int element offset, Const as a
    buffer, Scratch as a buffer and an int element offset. Work sizes are in work-items;
    the local one is compiled into the kernel. text: the kernel, where it is not simply what the
    template makes of the parameters. numbers: what that kernel takes behind `args`.
    """

    template: str
    params: Mapping[str, Any]
    args: tuple[Arg, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    text: KernelText | None = None
    numbers: tuple[int | float, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One way to compute a node: its name, launches and estimated cost.

    cost: compares variants of one problem. error: allowed against the reference, relative to the
    largest output, where that is more than the op's tolerance. why: how it was chosen: "ranked" by
    cost, "tuned" on this device, or "default" (measured on devices of its kind). again: the same way
    for the family's problem at other extents, None where it does not fit; left out by families whose
    kernels are quickly listed. It takes all from that problem: pads and post-ops may be others there.
    cost_at: the cost of the same way there, infinite where it does not fit, None where nothing tells.
    unread: places of inputs whose borders it does not read.
    """

    name: str
    launches: tuple[Launch, ...]
    cost: float = 0.0
    error: float = 0.0
    why: str = RANKED
    again: Callable[[Any], Variant | None] | None = field(default=None, compare=False, repr=False)
    cost_at: Callable[[Any], float] | None = field(default=None, compare=False, repr=False)
    unread: tuple[int, ...] = ()


EMPTY = Variant("empty", ())
"""How every op computes nothing."""


def grid(target: Target, *extents: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (global, local) work sizes for `extents` work-items, first extent fastest.

    CPU devices get local size 1. Others get groups of up to 64: along the first extent, with the
    global size rounded up, so that kernels must return where an id is beyond it; where it is short,
    along divisors of the others.
    """
    sizes = [max(e, 1) for e in extents] or [1]
    if target.is_cpu:
        return tuple(sizes), (1,) * len(sizes)
    local = min(64, target.max_work_group)
    while local > 1 and local // 2 >= sizes[0]:
        local //= 2
    rounded, group = -(-sizes[0] // local) * local, [local]
    for extent in sizes[1:]:
        most = min(64, target.max_work_group) // prod(group)
        group.append(next(d for d in range(most, 0, -1) if extent % d == 0))
    return (rounded, *sizes[1:]), tuple(group)


def vector_width(extent: int, widest: int, operands: Sequence[tuple[int, int]] = ()) -> int:
    """Return the widest of 16, 8, 4, 2, 1 that divides `extent` and is at most `widest`.

    operands: (extent, pitch) of further operands along the same axis; a pitch other than 1 (or 0,
    a broadcast) forces 1.
    """
    if any(pitch not in (0, 1) for _, pitch in operands):
        return 1
    width = 16
    while width > 1 and (width > widest or extent % width):
        width //= 2
    return width


def by_cost(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants by rising cost, those of equal name once."""
    return list({v.name: v for v in sorted(variants, key=lambda v: v.cost)}.values())
