"""clnn's dataclasses are those of dataclasses.dataclass, made by another way."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest
from common import ROOT

from clnn import records

Decorate = Callable[..., Any]


def family(dataclass: Decorate) -> dict[str, type]:
    """Return classes as clnn has them, made by a decorator."""

    @dataclass(frozen=True)
    class Point:
        """All that a frozen class may have."""

        unit: ClassVar[str] = "mm"
        x: int
        y: float = 1.5
        tags: list[str] = field(default_factory=list, compare=False)
        name: str = field(default="p", repr=False)
        half: float = field(init=False)
        strict: bool = field(default=False, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "half", self.x / 2)

    @dataclass(frozen=True)
    class Solid(Point):
        """Fields behind those of its base."""

        z: int = 0

    class Named(Point):
        """No dataclass of its own, so that it takes other attributes."""

    @dataclass
    class Count:
        """It changes, so it has no hash."""

        n: int = 0
        seen: dict[str, int] = field(default_factory=dict)
        made: list[int] = field(init=False, default_factory=list)

    @dataclass(frozen=True, eq=False)
    class Marker:
        """An object is equal to itself alone."""

        n: int

    @dataclass(frozen=True)
    class One:
        """A single field, which may be no number."""

        value: Any

    @dataclass(frozen=True)
    class Nothing:
        """No field."""

    @dataclass(frozen=True)
    class Own:
        """Its own methods stay."""

        n: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

    return {c.__name__: c for c in (Point, Solid, Named, Count, Marker, One, Nothing, Own)}


HERE, THERE = family(records.dataclass), family(dataclasses.dataclass)
CALLS = [
    ("Point", (3,), {}),
    ("Point", (3, 2.0, ["a"], "q"), {"strict": True}),
    ("Point", (), {"x": 4}),
    ("Point", (3, 2.0, [], "q", True), {}),
    ("Point", (), {}),
    ("Point", (1,), {"half": 2.0}),
    ("Solid", (3,), {"z": 2}),
    ("Solid", (3, 1.0, [], "n", 2), {"strict": True}),
    ("Named", (3,), {}),
    ("Count", (), {}),
    ("Count", (2, {"a": 1}), {}),
    ("Marker", (2,), {}),
    ("One", ([1],), {}),
    ("One", (None,), {}),
    ("Nothing", (), {}),
    ("Own", (2,), {}),
]


def attempt(what: Callable[[], Any]) -> Any:
    """Return a result, or the error instead."""
    try:
        return what()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


def facts(kind: type, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return what can be seen of a class and its objects without the class itself."""
    one, other = (attempt(lambda: kind(*args, **named)) for _ in range(2))
    first = next((f.name for f in dataclasses.fields(kind)), "first")  # type: ignore[arg-type]
    seen = [
        [(str(p), p.annotation) for p in inspect.signature(kind).parameters.values()],
        kind.__init__.__qualname__,
        kind.__match_args__,  # type: ignore[attr-defined]
        [f.name for f in dataclasses.fields(kind)],
    ]
    if not dataclasses.is_dataclass(one):
        return [*seen, one]
    return [
        *seen,
        dataclasses.asdict(one),  # type: ignore[arg-type]
        vars(one),
        repr(one) if kind.__repr__ is not object.__repr__ else "",
        one == other,
        one != other,
        one == 3,
        attempt(lambda: hash(one) == hash(other)),
        attempt(lambda: setattr(one, first, 9)),
        attempt(lambda: setattr(one, "more", 9)),
        attempt(lambda: delattr(one, "more")),
        vars(copy.deepcopy(one)) == vars(one),
        attempt(lambda: vars(dataclasses.replace(one)) == vars(one)),  # type: ignore[type-var]
    ]


@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_classes_are_as_those_of_the_standard(
    name: str, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Signatures, objects, errors, comparisons, hashes and refusals."""
    assert facts(HERE[name], args, named) == facts(THERE[name], args, named)


def test_hashes_are_of_the_compared_fields() -> None:
    """The same number as from the standard's classes, so that sets have the same order."""
    for args in ((3,), (4, 2.0, ["a"], "q")):
        assert hash(HERE["Point"](*args)) == hash(THERE["Point"](*args))
    assert hash(HERE["One"](5)) == hash((5,)) and hash(HERE["Nothing"]()) == hash(())
    assert HERE["Point"](1, tags=["a"]) == HERE["Point"](1, tags=["b"])
    assert HERE["Point"](1) != HERE["Solid"](1)


def test_one_that_is_not_equal_to_itself() -> None:
    """Fields are compared as members of tuples are: what is the same object is equal."""
    odd = float("nan")
    assert HERE["One"](odd) == HERE["One"](odd)
    assert HERE["One"](odd) != HERE["One"](float("nan"))


def test_a_record_that_holds_itself_has_a_repr() -> None:
    """As in the standard's."""
    count = HERE["Count"]()
    count.seen["self"] = count
    assert repr(count).count("Count(") == 1 and "..." in repr(count)


@records.dataclass(frozen=True)
class Kept:
    """One that a name leads to."""

    n: int
    more: tuple[int, ...] = ()


def test_frozen_objects_are_pickled_and_stay_frozen() -> None:
    """Pickles set no attributes one by one."""
    again = pickle.loads(pickle.dumps(Kept(3, (1, 2))))
    assert again == Kept(3, (1, 2))
    with pytest.raises(FrozenInstanceError):
        again.n = 4


def test_changed_copies() -> None:
    """With other values, as dataclasses.replace gives them."""
    assert records.changed(Kept(3, (1,)), n=4) == dataclasses.replace(Kept(3, (1,)), n=4)


def test_a_field_without_a_default_behind_one_with() -> None:
    """Is refused when the class is made."""
    with pytest.raises((TypeError, SyntaxError)):

        @records.dataclass
        class _Wrong:
            a: int = 0
            b: int  # type: ignore[misc]


def test_all_dataclasses_of_clnn_are_made_by_it() -> None:
    """Each import of the standard's costs every start."""
    wrong = [
        path
        for path in (ROOT / "clnn").rglob("*.py")
        if re.search(r"^from dataclasses import .*\bdataclass\b(?! as)", path.read_text(), re.M)
    ]
    assert not wrong
