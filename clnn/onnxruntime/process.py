"""What holds for the whole process: threads of drivers and of asynchronous runs, logging, and calls
of onnxruntime that have no meaning here."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clnn.logs import log
from clnn.onnxruntime.errors import ArgumentTypeError, FeedError
from clnn.onnxruntime.options import tell_once

THREADS = "POCL_MAX_PTHREAD_COUNT"
_SEVERITIES = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_lock = threading.Lock()
_pool: list[ThreadPoolExecutor] = []


def use_threads(count: int) -> None:
    """Give PoCL `count` threads, where its driver is not loaded yet and nothing else says how many.

    0 and less, and as many as there are processors or more: the driver's own number.
    """
    if count <= 0 or count >= (os.cpu_count() or 1):
        return
    if "pyopencl" in sys.modules or THREADS in os.environ:
        if os.environ.get(THREADS) != str(count):
            log.info(
                "clnn.onnxruntime: intra_op_num_threads=%d comes too late: a process's OpenCL driver"
                " has one number of threads, which the first session sets, or %s.",
                count,
                THREADS,
            )
        return
    os.environ[THREADS] = str(count)


def submit(work: Callable[[], None]) -> None:
    """Run a function in a thread of the pool of asynchronous runs."""
    with _lock:
        if not _pool:
            _pool.append(ThreadPoolExecutor(thread_name_prefix="clnn-run-async"))
    _pool[0].submit(work)


def set_default_logger_severity(severity: int) -> None:
    """Log what is at least so severe: 0 all, 1 information, 2 warnings, 3 errors, 4 the worst."""
    if not isinstance(severity, int):
        raise ArgumentTypeError(f"a severity is a number from 0 to 4, not {severity!r}.")
    if severity not in range(len(_SEVERITIES)):
        raise FeedError(f"a severity is from 0 (all) to 4 (the worst); {severity} was given.")
    log.setLevel(_SEVERITIES[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: CLNN_DEBUG sets how much is logged."""
    tell_once("set_default_logger_verbosity", "CLNN_DEBUG sets how much is logged")


def set_default_logger_callback(callback: Any) -> None:
    """Do nothing: messages go to Python's logger "clnn"."""
    tell_once("set_default_logger_callback", 'messages go to the logger "clnn"')


def disable_telemetry_events() -> None:
    """Do nothing: clnn sends nothing to anybody."""


def enable_telemetry_events() -> None:
    """Do nothing: clnn sends nothing to anybody."""
    tell_once("enable_telemetry_events", "clnn sends nothing to anybody")


def set_seed(seed: int) -> None:
    """Do nothing: clnn has no operators of random numbers."""


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    """Take the first number as SessionOptions.intra_op_num_threads is taken."""
    use_threads(intra_op)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None
) -> None:
    """Do nothing: OpenCL's drivers are loaded where a device is used."""


def print_debug_info() -> None:
    """Print what `clnn doctor` finds."""
    from clnn.runtime.doctor.doctor import doctor_report

    print(doctor_report())


def has_collective_ops() -> bool:
    """Whether operators between processes run: never."""
    return False
