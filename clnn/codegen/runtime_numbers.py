"""Kernel texts that serve many parameters: numbers in which launches differ become arguments.

`Texts.kernel` is told the parameters of one launch again and again, with other extents each time. What
differed once is an argument from then on, and everything else stays a number in the text. A text is
taken again only where all that it was made from is equal, and where all decisions that its template
took by comparing such numbers are the same (clnn.traced).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from clnn.codegen.render import render
from clnn.errors import TemplateError
from clnn.layout import TensorLayout
from clnn.logs import log
from clnn.ops.launch import KernelText
from clnn.records import HashedOnce, dataclass, dataclass_fields
from clnn.traced import Number, Open, Trace, compiled
from clnn.types import Stored

_KERNEL = re.compile(r"^__kernel void \w+\(", re.M)
_ARRAY = re.compile(r"^\s*(?:__local |__private |const )*\w+ \w+\[[^\]]*\bx\d+_[^\]]*\]", re.M)
_ARGUMENT = re.compile(r"\bx\d+_")
_WIDTH = re.compile(r"(?:float|double|half|char|short|int|long|vload|vstore)(x\d+_)")


@dataclass(frozen=True)
class _Text:
    """One text: for which numbers it holds, and how its arguments follow from them."""

    source: str
    name: str
    holds: Callable[..., tuple[bool, ...]]
    arguments: Callable[..., tuple[Number, ...]]
    guards: tuple[str, ...]


@dataclass
class _Slots:
    """Of one launch and one form of its parameters: the numbers first seen, and where others differed."""

    first: tuple[Number, ...]
    varying: tuple[int, ...] = ()
    fixed: tuple[Hashable, ...] | None = None  # the others, as _exactly has them

    def see(self, numbers: Sequence[Number]) -> None:
        more = [
            k
            for k, (number, before) in enumerate(zip(numbers, self.first, strict=True))
            if (type(number) is Open or (number is not before and not _same(number, before)))
            and k not in self.varying
        ]
        if more or self.fixed is None:
            varying = {*self.varying, *more} & {*range(len(numbers))}
            self.varying = tuple(sorted(varying))
            self.fixed = _exactly([n for k, n in enumerate(self.first) if k not in varying])


@dataclass
class Texts:
    """The texts of all launches of a network, for all shapes that it was used with.

    known: of launches, as `_told` has them, the positions of numbers that differed before.
    """

    known: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _learned: int = 0
    _slots: dict[tuple[Hashable, str, Hashable], _Slots] = field(default_factory=dict)
    _made: dict[Hashable, list[_Text]] = field(default_factory=dict)

    @property
    def learned(self) -> int:
        """How many launches, and numbers of them that differ, are known; it never falls."""
        return self._learned

    def see(self, launch: Hashable, template: str, params: Mapping[str, Any]) -> None:
        """Note the numbers of a launch, for texts that are made later."""
        form, numbers = _form(params)
        if form is not None:
            self._seen((launch, template, form), numbers)

    def kernel(self, launch: Hashable, template: str, params: Mapping[str, Any]) -> KernelText:
        """Return the kernel of a launch, of a text that was there before if there is one.

        launch: what tells it from others of the network. Raises TemplateError.
        """
        form, numbers = _form(params)
        if form is None:
            return KernelText(render(template, params), str(params["name"]))
        slots = self._seen((launch, template, form), numbers)
        varying = slots.varying
        values = [v if isinstance(v := numbers[k], float) else int(v) for k in varying]
        made = self._made.setdefault((template, form, varying, slots.fixed), [])
        text = next((t for t in made if all(t.holds(*values))), None)
        if text is None:
            text = _make(template, params, varying, values, [numbers[k] for k in varying])
            made.append(text)
        return KernelText(text.source, text.name, text.arguments(*values))

    def _seen(self, key: tuple[Hashable, str, Hashable], numbers: tuple[Number, ...]) -> _Slots:
        """Return the slots of a launch that has these numbers now."""
        slots = self._slots.get(key)
        if slots is None:
            known = self.known.get(_told(key, len(numbers)), ()) if self.known else ()
            slots = self._slots[key] = _Slots(numbers, known)
            self._learned += 1
        before = len(slots.varying)
        slots.see(numbers)
        self._learned += len(slots.varying) - before
        return slots

    def all_known(self) -> dict[str, tuple[int, ...]]:
        """Return `known` with the positions of numbers that differed here."""
        found = dict(self.known)
        for key, slots in list(self._slots.items()):
            told = _told(key, len(slots.first))
            found[told] = tuple(sorted({*found.get(told, ()), *slots.varying}))
        return found


def _told(key: tuple[Hashable, str, Hashable], count: int) -> str:
    """Return what tells a launch with so many numbers from others of its network, in any process."""
    launch, template, _ = key
    return blake2b(f"{template} {count} {launch!r}".encode(), digest_size=12).hexdigest()


def _make(
    template: str,
    params: Mapping[str, Any],
    varying: Sequence[int],
    values: Sequence[Number],
    given: Sequence[Number],
) -> _Text:
    """Return the text in which the numbers at `varying` are arguments, as far as it can be.

    One for the given numbers alone where the template refuses what is read at run time: as `values`, known ones,
    or, where the other parameters suit open extents alone, as they are. Raises TemplateError where it refuses all.
    """
    every = frozenset(range(len(varying)))
    for pinned in (frozenset[int](), every):
        try:
            return _text(template, params, varying, values, pinned)
        except TemplateError as err:
            log.info("the text of a kernel for open extents: %s", err)
    return _text(template, params, varying, given, every)


def _text(
    template: str,
    params: Mapping[str, Any],
    varying: Sequence[int],
    values: Sequence[Number],
    pinned: frozenset[int],
) -> _Text:
    """Return a text in which all numbers but the `pinned` ones, and others that cannot be, are arguments."""
    while True:
        trace = Trace()
        leaves = {
            k: value if n in pinned else trace.number(n, value)
            for n, (k, value) in enumerate(zip(varying, values, strict=True))
        }
        source = render(template, _rebuilt(params, leaves))
        bad = _unfit(source, trace)
        if not bad:
            break
        pinned |= bad
    for n in pinned:
        trace.guards[f"v{n} == {values[n]!r}"] = None
    source = _with_arguments(source, trace)
    return _Text(
        source,
        str(params["name"]),
        compiled(len(values), tuple(trace.guards)),
        compiled(len(values), tuple(trace.arguments)),
        tuple(trace.guards),
    )


def _unfit(source: str, trace: Trace) -> set[int]:
    """Return which numbers stand where no argument can: in functions beside the kernel, as lengths, as widths."""
    start = _KERNEL.search(source)
    if start is None:
        raise TemplateError("a template made no kernel. This is a defect of it.")
    functions = "\n".join(
        line for line in source[: start.start()].splitlines() if not line.startswith("#define")
    )
    lengths = "\n".join(found[0] for found in _ARRAY.finditer(source))
    names = {*_ARGUMENT.findall(functions), *_ARGUMENT.findall(lengths)}
    names |= set(_WIDTH.findall(source))
    texts = [text for text, (name, _) in trace.arguments.items() if name in names]
    return {int(n) for text in texts for n in re.findall(r"\bv(\d+)\b", text)}


def _with_arguments(source: str, trace: Trace) -> str:
    """Return a source whose kernel takes the arguments of a trace behind its own."""
    if not trace.arguments:
        return source
    start = _KERNEL.search(source)
    assert start is not None, "_unfit finds one"
    end = source.index(")\n{", start.end())
    more = "".join(f",\n    const {ctype} {name}" for name, ctype in trace.arguments.values())
    return source[:end] + more + source[end:]


def _same(a: Number, b: Number) -> bool:
    """Whether numbers are equal, and of equal types; floats to the bit."""
    if isinstance(a, float) or isinstance(b, float):
        return repr(a) == repr(b)
    return a == b


def _exactly(numbers: Sequence[Number]) -> tuple[Hashable, ...]:
    """Return what is equal for equal numbers of equal types alone."""
    return tuple((repr(n),) if isinstance(n, float) else n for n in numbers)


def _form(params: Mapping[str, Any]) -> tuple[HashedOnce | None, tuple[Number, ...]]:
    """Return what parameters are besides their numbers, and these; None where that cannot be told.

    The kernel's name is not part of it.
    """
    numbers: list[Number] = []
    try:
        form = HashedOnce(
            tuple([(key, _shape(value, numbers)) for key, value in params.items() if key != "name"])
        )
    except TypeError:
        return None, ()
    return form, tuple(numbers)


def _shape(value: Any, numbers: list[Number]) -> Hashable:
    kind = type(value)
    if kind is int or kind is Open:
        numbers.append(value)
        return int
    if kind is float:
        numbers.append(value)
        return float
    if kind in _PLAIN:
        return kind, value
    if kind is TensorLayout:
        parts = (
            *value.shape,
            *value.pitches,
            *value.before,
            *value.after,
            value.offset,
            value.size,
        )
        if set(map(type, parts)) <= _INTEGERS:
            numbers += parts
            return kind, len(value.shape)
    if kind is tuple or kind is list:
        kinds = set(map(type, value))
        if kinds <= _INTEGERS:
            numbers += value
            return kind, len(value)
        if kinds == _FLOATS:
            numbers += value
            return kind, float, len(value)
        return kind, *[_shape(v, numbers) for v in value]
    names = dataclass_fields(kind)  # type: ignore[arg-type]
    if names is not None:
        return kind, *[_shape(getattr(value, name), numbers) for name in names]
    return _rare_shape(value, numbers)


_PLAIN = frozenset({str, bool, type(None)})
_INTEGERS = frozenset({int, Open})
_FLOATS = frozenset({float})


def _rare_shape(value: Any, numbers: list[Number]) -> Hashable:
    if isinstance(value, (int, float, np.integer)) and not isinstance(value, (bool, np.bool_)):
        numbers.append(int(value) if isinstance(value, np.integer) else value)
        return float if isinstance(value, float) else int
    if isinstance(value, (tuple, list)):
        return type(value), *(_shape(v, numbers) for v in value)
    if isinstance(value, Mapping):
        return type(value), *((k, _shape(v, numbers)) for k, v in value.items())
    if isinstance(value, Stored):
        return Stored, str(value), value.cell
    return type(value), value


def _rebuilt(params: Mapping[str, Any], leaves: Mapping[int, Any]) -> dict[str, Any]:
    """Return parameters with other numbers at the positions of `leaves`."""
    count = iter(range(2**62))
    return {k: v if k == "name" else _with_leaves(v, leaves, count) for k, v in params.items()}


def _with_leaves(value: Any, leaves: Mapping[int, Any], count: Iterator[int]) -> Any:
    if isinstance(value, (int, float, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return leaves.get(next(count), value)
    if isinstance(value, (tuple, list)):
        items = [_with_leaves(v, leaves, count) for v in value]
        return type(value)(items) if type(value) in (tuple, list) else type(value)(*items)
    if isinstance(value, Mapping):
        return {k: _with_leaves(v, leaves, count) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        new = copy.copy(value)
        names = {f.name for f in fields(value)}
        for cached in set(getattr(new, "__dict__", ())) - names:
            object.__delattr__(new, cached)
        for f in fields(value):
            object.__setattr__(new, f.name, _with_leaves(getattr(value, f.name), leaves, count))
        return new
    return value
