"""Copies of frozen dataclasses, made quickly: planning a network makes thousands of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def field_names(kind: Hashable) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, in order."""
    return tuple(f.name for f in fields(kind))  # type: ignore[arg-type]


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
