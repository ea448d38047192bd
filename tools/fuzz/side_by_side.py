"""Check seeds in a child process, some of them side by side, so that their programs are built together."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from children import calls_of
from drawing import around
from meeting import Meeting

from clnn.runtime.device.device import open_context, select

T = TypeVar("T")


def work_on(
    first: int, count: int, one: Callable[[int], T], at_once: int, device: str | None
) -> Iterator[tuple[int, T, float]]:
    """Yield each seed, what `one` makes of it, and the CPU seconds that it took, a share of its group's.

    Says of each group that it begins, as `children` asks for. One context on `device`, if any, stays open:
    drivers let go of their compilers with the last one. A call of onnxruntime ends, or the process does.
    """
    around[:] = [partial(calls_of, "onnxruntime", at_once == 1)]
    held = device and open_context(select(device))
    for start in range(first, first + count, at_once):
        seeds = range(start, min(start + at_once, first + count))
        print(json.dumps({"seed": start}), flush=True)
        began = _cpu()
        if at_once == 1:
            made = [one(start)]
        else:
            with Meeting(at_once) as meeting:
                made = meeting.map(one, seeds)
        share = round((_cpu() - began) / len(seeds), 3)
        for seed, result in zip(seeds, made, strict=True):
            yield seed, result, share
    del held


def _cpu() -> float:
    return sum(os.times()[:4])
