"""One engine in a process of its own, told what to do in JSON lines on standard input.

    python tools/engines/worker.py   then {"do": "load", ...}, {"do": "first"}, {"do": "run", "n": 5},
                                     {"do": "finish", "outputs": PATH}

Each line is answered by one JSON object; {"error": text, "kind": "missing" | "refused"} where the
engine cannot. The engine's own output goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from engines import MODULES, Arrays, Loaded, Setup


class Worker:
    """Answers one message after the other."""

    def __init__(self) -> None:
        self.loaded: Loaded | None = None
        self.feeds: Arrays = {}
        self.base = 0

    def load(self, engine: str, setup: dict[str, Any], seed: int) -> dict[str, Any]:
        """Load a model; load_s counts the import of the engine and its conversion of the model."""
        made = Setup(Path(setup["model"]), {k: tuple(v) for k, v in setup["shapes"].items()},
                     tuple(setup["outputs"]), setup["threads"], setup["device"],
                     Path(setup["work"]))  # fmt: skip
        cores = sorted(os.sched_getaffinity(0))[: made.threads]
        os.sched_setaffinity(0, cores)
        self.feeds = inputs(made, seed)
        begin = perf_counter()
        self.loaded = importlib.import_module(MODULES[engine]).open_model(made)
        took = perf_counter() - begin
        return {"load_s": took, "title": self.loaded.title, **self.loaded.facts}

    def first(self) -> dict[str, Any]:
        """Run once and say how long it took."""
        return {"first_s": self.run(1)["times"][0]}

    def run(self, n: int) -> dict[str, Any]:
        """Run `n` times; return the seconds of each."""
        assert self.loaded is not None
        call, times = self.loaded.call, []
        for _ in range(n):
            begin = perf_counter()
            call(self.feeds)
            times.append(perf_counter() - begin)
        return {"times": times}

    def finish(self, outputs: str) -> dict[str, Any]:
        """Write the outputs to a file; return the peak memory in bytes and what the engine knows."""
        assert self.loaded is not None
        peak = peak_memory()
        np.savez(outputs, *self.loaded.call(self.feeds))
        return {"memory": peak, **self.loaded.finish(self.feeds)}


def inputs(setup: Setup, seed: int) -> dict[str, np.ndarray]:
    """Return the same random input for every engine."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in setup.shapes.items()}


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints must not mix with the answers
    worker = Worker()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = getattr(worker, message.pop("do"))(**message)
        except ImportError as err:
            answer = {"error": str(err), "kind": "missing"}
        except Exception as err:
            answer = {"error": f"{type(err).__name__}: {err}", "kind": "refused"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
