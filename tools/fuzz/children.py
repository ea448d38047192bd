"""Work on seeds in child processes, batch by batch: one that dies, hangs or fills memory is a finding.

A child is this program's own: it prints {"seed": S} as a line of JSON before it begins with S, and a row
{"seed": S, "wrong": ...} when it is done. {"now": NAME} says that it calls another engine, {"now": ""} that
this is over: where it ends in between, that is the other engine's fault, and no finding. A call that does
not come back within a minute ends the child.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

PATIENCE = 60.0  # seconds for a call of another engine, which takes milliseconds
HANGS = 75  # status of a child in which such a call takes longer


@dataclass(frozen=True)
class Limits:
    """Of a child: seeds in a row, and of these side by side, seconds for such a group, bytes of memory."""

    batch: int = 100
    group: int = 1
    seconds: float = 600.0
    memory: int = 12 * 2**30


# Returns the command of a child for so many seeds from one on, so many of them side by side.
Command = Callable[[int, int, int], Sequence[str]]


def rows(first: int, count: int, command: Command, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield a row for each of `count` seeds, checked in children.

    A group in which a child ends early is checked again, one seed after the other.
    """
    end = first + count
    while first < end:
        batch = min(limits.batch, end - first)
        for row in _batch(command(first, batch, limits.group), first, batch, limits):
            if row.pop("ended", False) and limits.group > 1:
                again = min(limits.group, end - row["seed"])
                yield from rows(row["seed"], again, command, replace(limits, group=1))
                first = row["seed"] + again
            else:
                first = row["seed"] + 1
                yield row


def _batch(
    command: Sequence[str], first: int, count: int, limits: Limits
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one child; where it ends early, a last one that says how."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryDirectory(prefix="clnn-fuzz-", dir=_in_memory()) as folder:
        env = {**os.environ, "POCL_CACHE_DIR": folder, "TMPDIR": folder, **ALONE}
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=env, preexec_fn=limited
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
        at, why, now = first, "", ""
        try:
            while (line := lines.get(timeout=limits.seconds)) is not None:
                if line.startswith("{"):
                    row = json.loads(line)
                    if "now" in row:
                        now = row["now"]
                        continue
                    at = row["seed"] + ("wrong" in row)
                    if "wrong" in row:
                        yield row
        except queue.Empty:
            why = f"nothing came for {limits.seconds:.0f} s"
        finally:
            if why or at < first + count:  # it hangs, or who asks for rows has gone
                child.kill()
            child.wait()
        if at < first + count:
            ended = f"the process ended with status {child.returncode}"
            why = why or ("a call does not come back" if child.returncode == HANGS else ended)
            told = {"wrong": "", "peer": f"in {now}, {why}"} if now else {"wrong": why}
            yield {"seed": at, "ended": True, **told}


@contextmanager
def calls_of(engine: str, alone: bool = True, seconds: float = PATIENCE) -> Iterator[None]:
    """Call another engine inside of the context, for so many seconds at most: after that the process ends.

    alone: nothing is worked on beside it, so what happens meanwhile happens in that engine, and is told so.
    """
    hangs = threading.Timer(seconds, os._exit, [HANGS])
    hangs.daemon = True
    if alone:
        print(json.dumps({"now": engine}), flush=True)
    hangs.start()
    try:
        yield
    finally:
        hangs.cancel()
        if alone:
            print(json.dumps({"now": ""}), flush=True)


def said_of(err: BaseException) -> str:
    """Return what an exception says, and those during which it came up, which tell where it comes from."""
    before = err.__cause__ or err.__context__
    here = f"{type(err).__name__}: {str(err)[:300]}"
    return here if before is None else f"{here} (after {said_of(before)})"


# Programs build in the process itself, and none are kept: no other would find them.
ALONE = {"CLNN_BUILD_JOBS": "1", "CLNN_CACHE": "off"}


def _read(stream: IO[str] | None, lines: queue.Queue[str | None]) -> None:
    assert stream is not None
    for line in stream:
        lines.put(line)
    lines.put(None)


def _in_memory() -> str | None:
    """Return a folder in memory where there is one: what drivers write there lasts for a batch."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and os.access(shared, os.W_OK) else None


def end_with_children() -> None:
    """Let a request to terminate end the children, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@dataclass
class Progress:
    """What became of a range of seeds so far, in a file that is replaced after each batch of rows.

    peer: where the engine that results are compared with ended the process.
    """

    path: Path | None
    first: int
    done: int = 0
    cpu: float = 0.0
    refused: int = 0
    wrong: dict[str, str] | None = None
    peer: dict[str, str] | None = None
    met: list[str] | None = None

    @staticmethod
    def of(path: Path | None, first: int) -> Progress:
        """Return what a file holds, or a beginning at seed `first`."""
        if path is not None and path.exists():
            return Progress(path, **json.loads(path.read_text("utf-8")))
        return Progress(path, first, wrong={}, met=[])

    def take(self, row: dict[str, Any]) -> None:
        """Count a row."""
        self.done += 1
        self.cpu = round(self.cpu + row.get("cpu", 0.0), 3)
        self.refused += bool(row.get("refused"))
        self.met = sorted({*(self.met or []), *row.get("ops", [])})
        if row["wrong"]:
            self.wrong = {**(self.wrong or {}), str(row["seed"]): row["wrong"][:300]}
        if row.get("peer"):
            self.peer = {**(self.peer or {}), str(row["seed"]): row["peer"]}
        if self.path is not None and (row["wrong"] or self.done % 20 == 0):
            self.save()

    def save(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is not None:
            kept = {k: v for k, v in self.__dict__.items() if k != "path"}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(kept), "utf-8")
            part.replace(self.path)
