"""Keeps each of PoCL's threads on a processor of its own.

PoCL has a thread per processor, and a kernel ends when the last of them has. After a pause the
scheduler of the system may wake two of them on one processor, where they take turns until it
balances its load, some milliseconds later: a run of 3 ms then takes 10.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from clnn.logs import log
from clnn.settings import setting

TASKS = "/proc/self/task"
PINNED = "Portable Computing Language"


def threads() -> set[int]:
    """Return the ids of the threads of this process; none where the system does not tell."""
    try:
        return {int(name) for name in os.listdir(TASKS)}
    except OSError:
        return set()


def pin(started: Iterable[int], platforms: Iterable[str]) -> None:
    """Pin the threads that were started while `platforms` were listed: PoCL's, one per processor.

    Left to the system: other platforms; processes that may use fewer processors than PoCL has
    threads, or more; CLNN_PIN_THREADS=off, and a POCL_AFFINITY that is set; systems that cannot.
    """
    wanted = PINNED in platforms and setting("CLNN_PIN_THREADS") == "auto"
    if not wanted or "POCL_AFFINITY" in os.environ or not hasattr(os, "sched_setaffinity"):
        return
    ids, processors = sorted(started), sorted(os.sched_getaffinity(0))
    if not len(ids) == len(processors) > 1:
        return
    try:
        for thread, processor in zip(ids, processors, strict=True):
            os.sched_setaffinity(thread, {processor})
    except OSError as err:
        log.info("threads of %s stay where the system puts them: %s", PINNED, err)
