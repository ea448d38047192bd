"""A program's steps as calls: host operators bound to what they read, and what may be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any

from clnn.importers.onnx.stages.program import ON_SHAPES, HostStep, Program, Step
from clnn.importers.onnx.stages.turns import CHANCE
from clnn.ops.host.bound import bound
from clnn.ops.host.registry import HostFunction, Value, compute
from clnn.records import dataclass
from clnn.runtime.run.handed import fetched
from clnn.types import Array

Values = dict[str, Value]
Act = Callable[[Values], None]
FEW = 64  # elements of a constant that is compared with others


@dataclass(frozen=True)
class Call:
    """A step as a call. same: what an earlier step made, where that is the same."""

    step: Step
    act: Act
    same: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Prepared:
    """A program's steps: each as a call, the names that nothing reads behind it, and those that stay.

    consts: its constants, and None by the name "". later: the steps of a loop's turns after the first. calls: all.
    """

    consts: Mapping[str, Value]
    steps: Sequence[tuple[Act, tuple[str, ...], tuple[str, ...]]]
    later: Sequence[tuple[Act, tuple[str, ...]]]
    calls: Sequence[Call]


def prepared(
    program: Program,
    others: Callable[[Step], Act],
    is_far: bool,
    own: Mapping[str, HostFunction] = MappingProxyType({}),
) -> Prepared:
    """Return the steps of a program as calls.

    others: makes the call of a step that is none of the host's. is_far: whether values may be elsewhere
    than in the host's memory. own: functions in the registry's place, by ONNX op type.
    """
    alike = _Alike(program.consts)
    calls: list[Call] = []
    for step in program.steps:
        if not isinstance(step, HostStep):
            calls.append(Call(step, others(step)))
        elif (first := alike.first(step)) is not None:
            calls.append(Call(step, _renaming(first.outputs, step.outputs), first.outputs))
        else:
            calls.append(Call(step, _host(step, program.consts, is_far, own)))
    rows = []
    # Others hold what is not made here, or stays. "" is None: what a node leaves out.
    kept = {*program.outputs, *program.captures, *program.consts, ""}
    kept.update(name for step in program.steps if step.once for name in step.outputs)
    for call in reversed(calls):
        step = call.step
        ended = {*(step.inputs if call.same is None else call.same), *step.outputs} - kept
        kept |= ended
        stay = tuple(n for n in step.outputs if n) if step.once else ()
        rows.append((step, call.act, tuple(sorted(ended)), stay))
    rows.reverse()
    return Prepared(
        {**program.consts, "": None},
        [(act, ended, stay) for _, act, ended, stay in rows],
        [(act, ended) for step, act, ended, _ in rows if not step.once],
        calls,
    )


class _Alike:
    """Finds steps of the host that compute the same of the same."""

    def __init__(self, consts: Mapping[str, Array]) -> None:
        self._names: dict[str, Any] = {
            name: (array.dtype.str, array.shape, array.tobytes())
            for name, array in consts.items()
            if array.size <= FEW and array.dtype.kind != "O"
        }
        self._steps: dict[Any, HostStep] = {}

    def first(self, step: HostStep) -> HostStep | None:
        """Return the step before this one that makes the same."""
        attrs = [(k, v) for k, v in step.node.attrs.items() if v is not None]
        plain = all(isinstance(v, (int, float, str, list)) for _, v in attrs)
        if not (plain or step.op_type == "Cast") or step.op_type in CHANCE:
            return None
        names = tuple(self._names.get(n, n) for n in step.inputs)
        key = (step.node.op_type, step.once, names, str(sorted(attrs)), len(step.outputs))
        first = self._steps.setdefault(key, step)
        if first is step:
            return None
        for mine, theirs in zip(step.outputs, first.outputs, strict=True):
            if mine and not theirs:
                return None
            self._names[mine] = self._names.get(theirs, theirs)
        return first


def _renaming(sources: Sequence[str], names: Sequence[str]) -> Act:
    pairs = [(source, name) for source, name in zip(sources, names, strict=True) if name]

    def act(values: Values) -> None:
        for source, name in pairs:
            values[name] = values[source]

    return act


def _host(
    step: HostStep, consts: Mapping[str, Array], is_far: bool, own: Mapping[str, HostFunction]
) -> Act:
    """Return the call of a step of the host."""
    if step.shape_only:
        return _of_shape(step)
    names = list(step.inputs)
    while names and not names[-1]:
        names.pop()
    function = own.get(step.node.op_type)
    if function is not None:
        return _on_device(step, function, names)
    function = bound(step.node, [consts.get(name) for name in names])
    if step.why == ON_SHAPES:
        return _remembering(step, function, names, consts)
    if is_far or len(step.outputs) != 1 or not 0 < len(names) < 3:
        return _general(step, function, names)
    return _of_one(step, function, *names) if len(names) == 1 else _of_two(step, function, *names)


def _of_shape(step: HostStep) -> Act:
    """The elements of the input are not read; the same extents give the same array."""
    (read, *_), (made, *_) = step.inputs, step.outputs
    last: tuple[tuple[int, ...] | None, Value] = (None, None)

    def act(values: Values) -> None:
        nonlocal last
        seen = last
        shape = getattr(values[read], "shape", None)
        if shape is None or shape != seen[0]:
            given = values[read] if shape is None else _Extents(shape)
            last = seen = (shape, compute(step.node, [given])[0])
        values[made] = seen[1]

    return act


class _Extents:
    """What Shape and Size read of a tensor."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.size = 1
        for extent in shape:
            self.size *= extent


