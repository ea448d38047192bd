"""Pieces of work side by side whose programs are built together: that costs a driver less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from joined import build_joined, missing_of

from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load

T, R = TypeVar("T"), TypeVar("R")
PATIENCE = 20.0  # seconds after which a piece of work waits for no others


class Meeting:
    """Work on threads, each of which waits in Device.build until all others do or have ended.

    Then one builds what all of them asked for as one program. A context manager: Device builds so
    for the threads of `map` while it is open, and as ever for others.
    """

    def __init__(self, at_once: int = 16) -> None:
        self._at_once = at_once
        self._changed = threading.Condition()
        self._own = threading.local()
        self._working = 0
        self._waiting: list[_Request] = []
        # (program, source, kernel) -> its name: also what keeps the programs, so that none is taken for another
        self._names: dict[tuple[Any, str, str], str] = {}
        self._opened: dict[DeviceInfo, Device] = {}
        self._before: tuple[Any, Any, Any] = (None, None, None)

    def __enter__(self) -> Meeting:
        self._before = Device.build, Device.kernel, Device.open
        build, kernel = self._build, self._kernel
        Device.open = staticmethod(self._open)  # type: ignore[method-assign]
        Device.build = lambda device, sources: build(device, sources)  # type: ignore[method-assign]
        Device.kernel = lambda device, *of: kernel(device, *of)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Device.build, Device.kernel, Device.open = self._before  # type: ignore[method-assign]

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return work(item) of each, in order. Raises what the first that fails raises."""
        done: dict[int, Future[R]] = {}
        coming = iter(enumerate(items))
        self._working = self._at_once
        with ThreadPoolExecutor(self._at_once) as pool:
            for runner in [
                pool.submit(self._run, work, coming, done) for _ in range(self._at_once)
            ]:
                runner.result()
        return [done[number].result() for number in sorted(done)]

    def _run(
        self, work: Callable[[T], R], coming: Iterator[tuple[int, T]], done: dict[int, Future[R]]
    ) -> None:
        """Do what comes until nothing does."""
        self._own.here = True
        try:
            while (found := self._next(coming)) is not None:
                number, item = found
                done[number] = Future()
                try:
                    done[number].set_result(work(item))
                except BaseException as err:
                    done[number].set_exception(err)
        finally:
            self._own.here = False
            with self._changed:
                self._working -= 1
                self._build_if_all_wait()

    def _next(self, coming: Iterator[tuple[int, T]]) -> tuple[int, T] | None:
        with self._changed:
            return next(coming, None)

    def _build(self, device: Device, sources: Mapping[str, str]) -> None:
        if getattr(self._own, "here", False) and missing_of(device, sources.items()):
            request = _Request(device, sources)
            with self._changed:
                self._waiting.append(request)
                self._build_if_all_wait()
                while not request.over:
                    if not self._changed.wait(PATIENCE) and not request.over:
                        self._build_all()
        self._before[0](device, sources)

    def _build_if_all_wait(self) -> None:
        if self._waiting and len(self._waiting) >= self._working:
            self._build_all()

    def _build_all(self) -> None:
        requests, self._waiting = self._waiting, []
        self._own.here, here = False, getattr(self._own, "here", False)
        try:
            for info in dict.fromkeys(r.device.info for r in requests):
                self._build_on([r for r in requests if r.device.info == info])
        finally:
            self._own.here = here
            for request in requests:
                request.over = True
            self._changed.notify_all()

    def _build_on(self, requests: Sequence[_Request]) -> None:
        """Build what was asked for of one device, whose programs others with its context may use."""
        wanted = [r.missing() for r in requests]
        sources = {source: source for each in wanted for source in each}
        first = requests[0].device
        names = build_joined(first, sources) if len(sources) > 1 else {}
        for (source, kernel), name in names.items():
            self._names[first.programs[source], source, kernel] = name
        for request, each in zip(requests, wanted, strict=True):
            built = {s: first.programs[s] for s in each if s in first.programs}
            request.device.programs |= built

    def _open(self, info: DeviceInfo) -> Device:
        """Return a device on a context that all share, as programs of others can be used there alone."""
        open_device: Callable[[DeviceInfo], Device] = self._before[2]
        if not getattr(self._own, "here", False):
            return open_device(info)
        with self._changed:
            if info not in self._opened:
                self._opened[info] = open_device(info)
            return self._opened[info].beside()

    def _kernel(self, device: Device, source: str, name: str) -> Any:
        program = device.programs[source]
        return load().Kernel(program, self._names.get((program, source, name), name))


class _Request:
    """What a piece of work waits for."""

    def __init__(self, device: Device, sources: Mapping[str, str]) -> None:
        self.device, self.sources, self.over = device, sources, False

    def missing(self) -> list[str]:
        """Return the sources that its device lacks."""
        return [*missing_of(self.device, self.sources.items()).values()]
