"""Computations on whole numbers, noted while they are done, and done again for other numbers.

A `Recorded` stands for an int. What is computed from it is noted on its tape, and so is each decision
that is taken by it. `Replays` has what a function returned built anew from these notes, where all
decisions are the same for other numbers; else the function is called. Whatever is done to a Recorded
that is not noted as a computation, such as printing it or making an array of that length, is noted as
a decision that it has this value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Generic, TypeVar

import numpy as np

from clnn.records import changed

T = TypeVar("T")
MOST_WAYS = 8  # that a function took, of which notes are kept
MOST_RECORDINGS = 8  # without a use of what was noted: a function that goes another way each time


class NotRecordedError(Exception):
    """What was computed cannot be told from its notes."""


class Tape:
    """Notes of what was computed: Python statements in their order, which return None elsewhere."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.inputs = 0
        self._known: dict[tuple[str, str, str], Recorded] = {}
        self._decided: set[tuple[str, str, str]] = set()
        self._closed = False

    def input(self, value: int) -> Recorded:
        """Return what stands for the next number that the notes are made of."""
        self.inputs += 1
        return Recorded(self, f"v{self.inputs - 1}", value)

    def close(self) -> None:
        """Take no more notes."""
        self._closed = True
        self._known.clear()
        self._decided.clear()

    def computed(self, sign: str, left: str, right: str, value: int) -> Recorded:
        """Return a number that is computed from others, noted once."""
        return self._noted((sign, left, right), f"{left} {sign} {right}", value)

    def most(self, a: Any, b: Any) -> Recorded:
        """Return the larger one of two numbers, noted as computed."""
        values = [n.value if type(n) is Recorded else n for n in (a, b)]
        texts = [n.text if type(n) is Recorded else _text(n) for n in (a, b)]
        return self._noted(("max", texts[0], texts[1]), f"max({', '.join(texts)})", max(values))

    def _noted(self, key: tuple[str, str, str], expression: str, value: int) -> Recorded:
        if key not in self._known:
            name = f"w{len(self._known)}"
            self._known[key] = Recorded(self, name, value)
            self.statements.append(f"{name} = {expression}")
        return self._known[key]

    def decided(self, sign: str, left: str, right: str, outcome: bool) -> bool:
        """Note a decision, once, and return it."""
        key = sign, left, right
        if not self._closed and key not in self._decided:
            self._decided.add(key)
            test = f"{left} {sign} {right}"
            self.statements.append(f"if {f'not {test}' if outcome else test}: return None")
        return outcome


class Recorded:
    """A whole number whose uses are noted."""

    __slots__ = ("tape", "text", "value")
    __array_ufunc__ = None  # arrays and numbers of numpy leave operations with it to it
    __class__ = property(lambda self: int)

    def __init__(self, tape: Tape, text: str, value: int) -> None:
        self.tape, self.text, self.value = tape, text, value

    def pinned(self) -> int:
        """Return the value, which what follows depends on in a way that is not noted."""
        self.tape.decided("==", self.text, _text(self.value), True)
        return self.value

    __index__ = __int__ = pinned

    def __hash__(self) -> int:
        return hash(self.pinned())

    def __bool__(self) -> bool:
        return self.tape.decided("!=", self.text, "0", self.value != 0)

    def __neg__(self) -> Recorded:
        return self.tape.computed("*", self.text, "(-1)", -self.value)

    def __pos__(self) -> Recorded:
        return self

    def __abs__(self) -> Any:
        return self if self.tape.decided(">=", self.text, "0", self.value >= 0) else -self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.pinned(), dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pinned(), name)


def _text(number: int) -> str:
    return str(number) if number >= 0 else f"({number})"


# Operands on the left, and on the right, that leave the other one as it is.
_NEUTRAL: dict[str, tuple[int | None, int | None]] = {
    "+": (0, 0),
    "-": (None, 0),
    "*": (1, 1),
    "//": (None, 1),
    "%": (None, None),
}


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the methods of an operation, for a Recorded on its left and on its right."""
    on_left, on_right = _NEUTRAL[sign]

    def left(self: Recorded, given: Any) -> Any:
        kind = type(given)
        if kind is Recorded:
            made = compute(self.value, given.value)
            return self.tape.computed(sign, self.text, given.text, made)
        if kind is not int and kind is not bool:
            return compute(self.pinned(), given)
        if given == on_right:
            return self
        if sign == "*" and given == 0:
            return 0
        return self.tape.computed(sign, self.text, _text(int(given)), compute(self.value, given))

    def right(self: Recorded, given: Any) -> Any:
        kind = type(given)
        if kind is not int and kind is not bool:
            return compute(given, self.pinned())
        if given == on_left:
            return self
        if sign == "*" and given == 0:
            return 0
        return self.tape.computed(sign, _text(int(given)), self.text, compute(given, self.value))

    return left, right


def _comparison(sign: str, compute: Callable[[Any, Any], bool]) -> Any:
    def compare(self: Recorded, given: Any) -> Any:
        kind = type(given)
        if kind is Recorded:
            outcome = compute(self.value, given.value)
            return self.tape.decided(sign, self.text, given.text, outcome)
        if kind is int or kind is bool:
            outcome = compute(self.value, given)
            return self.tape.decided(sign, self.text, _text(int(given)), outcome)
        return compute(self.pinned(), given)

    return compare


def _pinned(compute: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the methods of an operation that is not noted."""

    def left(self: Recorded, *given: Any) -> Any:
        return compute(self.pinned(), *given)

    def right(self: Recorded, given: Any) -> Any:
        return compute(given, self.pinned())

    return left, right


