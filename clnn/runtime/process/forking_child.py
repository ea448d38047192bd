"""The process that children are forked from: see `forking`."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType

from clnn.runtime.process.opening import opened

IDLE_S = 5.0
_FILES = 4  # of a request: what is asked, the child's output and errors, and where its end is told


def main(argument: Sequence[Sequence[str]]) -> None:
    """Import modules and open libraries, then fork a child for each byte on the standard input, which is a socket."""
    modules, libraries = argument
    before = dict(os.environ)
    for name in modules:
        with suppress(Exception), _no_versions():  # a child says it better
            importlib.import_module(name)
    for name in libraries:
        with suppress(Exception):
            opened(name)
    set_by_modules = {name: os.environ[name] for name in os.environ.keys() - before}
    asked = socket.socket(fileno=os.dup(0))
    asked.settimeout(IDLE_S)
    signal.signal(signal.SIGCHLD, _reap)
    while files := _request(asked):
        if os.fork() == 0:
            asked.close()
            _child(set_by_modules, *files)
            return
        for file in files:
            os.close(file)
    os._exit(0)  # without Python's own end, which takes apart all that was imported


@contextmanager
def _no_versions() -> Iterator[None]:
    """Have packages take a version for theirs: looking one up, by a parser of e-mails, is half of pyopencl's import."""
    name = "importlib.metadata"
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)
    vars(stand_in)["version"] = lambda package: "1.0"
    sys.modules[name] = importlib.metadata = stand_in
    try:
        yield
    finally:
        del sys.modules[name], importlib.metadata


def _request(asked: socket.socket) -> list[int]:
    """Return the files of the next request, none where nobody asks any more."""
    try:
        data, files, _, _ = socket.recv_fds(asked, 1, _FILES)
    except OSError:
        return []
    return list(files) if data and len(files) == _FILES else []


def _reap(number: int, frame: object) -> None:
    """Have the system forget children that ended, and count their time as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _child(environment: Mapping[str, str], asked: int, out: int, err: int, told: int) -> None:
    """Do what is asked in a child of this process, which waits for it and tells how it ended.

    environment: variables besides those of the request.
    """
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(told, f"{os.getpid()}\n".encode())
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(told)
    with open(asked, encoding="utf-8") as file:
        request = json.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, number in enumerate((nothing, out, err)):
        os.dup2(number, place)
        os.close(number)
    os.environ.clear()
    os.environ.update({**environment, **request["env"]})
    sys.argv[:] = request["argv"]
    exec(request["code"], {"__name__": "__main__"})
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without a driver's own end, which takes a tenth of a second
