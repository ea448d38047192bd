"""Turns of a loop as one Python function, written after two turns that did the same.

What they did the same way is taken for granted: types and extents of arrays, and which branch was taken. The function
checks that where it may be otherwise, and raises DeviatesError; the turn is run step by step then. A turn changes
nothing that it is given, so it can be begun again at any place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clnn.importers.onnx.stages.program import (
    Choice,
    DeviceStage,
    HostStep,
    Program,
    inner_programs,
)
from clnn.importers.onnx.stages.turns import CHANCE
from clnn.ops.host.bound import bound
from clnn.ops.host.lines import DeviatesError, Form, Lines, single, written
from clnn.ops.host.registry import Value, compute
from clnn.records import dataclass
from clnn.runtime.stages.prepared import Act, Call, Prepared, Values
from clnn.runtime.stages.quick import Kinds, RunStage
from clnn.types import Array

MOST_KEPT = 1 << 16  # bytes of what is the same in all turns and is kept for them
_VARIABLE = re.compile(r"\bv\d+_")
Quick = Callable[[DeviceStage, Mapping[str, Array], Kinds], RunStage]
Turn = Callable[..., "tuple[Value, ...]"]
Bind = Callable[[Mapping[str, Value]], Turn]


@dataclass(frozen=True)
class Seen:
    """What a turn did. values: by name; inner: of each If by its place, which branch it took and what that did."""

    values: Values
    inner: Mapping[int, tuple[bool, Seen]]


@dataclass(frozen=True)
class Room:
    """What turns are run and written with.

    prepared: of a program. truth: of an If's condition. quick: what runs a stage, for its deciding values and the
    types and shapes of what it reads.
    """

    prepared: Callable[[Program], Prepared]
    truth: Callable[[Choice, Value], bool]
    quick: Quick


def can_be_written(program: Program) -> bool:
    """Whether a program makes the same of the same."""
    return not any(
        (isinstance(step, HostStep) and step.op_type in CHANCE)
        or not all(map(can_be_written, inner_programs(step)))
        for step in program.steps
    )


def watched(ready: Prepared, values: Values, room: Room) -> Seen:
    """Run the steps of a turn on values, which hold all that it made then."""
    inner = {}
    for place, call in enumerate(ready.calls):
        step = call.step
        if step.once:
            continue
        if not isinstance(step, Choice):
            call.act(values)
            continue
        condition = room.truth(step, values[step.inputs[0]])
        program = step.then_branch if condition else step.else_branch
        branch = room.prepared(program)
        within = {**{name: values[name] for name in program.captures}, **branch.consts}
        inner[place] = condition, watched(branch, within, room)
        made = [within[name] for name in program.outputs]
        values.update((n, v) for n, v in zip(step.outputs, made, strict=False) if n)
    return Seen(values, inner)


def write(
    body: Program, ready: Prepared, begin: Mapping[str, Value], turns: Sequence[Seen], room: Room
) -> Bind:
    """Return what makes the function of a loop's turns from the values that stay in all of them.

    turns: two that were seen. begin: values that stay.
    """
    writer = _Writer(room, Lines(), begin)
    given = [f"i{k}_" for k in range(len(body.inputs))]
    forms = _Forms(writer, ready, begin)
    for text, name in zip(given, body.inputs, strict=True):
        forms[name] = form = _seen_form(text, [turn.values[name] for turn in turns])
        if form.is_known:
            writer.lines.has_form(form)
    writer.steps(ready, turns, forms)
    made = [writer.lines.whole(forms[name]) for name in body.outputs]
    return _compiled(writer, given, made)


def _compiled(writer: _Writer, given: Sequence[str], made: Sequence[str]) -> Bind:
    text = ["def bind(begin):"]
    text += [f"    {line}" for line in writer.first]
    text.append(f"    def turn({', '.join(given)}):")
    text += [f"        {line}" for line in _needed(writer.lines.lines, made)]
    text.append(f"        return ({', '.join(made)},)")
    text.append("    return turn")
    scope: dict[str, Any] = {
        **writer.lines.objects,
        "Deviates": DeviatesError,
        "array": np.array,
        "full": np.full,
        "ndarray": np.ndarray,
        "single": single,
    }
    exec(compile("\n".join(text), "<a turn>", "exec"), scope)
    found: Bind = scope["bind"]
    return found


def _needed(lines: Sequence[tuple[str, str]], made: Sequence[str]) -> list[str]:
    """Return the lines that check, and those whose variables are read behind them."""
    read, kept = set(made), []
    for name, line in reversed(lines):
        if not name or name in read:
            kept.append(line)
            read.update(_VARIABLE.findall(line))
    return kept[::-1]


def _seen_form(text: str, values: Sequence[Value]) -> Form:
    """Return the form of a value that was one and the other."""
    first, second = values
    if type(first) is not np.ndarray or type(second) is not np.ndarray:
        return Form(text)
    if first.shape != second.shape or first.dtype is not second.dtype:
        return Form(text)
    return Form(text, first.dtype, first.shape)


class _Forms(dict[str, Form]):
    """Forms by name; what stays in all turns is written where it is read first."""

    def __init__(self, writer: _Writer, ready: Prepared, begin: Mapping[str, Value]) -> None:
        super().__init__()
        self._writer, self._begin = writer, begin
        self.update((n, writer.constant(v)) for n, v in ready.consts.items() if v is not None)
        for call in ready.calls:
            if call.step.once and isinstance(call.step, HostStep):
                self._keep_made(call)

    def _keep_made(self, call: Call) -> None:
        """Note what is made of constants alone."""
        read = [name for name in call.step.inputs if name]
        if all(name in self and self[name].array is not None for name in read):
            for name in call.step.outputs:
                value = self._begin.get(name)
                if type(value) is np.ndarray and value.nbytes <= MOST_KEPT:
                    self[name] = self._writer.constant(value)

    def __missing__(self, name: str) -> Form:
        if not name:
            return Form("None")
        self[name] = self._writer.stays(name)
        return self[name]


class _Writer:
    """Writes steps. first: lines before all turns."""

    def __init__(self, room: Room, lines: Lines, begin: Mapping[str, Value]) -> None:
        self._room, self.lines, self._begin = room, lines, begin
        self.first: list[str] = []

    def constant(self, value: Value) -> Form:
        """Return the form of a value that is the same in all turns of all loops."""
        name = self.lines.object(value)
        is_array = type(value) is np.ndarray
        return Form(name, value.dtype, value.shape, array=value) if is_array else Form(name)

    def stays(self, name: str) -> Form:
        """Return the form of a value that is the same in all turns of a loop."""
        text, value = f"b{len(self.first)}_", self._begin[name]
        self.first.append(f"{text} = begin[{name!r}]")
        form = _seen_form(text, [value, value])
        if form.is_known:
            check = Lines(objects=self.lines.objects)
            check.has_form(form)
            self.first += [line for _, line in check.lines]
        return form

    def steps(self, ready: Prepared, turns: Sequence[Seen], forms: dict[str, Form]) -> None:
        """Write the steps of a program. turns: what they did."""
        for place, call in enumerate(ready.calls):
            step = call.step
            if step.once:
                continue
            if call.same is not None:
                for same, name in zip(call.same, step.outputs, strict=True):
                    forms[name] = forms[same]
            elif isinstance(step, HostStep):
                self._host(step, turns, forms)
            elif isinstance(step, Choice):
                self._choice(place, step, call.act, turns, forms)
            elif isinstance(step, DeviceStage):
                self._stage(step, call.act, turns, forms)
            else:
                self._called(call.act, step.inputs, step.outputs, turns, forms)

    def _like(self, text: str, name: str, turns: Sequence[Seen]) -> Form:
        return _seen_form(text, [turn.values[name] for turn in turns])

    def _host(self, step: HostStep, turns: Sequence[Seen], forms: dict[str, Form]) -> None:
        names = list(step.inputs)
        while names and not names[-1]:
            names.pop()
        given = [forms[name] for name in names]
        if self._same(step, given, turns, forms):
            return
        if len(step.outputs) == 1:
            (name,) = step.outputs
            found = written(step.node, given, self._like("", name, turns), self.lines)
            if found is not None:
                forms[name] = found
                return
        function = self.lines.object(_computing(step, [form.array for form in given]))
        made = self.lines.let(f"{function}({', '.join(map(self.lines.whole, given))})")
        for place, name in enumerate(step.outputs):
            if name:
                self._checked(f"{made}[{place}]", name, turns, forms)

    def _same(
        self,
        step: HostStep,
        given: Sequence[Form],
        turns: Sequence[Seen],
        forms: dict[str, Form],
    ) -> bool:
        """Note outputs that are the same in all turns; whether they are."""
        read = given[:1] if step.shape_only else given
        if not all(f.is_known if step.shape_only else f.array is not None for f in read):
            return False
        rows = [[turn.values[name] for turn in turns] for name in step.outputs if name]
        if not all(map(_is_kept, rows)):
            return False
        for name, row in zip([n for n in step.outputs if n], rows, strict=True):
            forms[name] = self.constant(row[0])
        return True

    def _checked(
        self, expression: str, name: str, turns: Sequence[Seen], forms: dict[str, Form]
    ) -> None:
        """Write a value that may have another type or other extents in another turn."""
        forms[name] = form = self._like(self.lines.let(expression), name, turns)
        if form.is_known:
            self.lines.has_form(form)

    def _choice(
        self,
        place: int,
        step: Choice,
        act: Act,
        turns: Sequence[Seen],
        forms: dict[str, Form],
    ) -> None:
        """Write the branch that was taken, and that it is."""
        (taken, first), (other, second) = (turn.inner[place] for turn in turns)
        condition = forms[step.inputs[0]]
        if taken is not other or not condition.is_one:
            self._called(act, step.inputs, step.outputs, turns, forms)
            return
        self.lines.require(f"{'' if taken else 'not '}{self.lines.number(condition)}")
        program = step.then_branch if taken else step.else_branch
        ready = self._room.prepared(program)
        within = {name: forms[name] for name in program.captures}
        within.update(
            (n, Form("None") if v is None else self.constant(v)) for n, v in ready.consts.items()
        )
        self.steps(ready, (first, second), within)
        made = [within[name] for name in program.outputs]
        forms.update((n, form) for n, form in zip(step.outputs, made, strict=False) if n)

    def _stage(
        self, step: DeviceStage, act: Act, turns: Sequence[Seen], forms: dict[str, Form]
    ) -> None:
        read, fixed = [forms[r.name] for r in step.reads], {n: forms[n].array for n in step.fixed}
        known = {name: array for name, array in fixed.items() if array is not None}
        if len(known) < len(fixed) or not all(form.is_known for form in read):
            self._called(act, step.inputs, step.outputs, turns, forms)
            return
        kinds = {r.name: (f.dtype, f.shape or ()) for r, f in zip(step.reads, read, strict=True)}
        run = self.lines.object(self._room.quick(step, known, kinds))
        made = self.lines.let(f"{run}({self._named([r.name for r in step.reads], forms)})")
        for name in step.outputs:
            if name:
                text = self.lines.let(f"{made}[{name!r}]")
                forms[name] = self._like(text, name, turns)

    def _called(
        self,
        act: Act,
        inputs: Sequence[str],
        outputs: Sequence[str],
        turns: Sequence[Seen],
        forms: dict[str, Form],
    ) -> None:
        """Write a step as the call that it is elsewhere."""
        values = self.lines.let(self._named([*dict.fromkeys(inputs)], forms))
        self.lines.lines.append((values, f"{self.lines.object(act)}({values})"))
        for name in outputs:
            if name:
                self._checked(f"{values}[{name!r}]", name, turns, forms)

    def _named(self, names: Sequence[str], forms: dict[str, Form]) -> str:
        """Return a dict of values by their names."""
        pairs = (f"{name!r}: {self.lines.whole(forms[name])}" for name in names)
        return f"{{{', '.join(pairs)}}}"


def _is_kept(row: Sequence[Value]) -> bool:
    """Whether a value was the same, and is small enough to be kept."""
    first, second = row
    if type(first) is not np.ndarray or type(second) is not np.ndarray:
        return False
    small = first.nbytes <= MOST_KEPT and first.dtype.kind != "O"
    return small and first.dtype is second.dtype and np.array_equal(first, second)


def _computing(step: HostStep, known: Sequence[Array | None]) -> Callable[..., tuple[Value, ...]]:
    """Return what computes a step of the host; it returns a tuple of all outputs."""
    function = bound(step.node, known)

    def call(*given: Value) -> tuple[Value, ...]:
        try:
            found = function(*given)
        except Exception:
            return compute(step.node, given)
        return found if type(found) is tuple else (found,)

    return call
