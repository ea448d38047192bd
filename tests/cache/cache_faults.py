"""Stand-ins for the `os` of clnn.cache.files that fail, kill, dribble or watch."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from clnn.cache import files, privacy, store

CALLS = (
    "open",
    "fstat",
    "read",
    "write",
    "fsync",
    "close",
    "replace",
    "mkdir",
    "unlink",
    "utime",
    "scandir",
)
WRITING_CALLS = ("open", "write", "fsync", "close", "replace", "mkdir", "unlink", "utime")


class HookedOs:
    """The module `os`, with `hook(name, number, args)` called before each file call."""

    def __init__(
        self, hook: Callable[[str, int, tuple[Any, ...]], None], calls: tuple[str, ...] = CALLS
    ) -> None:
        self.hook, self.calls, self.count = hook, calls, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.calls:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            self.hook(name, self.count - 1, args)
            return real(*args, **kwargs)

        return call


def failing(chosen: Callable[[int], bool], number: int) -> HookedOs:
    """Fail the chosen calls with errno `number`. A close that fails has closed, as on Linux."""

    def hook(name: str, index: int, args: tuple[Any, ...]) -> None:
        if chosen(index):
            if name == "close":
                os.close(args[0])
            raise OSError(number, os.strerror(number))

    return HookedOs(hook)


def killing(at: int) -> HookedOs:
    """Kill this process, uncatchably, before call `at`; a write is torn in the middle first."""

    def hook(name: str, index: int, args: tuple[Any, ...]) -> None:
        if index == at:
            if name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return HookedOs(hook)


class DribblingOs(HookedOs):
    """An `os` that reads and writes at most `most` bytes per call."""

    def __init__(self, most: int) -> None:
        super().__init__(lambda *_: None)
        self.most = most

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data[: self.most])

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, min(size, self.most))


@contextmanager
def using(stand_in: Any) -> Iterator[Any]:
    """Let clnn.cache.files call `stand_in` in place of `os`."""
    files.os = stand_in
    try:
        yield stand_in
    finally:
        files.os = os


def forget() -> None:
    """Forget what this process learnt of folders, as a new process would not know it."""
    store._HEALTH.clear()
    privacy.forget()


ERRNOS = {
    name: getattr(errno, name)
    for name in (
        "ENOSPC",
        "EACCES",
        "EROFS",
        "EIO",
        "EDQUOT",
        "ENOENT",
        "ENOTDIR",
        "EISDIR",
        "EMFILE",
    )
}
