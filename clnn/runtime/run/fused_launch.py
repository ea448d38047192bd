"""Launches that run as few kernels: which of a plan's launches each of them has, and what it is called with.

Memory of a fused kernel: the arena, all constants in one buffer, and for each input of the network
where its storage is, which may be a buffer that the caller bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from clnn.codegen.kernels import FusedKernel, input_names, text_of
from clnn.plan.plan import Plan, PlannedLaunch
from clnn.records import dataclass

# Parameters of every fused kernel, besides those of inputs.
ARENA, CONSTANTS, OWN_CONSTANTS = "arena", "constants", "own_constants"


@dataclass(frozen=True)
class NodeLaunch:
    """One launch of a plan, and the node that it belongs to."""

    launch: PlannedLaunch
    node: str

    @property
    def source(self) -> str:
        """The kernel's source."""
        return text_of(self.launch.launch).source


@dataclass(frozen=True, eq=False)
class FusedLaunch:
    """Neighbouring launches: one kernel, or a launch on its own (`kernel` is None)."""

    launches: tuple[NodeLaunch, ...]
    kernel: FusedKernel | None = None

    @property
    def title(self) -> str:
        """What messages call it."""
        first, last = self.launches[0].node, self.launches[-1].node
        return first if first == last else f"{first} to {last}"

    @property
    def sources(self) -> list[str]:
        """The texts of its kernels."""
        whole = self.kernel
        return [one.source for one in self.launches] if whole is None else [whole.source]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return all(one.launch.idle for one in self.launches)


@dataclass(frozen=True)
class FusedLaunches:
    """A plan's launches as few kernels: those that run once for borders, and those of each run.

    is_long: whether a run holds up Python's other threads for too long in the thread that calls. in_turns:
    whether runs are turns of a loop. is_small: whether the thread that calls does a run sooner than the device's
    threads, by kernels that are made for these (see clnn.runtime.run.in_caller).
    """

    first: Sequence[FusedLaunch]
    run: Sequence[FusedLaunch]
    is_long: bool = False
    in_turns: bool = False
    is_small: bool = False


def launches_of(plan: Plan) -> list[NodeLaunch]:
    """Return all launches of a run in order, border fills included."""
    return [
        NodeLaunch(launch, step.node.layer)
        for step in plan.scheduled
        for launch in (*step.fills, *step.launches)
    ]


def sources_of(plan: Plan, fused: FusedLaunches | None = None) -> dict[str, str]:
    """Return kernel title -> source for every launch (equal sources once)."""
    titles: dict[str, str] = {}
    alone = plan.launches if fused is None else []
    for one in [] if fused is None else [*fused.first, *fused.run]:
        if one.kernel is None:
            alone += [node.launch for node in one.launches]
        else:
            titles.setdefault(one.kernel.source, one.title)
    for planned in alone:
        text = text_of(planned.launch)
        titles.setdefault(text.source, text.name)
    return {f"{title}#{number}": source for number, (source, title) in enumerate(titles.items())}


def params_of(plan: Plan) -> dict[str, str]:
    """Return name -> C type of the parameters that a fused kernel's arguments are made of."""
    params = {ARENA: "__global char *", CONSTANTS: "__global char *"}
    for k in range(len(plan.inputs)):
        params |= dict(
            zip(input_names(k), ("__global char *", "const int ", "const int "), strict=True)
        )
    return params
