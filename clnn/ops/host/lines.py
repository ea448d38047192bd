"""Operators as lines of Python, for values whose extents are known: what a loop's turns do on the host.

A value of one element, or of many that are all the same, is a Python number here: arithmetic on it takes a tenth of
the time that numpy takes for an array. A line that would give another result than numpy raises Deviates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from struct import Struct
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode
from clnn.records import dataclass
from clnn.types import Array

_NUMBERS = frozenset(
    np.dtype(kind)
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64"),
    )
)
_EXACT = 2**53  # whole numbers up to here are doubles
_SINGLE = Struct("f")


class DeviatesError(Exception):
    """What a line was written for is not so in this turn."""


@dataclass(frozen=True)
class Form:
    """A value as lines have it. text: a variable, or a number where the value is one number.

    dtype, shape: None where they may be others in each turn, or it is no array. is_number: whether `text` is a Python
    number, of which all elements are. array: the elements where they are the same in all turns.
    """

    text: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    is_number: bool = False
    array: Array | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has these extents in all turns."""
        return self.shape is not None

    @property
    def is_one(self) -> bool:
        """Whether a number can stand for it."""
        one = self.shape is not None and self.dtype in _NUMBERS
        return one and (self.is_number or prod(self.shape or ()) == 1)


@dataclass
class Lines:
    """Lines that are written, with their variables and the objects that they name."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)
    _numbers: dict[str, str] = field(default_factory=dict)

    def name(self) -> str:
        """Return the name of a new variable."""
        return f"v{len(self.lines)}_"

    def let(self, expression: str) -> str:
        """Write a variable; return its name."""
        name = self.name()
        self.lines.append((name, f"{name} = {expression}"))
        return name

    def require(self, condition: str) -> None:
        """Write what must hold."""
        self.lines.append(("", f"if not ({condition}): raise Deviates"))

    def object(self, thing: Any) -> str:
        """Return the name of an object."""
        name = f"o{len(self.objects)}_"
        self.objects[name] = thing
        return name

    def number(self, form: Form) -> str:
        """Return the number that stands for a value."""
        if form.is_number:
            return form.text
        if form.array is not None:
            value = form.array.item()
            return repr(value) if value == value and abs(value) != np.inf else self.object(value)
        if form.text not in self._numbers:
            self._numbers[form.text] = self.let(f"{form.text}.item()")
        return self._numbers[form.text]

    def whole(self, form: Form) -> str:
        """Return a value as an array."""
        if not form.is_number:
            return form.text
        assert form.dtype is not None and form.shape is not None
        kind = self.object(form.dtype)
        if prod(form.shape) == 1:
            return self.let(f"array({form.text}, {kind}, ndmin={len(form.shape)})")
        return self.let(f"full({form.shape}, {form.text}, {kind})")

    def has_form(self, form: Form) -> None:
        """Write that a value is an array of this type and these extents."""
        kind = self.object(form.dtype)
        self.require(
            f"type({form.text}) is ndarray and {form.text}.dtype is {kind} and {form.text}.shape == {form.shape}"
        )


Write = Callable[[HostNode, Sequence[Form], Form, Lines], "Form | None"]
_WRITERS: dict[str, Write] = {}


def written(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    """Write a node of one output; None where it has no lines of its own. made: what it made so far."""
    write = _WRITERS.get(node.op_type)
    return None if write is None or not made.is_known else write(node, given, made, lines)


def single(value: float) -> float:
    """Return a number as a float32 has it. Raises OverflowError."""
    found: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return found


def _writer(*op_types: str) -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        _WRITERS.update(dict.fromkeys(op_types, write))
        return write

    return register


def _number(expression: str, made: Form, lines: Lines) -> Form:
    """Write a number of the type and extents of `made`; whole numbers must fit the type."""
    text = lines.let(expression)
    assert made.dtype is not None
    if made.dtype.kind in "iu":
        ends = np.iinfo(made.dtype)
        lines.require(f"{ends.min} <= {text} <= {ends.max}")
    return Form(text, made.dtype, made.shape, True)


def _alike(given: Sequence[Form]) -> bool:
    """Whether numbers of one type stand for values."""
    return all(form.is_one for form in given) and len({form.dtype for form in given}) == 1


_SIGNS = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARISONS = {
    "Equal": "==",
    "Greater": ">",
    "GreaterOrEqual": ">=",
    "Less": "<",
    "LessOrEqual": "<=",
}
_OF_TRUTH = {"And": "and", "Or": "or", "Xor": "!="}
_FLOAT32 = np.dtype(np.float32)


@_writer(*_SIGNS)
def _arithmetic(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    if len(given) != 2 or not _alike(given) or made.dtype is None or made.dtype.kind == "b":
        return None
    left, right = map(lines.number, given)
    # Of two float32 the sum, difference or product as a double, rounded, is that of float32.
    expression = f"{left} {_SIGNS[node.op_type]} {right}"
    return _number(f"single({expression})" if made.dtype == _FLOAT32 else expression, made, lines)


@_writer(*_COMPARISONS)
def _compared(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    if not _alike(given):
        return None
    left, right = map(lines.number, given)
    return _number(f"{left} {_COMPARISONS[node.op_type]} {right}", made, lines)


@_writer(*_OF_TRUTH)
def _truth(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    if not _alike(given) or given[0].dtype != np.dtype(bool):
        return None
    left, right = map(lines.number, given)
    return _number(f"{left} {_OF_TRUTH[node.op_type]} {right}", made, lines)


@_writer("Not")
def _not(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    (x,) = given
    if not x.is_one or x.dtype != np.dtype(bool):
        return None
    return _number(f"not {lines.number(x)}", made, lines)


@_writer("Min", "Max")
def _extreme(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    if len(given) != 2 or not _alike(given) or made.dtype is None or made.dtype.kind not in "iu":
        return None
    left, right = map(lines.number, given)
    sign = "<" if node.op_type == "Min" else ">"
    return _number(f"{left} if {left} {sign} {right} else {right}", made, lines)


@_writer("Cast")
def _cast(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    (x,) = given
    if made.dtype is None or x.dtype is None or made.dtype not in _NUMBERS or not x.is_one:
        return None
    if made.dtype == x.dtype:
        return _as_it_is(x, made)
    text = lines.number(x)
    if made.dtype.kind == "b":
        return _number(f"{text} != 0", made, lines)
    if made.dtype.kind in "iu":
        return _number(f"int({text})", made, lines)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        lines.require(f"-{_EXACT} <= {text} <= {_EXACT}")
    single = made.dtype == _FLOAT32
    return _number(f"single({text})" if single else f"float({text})", made, lines)


def _as_it_is(x: Form, made: Form) -> Form:
    """Return a number with the extents of what is made."""
    return Form(x.text, made.dtype, made.shape, x.is_number, x.array)


@_writer("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def _viewed(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    x, *others = given
    if not x.is_known or any(form.array is None for form in others):
        return None
    if x.is_one:
        return Form(lines.number(x), made.dtype, made.shape, True)
    return Form(lines.let(f"{x.text}.reshape({made.shape})"), made.dtype, made.shape)


@_writer("Identity")
def _identity(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    (x,) = given
    return x


@_writer("Tile", "Expand")
def _repeated(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    x, shape = given
    if not x.is_one or shape.array is None:
        return None
    return Form(lines.number(x), made.dtype, made.shape, True)


@_writer("Range")
def _range(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    """Of one whole number."""
    whole = made.dtype is not None and made.dtype.kind in "iu"
    if not whole or made.shape != (1,) or not _alike(given):
        return None
    start, stop, step = map(lines.number, given)
    lines.require(f"{start} + {step} == {stop} != {start}")
    return Form(start, made.dtype, made.shape, True)


@_writer("Slice")
def _slice(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    """Along one axis that is known, one by one."""
    if node.opset < 10 or not 4 <= len(given) <= 5 or not given[0].is_known:
        return None
    x, begin, end, axes, *steps = given
    assert x.shape is not None and made.shape is not None
    if axes.array is None or axes.array.size != 1 or not begin.is_one or not end.is_one:
        return None
    if any(s.array is None or s.array.tolist() != [1] for s in steps):
        return None
    axis = axes.array.item()
    if not 0 <= axis < len(x.shape) or len(made.shape) != len(x.shape):
        return None
    first, last = lines.number(begin), lines.number(end)
    kept = lines.let(f"range({x.shape[axis]})[{first}:{last}]")
    lines.require(f"len({kept}) == {made.shape[axis]}")
    parts = ":, " * axis
    cut = f"{lines.whole(x)}[{parts}{kept}.start:{kept}.stop]"
    return Form(lines.let(cut), made.dtype, made.shape)


@_writer("ScatterElements")
def _scatter(node: HostNode, given: Sequence[Form], made: Form, lines: Lines) -> Form | None:
    """One row or column, written where all indices say the same."""
    data, at, updates = given
    axis = int(node.attr("axis", 0))
    if axis < 0 or node.attr("reduction", "none") != "none" or not at.is_one:
        return None
    if data.shape is None or updates.shape is None or at.shape is None:
        return None
    pairs = list(zip(at.shape, data.shape, strict=True))
    inside = all(a == axis or i <= d for a, (i, d) in enumerate(pairs))
    if (
        at.shape[axis] != 1
        or updates.shape != at.shape
        or not inside
        or updates.dtype != data.dtype
    ):
        return None
    number, extent = lines.number(at), data.shape[axis]
    lines.require(f"{-extent} <= {number} < {extent}")
    index = ", ".join(f"{number}" if a == axis else f":{i}" for a, (i, _) in enumerate(pairs))
    rest = tuple(i for a, i in enumerate(at.shape) if a != axis)
    out = lines.let(f"{lines.whole(data)}.copy()")
    value = updates.text if updates.is_number else f"{updates.text}.reshape({rest})"
    lines.lines.append((out, f"{out}[{index}] = {value}"))
    return Form(out, data.dtype, data.shape)
