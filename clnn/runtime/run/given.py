"""Large inputs that a run reads where the caller has them, on devices that share memory with the host.

To copy an input beforehand is work for one core while the others wait. That is left out where all that reads
it are copies of parts of a batch (clnn.ops.movement.part), which take elements at any address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from clnn.codegen.kernels import input_names
from clnn.plan.plan import Plan, Port, TensorArg
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.run.arguments import plain
from clnn.runtime.run.commands import Enqueue, Memory
from clnn.runtime.run.fused_launch import FusedLaunches
from clnn.types import Array

LEAST_BYTES = 2**20  # of an input; of a smaller one the copy takes too little


class State(Protocol):
    """What is read of an execution state."""

    device: Device
    plan: Plan
    bound: Mapping[str, Memory]
    elsewhere: Mapping[str, Memory]
    memory: dict[str, Memory]
    launches: list[Enqueue]


class GivenInput:
    """An input in the arguments of a state's kernels. own: its memory in the state.

    places: kernels that read it, and which argument of each is its memory; where it begins is the next.
    """

    def __init__(self, context: Any, own: Memory, places: Sequence[tuple[Any, int]]) -> None:
        self._context, self._own, self._places = context, own, places
        self._given: Any = None

    def take(self, array: Array) -> bool:
        """Have the next run read the array itself; return whether it will."""
        if not (array.flags.aligned and array.flags.c_contiguous):
            return False
        cl = load()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        self._given = cl.Buffer(self._context, flags, hostbuf=plain(array))
        self._set(self._given, 0)
        return True

    def leave(self) -> None:
        """Hold the array no longer; no run may be reading it."""
        if self._given is not None:
            self._set(self._own.buffer, self._own.start)
            self._given = None

    def _set(self, memory: Any, start: int) -> None:
        for kernel, number in self._places:
            kernel.set_arg(number, memory)
            kernel.set_arg(number + 1, np.int32(start))


def given_inputs(state: State, fused: FusedLaunches | None) -> Mapping[str, GivenInput]:
    """Return host value -> input, for those that runs of a state may read in the caller's memory."""
    if fused is None or state.bound or state.elsewhere or not state.device.info.caps.host_memory:
        return {}
    launches = [one for one in fused.run if not one.idle]
    whole = [one.kernel for one in launches if one.kernel is not None]
    if len(whole) < len(launches) or fused.is_small or any(one.is_helped for one in whole):
        return {}
    found: dict[str, GivenInput] = {}
    for k, port in enumerate(state.plan.inputs):
        if port.type.nbytes >= LEAST_BYTES and _only_copied(state.plan, port):
            name, pairs = input_names(k)[0], zip(state.launches, whole, strict=True)
            places = [(one.kernel, of.params.index(name)) for one, of in pairs if name in of.params]
            own = state.memory[port.value]
            found[port.host] = GivenInput(state.device.context, own, places)
    return found


def leave(given: Mapping[str, GivenInput]) -> None:
    """Hold none of the caller's arrays, behind a run."""
    for one in given.values():
        one.leave()


def _only_copied(plan: Plan, port: Port) -> bool:
    """Whether only copies of parts of it read an input, which lies in a storage of its own."""
    storage = plan.placed[port.value].storage
    readers = {
        step.node.spec.kind
        for step in plan.scheduled
        for launch in (*step.fills, *step.launches)
        if any(isinstance(arg, TensorArg) and arg.storage == storage for arg in launch.args)
    }
    alone = storage == port.value == port.host
    return alone and readers == {"part"}
