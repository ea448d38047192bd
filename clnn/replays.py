"""Results of functions of whole numbers, built from notes of one call for other numbers (clnn.recorded)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Generic, TypeVar

import numpy as np

from clnn.recorded import Recorded, Tape
from clnn.recorded_arrays import RecordedArray
from clnn.records import changed
from clnn.traced import Open

T = TypeVar("T")
Later = Callable[[Callable[[], None]], None]
MOST_WAYS = 16  # that a function took, of which notes are kept
MOST_RECORDINGS = 8  # in a row, of a function that goes another way each time
LINES_AT_ONCE = 64  # of notes, that are compiled while other threads wait
PAUSE_S = 1e-4
USES = 4  # of notes, after which one more may be taken


_here = threading.local()


class NotRecordedError(Exception):
    """What was computed cannot be told from its notes."""


class _Builder:
    """Writes the statements that build what a function returned."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.statements: list[str] = []
        self.constants: dict[str, Any] = {"changed": changed, "Open": Open}
        self._texts: dict[int, str | None] = {}
        self._held: list[Any] = []  # objects whose ids are known
        self._built: dict[str, str] = {}

    def text(self, value: Any) -> str | None:
        """Return the expression of a value, None where it holds no Recorded.

        Raises NotRecordedError where that cannot be told.
        """
        kind = type(value)
        if kind is Recorded:
            if value.tape is not self.tape:
                raise NotRecordedError("a number of another function's notes")
            text: str = value.text
            return text if value.other is None else self._shared(f"Open({text}, {value.other})")
        if kind in _PLAIN:
            return None
        if id(value) not in self._texts:
            self._texts[id(value)] = self._text(value, kind)
            self._held.append(value)
        return self._texts[id(value)]

    def expression(self, value: Any) -> str:
        """Return the expression of a value."""
        return self.text(value) or self._constant(value)

    def check(self, question: Callable[[Any], Any], array: Any, told: Any) -> None:
        """Have the notes hold only where a question about an array is answered as it was told."""
        asked = f"{self._constant(question)}({self.expression(array)})"
        self.statements.append(f"if {asked} != {self._constant(told)}: raise Other")

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _text(self, value: Any, kind: Any) -> str | None:
        if kind is tuple or kind is list:
            texts = [self.text(item) for item in value]
            if not any(texts):
                return None
            items = (t or self._constant(v) for t, v in zip(texts, value, strict=True))
            row = "".join(f"{item}, " for item in items)
            return self._shared(f"({row})") if kind is tuple else f"[{row}]"
        if kind is dict:
            texts = [self.text(item) for item in value.values()]
            if any(map(self.text, value)):
                raise NotRecordedError("a key")
            if not any(texts):
                return None
            new = (f"{key!r}: {t}" for key, t in zip(value, texts, strict=True) if t)
            if not all(type(key) is str for key in value):
                raise NotRecordedError("a table of other keys than names")
            return f"{{**{self._constant(value)}, {', '.join(new)}}}"
        if kind is RecordedArray:
            given = ", ".join(map(self.expression, value.given))
            return self._shared(f"{self._constant(value.make)}({given})")
        if is_dataclass(kind):
            names = [f.name for f in fields(kind)]
            found = {n: t for n in names if (t := self.text(getattr(value, n)))}
            if not found:
                return None
            new = (f"{n}={t}" for n, t in found.items())
            return self._shared(f"changed({self._constant(value)}, {', '.join(new)})")
        if _holds_numbers(value, kind, self.text):
            raise NotRecordedError(f"{kind.__name__} of numbers whose uses are noted")
        return None

    def _shared(self, text: str) -> str:
        """Return the name of what an expression gives, which is built once."""
        if text not in self._built:
            self._built[text] = f"b{len(self._built)}"
            self.statements.append(f"{self._built[text]} = {text}")
        return self._built[text]


_PLAIN = frozenset({int, str, float, bool, complex, bytes, type(None), type, BuiltinFunctionType})
_HEAP_TYPE = 1 << 9


