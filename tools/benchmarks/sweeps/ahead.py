"""Builds the kernels of layers ahead of their measurement, in processes: a sweep waits for little else."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from types import TracebackType

import numpy as np

from clnn.api import compile_model
from clnn.options import Options
from sweeps.cases import Case

MOST_WORKERS = 8
LIMIT_S = 60.0  # that the measurement of a layer waits for its kernels

Job = tuple[Case, str]


class Ahead:
    """Builds jobs in their order, in `workers` processes at once; none where that is 0."""

    def __init__(self, jobs: Sequence[Job], device: int, tune: str, workers: int) -> None:
        self._coming: dict[tuple[str, str], Future[None]] = {}
        self._pool: ProcessPoolExecutor | None = None
        if workers:
            spawned = multiprocessing.get_context("spawn")  # drivers do not live through a fork
            self._pool = ProcessPoolExecutor(workers, spawned)
            for case, dtype in jobs:
                job = self._pool.submit(build, case, dtype, device, tune)
                self._coming[case.label, dtype] = job

    def wait(self, case: Case, dtype: str) -> None:
        """Wait until the kernels of a layer are built, if they are: what fails is met again where it is measured."""
        job = self._coming.pop((case.label, dtype), None)
        if job is not None:
            with suppress(Exception):
                job.result(LIMIT_S)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


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
