"""One run of a program: its steps in order, values by name.

What only the device reads are DeviceArrays, where there is an Exchange; the host fetches what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from clnn.errors import ModelError
from clnn.importers.onnx.stages.program import (
    Choice,
    DeviceStage,
    EachOf,
    Program,
    Repeat,
    StageInput,
    Step,
    Sweep,
)
from clnn.ops.host.registry import HostFunction, Value
from clnn.runtime.run.handed import DeviceArray, Exchange, fetched
from clnn.runtime.stages.prepared import Act, Prepared, Values, prepared
from clnn.runtime.stages.profile import StagedProfile
from clnn.runtime.stages.turning import Turning, Turns
from clnn.runtime.stages.written import Quick, Room
from clnn.types import Array

RunAnyStage = Callable[[DeviceStage, Mapping[str, Value]], Mapping[str, Value]]
SHARED_FROM = 1 << 14  # bytes of an array from which on all runs of a body share one copy of it


class Execution:
    """Runs programs. run_stage: runs one stage of the device on the values that it reads.

    quick: of a Room. own: as in prepared. profile: returns what measures the steps of this thread, if anything.
    """

    def __init__(
        self,
        run_stage: RunAnyStage,
        quick: Quick,
        exchange: Exchange | None = None,
        own: Mapping[str, HostFunction] = MappingProxyType({}),
        profile: Callable[[], StagedProfile | None] = lambda: None,
    ) -> None:
        self._run_stage, self._exchange, self._own = run_stage, exchange, own
        self._profile = profile
        self._room = Room(self._ready, _truth, quick)
        self._turnings: dict[int, Turning] = {}
        self._prepared: dict[
            int, tuple[Program, Prepared]
        ] = {}  # by identity; programs stay as they are

    def run(
        self, program: Program, inputs: Sequence[Value], around: Mapping[str, Value]
    ) -> list[Value]:
        """Return the outputs of a program. around: values of the program that it stands in."""
        ready = self._ready(program)
        values: Values = {name: around[name] for name in program.captures}
        values.update(ready.consts)
        values.update(zip(program.inputs, inputs, strict=True))
        profile = self._profile()
        for call, (act, ended, _) in zip(ready.calls, ready.steps, strict=True):
            if profile is None:
                act(values)
            else:
                profile.measure(call.step, act, values)
            for name in ended:
                values.pop(name, None)
        return [values[name] for name in program.outputs]

    def _turns(self, body: Program, around: Mapping[str, Value]) -> Turns:
        """Return what runs a loop's body on its inputs, turn by turn."""
        ready = self._ready(body)
        begin: Values = {name: around[name] for name in body.captures}
        begin.update(ready.consts)
        turning = self._turnings.get(id(body))
        if turning is None:
            made = Turning(body, ready, self._room, may_write=self._exchange is None)
            turning = self._turnings.setdefault(id(body), made)
        return Turns(turning, begin)

    def _ready(self, program: Program) -> Prepared:
        found = self._prepared.get(id(program))
        if found is None:
            made = prepared(program, self._act, self._exchange is not None, self._own)
            found = self._prepared[id(program)] = (program, made)
        return found[1]

    def _act(self, step: Step) -> Act:
        """Return the call of a step that is none of the host's."""

        def act(values: Values) -> None:
            made = self._step(step, values)
            values.update((n, v) for n, v in zip(step.outputs, made, strict=False) if n)

        return act

    def _step(self, step: Step, values: Values) -> Sequence[Value]:
        if isinstance(step, DeviceStage):
            outputs = self._run_stage(step, values)
            return [outputs[name] for name in step.outputs]
        if isinstance(step, Choice):
            condition = _truth(step, values[step.inputs[0]])
            branch = step.then_branch if condition else step.else_branch
            return self.run(branch, (), values)
        if isinstance(step, Repeat):
            return self._repeat(step, values)
        if isinstance(step, Sweep):
            return self._sweep(step, values)
        assert isinstance(step, EachOf), step
        return self._each(step, values)

    def _repeat(self, step: Repeat, values: Values) -> list[Value]:
        given = [values[n] if n else None for n in step.inputs[: 2 + step.n_carried]]
        count = None if given[0] is None else int(np.asarray(fetched(given[0])).reshape(-1)[0])
        values = self._with_shared(values, step.body)
        going = True if given[1] is None else _truth(step, given[1])
        carried = list(given[2:])
        rows: list[list[Value]] = [[] for _ in step.empty]
        turn, turns = 0, self._turns(step.body, values)
        shape, holds = (1,) * step.ranks[0], np.full((1,) * step.ranks[1], True)
        while going and (count is None or turn < count):
            condition, *made = turns.run([np.full(shape, turn, np.int64), holds, *carried])
            going = _truth(step, condition)
            carried = made[: step.n_carried]
            for row, value in zip(rows, made[step.n_carried :], strict=True):
                row.append(value)
            turn += 1
        turns.end()
        stacked = [
            self._stacked(step, row, info, 0) for row, info in zip(rows, step.empty, strict=True)
        ]
        return [*carried, *stacked]

    def _sweep(self, step: Sweep, values: Values) -> list[Value]:
        given: list[Value] = [values[n] if n else None for n in step.inputs[: step.n_inputs]]
        values = self._with_shared(values, step.body)
        if not step.batched:
            return self._swept(step, given, values, None)
        lengths, *others = map(fetched, given)
        count = others[0].shape[0] if others else 0
        rows = []
        for image in range(count):
            length = None if lengths is None else int(lengths.reshape(-1)[image])
            rows.append(self._swept(step, [v[image] for v in others], values, length))
        return [_padded(column) for column in zip(*rows, strict=True)]

    def _swept(
        self, step: Sweep, given: Sequence[Value], values: Values, length: int | None
    ) -> list[Value]:
        n_states = len(given) - step.n_sequences
        states, sequences = list(given[:n_states]), given[n_states:]
        swept = [
            _slices(s, axis, back)
            for s, axis, back in zip(sequences, step.in_axes, step.in_backwards, strict=True)
        ]
        counts = {len(s) for s in swept}
        if len(counts) > 1 and length is None:
            raise ModelError(
                f"node {step.name!r} (Scan) sweeps sequences of different lengths: {sorted(counts)}."
            )
        rows: list[list[Value]] = [[] for _ in step.empty]
        turns = self._turns(step.body, values)
        for turn in range(max(counts) if length is None else length):
            made = turns.run([*states, *(s[turn] for s in swept)])
            states = list(made[:n_states])
            for row, value in zip(rows, made[n_states:], strict=True):
                row.append(value)
        turns.end()
        outputs = []
        places = zip(rows, step.empty, step.out_axes, step.out_backwards, strict=True)
        for row, info, axis, back in places:
            outputs.append(self._stacked(step, row[::-1] if back else row, info, axis))
        return [*states, *outputs]

    def _each(self, step: EachOf, values: Values) -> list[Value]:
        first, *others = (fetched(values[n]) for n in step.inputs[: step.n_inputs])
        rows = []
        for place, tensor in enumerate(first):
            beside = [v[place] if isinstance(v, list) else v for v in others]
            made = self.run(step.body, [tensor, *beside], values)
            rows.append([fetched(value) for value in made])
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in step.outputs]

    def _with_shared(self, values: Values, body: Program) -> Values:
        """Return values of which large ones that a body reads from around go to the device once."""
        if self._exchange is None:
            return values
        shared = {
            name: self._exchange.shared(values[name])
            for name in body.captures
            if isinstance(values[name], np.ndarray) and values[name].nbytes >= SHARED_FROM
        }
        return {**values, **shared}

    def _stacked(self, step: Step, row: Sequence[Value], info: StageInput, axis: int) -> Value:
        """Return what a body made in all its runs as one tensor with a new axis."""
        shapes = {value.shape for value in row}
        if len(shapes) > 1:
            raise ModelError(
                f"node {step.name!r} ({step.op_type}): output {info.name!r} of its body has "
                f"different shapes in its runs: {sorted(shapes)[:4]}."
            )
        if not row:
            return _no_rows(step, info, axis)
        if self._exchange and axis == 0 and all(isinstance(v, DeviceArray) for v in row):
            return self._exchange.stacked(row)
        return np.stack([fetched(value) for value in row], axis)


