"""Builds the kernels of layers ahead of their measurement, in processes: a sweep waits for little else."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np

from clnn.api import compile_model
from clnn.options import Options
from sweeps.cases import Case

MOST_WORKERS = 8
LIMIT_S = 60.0  # that the measurement of a layer waits for its kernels

Wait = Callable[
    [Case, str, float], None
]  # for a layer with a kind of numbers, so many seconds at most


@contextmanager
def built_ahead(
    jobs: Sequence[tuple[Case, str]], device: int, tune: str, workers: int
) -> Iterator[Wait]:
    """Build layers in their order, in `workers` processes at once; give what waits for one, if any builds it.

    What fails to build, or ends its process, is met again where it is measured.
    """
    if not workers:
        yield lambda case, dtype, seconds: None
        return
    spawned = multiprocessing.get_context("spawn")  # drivers do not live through a fork
    pool = ProcessPoolExecutor(workers, spawned)
    coming = {(c.label, d): pool.submit(build, c, d, device, tune) for c, d in jobs}

    def wait(case: Case, dtype: str, seconds: float) -> None:
        with suppress(Exception):
            coming[case.label, dtype].result(max(0.0, min(seconds, LIMIT_S)))

    try:
        yield wait
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def workers_for(gpu: bool) -> int:
    """Return how many processes build while a device is measured: none where it is the processor."""
    return min(MOST_WORKERS, (os.cpu_count() or 1) // 2) if gpu else 0


def build(case: Case, dtype: str, device: int, tune: str) -> None:
    """Build a layer's kernels, which the program cache then holds."""
    warnings.simplefilter("ignore")
    given = {}
    if dtype == "int8":
        feed = np.random.default_rng(2).standard_normal(case.shape, np.float32)
        given = {"calibration": [{"x": feed}]}
    compile_model(case.model(), device, Options(dtype=dtype, tune=tune), **given).close()
