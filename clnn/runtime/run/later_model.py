"""What makes sessions of a model at shapes that the cache has not, made itself when the first one comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from clnn.errors import ClnnError
from clnn.runtime.run.gears import Gears, Shapes
from clnn.runtime.run.parts import Build
from clnn.runtime.run.session import Session


class Model(Protocol):
    """Makes sessions of a model at shapes (clnn.open_model)."""

    def special(self, shapes: Shapes, build: Build) -> Session:
        """As Gears takes it."""

    def ahead(self, build: Build) -> None:
        """As Gears takes it, for small images."""

    def lacking(self, shapes: Shapes, build: Build) -> None:
        """As Gears takes it."""

    def room(self, stop: Callable[[], bool]) -> None:
        """As Gears takes it."""

    def defer_to(self, gears: Gears) -> None:
        """Have what calls do not wait for done there."""

    def close(self) -> None:
        """Free the memory of runs at once."""

    def __call__(self, shapes: Shapes, wait: bool = True) -> Session:
        """Return the session for inputs of these shapes."""


class LaterModel:
    """An OpenModel that is made once it is needed, since what makes plans takes a while to import."""

    def __init__(self, make: Callable[[], Model], first: Shapes, dtype: str) -> None:
        """first: shapes with which the model begins, so that its kernels are those that a process before had."""
        self._make, self._first, self._lock = make, first, threading.Lock()
        self._there: Model | None = None
        self.gears = Gears(
            lambda shapes, build: self.model.special(shapes, build),
            lambda build: self.model.ahead(build),
            lambda shapes, build: self.model.lacking(shapes, build),
            lambda stop: self.model.room(stop),
            dtype,
        )

    @property
    def model(self) -> Model:
        """The model."""
        with self._lock:
            if self._there is None:
                made = self._make()
                made.defer_to(self.gears)
                with suppress(ClnnError):
                    made(self._first).close()
                self._there = made
            return self._there

    def __call__(self, shapes: Shapes, **how: Any) -> Session:
        """Return the session for inputs of these shapes, as an OpenModel does."""
        return self.model(shapes, **how)

    def close(self) -> None:
        """Free the memory of runs at once."""
        if self._there is not None:
            self._there.close()
