"""PoCL's device that runs kernels in the thread that enqueues them, beside its device with threads.

To wake PoCL's threads for a kernel and to wait for them takes some ten microseconds at rest, and several times
that beside other load: more than a small network runs. PoCL has a second CPU device, without threads, whose
kernels come from the same compiler. It lists that where POCL_DEVICES asks for it as devices are listed first.
Both are asked for where clnn is the first to use PoCL in a process, and PoCL's only device would be the one with
threads. For clnn's callers they are one device, with two ways to run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from clnn.runtime.process.forked import renewed
from clnn.settings import setting

VARIABLE = "POCL_DEVICES"
# Names of PoCL's drivers, with which the names of their devices begin.
CALLER, THREADED = "basic", "pthread"
# What the environment of a process needs to have both, or to have the one without threads alone.
BOTH, ALONE = {VARIABLE: f"{THREADED} {CALLER}"}, {VARIABLE: CALLER}
# What rows of devices have alike where one kernel fits both.
_ALIKE = (
    "platform_index",
    "opencl_c_version",
    "extensions",
    "local_mem",
    "max_work_group_size",
    "max_alloc",
)
_lock = renewed(threading.RLock())
_asked: set[str] = set()  # drivers, by library


def name_in_caller(name: str) -> str:
    """Return the name of the device that runs kernels in the thread that calls, for that of the one with threads."""
    return CALLER + name.removeprefix(THREADED)


def may_list_both(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether PoCL's device with threads is all that a driver lists, by choice of its own.

    rows: of its devices, as clnn.runtime.device.info.row_of has them.
    """
    names = [str(row["name"]) for row in rows]
    return len(names) == 1 and names[0].startswith(f"{THREADED}-") and VARIABLE not in os.environ


def lists_both(rows: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a process that asked for both devices `listed` those of `rows`, and another that is like each."""
    found = {str(row["name"]): row for row in listed}
    wanted = [(str(row["name"]), row) for row in rows]
    return len(listed) == 2 * len(rows) and all(
        _is_like(found.get(one, {}), row)
        for name, row in wanted
        for one in (name, name_in_caller(name))
    )


def _is_like(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(what in one and one[what] == other[what] for what in _ALIKE)


@contextmanager
def both_listed(driver: str, both: bool) -> Iterator[None]:
    """Have PoCL list both of its CPU devices, where it lists devices for the first time in this block.

    driver: its library. both: whether it can. Does nothing for other drivers, where the user has chosen PoCL's
    devices, and where CLNN_CALLING_THREAD is never.
    """
    with _lock:
        wanted = both and setting("CLNN_CALLING_THREAD") != "never"
        if not wanted or driver in _asked or VARIABLE in os.environ:
            yield
            return
        _asked.add(driver)
        os.environ |= BOTH
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def divided(driver: str, devices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return a driver's `cl.Device`s: those it lists otherwise, and those that were asked for beside them."""
    hidden = [d for d in devices if driver in _asked and d.name.startswith(f"{CALLER}-")]
    return [d for d in devices if d not in hidden], hidden


def twin_of(device: Any, hidden: Sequence[Any]) -> Any:
    """Return the `cl.Device` of `hidden` that runs a device's kernels in the thread that calls, None without."""
    name = name_in_caller(device.name.strip())
    return next((other for other in hidden if other.name.strip() == name), None)
