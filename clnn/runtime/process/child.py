"""Child processes for whatever a driver may crash or hang in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, TextIO

BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); import json;"
    " from clnn.runtime.{} import main; main(json.loads(sys.argv[2]))"
)
LOOK_S = 0.1  # between two looks whether a child is to be stopped
_KILL_WAIT_S = 5.0
_STDERR_CHARACTERS = 200


def run_python(
    module: str,
    argument: Any,
    timeout_s: float,
    env: Mapping[str, str],
    stop: threading.Event | None = None,
) -> tuple[str, str]:
    """Run `main(argument)` of `clnn.runtime.<module>` in a child that imports what this one does.

    stop: the child is killed when this is set. Returns (its standard output, '' or how it ended:
    killed after the time, by which signal, or its exit status with the end of its error output).
    """
    if not sys.executable:
        return "", "cannot start a child process: sys.executable is not set"
    code = BOOT.format(module)
    command = [sys.executable, "-c", code, "\n".join(sys.path), json.dumps(argument)]
    return run_command(command, timeout_s, env, stop)


def reply_stream() -> TextIO:
    """Return a child's real standard output, and send all else that is printed to its errors.

    Drivers print to standard output too; a reply is JSON lines that no driver may disturb.
    """
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def run_command(
    command: list[str],
    timeout_s: float,
    env: Mapping[str, str],
    stop: threading.Event | None = None,
) -> tuple[str, str]:
    """Run `command` in a process group of its own; returns as run_python does."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as error:
            return "", f"cannot start a child process: {error}"
        end = _wait(child, timeout_s) if stop is None else _wait_or_stop(child, timeout_s, stop)
        return answer(out, err, end)


def answer(out: IO[bytes], err: IO[bytes], end: str) -> tuple[str, str]:
    """Return what run_python does, of the files of a child that ended so."""
    out.seek(0)
    err.seek(0)
    text = err.read().decode(errors="replace").strip()
    if end and text:
        end += f" ({text[-_STDERR_CHARACTERS:].splitlines()[-1].strip()})"
    return out.read().decode(errors="replace"), end


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> str:
    try:
        return _wait_for(child, timeout_s)
    except subprocess.TimeoutExpired:
        kill(child)
        return f"did not answer within {timeout_s:g} s"


def _wait_or_stop(child: subprocess.Popen[bytes], timeout_s: float, stop: threading.Event) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if stop.is_set():
            kill(child)
            return "was stopped"
        with suppress(subprocess.TimeoutExpired):
            return _wait_for(child, LOOK_S)
    kill(child)
    return f"did not answer within {timeout_s:g} s"


def _wait_for(child: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Return how a child ended. Raises TimeoutExpired; another exception kills the child."""
    try:
        return how_it_ended(child.wait(timeout_s))
    except subprocess.TimeoutExpired:
        raise
    except BaseException:
        kill(child)
        raise


def how_it_ended(code: int) -> str:
    """Return how a child with this return code ended, '' where it ended well."""
    if code < 0:
        return f"the driver crashed ({_signal_name(-code)})"
    return f"ended with status {code}" if code else ""


def kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and what it started; give up waiting when the driver holds it in the kernel."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (OSError, AttributeError):
        child.kill()
    try:
        child.wait(_KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
