"""One model in several engines: cold and warm starts, turns, outputs, memory."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from make_zoo import ZOO

from engines import DTYPES, EngineError, dtype_of, name_of
from engines.drawing import draws
from engines.process import Hosts, Process, Running

KINDS = frozenset(ZOO)
TIME_IS_UP = "the time was up"


@dataclass(frozen=True)
class Pace:
    """Seconds that an engine runs before the next one's turn and before the first; least rounds."""

    turn: float = 0.25
    warmup: float = 0.5
    rounds: int = 5


QUICK = Pace(0.1, 0.1, 3)


@dataclass(frozen=True)
class Options:
    """What to compare; seconds: of turns per model, for all engines together.

    deadline: on perf_counter's clock, when nothing more is begun. cold: engines that have a process of
    their own are started with empty caches first.
    """

    engines: tuple[str, ...]
    threads: int
    device: str | None
    seconds: float
    seed: int
    pace: Pace = Pace()
    deadline: float = float("inf")
    cold: bool = True


@dataclass
class Row:
    """One engine on one model; times in seconds. missing: why there are no figures.

    spread: the range of the middle half of all latencies over the median. turns: the medians of each
    turn, one in each round, empty where engines run one after the other. error: the largest
    difference from onnxruntime's outputs, else another engine's, relative to their largest
    magnitude. device: time of a run without copies from and to the host, where it is known. memory
    and cold times are 0 where processes are shared.
    """

    engine: str
    title: str = ""
    missing: str = ""
    median: float = 0.0
    best: float = 0.0
    spread: float = 0.0
    runs: int = 0
    turns: list[float] = field(default_factory=list)
    error: float | None = None
    device: float | None = None
    memory: int = 0
    cold_load: float = 0.0
    cold_first: float = 0.0
    warm_load: float = 0.0
    warm_first: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        """Whether this is clnn, whatever its options."""
        return name_of(self.engine) == "clnn"

    @property
    def right(self) -> bool:
        """Whether the error is one that the engine's kind of numbers may have."""
        return self.error is None or self.error <= DTYPES[dtype_of(self.engine)]

    def over(self, other: Row, *, device: bool = False) -> float:
        """Return this engine's time over another's: the median over the rounds, where both had turns.

        Within a round a machine is about as fast for both, which it may not be from round to round.
        device: of the times without copies from and to the host.
        """
        if device or not self.turns or len(self.turns) != len(other.turns):
            return _time(self, device) / _time(other, device)
        return statistics.median(a / b for a, b in zip(self.turns, other.turns, strict=True))


@dataclass
class Result:
    """All engines on one model. reference: whose outputs the errors refer to."""

    model: str
    shapes: dict[str, tuple[int, ...]]
    rows: list[Row]
    batch: int = 1
    reference: str = ""

    @property
    def kind(self) -> str:
        """What make_zoo.py calls the network's kind, '' where the file's name has none."""
        kind = self.model.partition("-")[0]
        return kind if kind in KINDS else ""

    @property
    def measured(self) -> list[Row]:
        return [r for r in self.rows if not r.missing]

    @property
    def ratio(self) -> float | None:
        """The best peer's time over clnn's, both with float32 numbers."""
        return self.ratio_of("f32")

    def ratio_of(self, dtype: str, *, device: bool = False) -> float | None:
        """Return the best peer's time over clnn's among engines with these numbers.

        device: compare times without copies from and to the host.
        """
        found = self.best(dtype, device=device)
        return found[1].over(found[0], device=device) if found else None

    def best(self, dtype: str, *, device: bool = False) -> tuple[Row, Row] | None:
        """Return clnn's fastest row and the fastest peer's; None where either has none."""
        rows = [r for r in self.measured if dtype_of(r.engine) == dtype]
        rows = [r for r in rows if r.right and _time(r, device)]
        mine = min((r for r in rows if r.ours), key=lambda r: _time(r, device), default=None)
        peers = [r for r in rows if not r.ours]
        if mine is None or not peers:
            return None
        return mine, min(peers, key=lambda r: r.over(mine, device=device))

    @property
    def agrees(self) -> bool:
        """Whether clnn ran and its outputs are the reference's, as far as that ran."""
        mine = [r for r in self.measured if r.ours]
        return bool(mine) and all(r.right for r in mine)


def _time(row: Row, device: bool) -> float:
    return (row.device or 0.0) if device else row.median


def compare(
    model: Path,
    shapes: Mapping[str, tuple[int, ...]],
    options: Options,
    work: Path,
    hosts: Hosts | None = None,
) -> Result:
    """Measure every engine on a model; `work` is a new folder for conversions and caches.

    In turns, each engine in a process of its own; with `hosts` one after the other in processes that
    models share, so that one that hangs or runs out of memory takes no other along.
    """
    outputs = [o.name for o in onnx.load(model, load_external_data=False).graph.output]
    rows = [Row(engine) for engine in options.engines]
    common = {
        "model": str(model.resolve()),
        "shapes": shapes,
        "outputs": outputs,
        "threads": options.threads,
        "device": options.device,
        "draws": draws(model),
    }
    groups = [rows] if hosts is None else [[row] for row in rows]
    share = replace(options, seconds=options.seconds / len(groups))
    for group in groups:
        with ExitStack() as stack:
            running: dict[str, Running] = {}
            for row in group:
                if perf_counter() > options.deadline:
                    row.missing = TIME_IS_UP
                    continue
                _say(f"{model.stem}: {row.engine} starts")
                folder = work / row.engine.replace(":", "-")
                folder.mkdir(parents=True)
                setup = {**common, "work": str(folder)}
                try:
                    started = _start(row, setup, options, hosts)
                    running[row.engine] = stack.enter_context(started)
                except EngineError as err:
                    row.missing = str(err)
            times = _turns(running, group, share, model.stem)
            for row in group:
                _finish(row, running, times, work, hosts is None)
    reference = _compare_outputs(rows, work)
    return Result(model.stem, dict(shapes), rows, reference=reference)


