"""Numbers of a kernel's parameters that its text reads at run time.

A template that computes with such a number prints an argument of the kernel in its place, and whatever
it decides by comparing one is noted: the text holds for all numbers for which each decision is the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NoReturn

from clnn.records import dataclass

Number = int | float


@dataclass
class Trace:
    """What the making of one text did with its numbers.

    arguments: Python expression over v0, v1, ... -> name and C type of the argument that is its value.
    guards: expressions that are true of all numbers that the text holds for.
    """

    arguments: dict[str, tuple[str, str]] = field(default_factory=dict)
    guards: dict[str, None] = field(default_factory=dict)

    def number(self, position: int, value: Number) -> Traced:
        """Return the number that v`position` stands for, `value` at this time."""
        return Traced(self, f"v{position}", value)

    def argument(self, number: Traced) -> str:
        """Return the name of the argument that holds a number."""
        if number.text not in self.arguments:
            ctype = "float" if isinstance(number.value, float) else "int"
            self.arguments[number.text] = f"x{len(self.arguments)}_", ctype
        return self.arguments[number.text][0]


class Traced:
    """A number with the expression that it comes from. Comparisons use today's value, and are noted."""

    __slots__ = ("text", "trace", "value")

    def __init__(self, trace: Trace, text: str, value: Number) -> None:
        self.trace, self.text, self.value = trace, text, value

    def __str__(self) -> str:
        return self.trace.argument(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"<{self.text} = {self.value}>"

    def __hash__(self) -> int:
        return hash(self.text)

    def _decide(self, sign: str, other: Any, outcome: bool) -> bool:
        right = other.text if isinstance(other, Traced) else repr(other)
        self.trace.guards[f"({self.text} {sign} {right}) is {outcome}"] = None
        return outcome

    def __bool__(self) -> bool:
        return self._decide("!=", 0, self.value != 0)

    def __index__(self) -> int:
        """Return the value, which the text now depends on."""
        if isinstance(self.value, float):
            raise TypeError(f"{self!r} is no integer")
        self._decide("==", self.value, True)
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        self._decide("==", self.value, True)
        return float(self.value)

    def at_most(self, bound: int) -> None:
        """Note that the text holds for numbers up to a bound only."""
        self._decide("<=", bound, True)

    def __neg__(self) -> Traced:
        return Traced(self.trace, f"(-{self.text})", -self.value)

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise TypeError(f"{self!r} cannot be rounded in a kernel's text")


_SIMPLE: dict[str, tuple[Callable[[Any], bool], Callable[[Any], bool]]] = {
    # Operands on the left, and on the right, that leave the other one as it is.
    "+": (lambda a: a == 0, lambda b: b == 0),
    "-": (lambda a: False, lambda b: b == 0),
    "*": (lambda a: a == 1, lambda b: b == 1),
    "//": (lambda a: False, lambda b: b == 1),
}


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the methods of an operation, for a Traced on its left and on its right."""
    left_simple, right_simple = _SIMPLE.get(sign, (lambda a: False, lambda b: False))

    def made(left: Any, right: Any) -> Any:
        trace = left.trace if isinstance(left, Traced) else right.trace
        (a, x), (b, y) = (
            (o.text, o.value) if isinstance(o, Traced) else (repr(o), o) for o in (left, right)
        )
        return Traced(trace, f"({a} {sign} {b})", compute(x, y))

    def on_left(self: Traced, other: Any) -> Any:
        if not isinstance(other, (int, float, Traced)):
            return NotImplemented
        if _whole(other) and right_simple(other):
            return self
        if _whole(other) and other == 0 and sign == "*" and _whole(self.value):
            return 0
        return made(self, other)

    def on_right(self: Traced, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        if _whole(other) and left_simple(other):
            return self
        if _whole(other) and other == 0 and sign == "*" and _whole(self.value):
            return 0
        return made(other, self)

    return on_left, on_right


def _comparison(sign: str, compute: Callable[[Any, Any], bool]) -> Any:
    def compare(self: Traced, other: Any) -> Any:
        if not isinstance(other, (int, float, Traced)):
            return NotImplemented
        value = other.value if isinstance(other, Traced) else other
        return self._decide(sign, other, compute(self.value, value))

    return compare


for _name, _sign, _compute in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod),
    ("truediv", "/", operator.truediv),
):
    _left, _right = _arithmetic(_sign, _compute)
    setattr(Traced, f"__{_name}__", _left)
    setattr(Traced, f"__r{_name}__", _right)
for _name, _sign, _compute in (
    ("eq", "==", operator.eq),
    ("ne", "!=", operator.ne),
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
):
    setattr(Traced, f"__{_name}__", _comparison(_sign, _compute))


class Open(int):
    """An extent, or what follows from extents, that is another number at other shapes of a network.

    other: that number at the network's other shape, the same one whatever the first is. Choices that
    all shapes share are made from it, or from both (`alike`), or from neither (`is_one`).
    """

    other: int

    def __new__(cls, value: int, other: int) -> Open:
        """Return `value`, which is `other` elsewhere."""
        number = super().__new__(cls, value)
        number.other = other
        return number

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.other

    def __neg__(self) -> Open:
        return Open(-int(self), -self.other)


def _open_arithmetic(name: str) -> tuple[Any, Any]:
    """Return the methods of an operation on integers, for an Open on its left and on its right."""
    is_product = name == "mul"
    forward, backward = getattr(int, f"__{name}__"), getattr(int, f"__r{name}__")
    new = int.__new__

    # A plan makes thousands of them: each method is one call.
    def method(compute: Callable[[int, int], int], keeps: Callable[[int], bool]) -> Any:
        def apply(self: Open, operand: Any) -> Any:
            kind = type(operand)
            if kind is int:
                if keeps(operand):
                    return self
                if is_product and not operand:
                    return 0
                there = operand
            elif kind is Open:
                there = operand.other
            else:
                return NotImplemented
            number = new(Open, compute(self, operand))
            try:
                number.other = compute(self.other, there)
            except ZeroDivisionError:  # the quotient has no meaning at the other shape
                number.other = int(number)
            return number

        return apply

    neutral = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}.get(name)
    left = frozenset(() if neutral is None else (neutral,))
    right = left if name in ("add", "mul") else frozenset[int]()
    return method(forward, left.__contains__), method(backward, right.__contains__)


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _left, _right = _open_arithmetic(_name)
    setattr(Open, f"__{_name}__", _left)
    setattr(Open, f"__r{_name}__", _right)


def other(number: int) -> int:
    """Return what a number is at the network's other shape."""
    return number.other if isinstance(number, Open) else number


def is_open(number: Number | Traced) -> bool:
    """Whether a number is not the same at all shapes, or read at run time."""
    return isinstance(number, (Open, Traced))


def alike(a: int, b: int) -> bool:
    """Whether numbers are equal, here and at the network's other shape."""
    return a == b and other(a) == other(b)


def least(*numbers: int) -> int:
    """Return the least of numbers, open where one of them is."""
    return _chosen(min, numbers)


def greatest(*numbers: int) -> int:
    """Return the greatest of numbers, open where one of them is."""
    return _chosen(max, numbers)


def _chosen(choose: Callable[[Sequence[int]], int], numbers: Sequence[int]) -> int:
    if not any(isinstance(n, Open) for n in numbers):
        return choose(numbers)
    return opened(choose(numbers), choose([other(n) for n in numbers]))


def opened(number: int, there: int) -> int:
    """Return a number that is another one at the network's other shape."""
    if type(number) in (int, Open):
        return Open(int(number), int(there))
    found: int = number.opened(there)  # type: ignore[attr-defined]  # of clnn.recorded
    return found


def divides(divisor: Number | Traced, number: Number | Traced) -> bool:
    """Whether a number is a multiple of another, as far as a kernel's text may depend on it.

    False for numbers that are read at run time: only for texts that hold for multiples, too.
    """
    if isinstance(number, (Open, Traced)) or isinstance(divisor, (Open, Traced)):
        return False
    return number % divisor == 0


def today(number: Number | Traced) -> Number:
    """Return the value that a number has while the text is made.

    Only for what makes no difference to results, such as how much is read ahead: the text serves other
    values, too.
    """
    return number.value if isinstance(number, Traced) else number


def room(number: int | Traced, most: int) -> int:
    """Return the length of an array for `number` elements: for a run-time number, `most`.

    The text holds for all numbers up to that. Raises ValueError for one above it.
    """
    if not isinstance(number, Traced):
        return number
    if number.value > most:
        raise ValueError(f"an array of at most {most} elements is to hold {number.value}")
    number.at_most(most)
    return most


def is_traced(number: Number | Traced) -> bool:
    """Whether a number is read at run time."""
    return isinstance(number, Traced)


def is_one(extent: Number | Traced) -> bool:
    """Whether an extent is 1 at all shapes; False for those read at run time, as `divides`."""
    return not is_open(extent) and extent == 1


def times(factor: int, number: Number | Traced) -> str:
    """Return the text of a product; one with what is read at run time is left to the compiler."""
    return f"{factor} * {number}" if isinstance(number, Traced) else str(factor * number)


def is_zero(number: Number | Traced) -> bool:
    """Whether a number is 0 at all shapes; False for those read at run time, as `divides`."""
    return not is_open(number) and number == 0


def compiled(values: int, expressions: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    """Return the function of v0, v1, ... that computes expressions."""
    names = ", ".join(f"v{k}" for k in range(values))
    body = "".join(f"{e}, " for e in expressions)
    known = {"__builtins__": {}, "inf": math.inf, "nan": math.nan}
    found: Callable[..., tuple[Any, ...]] = eval(f"lambda {names}: ({body})", known)
    return found
