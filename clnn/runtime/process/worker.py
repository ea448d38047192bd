"""A child process that answers requests one by one, and that may crash or hang at any of them.

Requests and replies are JSON lines. A child that dies or outlasts its time is killed, and the next
request starts another. A child whose parent is gone ends by itself.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from clnn.errors import DeviceError
from clnn.runtime.process.child import BOOT, how_it_ended, kill, reply_stream

START_S = 120.0


class WorkerError(Exception):
    """A child did not answer; the text says how it ended."""


class Worker:
    """One child that runs `main(argument)` of `clnn.runtime.<module>`, which must call `serve`."""

    def __init__(self, module: str, argument: Any, env: Mapping[str, str]) -> None:
        self._command = [
            sys.executable,
            "-c",
            BOOT.format(module),
            "\n".join(sys.path),
            json.dumps(argument),
        ]
        self._env = dict(env)
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._pending = b""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process, None while there is none."""
        return self._child.pid if self._child is not None else None

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the child's reply.

        Raises WorkerError where there is none within the time, DeviceError where no child starts.
        """
        if self._closed:
            raise WorkerError("was closed")
        if self._child is None:
            self._start()
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()
            return self._reply(timeout_s)
        except (WorkerError, OSError) as err:
            raise WorkerError(self._ended(f"{err}")) from None
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._errors, self._pending = tempfile.TemporaryFile(), b""  # noqa: SIM115
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=self._env,
                start_new_session=True,
            )
            self._reply(START_S)
        except (WorkerError, OSError) as err:
            raise DeviceError(
                f"a child process for the device did not start: {self._ended(f'{err}')}. The driver or"
                " the machine refuses it. Run: clnn doctor"
            ) from None
        except BaseException:
            self.close()
            raise

    def _reply(self, timeout_s: float) -> dict[str, Any]:
        assert self._child is not None and self._child.stdout is not None
        fd, deadline = self._child.stdout.fileno(), time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise WorkerError(f"did not answer within {timeout_s:g} s")
            part = os.read(fd, 1 << 16)
            if not part:
                raise WorkerError("")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self, why: str) -> str:
        """Reap the child and return how it ended; `why` where it had to be killed."""
        child, self._child = self._child, None
        if child is None:
            return why
        try:
            code = child.wait(0.5 if why else 5.0)
            why = how_it_ended(code) or why or "ended early"
        except subprocess.TimeoutExpired:
            kill(child)
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip().splitlines()
        self._forget(child)
        return why + (f" ({text[-1].strip()[-200:]})" if text else "")

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        streams: tuple[Any, ...] = (child.stdin, child.stdout, self._errors)
        for stream in streams:
            with suppress(OSError, AttributeError):  # what was not sent any more
                stream.close()

    def close(self) -> None:
        """Kill the child, if there is one; no other will be started."""
        self._closed = True
        child, self._child = self._child, None
        if child is not None:
            kill(child)
            self._forget(child)


def serve(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer the parent's requests until it is gone (runs in the child).

    The end of the parent ends the process even while a kernel hangs.
    """
    out = reply_stream()
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps({"ready": True}), file=out, flush=True)
    while True:
        reply = answer(json.loads(waiting.get()))
        print(json.dumps(reply), file=out, flush=True)