def _give_methods() -> None:
    for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("mod", "%")):
        left, right = _arithmetic(sign, getattr(operator, name))
        setattr(Recorded, f"__{name}__", left)
        setattr(Recorded, f"__r{name}__", right)
    for name, sign in (
        ("eq", "=="),
        ("ne", "!="),
        ("lt", "<"),
        ("le", "<="),
        ("gt", ">"),
        ("ge", ">="),
    ):
        setattr(Recorded, f"__{name}__", _comparison(sign, getattr(operator, name)))
    for name in ("truediv", "pow", "lshift", "rshift", "and_", "or_", "xor"):
        left, right = _pinned(getattr(operator, name))
        setattr(Recorded, f"__{name.strip('_')}__", left)
        setattr(Recorded, f"__r{name.strip('_')}__", right)
    others: dict[str, Callable[..., Any]] = {
        "divmod": divmod,
        "invert": operator.invert,
        "float": float,
        "str": str,
        "repr": repr,
        "format": format,
        "round": round,
        "trunc": int,
        "floor": int,
        "ceil": int,
    }
    for name, compute in others.items():
        setattr(Recorded, f"__{name}__", _pinned(compute)[0])
    Recorded.__rdivmod__ = _pinned(divmod)[1]  # type: ignore[attr-defined]


_give_methods()


def is_recorded(number: Any) -> bool:
    """Whether the uses of a number are noted."""
    return type(number) is Recorded


def integer(number: Any) -> int:
    """Return what int() does of a number; one whose uses are noted stays so."""
    found: Any = number if is_recorded(number) else int(number)
    return found  # type: ignore[no-any-return]


def larger(a: int, b: int) -> int:
    """Return what max() does, which is a computation where it is noted, and no decision."""
    known: Any = next((n for n in (a, b) if is_recorded(n)), None)
    found: Any = max(a, b) if known is None else known.tape.most(a, b)
    return found  # type: ignore[no-any-return]


def index(number: Any) -> int:
    """Return what operator.index() does of a number; one whose uses are noted stays so."""
    found: Any = number if is_recorded(number) else operator.index(number)
    return found  # type: ignore[no-any-return]


class _Builder:
    """Writes the statements that build what a function returned."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.statements: list[str] = []
        self.constants: dict[str, Any] = {"changed": changed}
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
            return str(value.text)
        if kind in _PLAIN:
            return None
        if id(value) not in self._texts:
            self._texts[id(value)] = self._text(value, kind)
            self._held.append(value)
        return self._texts[id(value)]

    def expression(self, value: Any) -> str:
        """Return the expression of a value."""
        return self.text(value) or self._constant(value)

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


def _function(tape: Tape, result: Any) -> Callable[..., Any]:
    """Return what builds a result for other numbers, or returns None. Raises NotRecordedError."""
    builder = _Builder(tape)
    answer = builder.expression(result)
    names = ", ".join(f"v{k}" for k in range(tape.inputs))
    lines = [*tape.statements, *builder.statements, f"return {answer}"]
    source = "".join([f"def replay({names}):\n", *(f"    {line}\n" for line in lines)])
    found: dict[str, Any] = {}
    exec(source, builder.constants, found)
    made: Callable[..., Any] = found["replay"]
    return made


class Replays(Generic[T]):
    """A function of whole numbers whose results are built from notes where it goes a known way.

    What the function returns, never None, is read only, and depends on the numbers alone. Any thread
    may call; what two note at once may be noted twice, or lost.
    """

    def __init__(self, make: Callable[[Sequence[int]], T]) -> None:
        self._make = make
        self._ways: tuple[Callable[..., T | None], ...] = ()
        self._left = MOST_RECORDINGS

    def __call__(self, numbers: Sequence[int]) -> T:
        """Return what the function does. Raises as that does."""
        found = self._replayed(numbers)
        if found is not None:
            self._left = MOST_RECORDINGS
        elif self._left:
            self._record(numbers)
            found = self._replayed(numbers)
        return self._make(numbers) if found is None else found

    def _replayed(self, numbers: Sequence[int]) -> T | None:
        for way in self._ways:
            try:
                found = way(*numbers)
            except (ZeroDivisionError, ValueError):  # as the function may raise, too
                continue
            if found is not None:
                if way is not self._ways[0]:
                    self._ways = way, *(other for other in self._ways if other is not way)
                return found
        return None

    def _record(self, numbers: Sequence[int]) -> None:
        """Note the way that the function goes for these numbers, if there is a result."""
        self._left -= 1
        tape = Tape()
        try:
            result = self._make([tape.input(n) for n in numbers])  # type: ignore[misc]
            self._ways = (_function(tape, result), *self._ways)[:MOST_WAYS]
        except Exception:  # which the function raises for plain numbers, too, or there are no notes
            return
        finally:
            tape.close()
