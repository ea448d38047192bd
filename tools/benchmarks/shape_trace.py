"""Where the time of a new shape went: clnn's threads, the system, or others on the machine.

A Moment is what the system counts at one time; `between` puts two into words. Linux counts all of it; elsewhere
only times are told.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, thread_time

LOOP = 20_000  # rounds of a loop that tells how fast this processor is now
PAGES = {  # of /proc/vmstat, pages that somebody found or wanted
    "thp_fault_alloc": "large pages",
    "compact_stall": "compactions",
    "allocstall_normal": "stalls for memory",
}


@dataclass(frozen=True)
class Moment:
    """Counts at one time: seconds on the clock and of this thread, and what Linux has besides.

    threads: of this process, by number: ms that each ran, and that it waited for a processor. machine: ms of all
    processors that anybody used, and that the host took. faults: of this thread, small and from a file; all_faults: of
    the process. collections: of Python's collector of cycles.
    """

    threads: dict[str, tuple[float, float]]
    machine: tuple[float, float]
    pages: dict[str, int]
    faults: tuple[int, int]
    all_faults: int
    switches: tuple[int, int]
    collections: int
    cpu: float = field(default_factory=thread_time)
    clock: float = field(default_factory=perf_counter)

    @staticmethod
    def now() -> Moment:
        """Return the counts of this moment."""
        used = [_usage("RUSAGE_THREAD", name) for name in _USED]
        faults, switches = (used[0], used[1]), (used[2], used[3])
        every = _usage("RUSAGE_SELF", _USED[0])
        collected = sum(one["collections"] for one in gc.get_stats())
        return Moment(dict(_threads()), _machine(), _pages(), faults, every, switches, collected)


def between(before: Moment, after: Moment) -> str:
    """Return in words what happened in this thread from one moment to another, and beside it."""
    others = {
        k: (run - ran, waits - waited)
        for k, (run, waits) in after.threads.items()
        for ran, waited in [before.threads.get(k, (0.0, 0.0))]
    }
    own = others.pop(_thread(), (0.0, 0.0))
    ours = own[0] + sum(ran for ran, _ in others.values())
    used, stolen = (b - a for a, b in zip(before.machine, after.machine, strict=True))
    told = [
        f"{1e3 * (after.clock - before.clock):.1f} ms, {1e3 * (after.cpu - before.cpu):.1f} of processor",
        f"waited {own[1]:.1f} for one",
        "other threads ran and waited "
        + (" ".join(f"{a:.1f}+{b:.1f}" for a, b in others.values() if a + b > 0.5) or "0"),
        f"other processes about {max(0.0, used - ours):.0f}, host took {stolen:.0f}",
    ]
    faults, switches = (
        [b - a for a, b in zip(*pair, strict=True)]
        for pair in ((before.faults, after.faults), (before.switches, after.switches))
    )
    told.append(f"faults {faults[0]}+{faults[1]} of {after.all_faults - before.all_faults}")
    told.append(f"switches {switches[0]}+{switches[1]}")
    told += [f"{text} {more}" for key, text in PAGES.items() if (more := _more(key, before, after))]
    collected = after.collections - before.collections
    return ", ".join([*told, *([f"{collected} collections"] if collected else [])])


def loop_ms() -> float:
    """Return how long a loop of Python takes just now."""
    began = perf_counter()
    for _ in range(LOOP):
        pass
    return 1e3 * (perf_counter() - began)


_USED = "ru_minflt", "ru_majflt", "ru_nvcsw", "ru_nivcsw"


def _usage(whose: str, name: str) -> int:
    try:
        import resource
    except ImportError:
        return 0
    return int(getattr(resource.getrusage(getattr(resource, whose, resource.RUSAGE_SELF)), name))


def _thread() -> str:
    import threading

    return str(threading.get_native_id())


def _threads() -> Iterator[tuple[str, tuple[float, float]]]:
    folder = Path("/proc/self/task")
    for task in folder.iterdir() if folder.is_dir() else ():
        try:
            ran, waited, _ = (task / "schedstat").read_text().split()
        except (OSError, ValueError):  # it ended
            continue
        yield task.name, (int(ran) / 1e6, int(waited) / 1e6)


def _machine() -> tuple[float, float]:
    try:
        _, *ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0, 0.0
    tick = 1e3 / os.sysconf("SC_CLK_TCK")
    counts = [int(n) * tick for n in ticks]
    user, nice, system, _, _, interrupts, soft, stolen, *_ = counts
    return user + nice + system + interrupts + soft, stolen


def _pages() -> dict[str, int]:
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return {}
    counts = dict(line.split() for line in lines)
    return {key: int(counts[key]) for key in PAGES if key in counts}


def _more(key: str, before: Moment, after: Moment) -> int:
    return after.pages.get(key, 0) - before.pages.get(key, 0)