def _slices(sequence: Value, axis: int, backwards: bool) -> Sequence[Value]:
    """Return the slices of a tensor along an axis."""
    if isinstance(sequence, DeviceArray) and not axis:
        order = range(len(sequence))
        return [sequence.row(place) for place in (order[::-1] if backwards else order)]
    rows: Array = np.moveaxis(fetched(sequence), axis, 0)
    return rows[::-1] if backwards else rows  # type: ignore[return-value]


def _truth(step: Step, value: Value) -> bool:
    array = fetched(value)
    if type(array) is np.ndarray and array.size == 1:
        return bool(array.item())
    array = np.asarray(array)
    if array.size != 1:
        raise ModelError(
            f"node {step.name!r} ({step.op_type}): its condition has shape {array.shape}, must be "
            "one value."
        )
    return bool(array.reshape(-1)[0])


def _no_rows(step: Step, info: StageInput, axis: int) -> Array:
    """Return what a body makes in no runs."""
    if info.dtype is None or info.shape is None:
        raise ModelError(
            f"node {step.name!r} ({step.op_type}) runs its body no time, and the model does not say "
            f"what type and rank output {info.name!r} of the body has."
        )
    extents = [d if isinstance(d, int) else 0 for d in info.shape]
    extents.insert(axis + len(extents) + 1 if axis < 0 else axis, 0)
    return np.empty(extents, info.dtype)


def _padded(arrays: Sequence[Array]) -> Array:
    """Return arrays of a batch as one; shorter sequences end in zeros."""
    if len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    length = max(len(a) for a in arrays)
    out = np.zeros((len(arrays), length, *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
