"""The launches of a plan as few kernels: which of them are joined, and their arguments in C.

Buffers of a joined kernel: the arena, all constants in one buffer, and for each input of the network
where its storage is, which may be a buffer that the caller bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clnn.codegen.merge import Call, Merged, fits, merge
from clnn.codegen.render import render
from clnn.plan.schedule import ConstArg, Plan, PlannedArg, PlannedLaunch, ScratchArg

LEAST, MOST_FUNCTIONS, MOST_CALLS = 2, 16, 48  # launches worth joining, and of one kernel


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


@dataclass
class _Group:
    calls: list[Call] = field(default_factory=list)
    launches: list[Planned] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)

    def full(self, source: str) -> bool:
        many = len(self.sources | {source}) > MOST_FUNCTIONS
        return many or len(self.calls) >= MOST_CALLS


def launches_of(plan: Plan) -> list[Planned]:
    """Return all launches of a run in order, border fills included."""
    return [Planned(launch, step.node.layer)
            for step in plan.steps for launch in (*step.fills, *step.launches)]  # fmt: skip


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
    """Return the launches in groups of neighbours, those that fit joined into kernels.

    timed: these kernels note when each launch's part began and ended.
    """
    found: list[Segment] = []
    group = _Group()

    def close() -> None:
        nonlocal group
        if len(group.calls) >= LEAST:
            made = merge(group.calls, plan.target.compute_units, params_of(plan), timed)
            found.append(Segment(tuple(group.launches), made))
        else:
            found.extend(Segment((one,)) for one in group.launches)
        group = _Group()

    for one in planned:
        source, launch = one.source, one.launch.launch
        if not fits(source, launch.local_size, launch.global_size):
            close()
            found.append(Segment((one,)))
            continue
        if group.full(source):
            close()
        group.calls.append(_call(plan, one, source, places))
        group.launches.append(one)
        group.sources.add(source)
    close()
    return found


def _call(plan: Plan, one: Planned, source: str, places: Places) -> Call:
    args: list[str] = []
    for arg in one.launch.args:
        args += _arguments(plan, arg, places)
    skipped = [f"input{k}_bound" for k, p in enumerate(plan.inputs) if one.node == f"io:{p.name}"]
    return Call(source, one.launch.launch.global_size, tuple(args), " || ".join(skipped))


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
