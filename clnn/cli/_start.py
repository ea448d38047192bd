"""Measuring starts: processes of their own go from nothing to a first answer, and say what took how long."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from clnn.errors import ClnnError
from clnn.options import Options
from clnn.records import dataclass
from clnn.timeline import Mark, begin, mark

CHILD = (
    "import json, sys, time; began = time.time(); asked = json.loads(sys.argv[1]);"
    " sys.path[:] = asked['path']; from clnn.cli._start import child; child(asked, began)"
)


@dataclass(frozen=True)
class Step:
    """One step of a start: median seconds by the wall clock, and of CPU, over the processes."""

    step: str
    wall: float
    cpu: float


@dataclass(frozen=True)
class Start:
    """Starts of a model: their steps, medians of the whole, and programs from the cache and built."""

    model: str
    rounds: int
    steps: tuple[Step, ...]
    wall: float
    cpu: float
    programs: tuple[int, int]


def measure_starts(
    model: str,
    device: str | int | None,
    options: Options,
    shapes: Mapping[str, Sequence[int] | int],
    rounds: int,
) -> Start:
    """Return how so many processes, one after the other, started `model`.

    One more goes first, which leaves the cache as a user finds it at a second start. Raises ClnnError
    with what a process said, where one failed.
    """
    asked = {
        "model": model,
        "device": device,
        "options": asdict(options),
        "shapes": dict(shapes),
        "path": sys.path,
    }
    told = [_start(asked) for _ in range(rounds + 1)][1:]
    names = list(dict.fromkeys(name for one in told for name, *_ in one["steps"]))

    def of(name: str, column: int) -> float:
        return median(
            sum((row[column] for row in one["steps"] if row[0] == name), 0.0) for one in told
        )

    steps = tuple(Step(name, of(name, 1), of(name, 2)) for name in names)
    whole = [median(sum(row[column] for row in one["steps"]) for one in told) for column in (1, 2)]
    cached, built = told[-1]["programs"]
    return Start(os.fspath(model), rounds, steps, whole[0], whole[1], (cached, built))


def _start(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process tells of its start."""
    spawned = time.time()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps({**asked, "spawned": spawned})],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        said = re.split(r"\n(?=[\w.]+Error: )", done.stderr.strip())[-1]
        raise ClnnError(f"a process that started the model failed. It said: {said}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def child(asked: Mapping[str, Any], began: float) -> None:
    """Start a model, run it once, and print what took how long, as JSON (runs in a child)."""
    marks = begin()
    marks.append(Mark("python", began, 0.0))
    import numpy as np

    mark("numpy")
    from clnn.runtime.drivers.loader import load

    load()
    mark("pyopencl")
    from clnn.entry import compile_model

    mark("clnn")
    options = Options(**asked["options"])
    shapes = {n: s if isinstance(s, int) else tuple(s) for n, s in asked["shapes"].items()}
    with compile_model(asked["model"], asked["device"], options, shapes) as session:
        session({port.name: np.zeros(port.shape, port.dtype) for port in session.inputs})
        mark("first run")
        rows = _rows(marks, asked["spawned"])
        print(json.dumps({"steps": rows, "programs": session.build_counts}))


def _rows(marks: Sequence[Mark], spawned: float) -> list[tuple[str, float, float]]:
    """Return the seconds of each step: (name, wall, CPU)."""
    before = (Mark("", spawned, 0.0), *marks)
    return [
        (one.step, one.wall - last.wall, one.cpu - last.cpu)
        for last, one in zip(before, marks, strict=False)
    ]


def text(start: Start) -> str:
    """Return measured starts as text."""
    cached, built = start.programs
    rows = [f"{'step':<12} {'wall':>9} {'CPU':>9}"]
    rows += [f"{s.step:<12} {s.wall * 1e3:9.1f} {s.cpu * 1e3:9.1f}" for s in start.steps]
    rows.append(f"{'in all':<12} {start.wall * 1e3:9.1f} {start.cpu * 1e3:9.1f} ms")
    head = f"{start.model}: process start to first answer, medians of {start.rounds} processes"
    return "\n".join([f"{head} ({cached}/{cached + built} programs from the cache)", *rows])