def _start(row: Row, setup: Mapping[str, Any], options: Options, hosts: Hosts | None) -> Running:
    """Load the model, in a process of its own cold before warm. Raises EngineError."""
    if hosts is not None:
        host: Process | None = hosts.of(row.engine, setup)
    elif options.cold:
        with Running(row.engine, setup, options.seed) as cold:
            row.cold_load, row.cold_first = cold.start["load_s"], cold.start["first_s"]
        host = None
    else:
        host = Process(setup, cache=False)
    made = Running(row.engine, setup, options.seed, host, own=hosts is None)
    row.title = made.start.pop("title")
    row.warm_load, row.warm_first = made.start.pop("load_s"), made.start.pop("first_s")
    row.facts = made.start
    return made


def _turns(
    running: dict[str, Running], rows: Sequence[Row], options: Options, name: str
) -> dict[str, list[list[float]]]:
    """Return the latencies of each engine, turn by turn; who begins a round changes.

    One that fails leaves `running`, and its row says why.
    """
    pace, by_name = options.pace, {row.engine: row for row in rows}
    counts: dict[str, int] = {}
    times: dict[str, list[list[float]]] = {engine: [] for engine in running}

    def attempt(engine: str, turn: Any) -> None:
        try:
            turn(engine, running[engine])
        except EngineError as err:
            by_name[engine].missing = str(err)
            del running[engine]

    def warm(engine: str, process: Running) -> None:
        begin, spent = perf_counter(), process.ask("run", n=1)["times"]
        while perf_counter() - begin < pace.warmup:
            spent += process.ask("run", n=1)["times"]
        counts[engine] = max(1, round(pace.turn / statistics.median(spent)))
        process.ask("rest")

    def run(engine: str, process: Running) -> None:
        process.ask("run", n=1)  # wakes its threads, and fills the caches
        times[engine].append(process.ask("run", n=counts[engine])["times"])
        process.ask("rest")  # or its waiting threads would run beside the next engine's

    for engine in list(running):
        attempt(engine, warm)
    order, end, rounds = list(running), perf_counter() + options.seconds, 0
    while rounds < pace.rounds or perf_counter() < end:
        for engine in [e for e in order if e in running]:
            attempt(engine, run)
        order, rounds = [*order[1:], *order[:1]], rounds + 1
        _say(f"{name}: round {rounds}")
        if rounds and perf_counter() > options.deadline:
            break
    return times


def _finish(
    row: Row,
    running: Mapping[str, Running],
    turns: Mapping[str, list[list[float]]],
    work: Path,
    alone: bool,
) -> None:
    """Fill in the figures of one engine, and store its outputs."""
    if row.engine not in running:
        return
    try:
        times = [t for turn in turns[row.engine] for t in turn]
        if not times:
            raise EngineError(TIME_IS_UP)
        answer = running[row.engine].ask("finish", outputs=str(_outputs(row, work)))
    except EngineError as err:
        row.missing = str(err)
        return
    memory = answer.pop("memory")
    row.memory, row.device = memory if alone else 0, answer.get("device_s")
    row.facts = {**row.facts, **answer}
    low, row.median, high = (float(v) for v in np.percentile(times, (25, 50, 75)))
    row.spread, row.best, row.runs = (high - low) / row.median, min(times), len(times)
    row.turns = [statistics.median(turn) for turn in turns[row.engine]] if alone else []


def _outputs(row: Row, work: Path) -> Path:
    return work / f"{row.engine.replace(':', '-')}.npz"


def _compare_outputs(rows: Sequence[Row], work: Path) -> str:
    """Fill in the errors; return whose outputs they refer to, or '' where there is no peer."""
    right = [r for r in rows if not r.missing]
    plain = [r for r in right if dtype_of(r.engine) == "f32" and not r.ours]
    plain.sort(key=lambda r: r.engine != "onnxruntime")
    if not plain:
        return ""
    wanted = _stored(plain[0], work)
    for row in right:
        pairs = zip(_stored(row, work), wanted, strict=True)
        row.error = max((_difference(got, want) for got, want in pairs), default=0.0)
    return plain[0].engine


def _stored(row: Row, work: Path) -> list[np.ndarray]:
    with np.load(_outputs(row, work)) as stored:
        return [stored[key] for key in stored.files]


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.size != want.size:
        return float("inf")
    scale = float(np.abs(want).max(initial=0.0)) or 1.0
    error = np.abs(got.reshape(want.shape).astype(np.float64) - want).max(initial=0.0)
    return float(error) / scale if np.isfinite(error) else float("inf")


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
