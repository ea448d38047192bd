"""Modes of a system: for all threads, or within a `with` block."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

Held = TypeVar("Held")


class Scoped(Generic[Held]):
    """A frozen dataclass of modes, of which calls take what holds where they are made."""

    def __init__(self, name: str, default: Held) -> None:
        """name: that of the context variable."""
        self._default = default
        self._scoped: contextvars.ContextVar[Held | None] = contextvars.ContextVar(
            name, default=None
        )

    def modes(self) -> Held:
        """Return what holds for calls made here and now."""
        return self._scoped.get() or self._default

    def configure(self, **changes: Any) -> Held:
        """Change fields of the modes that hold for all threads; return them."""
        self._default = replace(self._default, **changes)  # type: ignore[type-var]
        return self._default

    @contextmanager
    def using(self, **changes: Any) -> Iterator[Held]:
        """Let calls in the `with` block run with other fields of the modes."""
        token = self._scoped.set(replace(self.modes(), **changes))  # type: ignore[type-var]
        try:
            yield self.modes()
        finally:
            self._scoped.reset(token)
