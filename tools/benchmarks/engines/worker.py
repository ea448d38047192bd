"""Engines in a process of their own, told what to do in JSON lines on standard input.

    python tools/benchmarks/engines/worker.py   then {"do": "load", "key": K, ...}, {"do": "first", "key": K},
                                     {"do": "run", "key": K, "n": 5}, {"do": "rest", "key": K},
                                     {"do": "finish", "key": K, "outputs": PATH},
                                     {"do": "drop", "key": K}

Each line is answered by one JSON object; {"error": text, "kind": "missing" | "refused"} where the
engine cannot. The engine's own output goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from engines import MODULES, Arrays, Loaded, Setup, name_of, options_of
from engines.drawing import arrays

LENGTH = 400  # of an error
PAUSE, LONGEST = 0.01, 0.5  # seconds: of a look at the processor time, and of all of them
IDLE = 0.05  # share of a pause that threads at rest may take


class Worker:
    """Answers one message after the other; holds models under keys."""

    def __init__(self) -> None:
        self.loaded: dict[str, tuple[Loaded, Arrays]] = {}

    def load(self, key: str, engine: str, setup: dict[str, Any], seed: int) -> dict[str, Any]:
        """Load a model; load_s counts the import of the engine and its conversion of the model."""
        made = Setup(
            Path(setup["model"]),
            {k: tuple(v) for k, v in setup["shapes"].items()},
            tuple(setup["outputs"]),
            setup["threads"],
            setup["device"],
            Path(setup["work"]),
            options_of(engine),
            setup.get("draws", {}),
        )
        cores = sorted(os.sched_getaffinity(0))[: made.threads]
        os.sched_setaffinity(0, cores)
        feeds = arrays(made.shapes, made.draws, seed)
        begin = perf_counter()
        loaded = importlib.import_module(MODULES[name_of(engine)]).open_model(made)
        took = perf_counter() - begin
        self.loaded[key] = loaded, feeds
        return {"load_s": took, "title": loaded.title, **loaded.facts}

    def first(self, key: str) -> dict[str, Any]:
        """Run once and say how long it took."""
        return {"first_s": self.run(key, 1)["times"][0]}

    def run(self, key: str, n: int) -> dict[str, Any]:
        """Run `n` times; return the seconds of each."""
        loaded, feeds = self.loaded[key]
        call, times = loaded.call, []
        for _ in range(n):
            begin = perf_counter()
            call(feeds)
            times.append(perf_counter() - begin)
        return {"times": times}

    def rest(self, key: str) -> dict[str, Any]:
        """Return when this process's threads have stopped working, or waiting in a loop for work.

        Engines keep their threads awake for up to 50 ms after a run, on the cores that the next has.
        """
        end = perf_counter() + LONGEST
        while perf_counter() < end:
            before = process_time()
            sleep(PAUSE)
            if process_time() - before < IDLE * PAUSE:
                break
        return {}

    def finish(self, key: str, outputs: str) -> dict[str, Any]:
        """Write the outputs to a file; return the peak memory in bytes and what the engine knows."""
        loaded, feeds = self.loaded[key]
        peak = peak_memory()
        np.savez(outputs, *loaded.call(feeds))
        return {"memory": peak, **loaded.finish(feeds)}

    def drop(self, key: str) -> dict[str, Any]:
        """Free a model, if it was loaded."""
        loaded, _ = self.loaded.pop(key, (None, None))
        if loaded is not None:
            loaded.close()
        del loaded
        gc.collect()
        return {}


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
            text = " ".join(f"{type(err).__name__}: {err}".split())
            answer = {"error": text.removeprefix("EngineError: ")[:LENGTH], "kind": "refused"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
