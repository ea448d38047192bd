"""One model in several engines: cold and warm starts, turns, outputs, memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import onnx

from engines import EngineError

TURN = 0.25  # seconds that one engine runs before the next one's turn
WARMUP = 0.5
LEAST_ROUNDS = 5
TOLERANCE = 1e-3
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Options:
    """What to compare; seconds: of turns per model, for all engines together."""

    engines: tuple[str, ...]
    threads: int
    device: str | None
    seconds: float
    seed: int


@dataclass
class Row:
    """One engine on one model; times in seconds. missing: why there are no figures.

    spread: the range of the middle half of all latencies over the median. error: the largest
    difference from onnxruntime's outputs, relative to their largest magnitude.
    """

    engine: str
    title: str = ""
    missing: str = ""
    median: float = 0.0
    best: float = 0.0
    spread: float = 0.0
    runs: int = 0
    error: float | None = None
    memory: int = 0
    cold_load: float = 0.0
    cold_first: float = 0.0
    warm_load: float = 0.0
    warm_first: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """All engines on one model."""

    model: str
    shapes: dict[str, tuple[int, ...]]
    rows: list[Row]

    @property
    def measured(self) -> list[Row]:
        return [r for r in self.rows if not r.missing]

    @property
    def ratio(self) -> float | None:
        """The best peer's median latency over clnn's."""
        mine = [r.median for r in self.measured if r.engine == "clnn"]
        peers = [r.median for r in self.measured if r.engine != "clnn" and _right(r)]
        return min(peers) / mine[0] if mine and peers else None

    @property
    def agrees(self) -> bool:
        """Whether clnn ran and its outputs are onnxruntime's, as far as that ran."""
        return any(r.engine == "clnn" and not r.missing and _right(r) for r in self.rows)


def _right(row: Row) -> bool:
    return row.error is None or row.error <= TOLERANCE


class Process:
    """A worker process with one engine."""

    def __init__(self, engine: str, setup: Mapping[str, Any], seed: int) -> None:
        env = {**os.environ, "CLNN_CACHE_DIR": str(Path(setup["work"]) / "clnn")}
        env.setdefault("OMP_NUM_THREADS", str(setup["threads"]))
        self._log = (Path(setup["work"]) / "log.txt").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, env=env,
        )  # fmt: skip
        try:
            self.start = self.ask("load", engine=engine, setup=dict(setup), seed=seed)
            self.start |= self.ask("first")
        except EngineError:
            self.close()
            raise

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Send one message and return the answer. Raises EngineError where that is an error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps({"do": do, **values}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            lead = "not installed: " if answer["kind"] == "missing" else ""
            raise EngineError(lead + answer["error"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def compare(
    model: Path, shapes: Mapping[str, tuple[int, ...]], options: Options, work: Path
) -> Result:
    """Measure every engine on a model; `work` is a new folder for conversions and caches."""
    outputs = [o.name for o in onnx.load(model, load_external_data=False).graph.output]
    rows = [Row(engine) for engine in options.engines]
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for row in rows:
            _say(f"{model.stem}: {row.engine} starts")
            folder = work / row.engine
            folder.mkdir(parents=True)
            setup = {"model": str(model.resolve()), "shapes": shapes, "outputs": outputs,
                     "threads": options.threads, "device": options.device,
                     "work": str(folder)}  # fmt: skip
            try:
                with Process(row.engine, setup, options.seed) as cold:
                    row.cold_load, row.cold_first = cold.start["load_s"], cold.start["first_s"]
                process = stack.enter_context(Process(row.engine, setup, options.seed))
            except EngineError as err:
                row.missing = str(err)
                continue
            row.title = process.start.pop("title")
            row.warm_load = process.start.pop("load_s")
            row.warm_first = process.start.pop("first_s")
            row.facts = process.start
            running[row.engine] = process
        times = _turns(running, options.seconds, model.stem)
        _finish(rows, running, times, work)
    return Result(model.stem, dict(shapes), rows)


def _turns(running: Mapping[str, Process], seconds: float, name: str) -> dict[str, list[float]]:
    """Return the latencies of each engine; who begins a round changes."""
    counts = {}
    for engine, process in running.items():
        begin, spent = perf_counter(), [process.ask("run", n=1)["times"][0]]
        while perf_counter() - begin < WARMUP:
            spent += process.ask("run", n=1)["times"]
        counts[engine] = max(1, round(TURN / statistics.median(spent)))
    times: dict[str, list[float]] = {engine: [] for engine in running}
    order, end, rounds = list(running), perf_counter() + seconds, 0
    while rounds < LEAST_ROUNDS or perf_counter() < end:
        for engine in order:
            running[engine].ask("run", n=1)  # wakes its threads, and fills the caches
            times[engine] += running[engine].ask("run", n=counts[engine])["times"]
        order, rounds = [*order[1:], *order[:1]], rounds + 1
        _say(f"{name}: round {rounds}")
    return times


def _finish(
    rows: list[Row], running: Mapping[str, Process], times: Mapping[str, list[float]], work: Path
) -> None:
    found: dict[str, list[np.ndarray]] = {}
    for row in rows:
        if row.engine not in running:
            continue
        path = work / f"{row.engine}.npz"
        answer = running[row.engine].ask("finish", outputs=str(path))
        row.memory = answer.pop("memory")
        row.facts = {**row.facts, **answer}
        low, row.median, high = (float(v) for v in np.percentile(times[row.engine], (25, 50, 75)))
        row.spread, row.best = (high - low) / row.median, min(times[row.engine])
        row.runs = len(times[row.engine])
        with np.load(path) as stored:
            found[row.engine] = [stored[key] for key in stored.files]
    want = found.get("onnxruntime")
    for row in rows:
        if want is not None and row.engine in found:
            pairs = zip(found[row.engine], want, strict=True)
            row.error = max((_difference(got, right) for got, right in pairs), default=0.0)


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.size != want.size:
        return float("inf")
    scale = float(np.abs(want).max(initial=0.0)) or 1.0
    return float(np.abs(got.reshape(want.shape) - want).max(initial=0.0)) / scale


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
