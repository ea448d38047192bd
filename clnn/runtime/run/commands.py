"""What a run is told and tells: memory, launches that are ready, what is handed on, events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clnn.records import dataclass
from clnn.types import Array


@dataclass(frozen=True)
class Memory:
    """A device buffer and where in it, in bytes, something begins."""

    buffer: Any
    start: int


@dataclass(frozen=True)
class Handed:
    """Dense values of a run in other device memory: where they are, and their bytes.

    taken: values that are copied from there, not uploaded. kept: outputs that are copied to there, not
    downloaded.
    """

    taken: Mapping[str, tuple[Memory, int]]
    kept: Mapping[str, tuple[Memory, int]]


NOT_HANDED = Handed({}, {})


@dataclass
class Enqueue:
    """One launch ready to go: kernel with arguments set, its work sizes, and what it is.

    cached: whether its program came from the cache. parts: the launches of a fused kernel that
    notes their times, and stamps: the buffer with these and its shape.
    """

    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    node: str
    title: str
    cached: bool = False
    parts: tuple[Enqueue, ...] = ()
    stamps: tuple[Any, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class RunEvents:
    """Events of one run: (value, event) of each copy, (time of the enqueue, event) of each launch.

    Times are time.perf_counter_ns of the host; `began` and `ended` bound the run. stamps: for each
    launch what its work-groups noted (see clnn.runtime.run.spans), None where they note nothing.
    """

    began: int
    ended: int
    uploads: list[tuple[str, Any]]
    launches: list[tuple[int, Any]]
    downloads: list[tuple[str, Any]]
    stamps: list[Array | None]