def _remembering(
    step: HostStep,
    function: Callable[..., Value],
    names: Sequence[str],
    consts: Mapping[str, Array],
) -> Act:
    """Small arrays that nobody changes: the same ones give the same ones."""
    changing = [name for name in names if name not in consts]
    if len(changing) == 1 and len(step.outputs) == 1:
        return _remembering_one(step, function, names, changing[0])
    last: tuple[Sequence[Value], Sequence[Value]] | None = None

    def act(values: Values) -> None:
        nonlocal last
        given, seen = [values[name] for name in changing], last
        if seen is None or not all(map(is_, given, seen[0])):
            last = seen = given, _made(step, function, [fetched(values[n]) for n in names])
        values.update((n, v) for n, v in zip(step.outputs, seen[1], strict=False) if n)

    return act


def _remembering_one(
    step: HostStep, function: Callable[..., Value], names: Sequence[str], read: str
) -> Act:
    (name,) = step.outputs
    last: tuple[Value, Value] | None = None

    def act(values: Values) -> None:
        nonlocal last
        given, seen = values[read], last
        if seen is None or given is not seen[0]:
            made = _made(step, function, [fetched(values[n]) for n in names])
            last = seen = given, made[0]
        values[name] = seen[1]

    return act


def _general(step: HostStep, function: Callable[..., Value], names: Sequence[str]) -> Act:
    def act(values: Values) -> None:
        made = _made(step, function, [fetched(values[name]) for name in names])
        values.update((n, v) for n, v in zip(step.outputs, made, strict=False) if n)

    return act


def _on_device(step: HostStep, function: HostFunction, names: Sequence[str]) -> Act:
    """Nothing else does it where that fails."""

    def act(values: Values) -> None:
        made = compute(step.node, [fetched(values[name]) for name in names], function)
        values.update((n, v) for n, v in zip(step.outputs, made, strict=False) if n)

    return act


def _of_one(step: HostStep, function: Callable[..., Value], read: str) -> Act:
    (name,) = step.outputs

    def act(values: Values) -> None:
        try:
            found = function(values[read])
        except Exception:
            found = compute(step.node, [values[read]])
        values[name] = found if type(found) is not tuple else found[0]

    return act


def _of_two(step: HostStep, function: Callable[..., Value], left: str, right: str) -> Act:
    (name,) = step.outputs

    def act(values: Values) -> None:
        try:
            found = function(values[left], values[right])
        except Exception:
            found = compute(step.node, [values[left], values[right]])
        values[name] = found if type(found) is not tuple else found[0]

    return act


def _made(
    step: HostStep, function: Callable[..., Value], given: Sequence[Value]
) -> Sequence[Value]:
    try:
        found = function(*given)
    except Exception:  # what it does not take, or nothing does: the registry's says which
        found = compute(step.node, given)
    return found if isinstance(found, tuple) else (found,)
