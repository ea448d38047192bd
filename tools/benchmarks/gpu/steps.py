"""Runs the steps of a report one after the other, each a process with a budget of seconds.

A step that fails, hangs or crashes costs its own results only. Time that one leaves over goes to
those behind it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

TAIL = 12  # lines of output that are kept of a step
TICK_S = 20.0
LEAST_S = 3.0  # with less than that, a step is not begun
MOST_AGAIN = 20  # times that a step goes on after a crash
GRACE_S = 10.0  # beyond its budget, for a step to end by itself
SEEN_S = 5.0  # between two looks at what a step has left so far
DONE, FAILED, LATE, SKIPPED = "done", "failed", "out of time", "skipped"
RUNNING = "under way"


@dataclass(frozen=True)
class Step:
    """One step. command: from the seconds it may take to its arguments.

    budget: seconds. again: arguments with which it goes on after a crash, if it can. allowed: exit
    statuses that are no failure. skip: why there is nothing to do, or ''.
    """

    name: str
    title: str
    command: Callable[[float], Sequence[str]]
    budget: float
    again: Sequence[str] = ()
    allowed: tuple[int, ...] = (0,)
    skip: str = ""


@dataclass
class Outcome:
    """What became of a step. tail: the last lines that it printed."""

    name: str
    title: str
    status: str
    seconds: float = 0.0
    budget: float = 0.0
    code: int | None = None
    commands: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    note: str = ""

    def data(self) -> dict[str, Any]:
        return asdict(self)


class Runner:
    """Runs steps within `total` seconds from `begun` on; logs lie in `folder`.

    reserve: seconds at the end that no step gets. shown: how a command is written down. seen: gets
    the outcome of a step while it is under way, so that a run that is cut keeps what it has.
    """

    def __init__(
        self,
        total: float,
        folder: Path,
        env: Mapping[str, str],
        shown: Callable[[Sequence[str]], str],
        begun: float | None = None,
        reserve: float = 10.0,
        say: Callable[[str], None] = lambda text: print(text, flush=True),
        seen: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        self.begun = monotonic() if begun is None else begun
        self.end = self.begun + total - reserve
        self.folder, self.env, self.shown, self.say = folder, dict(env), shown, say
        self.seen = seen
        self.total, self.saved = total, 0.0

    def run(self, step: Step) -> Outcome:
        """Run one step; never raises on its account. Told to end, it tells what the step left."""
        outcome = Outcome(step.name, step.title, SKIPPED)
        try:
            self._run(step, outcome)
        except KeyboardInterrupt:
            self.seen(outcome)
            raise
        return outcome

    def _run(self, step: Step, outcome: Outcome) -> None:
        budget = min(step.budget + self.saved, self.end - monotonic())
        outcome.budget = round(max(budget, 0.0), 1)
        if step.skip or budget < LEAST_S:
            outcome.note = step.skip or "no time was left"
            self.saved += step.budget
            self.tell(f"{step.title}: left out, {outcome.note}")
            return
        outcome.status = RUNNING
        self.tell(f"{step.title} ({budget:.0f} s at most)")
        begin = monotonic()
        arguments = step.command(budget)
        while True:
            left = budget - (monotonic() - begin)
            code = self._process(step, arguments, outcome, left + GRACE_S)
            crashed = code is not None and (code < 0 or code > 128)
            left = budget - (monotonic() - begin)
            more = left > LEAST_S and len(outcome.commands) <= MOST_AGAIN
            if not (crashed and step.again and more):
                break
            arguments = [*step.command(left), *step.again]
        outcome.seconds = round(monotonic() - begin, 1)
        self.saved = max(0.0, step.budget + self.saved - outcome.seconds)
        outcome.code = code
        outcome.status = LATE if code is None else DONE if code in step.allowed else FAILED
        self.tell(f"{step.title}: {outcome.status} after {outcome.seconds:.0f} s")

    def _process(
        self, step: Step, arguments: Sequence[str], outcome: Outcome, seconds: float
    ) -> int | None:
        """Run one process; return its exit status, None where it had to be ended."""
        outcome.commands.append(self.shown(arguments))
        path = self.folder / f"{step.name}.log"
        with path.open("ab") as log:
            log.write(f"$ {outcome.commands[-1]}\n".encode())
            log.flush()
            try:
                child = subprocess.Popen(
                    list(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.env,
                    start_new_session=True,
                )
            except OSError as err:
                outcome.tail = [str(err)]
                return 127
            code = self._wait(child, path, seconds, outcome)
        outcome.tail = tail_of(path)
        return code

    def _wait(
        self, child: subprocess.Popen[bytes], path: Path, seconds: float, outcome: Outcome
    ) -> int | None:
        begin = told = seen = monotonic()
        end = begin + seconds
        try:
            while monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(0.2)
                if monotonic() - seen >= SEEN_S:
                    seen = monotonic()
                    outcome.seconds = round(seen - begin, 1)
                    self.seen(outcome)
                if monotonic() - told >= TICK_S:
                    told = monotonic()
                    self.tell(f"  {(tail_of(path) or [''])[-1][:100]}")
        finally:
            if child.poll() is None:
                end_group(child)
        return None

    def tell(self, text: str) -> None:
        """Print a line with the time used so far."""
        self.say(f"[{monotonic() - self.begun:4.0f} of {self.total:.0f} s] {text}")


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, and the group: asked first, then killed."""
    for number, seconds in ((signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def tail_of(path: Path, lines: int = TAIL) -> list[str]:
    """Return the last lines of a log that are not empty."""
    text = path.read_text("utf-8", errors="replace")[-16000:]
    return [line.rstrip()[:300] for line in text.splitlines() if line.strip()][-lines:]
