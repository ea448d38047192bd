"""A session's profile: a file of trace events, as SessionOptions.enable_profiling asks for."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clnn.runtime.run.profile import Profile


class Trace:
    """Events of one session: what was done when, in microseconds since its begin.

    prefix: of the file's name; a date and ".json" follow it.
    """

    def __init__(self, prefix: str) -> None:
        self.begin_ns = time.time_ns()
        self._prefix, self._zero = prefix, time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, category: str = "Session") -> Iterator[None]:
        """Note what the block takes."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self._add(name, category, began, time.perf_counter_ns() - began, {})

    def add_layers(self, profile: Profile, began: int) -> None:
        """Note the layers of a run, one after the other from `began` (ns) on."""
        for row in profile.rows():
            duration = round(row.seconds * 1e9)
            args = {"op_name": row.op, "provider": "ClnnExecutionProvider", "kernel": row.kernel}
            args["variant"] = row.variant
            self._add(f"{row.node}_kernel_time", "Node", began, duration, args)
            began += duration

    def _add(self, name: str, category: str, began: int, ns: int, args: dict[str, Any]) -> None:
        event = {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "ts": (began - self._zero) // 1000,
            "dur": ns // 1000,
            "ph": "X",
            "name": name,
            "args": args,
        }
        with self._lock:
            self._events.append(event)

    def write(self) -> str:
        """Write the file; return its path."""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(self.begin_ns / 1e9))
        path = f"{self._prefix}_{stamp}_{self.begin_ns // 1_000_000 % 1000:03}.json"
        with self._lock:
            Path(path).write_text(json.dumps(self._events, indent=0), "utf-8")
        return path
