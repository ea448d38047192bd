"""What all sessions of models with open dimensions or stages have in common: calls by names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from clnn.errors import InputNameError, PickleError, SettingError
from clnn.runtime.process.forked import not_pickled
from clnn.runtime.run.awaitable import AwaitableCalls
from clnn.runtime.run.feeds import names_message

OwnKind = TypeVar("OwnKind", bound="NamedSession")


class Named(Protocol):
    """An input or output of a model."""

    @property
    def name(self) -> str:
        """Its name in the model."""


def wanted_names(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the outputs that a caller wants. Raises InputNameError for others than those known."""
    wanted = list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputNameError(names_message("output", unknown, [], known))
    return wanted


def given_by_name(feeds: Mapping[str, Any], inputs: Sequence[Named]) -> dict[str, Any]:
    """Return what is fed, in the order of the inputs.

    Raises InputNameError where `feeds` is no mapping, or names are missing or unknown.
    """
    if not isinstance(feeds, Mapping):
        raise InputNameError(f"a session takes {{input name: array}}, not {type(feeds).__name__}.")
    known = [info.name for info in inputs]
    if feeds.keys() == {*known}:
        return {name: feeds[name] for name in known}
    missing = [name for name in known if name not in feeds]
    unknown = [name for name in feeds if name not in known]
    if missing or unknown:
        raise InputNameError(names_message("input", unknown, missing, known))
    return {name: feeds[name] for name in known}


def check_stream(feeds: Iterable[Mapping[str, Any]], depth: int) -> None:
    """Raise SettingError for a depth below 1, InputNameError for one feed in place of many."""
    if depth < 1:
        raise SettingError(f"stream(depth={depth}): depth must be at least 1.")
    if isinstance(feeds, Mapping):
        raise InputNameError("stream takes an iterable of feeds. For one feed call the session.")


class NamedSession(AwaitableCalls, ABC):
    """A session that is called with arrays by name."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[Named]:
        """What the model gives."""

    @property
    def _output_names(self) -> Sequence[str]:
        return [info.name for info in self.outputs]

    @abstractmethod
    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return {output name: array} for {input name: array}."""

    @abstractmethod
    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError."""

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the arrays of the outputs `names` (None: all), as onnxruntime's run does.

        Raises as a call does, and InputNameError for an output that the model has not.
        """
        known = self._output_names
        wanted = known if names is None else wanted_names(names, known)
        made = self(feeds)
        return [made[name] for name in wanted]

    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int = 2
    ) -> Generator[dict[str, Any], None, None]:
        """Return a generator of outputs for an iterable of feeds, one after the other.

        Raises SettingError for a depth below 1, else what a call raises.
        """
        check_stream(feeds, depth)
        return (self(feed) for feed in feeds)

    def __reduce__(self) -> NoReturn:
        raise PickleError(not_pickled("session"))

    def __enter__(self: OwnKind) -> OwnKind:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
