"""What the stages of a StagedSession cost in the runs of a `with` block, and its steps on the host."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, fields
from operator import attrgetter
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from clnn.importers.onnx.stages.program import DeviceStage, Step
from clnn.records import dataclass
from clnn.runtime.run.profile import Profile, Row, Summary
from clnn.runtime.run.trace import joined_trace

if TYPE_CHECKING:
    from clnn.runtime.measure.peak import Peaks
    from clnn.runtime.run.session import Session
    from clnn.runtime.run.spans import TimedRun

Made = TypeVar("Made")

STAGE = "stage"  # what stands for the operator of a stage
HEAD = f"{'step':<40} {'op':<20} {'calls':>7} {'us a run':>10}  %\n"


@dataclass
class StepTime:
    """A step beside the launches, in all runs. calls: how often it ran; seconds: without steps inside of it."""

    name: str
    op: str
    calls: int = 0
    seconds: float = 0.0


@dataclass
class StagedProfile:
    """Profiles of device stages in the runs that a thread made in a `profile` context.

    stages: of each stage that ran, by name, a profile for each shape that it met, in order. host_s:
    seconds of these runs that no device stage took: steps on the host, and what is copied to them.
    steps: what took them, by operator and name. The time of a stage is what it took beside its launches. What turns of
    loops do is counted with the loop. separate: as of a session's profile.
    """

    stages: dict[str, list[Profile]] = field(default_factory=dict)
    runs: int = 0
    seconds: float = 0.0
    steps: dict[tuple[str, str], StepTime] = field(default_factory=dict)
    separate: bool = False
    _spans: list[tuple[StepTime, int, int]] = field(default_factory=list)  # begins and ends in ns
    _inside: float = 0.0  # seconds of steps and launches inside of the step that runs
    _opening: float = 0.0  # seconds of the run in which profiles of sessions were opened
    # Profiles of sessions, which end with the block of the staged one's.
    _blocks: ExitStack = field(default_factory=ExitStack)
    _opened: dict[int, tuple[Session, Profile]] = field(default_factory=dict)

    @property
    def device_s(self) -> float:
        """Seconds of launches, in all runs."""
        return sum(_launched(one.runs) for found in self.stages.values() for one in found)

    @property
    def host_s(self) -> float:
        """Seconds of the runs beside the launches: steps on the host, copies, and waiting."""
        return max(0.0, self.seconds - self.device_s)

    @property
    def flops(self) -> float:
        """Arithmetic operations of one run, at the mean."""
        return self._mean(lambda one: one.flops * len(one.runs))

    @property
    def nbytes(self) -> float:
        """Bytes that the layers of one run read and write, at the mean."""
        return self._mean(lambda one: one.nbytes * len(one.runs))

    def summary(self) -> Summary:
        """Return the means of all runs, in seconds, which are sums over stages."""

        def mean(of: Callable[[Summary], float]) -> float:
            return self._mean(lambda one: of(one.summary()) * len(one.runs))

        return Summary(
            self.runs,
            self.device_s / max(self.runs, 1),
            mean(attrgetter("upload")),
            mean(attrgetter("download")),
            mean(attrgetter("gap")),
        )

    def _mean(self, of: Callable[[Profile], float]) -> float:
        whole = sum(of(one) for found in self.stages.values() for one in found)
        return whole / max(self.runs, 1)

    @property
    def slowest(self) -> list[StepTime]:
        """The steps that took any time beside launches, slowest first."""
        return sorted(self.steps.values(), key=attrgetter("seconds"), reverse=True)

    @contextmanager
    def open(self) -> Iterator[StagedProfile]:
        """Measure until the block ends."""
        with self._blocks:
            yield self
        self._opened.clear()

    @contextmanager
    def whole_run(self) -> Iterator[None]:
        """Count a run, unless it fails."""
        self._inside = self._opening = 0.0
        began = perf_counter()
        yield
        self.runs += 1
        self.seconds += perf_counter() - began - self._opening

    def run(self, stage: str, session: Session, call: Callable[[], Made]) -> Made:
        """Return what a call of a stage's session does, in a profile that stays open to the end of the block."""
        if id(session) not in self._opened:
            self._open(stage, session)
        runs = self._opened[id(session)][1].runs
        known = len(runs)
        try:
            return call()
        finally:
            self._inside += _launched(runs[known:])

    def _open(self, stage: str, session: Session) -> None:
        """Open a session's profile, which may build kernels: no time of the runs."""
        began = perf_counter()
        profile = self._blocks.enter_context(session.profile(separate=self.separate))
        self.stages.setdefault(stage, []).append(profile)
        self._opened[id(session)] = session, profile  # held, so that no other one has its number
        took = perf_counter() - began
        self._inside += took
        self._opening += took

    def measure(self, step: Step, act: Callable[[Any], None], values: Any) -> None:
        """Do a step, and count its time."""
        around, self._inside = self._inside, 0.0
        began = perf_counter_ns()
        try:
            act(values)
        finally:
            ended = perf_counter_ns()
            op = STAGE if isinstance(step, DeviceStage) else step.op_type
            name = step.name or next(filter(None, step.outputs), "")
            row = self.steps.setdefault((op, name), StepTime(name, op))
            row.calls += 1
            row.seconds += 1e-9 * (ended - began) - self._inside
            self._spans.append((row, began, ended))
            self._inside = around + 1e-9 * (ended - began)

    def table(self, most: int = 0, peaks: Peaks | None = None) -> str:
        """Return the tables of all stages, each under its name, then that of steps beside them.

        most: rows of each (0: all). peaks: as of a session's profile.
        """
        parts = [
            f"{name}, profile {number} of {len(found)}\n{one.table(most, peaks)}"
            for name, found in self.stages.items()
            for number, one in enumerate(found, 1)
        ]
        closing = f"{self.runs} runs: {1e3 * self.device_s:.3f} ms in launches of stages, "
        return "\n\n".join(
            [*parts, self._steps(most), f"{closing}{1e3 * self.host_s:.3f} ms beside them"]
        )

    def to_csv(self, peaks: Peaks | None = None) -> str:
        """Return the rows of all stages as CSV with a head line, then steps, whose seconds are those of a run.

        Columns: the stage (empty for a step), the number of its profile, then those of a session's profile.
        """
        out = io.StringIO()
        names = [one.name for one in fields(Row)]
        writer = csv.DictWriter(out, ["stage", "profile", *names], lineterminator="\n")
        writer.writeheader()
        for name, found in self.stages.items():
            for number, one in enumerate(found, 1):
                for row in csv.DictReader(io.StringIO(one.to_csv(peaks))):
                    writer.writerow({"stage": name, "profile": number, **row})
        for step in self.steps.values():
            seconds = step.seconds / max(self.runs, 1)
            writer.writerow({"node": step.name, "op": step.op, "seconds": seconds})
        return out.getvalue()

    def to_chrome(self) -> dict[str, Any]:
        """Return all as one trace in the Trace Event Format: each stage's device and host, and the steps."""
        spans = [(one.name, one.op, began, ended) for one, began, ended in self._spans]
        profiles = [(name, one) for name, found in self.stages.items() for one in found]
        return joined_trace([(name, one.to_chrome()) for name, one in profiles], spans)

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace to a file."""
        Path(path).write_text(json.dumps(self.to_chrome()), encoding="utf-8")

    def _steps(self, most: int) -> str:
        """Return the table of steps beside launches."""
        whole = max(self.host_s, 1e-12)
        lines = [
            f"{one.name[-40:]:<40} {one.op[:20]:<20} {one.calls:>7}"
            f" {1e6 * one.seconds / max(self.runs, 1):>10.1f}  {100 * one.seconds / whole:.1f}"
            for one in self.slowest[: most or None]
        ]
        return "beside launches\n" + HEAD + "\n".join(lines)


def _launched(runs: Sequence[TimedRun]) -> float:
    """Return the seconds of launches."""
    return sum(span.seconds for run in runs for span in run.launches)
