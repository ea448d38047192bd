"""Children for what a driver may crash or hang in, forked from a process that has imported what they need.

Listing drivers and probing a device takes some children, each of which would import numpy and pyopencl anew:
more than what they do. The process that they are forked from uses no driver and has one thread. It ends by
itself when nobody has asked for a child for a while, or its parent has ended. Where there can be none, children
are started as by `child.run_python`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from clnn.runtime.process import child
from clnn.runtime.process.forked import renewed

# What children of this kind run. They have no use for threads of numpy's.
MODULES = ("clnn.runtime.device.icd_child", "clnn.runtime.device.probe_child", "pyopencl")
QUIET = {"OPENBLAS_NUM_THREADS": "1", "PYOPENCL_NO_CACHE": "1"}
# What begins the process that all children are forked from; none lives long enough to need a collector.
ORIGIN = "import gc; gc.disable(); " + child.BOOT
_AT_START = ("LD_", "PYTHON")  # variables that are read when a process starts
_BEGIN_S, _END_S = 30.0, 1.0  # until a child begins, and until the process ends
_lock = renewed(threading.Lock())


class NoneForkedError(Exception):
    """No child began."""


class _Origin:
    """The process that children are forked from."""

    def __init__(self, libraries: Sequence[str]) -> None:
        own, theirs = socket.socketpair()
        code = ORIGIN.format("process.forking_child")
        command = [
            sys.executable,
            "-c",
            code,
            "\n".join(sys.path),
            json.dumps([MODULES, libraries]),
        ]
        nowhere = subprocess.DEVNULL
        self.socket, self.environment = own, {**os.environ, **QUIET}
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=nowhere, stderr=nowhere, env=self.environment
            )

    def begins_as(self, env: Mapping[str, str]) -> bool:
        """Whether what only a new process would read of its environment is the same here."""
        return all(
            env.get(name) == self.environment.get(name)
            for name in {*env, *self.environment}
            if name.startswith(_AT_START)
        )

    def close(self) -> None:
        """Have it end."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)


_origins: list[_Origin] = []  # one, or none
_libraries: list[str] = []


def open_first(libraries: Sequence[str]) -> None:
    """Have the process open libraries that children will need, where opening them begins nothing.

    It is another matter where one cannot be opened, or ends the process: children open it themselves.
    """
    with _lock:
        _libraries[:] = libraries


def run_python(
    module: str, argument: Any, timeout_s: float, env: Mapping[str, str]
) -> tuple[str, str]:
    """Do what child.run_python does, in a forked child where there can be one."""
    began = time.monotonic()
    argv = ["-c", "\n".join(sys.path), json.dumps(argument)]
    request = {"code": child.BOOT.format(module), "argv": argv, "env": dict(env)}
    with suppress(NoneForkedError, OSError):
        return _run(_origin(env), request, timeout_s)
    left = timeout_s - (time.monotonic() - began)
    return child.run_python(module, argument, max(left, 0.0), {**QUIET, **env})


def _origin(env: Mapping[str, str]) -> _Origin:
    """Return the process for children of this environment. Raises NoneForkedError, OSError."""
    if sys.platform != "linux" or not sys.executable:
        raise NoneForkedError
    with _lock:
        if _origins and _origins[0].process.poll() is not None:
            _origins.pop().close()
        if not _origins:
            _origins.append(_Origin(_libraries))
        if not _origins[0].begins_as(env):
            raise NoneForkedError
        return _origins[0]


def _run(origin: _Origin, request: Mapping[str, Any], timeout_s: float) -> tuple[str, str]:
    with (
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        told, tell = os.pipe()
        with open(told, "rb", buffering=0) as told_file:
            try:
                files = [asked.fileno(), out.fileno(), err.fileno(), tell]
                socket.send_fds(origin.socket, [b"f"], files)
            finally:
                os.close(tell)
            number = _line(told_file, time.monotonic() + min(timeout_s, _BEGIN_S))
            if not number:  # it has ended, or hangs
                origin.process.kill()
                raise NoneForkedError
            end = _end(told_file, number, timeout_s)
        return child.answer(out, err, end)


def _end(told: IO[bytes], number: bytes, timeout_s: float) -> str:
    """Return how the child with that number ended, which it tells. Kills it after the time."""
    deadline = time.monotonic() + timeout_s
    try:
        status = _line(told, deadline)
    except BaseException:
        _kill(int(number))
        raise
    if status is None:
        _kill(int(number))
        return f"did not answer within {timeout_s:g} s"
    return child.how_it_ended(int(status or -signal.SIGKILL))


def _line(told: IO[bytes], deadline: float) -> bytes | None:
    """Return the next line, less its end; b"" where none comes any more, None where none comes in time."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([told], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            return None
        byte = told.read(1)
        if not byte:
            return b""
        line += byte
    return line[:-1]


def _kill(number: int) -> None:
    with suppress(OSError):
        os.killpg(number, signal.SIGKILL)


def _forget() -> None:
    """Leave the process to the one that this was forked from."""
    for origin in _origins:
        origin.socket.close()
    _origins.clear()


@atexit.register
def close() -> None:
    """End the process that children are forked from."""
    with _lock:
        while _origins:
            _origins.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
