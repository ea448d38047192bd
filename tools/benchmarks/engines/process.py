"""Worker processes: one for each engine, or one for all variants of an engine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from engines import EngineError, name_of

WORKER = Path(__file__).with_name("worker.py")
INFINITE = float("inf")
OVERTIME = 3.0  # seconds
# Errors after which a context is of no more use: the process is given up with them.
SPOILT = ("CUDA error", "OUT_OF_RESOURCES", "INVALID_COMMAND_QUEUE", "INVALID_CONTEXT")


class Process:
    """A worker process, killed when an answer takes longer than `limit` seconds.

    deadline: on perf_counter's clock, when no answer is waited for any longer, but for OVERTIME.
    """

    def __init__(
        self,
        setup: Mapping[str, Any],
        cache: bool,
        limit: float = INFINITE,
        deadline: float = INFINITE,
    ) -> None:
        env = dict(os.environ)
        if cache:
            env["CLNN_CACHE_DIR"] = str(Path(setup["work"]) / "clnn")
        env.setdefault("OMP_NUM_THREADS", str(setup["threads"]))
        self.limit, self.deadline, self.alive = limit, deadline, True
        self._log = (Path(setup["work"]) / "log.txt").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Send one message and return the answer. Raises EngineError where that is an error."""
        assert self._process.stdin is not None
        seconds = max(1.0, min(self.limit, self.deadline + OVERTIME - perf_counter()))
        try:
            print(json.dumps({"do": do, **values}), file=self._process.stdin, flush=True)
            line = self._answers.get(timeout=None if seconds == INFINITE else seconds)
        except (BrokenPipeError, ValueError):
            line = ""
        except queue.Empty:
            self._process.kill()
            self.close()
            raise EngineError(f"no answer to {do!r} within {seconds:.0f} s") from None
        if not line:
            self.alive = False
            raise EngineError(f"its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            lead = "not installed: " if answer["kind"] == "missing" else ""
            if any(sign in answer["error"] for sign in SPOILT):
                self._process.kill()
                self.close()
            raise EngineError(lead + answer["error"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self.alive = False
        if self._log.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Running:
    """One model in one engine, loaded in a process of its own (`own`: it ends with this) or beside others."""

    def __init__(
        self,
        engine: str,
        setup: Mapping[str, Any],
        seed: int,
        host: Process | None = None,
        own: bool = False,
    ) -> None:
        self.key = engine
        self._own = own or host is None
        self._process = host or Process(setup, cache=True)
        try:
            self.start = self.ask("load", engine=engine, setup=dict(setup), seed=seed)
            self.start |= self.ask("first")
        except EngineError:
            self.close()
            raise

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Send one message about this model. Raises EngineError."""
        return self._process.ask(do, key=self.key, **values)

    def close(self) -> None:
        """End the process, or free what the model holds in a shared one."""
        if self._own:
            self._process.close()
        elif self._process.alive:
            try:
                self.ask("drop")
            except EngineError:
                self._process.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Hosts:
    """One process for each engine, whatever its options and models; a dead one is started anew."""

    def __init__(self, limit: float, deadline: float = INFINITE) -> None:
        self.limit, self.deadline = limit, deadline
        self._processes: dict[str, Process] = {}

    def of(self, engine: str, setup: Mapping[str, Any]) -> Process:
        """Return the process for an engine."""
        name = name_of(engine)
        found = self._processes.get(name)
        if found is None or not found.alive:
            found = self._processes[name] = Process(setup, False, self.limit, self.deadline)
        return found

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            if process.alive:
                process.close()
