"""Dataclasses that are made quickly, and quick copies of them: planning a network makes thousands."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import MISSING, Field, FrozenInstanceError, fields, is_dataclass, replace
from dataclasses import dataclass as _plain
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")


class _Factory:
    """The default of an argument for which a field's factory is called, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """Make a class what dataclasses.dataclass makes of it, in a quarter of the time.

        That compiles a text for each method, in every process that imports the class; here __init__ alone is
        compiled, the others read fields by a getter. `fields`, `replace` and `asdict` of dataclasses take
        these classes. Left out is what no class of clnn has: order, slots, InitVar, a field's own hash.
        """
        if cls is None:
            return lambda cls: _record(cls, frozen, eq)
        return _record(cls, frozen, eq)


def _record(cls: type, frozen: bool, eq: bool) -> type:
    """Give a class its fields, and the methods that it has not itself."""
    own = {name for name, value in cls.__dict__.items() if value is not None}
    cls = _plain(init=False, repr=False, eq=False)(cls)
    members = fields(cls)
    methods: dict[str, Callable[..., Any] | None] = {
        "__init__": _init(members, frozen, hasattr(cls, "__post_init__")),
        "__repr__": _repr(tuple(f.name for f in members if f.repr)),
    }
    if eq:
        methods |= _comparisons(tuple(f.name for f in members if f.compare), frozen)
    if frozen:
        methods |= _refusals(cls, {f.name for f in members})
    for name in methods.keys() - own:
        if (method := methods[name]) is not None:
            method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
    return cls


def _init(members: tuple[Field[Any], ...], frozen: bool, more: bool) -> Callable[..., None]:
    """Return __init__. more: it calls __post_init__."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    positional, named, lines = ["self"], ["*"], []
    for f in members:
        value = f.name
        argument = f.name
        if f.default_factory is not MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            argument += "=_FACTORY"
            made = f"_make_{f.name}()"
            value = f"{made} if {f.name} is _FACTORY else {f.name}" if f.init else made
        elif f.default is not MISSING:
            known[f"_default_{f.name}"] = f.default
            argument += f"=_default_{f.name}"
        if f.init:
            (named if f.kw_only else positional).append(argument)
        if f.init or f.default_factory is not MISSING:
            lines.append(
                f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}"
            )
    if more:
        lines.append("self.__post_init__()")
    arguments = ", ".join(positional + (named if len(named) > 1 else []))
    exec(f"def __init__({arguments}):\n " + "\n ".join(lines or ["pass"]), known)
    method: Callable[..., None] = known["__init__"]
    method.__annotations__ = {f.name: f.type for f in members if f.init} | {"return": None}
    return method


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the values of an object's attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    """Return __repr__, which shows these fields."""

    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _comparisons(names: tuple[str, ...], frozen: bool) -> dict[str, Callable[..., Any] | None]:
    """Return __eq__ and __hash__ by these fields; what can change has no hash."""
    values = _getter(names)

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _refusals(cls: type, names: set[str]) -> dict[str, Callable[..., Any] | None]:
    """Return the methods that keep a frozen class's fields as they are."""

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


@cache
def field_names(kind: Hashable) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, in order."""
    return tuple(f.name for f in fields(kind))  # type: ignore[arg-type]


@cache
def dataclass_fields(kind: Hashable) -> tuple[str, ...] | None:
    """Return the names of a dataclass's fields, None for another class."""
    return field_names(kind) if isinstance(kind, type) and is_dataclass(kind) else None


class HashedOnce:
    """A key that is looked up several times, and takes long to hash. Raises TypeError where it has no hash."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is HashedOnce and self._hash == other._hash and self.key == other.key


@cache
def _is_plain(kind: Hashable) -> bool:
    """Whether objects are their fields and nothing else: none computed from others, no slots."""
    all_given = all(f.init for f in fields(kind))  # type: ignore[arg-type]
    return all_given and not (hasattr(kind, "__post_init__") or hasattr(kind, "__slots__"))


def changed(record: T, **values: Any) -> T:
    """Return a copy of a dataclass's object in which some fields have other values.

    As dataclasses.replace, but for names of fields that are not checked. What the object has cached
    besides its fields is not copied.
    """
    kind = type(record)
    if not _is_plain(kind):  # type: ignore[arg-type]
        return replace(record, **values)  # type: ignore[type-var]
    new = object.__new__(kind)
    held, names = record.__dict__, field_names(kind)  # type: ignore[arg-type]
    into = new.__dict__
    if len(held) == len(names):
        into.update(held)
    else:
        into.update((name, held[name]) for name in names)
    into.update(values)
    return new
