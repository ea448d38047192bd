"""Computations on whole numbers, noted while they are done, and done again for other numbers.

A `Recorded` stands for an int. What is computed from it is noted on its tape, and so is each decision
that is taken by it. `clnn.replays` builds what a function returned anew from these notes, where all
decisions are the same for other numbers. Whatever is done to a Recorded
that is not noted as a computation, such as printing it or making an array of that length, is noted as
a decision that it has this value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from clnn.traced import Open, greatest

NOTES_AT_ONCE = 16  # between two pauses


class Tape:
    """Notes of what was computed: Python statements in their order, which raise Other elsewhere."""

    def __init__(self, pause: Callable[[], None] | None = None) -> None:
        """pause: called now and then while notes are taken."""
        self.statements: list[str] = []
        self.told: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self._pause = pause
        self.inputs = 0
        self._known: dict[tuple[object, ...], Recorded] = {}
        self._decided: set[tuple[str, str, str]] = set()
        self.closed = False

    def input(self, value: int) -> Recorded:
        """Return what stands for the next number that the notes are made of."""
        self.inputs += 1
        return Recorded(self, f"v{self.inputs - 1}", value)

    def close(self) -> None:
        """Take no more notes."""
        self.closed = True
        self._known.clear()
        self._decided.clear()

    def computed(
        self, sign: str, left: str, right: str, value: int, other: int | None = None
    ) -> Recorded:
        """Return a number that is computed from others, noted once."""
        return self._noted((sign, left, right, other), f"{left} {sign} {right}", value, other)

    def most(self, a: Any, b: Any) -> Recorded:
        """Return the larger one of two numbers, noted as computed; open where one of them is."""
        (left, x, p), (right, y, q) = map(_parts, (a, b))
        other = None if p is None and q is None else max(_there(a), _there(b))
        return self._noted(("max", left, right, other), f"max({left}, {right})", max(x, y), other)

    def _noted(
        self, key: tuple[object, ...], expression: str, value: int, other: int | None = None
    ) -> Recorded:
        if key not in self._known:
            name = f"w{len(self._known)}"
            self._known[key] = Recorded(self, name, value, other)
            self._add(f"{name} = {expression}")
        return self._known[key]

    def decided(self, sign: str, left: str, right: str, outcome: bool) -> bool:
        """Note a decision, once, and return it."""
        key = sign, left, right
        if not self.closed and key not in self._decided:
            self._decided.add(key)
            test = f"{left} {sign} {right}"
            self._add(f"if {f'not {test}' if outcome else test}: raise Other")
        return outcome

    def asked(self, question: Callable[[Any], Any], array: Any, answer: Any) -> None:
        """Note what a question about an array that is made anew was answered with, as a decision."""
        if not self.closed:
            self.told.append((question, array, answer))

    def _add(self, statement: str) -> None:
        self.statements.append(statement)
        if self._pause is not None and len(self.statements) % NOTES_AT_ONCE == 0:
            self._pause()


class Recorded:
    """A whole number whose uses are noted. other: as an Open has it, which it stands for then."""

    __slots__ = ("other", "tape", "text", "value")
    __array_ufunc__ = None  # arrays and numbers of numpy leave operations with it to it
    __class__ = property(lambda self: int if self.other is None else Open)

    def __init__(self, tape: Tape, text: str, value: int, other: int | None = None) -> None:
        self.tape, self.text, self.value, self.other = tape, text, value, other

    def opened(self, other: int | None) -> Recorded:
        """Return the number as it is at the network's other shape, too; None: it is not open."""
        there = None if other is None else operator.index(other)
        return Recorded(self.tape, self.text, self.value, there)

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
        other = None if self.other is None else -self.other
        return self.tape.computed("*", self.text, "(-1)", -self.value, other)

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


def _of_one_tape(left: Recorded, right: Recorded) -> tuple[Any, Any]:
    """Return operands of two tapes with the one of a closed tape, or the right one, as a plain number.

    Tables that outlive a tape may hold its numbers as keys.
    """
    return (left.value, right) if left.tape.closed else (left, right.value)


def _parts(number: Any) -> tuple[str, int, int | None]:
    """Return the expression of an operand, its value, and what it is at the network's other shape."""
    if type(number) is Recorded:
        return number.text, number.value, number.other
    return _text(int(number)), int(number), number.other if type(number) is Open else None


def _there(number: Any) -> int:
    """Return what an operand is at the other shape; one that is not open is there as here."""
    if type(number) is int:
        return number
    other: int = operator.index(number) if number.other is None else number.other
    return other


def _plain(number: Recorded) -> int:
    """Return the number that a Recorded stands for, which what follows depends on."""
    return number.pinned() if number.other is None else Open(number.pinned(), number.other)


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the methods of an operation, for a Recorded on its left and on its right."""
    on_left, on_right = _NEUTRAL[sign]

    def made(left: Any, right: Any) -> Any:
        tape = left.tape if type(left) is Recorded else right.tape
        (a, x, p), (b, y, q) = map(_parts, (left, right))
        other = None
        if p is not None or q is not None:
            there = [_there(number) for number in (left, right)]
            try:
                other = compute(*there)
            except ZeroDivisionError:  # as of an Open: it depends on the value
                other = compute(x, y)
                for number in (left, right):
                    operator.index(number)
        return tape.computed(sign, a, b, compute(x, y), other)

    def left(self: Recorded, given: Any) -> Any:
        if type(given) is Recorded and given.tape is not self.tape:
            return compute(*_of_one_tape(self, given))
        if type(given) in (Recorded, Open):
            return made(self, given)
        if type(given) is not int and type(given) is not bool:
            return compute(_plain(self), given)
        if given == on_right:
            return self
        return 0 if sign == "*" and given == 0 else made(self, int(given))

    def right(self: Recorded, given: Any) -> Any:
        if type(given) is Open:
            return made(given, self)
        if type(given) is not int and type(given) is not bool:
            return compute(given, _plain(self))
        if given == on_left:
            return self
        return 0 if sign == "*" and given == 0 else made(int(given), self)

    return left, right


def _comparison(sign: str, compute: Callable[[Any, Any], bool]) -> Any:
    def compare(self: Recorded, given: Any) -> Any:
        kind = type(given)
        if kind is Recorded and given.tape is not self.tape:
            return compute(*_of_one_tape(self, given))
        if kind is Recorded:
            outcome = compute(self.value, given.value)
            return self.tape.decided(sign, self.text, given.text, outcome)
        if kind is int or kind is bool or kind is Open:
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
    found: Any = number.opened(None) if is_recorded(number) else int(number)
    return found  # type: ignore[no-any-return]


def larger(a: int, b: int) -> int:
    """Return what max() does, open where a number is; it is a computation where it is noted, and no decision."""
    for number in (a, b):
        if is_recorded(number) and not number.tape.closed:  # type: ignore[attr-defined]
            found: int = number.tape.most(a, b)  # type: ignore[attr-defined]
            return found
    return greatest(a, b)


def index(number: Any) -> int:
    """Return what operator.index() does of a number; one whose uses are noted stays so."""
    found: Any = number if is_recorded(number) else operator.index(number)
    return found  # type: ignore[no-any-return]
