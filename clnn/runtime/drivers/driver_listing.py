"""Lists the devices of each driver in a child process of its own, and finds drivers that end it.

The outcome is kept in the cache for as long as the driver's library, the machine's device files,
the processors in use and the variables that drivers read stay what they are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.records import dataclass
from clnn.runtime.drivers import icd
from clnn.runtime.drivers.calling_thread import BOTH, lists_both, may_list_both
from clnn.runtime.drivers.vendors import Driver, write_drivers
from clnn.runtime.process.forking import open_first, run_python
from clnn.runtime.process.temporary import folder_for_a_while
from clnn.settings import GIVEN

VERSION = "7"
TIMEOUT_S = 60.0
# A crash, a hang or an error is believed for so long, then tried again.
BAD_NEWS_S = 3600.0
_CHILDREN_AT_ONCE = 4
# Drivers that begin nothing, no thread either, before they are asked for platforms: PoCL. The compiler that it
# brings takes most of the time of its listing to open.
_INERT = "libpocl."
# What decides which devices a driver lists: files of devices, and variables by their beginnings.
_DEVICE_FOLDERS = {"/dev": ("nvidia", "dxg", "kfd", "mali"), "/dev/dri": ("",)}
_VARIABLES = (
    "CL_CONFIG_",
    "CUDA_",
    "GPU_",
    "HIP_",
    "HSA_",
    "LD_LIBRARY_PATH",
    "NVIDIA_",
    "ONEAPI_",
    "POCL_",
    "ROCR_",
    "RUSTICL_",
    "SYCL_",
    "ZE_",
)


@dataclass(frozen=True)
class DriverListing:
    """What came of listing a driver's devices: how the process ended ('': well), and the devices.

    devices: fields of clnn.runtime.device.info.DeviceInfo. loads_alone: whether the driver can be
    loaded without the loader. can_call: whether its devices can run kernels in the thread that calls, too.
    """

    driver: Driver
    end: str = ""
    devices: tuple[Mapping[str, Any], ...] = ()
    loads_alone: bool = False
    can_call: bool = False


def list_each(
    drivers: Sequence[Driver], timeout_s: float = TIMEOUT_S, *, refresh: bool = False
) -> list[DriverListing]:
    """Return what is known of each driver; `refresh`: from children, whatever the cache holds."""
    store = Store(kind="drivers")
    found = [None if refresh else _known(store, driver) for driver in drivers]
    if all(found):
        return [one for one in found if one is not None]
    from concurrent.futures import ThreadPoolExecutor

    open_first([d.library for d in drivers if os.path.basename(d.library).startswith(_INERT)])
    with ThreadPoolExecutor(_CHILDREN_AT_ONCE, thread_name_prefix="clnn-driver_listing") as pool:
        new = [
            one or pool.submit(_listing, store, driver, timeout_s)
            for one, driver in zip(found, drivers, strict=True)
        ]
        return [one if isinstance(one, DriverListing) else one.result() for one in new]


def _key(driver: Driver) -> str:
    fields = [VERSION, driver.library, state_of(driver), *_surroundings()]
    return fields_key("clnn driver", fields)


def _known(store: Store, driver: Driver) -> DriverListing | None:
    """Return what the cache knows of a driver and is believed, else None."""
    entry = store.get(_key(driver))
    if entry is None:
        return None
    record = json.loads(entry.payload)
    good = not (record["end"] or record.get("error"))
    is_believed = good or 0 <= time.time() - record["time"] < BAD_NEWS_S
    return _read(driver, record) if is_believed else None


def _listing(store: Store, driver: Driver, timeout_s: float) -> DriverListing:
    """List a driver, and keep what came of it."""
    key = _key(driver)
    answer = _list_in_child(driver, timeout_s)
    if answer is None:
        return DriverListing(driver)
    both = answer["end"] == "" and may_list_both(answer["listed"])
    other = _list_in_child(driver, timeout_s, BOTH) if both else None
    can_call = other is not None and lists_both(answer["listed"], other.get("listed", ()))
    record = {"time": time.time(), **answer, "can_call": can_call}
    store.put(key, json.dumps(record).encode(), {"kind": "driver"})
    return _read(driver, record)


def _read(driver: Driver, record: Mapping[str, Any]) -> DriverListing:
    return DriverListing(
        driver,
        str(record["end"]),
        tuple(record.get("listed", ())),
        bool(record.get("alone")),
        bool(record.get("can_call")),
    )


def _surroundings() -> list[str]:
    """Return texts that change when devices may have come, gone or been hidden."""
    texts = []
    for folder, starts in _DEVICE_FOLDERS.items():
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        texts += [f"{folder}/{name}" for name in names if name.startswith(starts)]
    if hasattr(os, "sched_getaffinity"):
        texts.append(f"{len(os.sched_getaffinity(0))} cpus")
    variables = sorted(name for name in os.environ if name.startswith(_VARIABLES))
    return texts + [f"{name}={os.environ[name]}" for name in variables if name not in GIVEN]


def state_of(driver: Driver) -> str:
    """Return a text that changes when the driver's library does."""
    path = Path(driver.library)
    library = path if path.is_absolute() else icd.find_library(path.name)
    try:
        real = os.path.realpath(library or driver.source or path)
        info = os.stat(real)
    except OSError:
        return ""
    return f"{real}:{info.st_size}:{info.st_mtime_ns}"


def _list_in_child(
    driver: Driver, timeout_s: float, more: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """List the devices of one driver in a child process. more: variables for it.

    Returns its answer, with how the process ended as "end" when it ended in the driver, else ''.
    None where the child did not get so far: that says nothing of the driver.
    """
    with folder_for_a_while("clnn-driver_listing-") as folder:
        vendors = folder / "vendors"
        vendors.mkdir()
        write_drivers(vendors, [driver])
        env = {**os.environ, "OCL_ICD_VENDORS": str(vendors), **(more or {})}
        want = {"task": "devices", "path": driver.library}
        out, end = run_python("device.icd_child", want, timeout_s, env)
    lines = out.splitlines()
    if not lines:
        return None
    try:
        answer = json.loads(lines[1])
    except (IndexError, ValueError):
        return {"end": end or "it ended early"}
    kept = {"listed": [], "alone": False, "error": "", **answer}
    return {"end": "", **{name: kept[name] for name in ("listed", "alone", "error")}}
