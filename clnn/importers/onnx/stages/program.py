"""A model as a program: steps in order, each with the values that it reads and makes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from clnn.ops.host.registry import HostNode
from clnn.records import dataclass
from clnn.types import Array

ON_SHAPES = "arithmetic on shapes"  # why a step is on the host
Dims = tuple["int | str", ...]
MakeModel = Callable[[Mapping[str, "StageInput"], Mapping[str, Array]], Any]


@dataclass(frozen=True)
class StageInput:
    """A value that a device stage reads. shape: "" for an extent that only the run knows.

    shape, dtype: None where only the run knows them.
    """

    name: str
    dtype: Any = None
    shape: Dims | None = None

    @property
    def is_static(self) -> bool:
        """Whether all is known before the run."""
        known = self.dtype is not None and self.shape is not None
        return known and all(isinstance(d, int) for d in self.shape or ())


@dataclass(frozen=True)
class Step:
    """One step: the names that it reads ("" for none) and makes.

    once: in a loop's body, that it makes the same in each turn.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    why: str = ""
    once: bool = False


@dataclass(frozen=True, eq=False)
class DeviceStage(Step):
    """Nodes that run as one plan on the device.

    nodes: names of them. reads: what crosses into the stage, in order. fixed: values that decide
    shapes, constants of the plan: another value, another plan. make_model: from what is read, with
    types, and the values of `fixed`, to the model of this stage. makes: the outputs, with types.
    """

    nodes: tuple[str, ...] = ()
    reads: tuple[StageInput, ...] = ()
    fixed: tuple[str, ...] = ()
    makes: tuple[StageInput, ...] = ()
    make_model: MakeModel = field(default=lambda reads, fixed: None, repr=False)


@dataclass(frozen=True, eq=False)
class HostStep(Step):
    """One node that numpy computes. node: it. shape_only: no element of its input is read."""

    node: HostNode = field(default_factory=lambda: HostNode("Identity", 1))
    shape_only: bool = False


@dataclass(frozen=True, eq=False)
class Choice(Step):
    """If: the first input decides which program runs; both read values of the program around."""

    then_branch: Program = field(default_factory=lambda: Program())
    else_branch: Program = field(default_factory=lambda: Program())


@dataclass(frozen=True, eq=False)
class Repeat(Step):
    """Loop: inputs are count, condition ("" for none) and `n_carried` carried values.

    ranks: axes of the turn and of the condition that the body is given, each of one element. empty: type and
    shape of each scan output where the body never runs.
    """

    n_carried: int = 0
    ranks: tuple[int, int] = (0, 0)
    body: Program = field(default_factory=lambda: Program())
    empty: tuple[StageInput, ...] = ()


@dataclass(frozen=True, eq=False)
class Sweep(Step):
    """Scan: inputs are states and sequences, of which each run of the body gets one slice.

    batched: whether axis 0 of all is a batch, each swept by itself (opset 8); the first input is
    then the lengths. in_axes, in_backwards, out_axes, out_backwards: of each sequence.
    """

    body: Program = field(default_factory=lambda: Program())
    n_inputs: int = 0
    n_sequences: int = 0
    in_axes: tuple[int, ...] = ()
    in_backwards: tuple[bool, ...] = ()
    out_axes: tuple[int, ...] = ()
    out_backwards: tuple[bool, ...] = ()
    batched: bool = False
    empty: tuple[StageInput, ...] = ()


@dataclass(frozen=True, eq=False)
class EachOf(Step):
    """SequenceMap: the body runs for each tensor of the first input."""

    n_inputs: int = 0
    body: Program = field(default_factory=lambda: Program())


@dataclass(frozen=True)
class Program:
    """Steps in order. captures: names that it reads of the program around it."""

    name: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    consts: Mapping[str, Array] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


def is_staged(program: Program) -> bool:
    """Whether anything but shapes of inputs decides what runs."""
    return any(
        (isinstance(step, HostStep) and step.why != ON_SHAPES)
        or inner_programs(step)
        or (isinstance(step, DeviceStage) and step.fixed)
        for step in program.steps
    )


def inner_programs(step: Step) -> tuple[Program, ...]:
    """Return the programs inside of a step."""
    if isinstance(step, Choice):
        return step.then_branch, step.else_branch
    return (step.body,) if isinstance(step, (Repeat, Sweep, EachOf)) else ()
