"""The launches of a plan as few kernels: which of them are joined, and their arguments in C.

Buffers of a joined kernel: the arena, all constants in one buffer, and for each input of the network
where its storage is, which may be a buffer that the caller bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from clnn.codegen.merge import Call, Merged, fits, merge
from clnn.codegen.render import render
from clnn.plan.schedule import ConstArg, Plan, PlannedArg, PlannedLaunch, ScratchArg

LEAST = 2  # launches worth joining
MOST_FUNCTIONS, MOST_CALLS = 32, 100  # of one kernel: compilers take longer than in proportion


@dataclass(frozen=True)
class Planned:
    """One launch of a plan, and the node that it belongs to."""

    launch: PlannedLaunch
    node: str

    @property
    def source(self) -> str:
        """The kernel's source."""
        return render(self.launch.launch.template, self.launch.launch.params)


@dataclass(frozen=True)
class Places:
    """Where a joined kernel finds its data: bytes in the arena, bytes among the constants."""

    arena: Callable[[str], int]
    constant: Callable[[PlannedArg], int]


@dataclass(frozen=True)
class Segment:
    """Neighbouring launches: one kernel, or a launch on its own (`merged` is None)."""

    launches: tuple[Planned, ...]
    merged: Merged | None = None

    @property
    def title(self) -> str:
        """What messages call it."""
        first, last = self.launches[0].node, self.launches[-1].node
        return first if first == last else f"{first} to {last}"


def launches_of(plan: Plan) -> list[Planned]:
    """Return all launches of a run in order, border fills included."""
    return [
        Planned(launch, step.node.layer)
        for step in plan.scheduled
        for launch in (*step.fills, *step.launches)
    ]


def params_of(plan: Plan) -> list[str]:
    """Return the parameters of every joined kernel: arena, constants, and the network's inputs."""
    found = ["__global char *arena", "__global char *constants"]
    for k in range(len(plan.inputs)):
        found += [
            f"__global char *input{k}",
            f"const int input{k}_start",
            f"const int input{k}_bound",
        ]
    return found


def segments_of(
    plan: Plan, planned: Sequence[Planned], places: Places, timed: bool = False
) -> list[Segment]:
    """Return the launches in groups of neighbours, those that fit joined into few kernels.

    timed: these kernels note when each launch's part began and ended.
    """

    def joined(ones: Sequence[_Written]) -> Segment:
        calls = [_call(plan, one, places) for one in ones]
        units = plan.target.compute_units
        whole = merge(calls, units, params_of(plan), timed)
        return Segment(tuple(one.planned for one in ones), whole)

    found: list[Segment] = []
    written = [_Written(one, one.source) for one in planned]
    for fit, neighbours in groupby(written, lambda one: one.fits):
        for ones in _even(list(neighbours)) if fit else [[one] for one in neighbours]:
            whole = fit and len(ones) >= LEAST
            found += [joined(ones)] if whole else [Segment((one.planned,)) for one in ones]
    return found


@dataclass(frozen=True)
class _Written:
    """A launch and its kernel's source."""

    planned: Planned
    source: str

    @property
    def fits(self) -> bool:
        launch = self.planned.launch.launch
        return fits(self.source, launch.local_size, launch.global_size)


def _even(ones: Sequence[_Written]) -> list[list[_Written]]:
    """Return launches in as few groups as they fit in, of about as many functions each.

    Each group is a kernel that builds on its own; from one to the next, threads sleep and wake.
    """
    fewest = len(_groups(ones, MOST_FUNCTIONS))
    split = (_groups(ones, most) for most in range(1, MOST_FUNCTIONS + 1))
    return next(groups for groups in split if len(groups) == fewest)


def _groups(ones: Sequence[_Written], most: int) -> list[list[_Written]]:
    """Return neighbouring launches in groups of at most so many functions."""
    found: list[list[_Written]] = []
    sources: set[str] = set()
    for one in ones:
        full = len(sources | {one.source}) > most or (found and len(found[-1]) >= MOST_CALLS)
        if full or not found:
            found.append([])
            sources = set()
        found[-1].append(one)
        sources.add(one.source)
    return found


def _call(plan: Plan, one: _Written, places: Places) -> Call:
    launch, node = one.planned.launch, one.planned.node
    args: list[str] = []
    for arg in launch.args:
        args += _arguments(plan, arg, places)
    skipped = [f"input{k}_bound" for k, p in enumerate(plan.inputs) if node == f"io:{p.name}"]
    return Call(one.source, launch.launch.global_size, tuple(args), " || ".join(skipped))


def _arguments(plan: Plan, arg: PlannedArg, places: Places) -> list[str]:
    if isinstance(arg, ConstArg):
        return [f"(__global void *)(constants + {places.constant(arg)}L)"]
    if isinstance(arg, ScratchArg):
        return ["(__global void *)arena", str(places.arena(arg.key) // arg.itemsize)]
    if arg.storage in plan.consts:
        return [f"(__global void *)(constants + {places.constant(arg)}L)", str(arg.offset)]
    for k, port in enumerate(plan.inputs):
        if plan.placed[port.value].storage == arg.storage:
            return [f"(__global void *)(input{k} + input{k}_start)", str(arg.offset)]
    itemsize = plan.storages[arg.storage].dtype.itemsize
    return ["(__global void *)arena", str(places.arena(arg.storage) // itemsize + arg.offset)]
