"""Finds drivers that end the process that lists their devices, so that they can be left out.

Each driver is listed alone in a child process. The outcome is kept in the cache for as long as
the driver's library stays what it is.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.runtime import icd
from clnn.runtime.child import run_python
from clnn.runtime.vendors import Driver, write_drivers

VERSION = "1"
TIMEOUT_S = 60.0
# A crash or a hang is believed for so long, then tried again.
BAD_NEWS_S = 3600.0
_CHILDREN_AT_ONCE = 4


def crashing(drivers: Sequence[Driver], timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return library -> how the process ended, for each driver that ends it."""
    store = Store(kind="drivers")
    with ThreadPoolExecutor(_CHILDREN_AT_ONCE, thread_name_prefix="clnn-vetting") as pool:
        ends = list(pool.map(lambda driver: _vetted(store, driver, timeout_s), drivers))
    return {driver.library: end for driver, end in zip(drivers, ends, strict=True) if end}


def _vetted(store: Store, driver: Driver, timeout_s: float) -> str:
    """Return '' for a driver that lets the process live, else how the process ended."""
    key = fields_key("clnn driver", [VERSION, driver.library, _state(driver)])
    entry = store.get(key)
    if entry is not None:
        record = json.loads(entry.payload)
        if not record["end"] or 0 <= time.time() - record["time"] < BAD_NEWS_S:
            return str(record["end"])
    end = _list_alone(driver, timeout_s)
    record = {"time": time.time(), "end": end}
    store.put(key, json.dumps(record).encode(), {"kind": "driver"})
    return end


def _state(driver: Driver) -> str:
    """Return a text that changes when the driver's library does."""
    path = Path(driver.library)
    found = path if path.is_absolute() else icd.find_library(path.name)
    try:
        real = os.path.realpath(found or driver.source or path)
        info = os.stat(real)
    except OSError:
        return ""
    return f"{real}:{info.st_size}:{info.st_mtime_ns}"


def _list_alone(driver: Driver, timeout_s: float) -> str:
    """List the devices of one driver in a child process.

    Returns how the process ended when it ended in the driver, else ''.
    """
    with tempfile.TemporaryDirectory(prefix="clnn-vetting-") as folder:
        write_drivers(Path(folder), [driver])
        env = {**os.environ, "OCL_ICD_VENDORS": folder}
        out, end = run_python("icd_child", {"task": "devices"}, timeout_s, env)
    started_only = len(out.splitlines()) == 1
    return (end or "it ended early") if started_only else ""
