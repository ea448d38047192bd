"""What a plan is: records that planning makes, and that sessions and stored plans are made of.

They import nothing at run time, so that what runs a stored plan does not bring what makes plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from clnn.records import dataclass

if TYPE_CHECKING:
    from clnn.graph.ir import Graph, Node
    from clnn.layout import TensorLayout
    from clnn.ops.launch import Launch, Variant
    from clnn.ops.problem import Problem
    from clnn.target import Target
    from clnn.types import Array, DType, TensorType


@dataclass(frozen=True)
class Placed:
    """A value's storage (named after the root value), its layout there and its border's value."""

    storage: str
    layout: TensorLayout
    fill: float | None = None


@dataclass(frozen=True)
class Port:
    """A graph input or output: public name, type, and the value whose storage the host touches.

    value: the value of the network; host: the dense value that is uploaded or downloaded (the
    same one where the network's own layout is dense).
    """

    name: str
    type: TensorType
    value: str
    host: str


@dataclass(frozen=True)
class MemoryPlan:
    """Offset of each block and size of the arena, in bytes.

    `lower_bound` is the largest sum of sizes in use at one step, each rounded up to the unit that
    all offsets are multiples of; no plan can have a smaller `total`, which is rounded alike.
    """

    offsets: dict[str, int]
    total: int
    lower_bound: int


@dataclass(frozen=True)
class Storage:
    """Memory of one alias tree: layout and border value of its root, and the steps it lives."""

    key: str
    dtype: DType
    layout: TensorLayout
    fill: float | None
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        """Bytes, borders included."""
        return max(self.layout.size, 1) * self.dtype.itemsize

    @property
    def geometry(self) -> tuple[object, ...] | None:
        """What must be equal for another storage to leave this border intact; None: no border."""
        if not self.layout.has_padding:
            return None
        return (self.layout, self.fill, self.dtype)


@dataclass(frozen=True)
class TensorArg:
    """Kernel argument: a storage and an offset in elements."""

    storage: str
    offset: int


@dataclass(frozen=True)
class ConstArg:
    """Kernel argument: constant data, made when the session is built."""

    make: Callable[[], Array]


@dataclass(frozen=True)
class ScratchArg:
    """Kernel argument: scratch memory, planned like a storage, of elements of `itemsize` bytes."""

    key: str
    itemsize: int = 4


PlannedArg = TensorArg | ConstArg | ScratchArg


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch with its arguments resolved to storages. idle: in this plan there is nothing to do."""

    launch: Launch
    args: tuple[PlannedArg, ...]
    idle: bool = False


@dataclass(frozen=True)
class ScheduledNode:
    """One node of the schedule: its problem, the chosen variant and its launches."""

    node: Node
    problem: Problem
    variant: Variant
    launches: tuple[PlannedLaunch, ...]
    fills: tuple[PlannedLaunch, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything that a session needs, immutable and shared between execution states."""

    graph: Graph
    target: Target
    scheduled: tuple[ScheduledNode, ...]
    placed: Mapping[str, Placed]
    storages: Mapping[str, Storage]
    memory: MemoryPlan
    first_fills: tuple[PlannedLaunch, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    guard: int = 0
    separate: bool = False
    block_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def consts(self) -> Mapping[str, Array]:
        """Constant values by name."""
        return self.graph.consts

    @property
    def launches(self) -> list[PlannedLaunch]:
        """Every launch, in order, border fills included."""
        every = list(self.first_fills)
        for step in self.scheduled:
            every += [*step.fills, *step.launches]
        return every

    @property
    def copied_bytes(self) -> int:
        """Bytes written by nodes that only rename elements (concat, slice, reshape...)."""
        return sum(
            launch_bytes(step)
            for step in self.scheduled
            if step.node.spec.is_view and not step.node.name.startswith("io:")
        )


def launch_bytes(step: ScheduledNode) -> int:
    """Return the bytes that a copying view node writes."""
    if not step.launches:
        return 0
    moved = [o for o in step.problem.inputs if o is not None and not o.aliased]
    written = sum(o.type.nbytes for o in moved)
    return min(written, step.problem.outputs[0].type.nbytes)