def _holds_numbers(value: Any, kind: Any, text: Callable[[Any], str | None]) -> bool:
    """Whether an object of another kind holds a Recorded. Raises NotRecordedError where that is unknown."""
    if isinstance(value, (type, Enum, np.generic, np.dtype)):
        return False
    if isinstance(value, np.ndarray):
        return bool(value.dtype == object)
    if isinstance(value, (frozenset, set)):
        return any(map(text, value))
    if isinstance(value, Mapping):
        return any(map(text, value)) or any(map(text, value.values()))
    if kind is FunctionType:
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return any(map(text, (*held, *(value.__defaults__ or ()))))
    if kind is partial:
        return any(map(text, (value.func, *value.args, *value.keywords.values())))
    if kind.__flags__ & _HEAP_TYPE:  # a class in Python
        slots = [n for base in kind.__mro__ for n in base.__dict__.get("__slots__", ())]
        held = [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in slots)]
        items = value if isinstance(value, (tuple, list)) else ()
        return any(map(text, (*held, *items)))
    raise NotRecordedError(f"{kind.__name__} is unknown")


class _OtherWayError(Exception):
    """A decision is another one for these numbers."""


def _function(
    tape: Tape, result: Any, pause: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Return what builds a result for other numbers, or returns None. Raises NotRecordedError."""
    builder = _Builder(tape)
    for question, array, told in tape.told:
        builder.check(question, array, told)
    answer = builder.expression(result)
    lines = [*tape.statements, *builder.statements, f"answer = {answer}"]
    parts = []
    for at in range(0, len(lines), LINES_AT_ONCE):
        parts.append(compile("\n".join(lines[at : at + LINES_AT_ONCE]), "<notes>", "exec"))
        if pause is not None:
            pause()
    constants = {**builder.constants, "Other": _OtherWayError}

    def replay(*numbers: int) -> Any:
        scope = {**constants, **{f"v{k}": number for k, number in enumerate(numbers)}}
        try:
            for part in parts:
                exec(part, scope)
        except _OtherWayError:
            return None
        return scope["answer"]

    return replay


@contextmanager
def behind_calls() -> Iterator[None]:
    """Have this thread take notes in small pieces, so that others need not wait for it.

    Python's lock is given to another thread after milliseconds, if nobody gives it up before; a call
    takes it several times.
    """
    _here.is_behind = True
    try:
        yield
    finally:
        _here.is_behind = False


def _give_way() -> None:
    time.sleep(PAUSE_S)


def at_once(work: Callable[[], None]) -> None:
    """Do work now."""
    work()


class Replays(Generic[T]):
    """A function of whole numbers whose results are built from notes where it goes a known way.

    What the function returns, never None, is read only, and depends on the numbers alone. Any thread
    may call; what two note at once may be noted twice, or lost. later: does what it is given at another
    time; notes are taken there, where that is not asked for at once.
    """

    def __init__(self, make: Callable[[Sequence[int]], T], later: Later = at_once) -> None:
        self._make, self._later = make, later
        self._ways: tuple[Callable[..., T | None], ...] = ()
        self._left = MOST_RECORDINGS * USES

    def __call__(self, numbers: Sequence[int]) -> T:
        """Return what the function does. Raises as that does."""
        found = self._replayed(numbers)
        if found is not None:
            self._left = min(self._left + 1, MOST_RECORDINGS * USES)
        elif self._left >= USES:
            self._later(lambda: self.record(numbers))
            found = self._replayed(numbers)
        return self._make(numbers) if found is None else found

    def _replayed(self, numbers: Sequence[int]) -> T | None:
        for way in self._ways:
            try:
                found = way(*numbers)
            except Exception:  # the function says what is wrong, if anything is
                continue
            if found is not None:
                if way is not self._ways[0]:
                    self._ways = way, *(other for other in self._ways if other is not way)
                return found
        return None

    def record(self, numbers: Sequence[int]) -> None:
        """Note the way that the function goes for these numbers, if there is a result and it is not known."""
        if self._replayed(numbers) is not None:
            return
        self._left -= USES
        pause = _give_way if getattr(_here, "is_behind", False) else None
        tape = Tape(pause)
        try:
            result = self._make([tape.input(n) for n in numbers])  # type: ignore[misc]
            self._ways = (_function(tape, result, pause), *self._ways)[:MOST_WAYS]
        except Exception:  # which the function raises for plain numbers, too, or there are no notes
            return
        finally:
            tape.close()
