"""One run of a program: its steps in order, values by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clnn.errors import ModelError
from clnn.importers.onnx.stages.program import (
    Choice,
    DeviceStage,
    EachOf,
    HostStep,
    Program,
    Repeat,
    StageInput,
    Step,
    Sweep,
)
from clnn.ops.host.registry import Value, compute
from clnn.types import Array

Values = dict[str, Value]
RunStage = Callable[[DeviceStage, Mapping[str, Value]], Mapping[str, Array]]


class Execution:
    """Runs programs. run_stage: runs one stage of the device on the values that it reads."""

    def __init__(self, run_stage: RunStage) -> None:
        self._run_stage = run_stage

    def run(
        self, program: Program, inputs: Sequence[Value], around: Mapping[str, Value]
    ) -> list[Value]:
        """Return the outputs of a program. around: values of the program that it stands in."""
        values: Values = {name: around[name] for name in program.captures}
        values.update(program.consts)
        values.update(zip(program.inputs, inputs, strict=True))
        for step, dropped in zip(program.steps, program.drops, strict=True):
            made = self._step(step, values)
            values.update((n, v) for n, v in zip(step.outputs, made, strict=False) if n)
            for name in dropped:
                values.pop(name, None)
        return [values[name] for name in program.outputs]

    def _step(self, step: Step, values: Values) -> Sequence[Value]:
        if isinstance(step, DeviceStage):
            outputs = self._run_stage(step, values)
            return [outputs[name] for name in step.outputs]
        if isinstance(step, HostStep):
            return compute(step.node, [values[n] if n else None for n in step.inputs])
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
        count = None if given[0] is None else int(np.asarray(given[0]).reshape(-1)[0])
        going = True if given[1] is None else _truth(step, given[1])
        carried = list(given[2:])
        rows: list[list[Value]] = [[] for _ in step.empty]
        turn = 0
        while going and (count is None or turn < count):
            inputs = [np.array(turn, np.int64), np.array(True), *carried]
            condition, *made = self.run(step.body, inputs, values)
            going = _truth(step, condition)
            carried = made[: step.n_carried]
            for row, value in zip(rows, made[step.n_carried :], strict=True):
                row.append(value)
            turn += 1
        stacked = [_stacked(step, row, info, 0) for row, info in zip(rows, step.empty, strict=True)]
        return [*carried, *stacked]

    def _sweep(self, step: Sweep, values: Values) -> list[Value]:
        given: list[Value] = [values[n] if n else None for n in step.inputs[: step.n_inputs]]
        if not step.batched:
            return self._swept(step, given, values, None)
        lengths, *others = given
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
            np.flip(np.moveaxis(s, axis, 0), 0) if back else np.moveaxis(s, axis, 0)
            for s, axis, back in zip(sequences, step.in_axes, step.in_backwards, strict=True)
        ]
        counts = {len(s) for s in swept}
        if len(counts) > 1 and length is None:
            raise ModelError(
                f"node {step.name!r} (Scan) sweeps sequences of different lengths: {sorted(counts)}."
            )
        rows: list[list[Value]] = [[] for _ in step.empty]
        for turn in range(max(counts) if length is None else length):
            made = self.run(step.body, [*states, *(s[turn] for s in swept)], values)
            states = made[:n_states]
            for row, value in zip(rows, made[n_states:], strict=True):
                row.append(value)
        outputs = []
        places = zip(rows, step.empty, step.out_axes, step.out_backwards, strict=True)
        for row, info, axis, back in places:
            outputs.append(_stacked(step, row[::-1] if back else row, info, axis))
        return [*states, *outputs]

    def _each(self, step: EachOf, values: Values) -> list[Value]:
        first, *others = (values[n] for n in step.inputs[: step.n_inputs])
        rows = []
        for place, tensor in enumerate(first):
            beside = [v[place] if isinstance(v, list) else v for v in others]
            rows.append(self.run(step.body, [tensor, *beside], values))
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in step.outputs]


def _truth(step: Step, value: Value) -> bool:
    array = np.asarray(value)
    if array.size != 1:
        raise ModelError(
            f"node {step.name!r} ({step.op_type}): its condition has shape {array.shape}, must be "
            "one value."
        )
    return bool(array.reshape(-1)[0])


def _stacked(step: Step, row: Sequence[Value], info: StageInput, axis: int) -> Array:
    """Return what a body made in all its runs as one tensor with a new axis."""
    if row:
        shapes = {value.shape for value in row}
        if len(shapes) > 1:
            raise ModelError(
                f"node {step.name!r} ({step.op_type}): output {info.name!r} of its body has "
                f"different shapes in its runs: {sorted(shapes)[:4]}."
            )
        return np.stack(row, axis)
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
