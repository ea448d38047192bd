"""The process that children are forked from: see `forking`."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

IDLE_S = 5.0
_FILES = 4  # of a request: what is asked, the child's output and errors, and where its end is told


def main(modules: Sequence[str]) -> None:
    """Import modules, then fork a child for each byte on the standard input, which is a socket."""
    before = dict(os.environ)
    for name in modules:
        with suppress(Exception):  # a child says it better
            importlib.import_module(name)
    set_by_modules = {name: os.environ[name] for name in os.environ.keys() - before}
    asked = socket.socket(fileno=os.dup(0))
    asked.settimeout(IDLE_S)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        try:
            data, files, _, _ = socket.recv_fds(asked, 1, _FILES)
        except OSError:
            return
        if not data or len(files) != _FILES:
            return
        if os.fork() == 0:
            asked.close()
            _child(set_by_modules, *files)
            return
        for file in files:
            os.close(file)


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
