"""Profile: device time of every launch of a session's runs, per layer, as table, CSV and trace."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import numpy as np

from clnn.plan.plan import Plan
from clnn.records import dataclass
from clnn.runtime.measure.peak import Peaks
from clnn.runtime.run.commands import Handed, Memory
from clnn.runtime.run.spans import TimedRun, timed_run
from clnn.runtime.run.state import ExecutionState
from clnn.runtime.run.trace import chrome_trace
from clnn.runtime.run.work import work_of
from clnn.types import Array

NOISE = 0.05  # of a share of the peak, that measurements may be off by


@dataclass(frozen=True)
class Row:
    """One layer: its launches, median device time and share of all, rates, and what bounds it.

    number: place in the schedule. kernel, global_size, local_size: those of its slowest launch.
    bound: "mem", "compute" or "launch", empty where the device's peaks were not measured. of_peak:
    share of the device's multiply-add rate, 0 there; Winograd's products count those of the direct
    sum, and products of other types than float32 are faster, so these may have more than 1. reliable:
    whether of_peak is possible at all; where it is not, the times or the rate are wrong.
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
    reliable: bool = True


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
        self.runs: list[TimedRun] = []
        self.work = work_of(plan)
        self.launches = [part for ready in state.launches for part in ready.parts or (ready,)]

    def record(
        self,
        feeds: Mapping[str, Array],
        outs: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed,
    ) -> None:
        """Run once as ExecutionState.run does, measuring each command."""
        self.runs.append(timed_run(self.state.run_timed(feeds, outs, bound, handed)))

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
        of_peak = work.flops / seconds / peaks.flops if peaks and seconds else 0.0
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
            of_peak,
            of_peak <= work.most * (1 + NOISE),
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
            + _doubts(sum(not r.reliable for r in rows))
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
        return chrome_trace(self.title, self.compiled, self.runs, self.launches, self.work)

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the Chrome trace to a file."""
        Path(path).write_text(json.dumps(self.to_chrome()), encoding="utf-8")


def _idle(run: TimedRun) -> float:
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


def _doubts(count: int) -> str:
    """Return a line on shares that no kernel can reach, nothing where there are none."""
    if not count:
        return ""
    return (
        f"\n!: unreliable, {count} layers: more than the device can do. The rate was measured when it was"
        " slower, or the time is too short for its clock. Profile again with --in-turns"
    )


def _share(row: Row) -> str:
    return f"{row.of_peak:.2f}{'' if row.reliable else '!'}" if row.of_peak else "-"


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"~{text[1 - width :]}"


@dataclass(frozen=True)
class ProfileBlock:
    """A `with` block of Session.profile. It holds as long as the block, however that is left."""

    profile: Profile
    outer: ProfileBlock | None
