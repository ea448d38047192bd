"""Profile: device time of every launch of a session's runs, per layer, as table, CSV and trace."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.ops.spec import ViewSpec
from clnn.plan.schedule import Plan, ScheduledNode, launch_bytes
from clnn.runtime.measure.peak import Peaks
from clnn.runtime.run.stamps import split
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.runtime.run.state import ExecutionState, RunEvents


@dataclass(frozen=True)
class Span:
    """One command on the device: nanoseconds on the device's clock."""

    queued: int
    submit: int
    start: int
    end: int

    @property
    def seconds(self) -> float:
        """Time that the command ran."""
        return (self.end - self.start) * 1e-9


@dataclass(frozen=True)
class Run:
    """One run: host times in ns (perf_counter), each command's span, each launch's enqueue time.

    Launches that were joined into one kernel have a span each, and the kernel's enqueue time.
    """

    began: int
    ended: int
    uploads: tuple[tuple[str, Span], ...]
    launches: tuple[Span, ...]
    downloads: tuple[tuple[str, Span], ...]
    enqueued: tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What a node is and does: op, variant, operations, bytes read and written, output type."""

    op: str
    variant: str
    flops: int
    nbytes: int
    shape: str


@dataclass(frozen=True)
class Row:
    """One layer: its launches, median device time and share of all, rates, and what bounds it.

    number: place in the schedule. kernel, global_size, local_size: those of its slowest launch.
    bound: "mem", "compute" or "launch", empty where the device's peaks were not measured. of_peak:
    share of the device's multiply-add rate, 0 there; Winograd's products count those of the direct
    sum, and may have more than 1.
    """

    number: int
    node: str
    op: str
    variant: str
    kernel: str
    launches: int
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    seconds: float
    share: float
    gflops: float
    gbytes: float
    bound: str
    cached: bool
    of_peak: float = 0.0


@dataclass(frozen=True)
class Summary:
    """Medians over runs, in seconds: kernels, copies to and from the device, idle in between."""

    runs: int
    kernels: float
    upload: float
    download: float
    gap: float


class Profile:
    """Device times of the runs that a session made in its `profile` context."""

    def __init__(
        self, plan: Plan, state: ExecutionState, title: str, compiled: Mapping[str, tuple[int, int]]
    ) -> None:
        self.plan, self.state, self.title = plan, state, title
        self.compiled = compiled
        self.runs: list[Run] = []
        self.work = work_of(plan)
        self.launches = [part for ready in state.launches for part in ready.parts or (ready,)]

    def record(self, feeds: Mapping[str, Array], outs: Mapping[str, Array]) -> None:
        """Run once as ExecutionState.run does, measuring each command."""
        self.runs.append(_read(self.state.run_timed(feeds, outs)))

    def rows(self, peaks: Peaks | None = None) -> list[Row]:
        """Return one row per layer that launches kernels, in order, with the median over runs."""
        if not self.runs:
            return []
        times = np.array([[span.seconds for span in run.launches] for run in self.runs])
        places: dict[str, list[int]] = {}
        for at, ready in enumerate(self.launches):
            places.setdefault(ready.node, []).append(at)
        layers = {node: float(np.median(times[:, at].sum(1))) for node, at in places.items()}
        total = sum(layers.values()) or 1.0
        medians = np.median(times, axis=0)
        return [
            self._row(number, node, places[node], medians, seconds, total, peaks)
            for number, (node, seconds) in enumerate(layers.items())
        ]

    def _row(
        self,
        number: int,
        node: str,
        places: list[int],
        medians: Array,
        seconds: float,
        total: float,
        peaks: Peaks | None,
    ) -> Row:
        work = self.work[node]
        launches = self.launches
        main = launches[max(places, key=lambda at: float(medians[at]))]
        per = 1e-9 / seconds if seconds else 0.0
        bound = peaks.bound(work.flops, work.nbytes, seconds / len(places)) if peaks else ""
        return Row(
            number,
            node,
            work.op,
            work.variant,
            main.title,
            len(places),
            main.global_size,
            main.local_size,
            seconds,
            seconds / total,
            work.flops * per,
            work.nbytes * per,
            bound,
            all(launches[at].cached for at in places),
            work.flops / seconds / peaks.flops if peaks and seconds else 0.0,
        )

    def summary(self) -> Summary:
        """Return the medians over all runs."""

        def median(values: list[float]) -> float:
            return float(np.median(values)) if values else 0.0

        return Summary(
            len(self.runs),
            median([sum(s.seconds for s in run.launches) for run in self.runs]),
            median([sum(s.seconds for _, s in run.uploads) for run in self.runs]),
            median([sum(s.seconds for _, s in run.downloads) for run in self.runs]),
            median([_idle(run) for run in self.runs]),
        )

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run."""
        return sum(self.work[node].flops for node in self._nodes())

    @property
    def nbytes(self) -> int:
        """Bytes that the layers of one run read and write."""
        return sum(self.work[node].nbytes for node in self._nodes())

    def _nodes(self) -> set[str]:
        return {ready.node for ready in self.launches}

    def table(self, most: int = 0, peaks: Peaks | None = None) -> str:
        """Return the rows as text, slowest first; `most` limits their number."""
        rows = sorted(self.rows(peaks), key=lambda r: -r.seconds)
        shown = rows[: most or None]
        wide = {n: max([len(getattr(r, n)) for r in shown] + [len(n)]) for n in ("node", "variant")}
        node, variant = min(wide["node"], 32), min(wide["variant"], 44)
        lines = [
            f"{'#':>3} {'node':<{node}} {'op':<10} {'variant':<{variant}} {'global/local':<20}"
            f" {'us':>9} {'%':>6} {'GFLOP/s':>8} {'of peak':>7} {'GB/s':>7}  {'bound':<7} cached"
        ]
        for r in shown:
            sizes = f"{_by(r.global_size)}/{_by(r.local_size)}"
            lines.append(
                f"{r.number:>3} {_cut(r.node, node):<{node}} {r.op[:10]:<10}"
                f" {_cut(r.variant, variant):<{variant}} {sizes:<20} {r.seconds * 1e6:>9.1f}"
                f" {r.share * 100:>6.2f} {r.gflops:>8.1f} {_share(r):>7} {r.gbytes:>7.1f}  {r.bound or '-':<7}"
                f" {'yes' if r.cached else 'no'}"
            )
        if len(rows) > len(shown):
            lines.append(f"... {len(rows) - len(shown)} more layers")
        return "\n".join([*lines, self._closing(rows)])

    def _closing(self, rows: list[Row]) -> str:
        all_of = self.summary()
        return (
            f"{len(rows)} layers, {sum(r.launches for r in rows)} launches, {all_of.runs} runs:"
            f" {all_of.kernels * 1e3:.3f} ms in kernels, copies in {all_of.upload * 1e3:.3f} ms,"
            f" out {all_of.download * 1e3:.3f} ms, gaps {all_of.gap * 1e3:.3f} ms"
            + _convolutions([r.of_peak for r in rows if r.op == "conv2d" and r.of_peak])
        )

    def to_csv(self, peaks: Peaks | None = None) -> str:
        """Return the rows as CSV with a head line; times in seconds, sizes as 4x2x1."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for row in self.rows(peaks):
            writer.writerow([_by(v) if isinstance(v, tuple) else v for v in astuple(row)])
        return out.getvalue()

    def to_chrome(self) -> dict[str, Any]:
        """Return the trace as a dict in the Trace Event Format (Perfetto, chrome://tracing)."""
        from clnn.runtime.run.trace import chrome_trace

        return chrome_trace(self)

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace to a file."""
        import json

        Path(path).write_text(json.dumps(self.to_chrome()), encoding="utf-8")


def work_of(plan: Plan) -> dict[str, Work]:
    """Return layer -> what it is and does in one run."""
    found: dict[str, Work] = {}
    for step in plan.scheduled:
        work, before = _step_work(step, plan), found.get(step.node.layer)
        if before is not None:
            work = replace(
                work, flops=work.flops + before.flops, nbytes=work.nbytes + before.nbytes
            )
        found[step.node.layer] = work
    return found


def _step_work(step: ScheduledNode, plan: Plan) -> Work:
    ins, outs = plan.graph.input_types(step.node), plan.graph.output_types(step.node)
    names = [name for name in (*step.node.inputs, *step.node.outputs) if name is not None]
    nbytes = sum(plan.graph.types[n].size * plan.graph.memory(n).itemsize for n in names)
    if isinstance(step.node.spec, ViewSpec):
        nbytes = 2 * launch_bytes(step)
    flops = step.node.spec.flops(ins, outs)
    return Work(step.node.spec.kind, step.variant.name, flops, nbytes, repr(outs[0]))


def _read(events: RunEvents) -> Run:
    """Return the times of a finished run's events."""

    def span(event: Any) -> Span:
        times = event.profile
        return Span(times.queued, times.submit, times.start, times.end)

    def copies(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Span], ...]:
        return tuple((value, span(event)) for value, event in pairs if event is not None)

    launches: list[Span] = []
    enqueued: list[int] = []
    for (at, event), stamps in zip(events.launches, events.stamps, strict=True):
        found = _parts(span(event), stamps)
        launches += found
        enqueued += [at] * len(found)
    return Run(
        events.began,
        events.ended,
        copies(events.uploads),
        tuple(launches),
        copies(events.downloads),
        tuple(enqueued),
    )


def _parts(whole: Span, stamps: Array | None) -> list[Span]:
    """Return the spans of a launch's parts, itself where it has none."""
    if stamps is None:
        return [whole]
    times = split(whole.start, whole.end, stamps)
    return [Span(whole.queued, whole.submit, begin, end) for begin, end in times]


def _idle(run: Run) -> float:
    """Return the seconds between the first and the last launch in which no kernel ran."""
    if not run.launches:
        return 0.0
    whole = (run.launches[-1].end - run.launches[0].start) * 1e-9
    return max(0.0, whole - sum(span.seconds for span in run.launches))


def _convolutions(shares: list[float]) -> str:
    """Return a line on the shares of the peak that convolutions reach, nothing where there are none."""
    if not shares:
        return ""
    middle = float(np.median(shares))
    return (
        f"\nconvolutions: {len(shares)} layers, at the median {middle:.3f} of the multiply-add"
        " kernel's rate"
    )


def _share(row: Row) -> str:
    return f"{row.of_peak:.2f}" if row.of_peak else "-"


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"~{text[1 - width :]}"
