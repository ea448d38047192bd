"""The OpenCL devices of this machine: what they are, which are usable, and how to choose one.

Devices are numbered in the order of preference, which does not depend on the loader: GPUs (those
with memory of their own first, then the larger memory), CPUs (PoCL first, then by platform name),
accelerators, simulators. "auto" takes the first usable one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from clnn.errors import ClnnError, DeviceError, NoDeviceError
from clnn.runtime.device.handles import Handle, handles
from clnn.runtime.device.info import NOT_KEPT, DeviceInfo, kept
from clnn.runtime.device.probe import (
    Capabilities,
    Capability,
    ProbeTarget,
    probe,
)
from clnn.runtime.device.processor import NOT_GIVEN, compiled_for, may_use_tiles
from clnn.runtime.drivers import driver_listing, driver_loading
from clnn.runtime.drivers.loader import load, setup, warn_if_hidden
from clnn.runtime.drivers.queries import IP_VERSION, stated_number
from clnn.runtime.process import forked
from clnn.settings import setting

__all__ = ["Capabilities", "Capability", "DeviceInfo", "discover", "open_context", "select"]

KINDS = ("gpu", "cpu", "accelerator")
_SIMULATORS = ("oclgrind",)
_PREFERRED_CPU = "portable computing language"
_PROBES_AT_ONCE = 4
_NUMBERED = "cl_intel_device_attribute_query"  # states IP_VERSION
ROUNDS_QUOTIENTS = 1 << 7  # CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
_SURE_BUFFER = 1 << 31  # bytes; whether places beyond are apart is the capability large_buffers


class NothingListedError(NoDeviceError):
    """OpenCL lists no device at all; `clnn.runtime.doctor` finds out why."""


_IDENTITY = ("platform", "platform_version", "name", "driver_version")
_lock = forked.renewed(threading.Lock())
_probed: dict[int, DeviceInfo] = {}
_probing = [forked.renewed(threading.Lock()) for _ in range(16)]  # by index: one probe at a time
_listed_anew: set[str] = set()


def discover(*, refresh: bool = False) -> list[DeviceInfo]:
    """Return all devices, usable or not, in order of index; empty when there are none.

    The first call probes what the cache does not know; `refresh` probes all anew. Raises
    NoDeviceError when pyopencl cannot be imported, DeviceError when OpenCL itself fails.
    """

    from concurrent.futures import ThreadPoolExecutor  # few starts ask for all devices

    listed = list_unprobed()
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="clnn-probe") as pool:
        return list(pool.map(lambda info: _with_probe(info, refresh), listed))


def select(spec: str | int | None = None) -> DeviceInfo:
    """Return the usable device that `spec` names.

    `spec` is "auto", "cpu", "gpu", "accelerator", an index, part of a platform's name or version,
    of a vendor's or of a device's name (the first of these that matches anything), or
    "platform:device", whose second part may be an index within the platform. None is CLNN_DEVICE.
    Of several matches the first usable one is taken. Raises NoDeviceError when nothing matches,
    DeviceError when what matches cannot be used.
    """
    wanted = _wanted(spec)
    open_ahead(wanted)
    broken = []
    for candidate in _matching(list_unprobed(), wanted):
        info = _with_probe(candidate, refresh=False)
        here = _as_it_is(info) if info.usable else None
        if here is not None:
            return here
        if info.usable:  # what was kept of its driver is wrong by now
            _list_anew(info.driver)
            return select(spec)
        broken.append(info)
    raise _refusal(f"{wanted!r} (from CLNN_DEVICE)" if spec is None else repr(wanted), broken)


def open_ahead(spec: str | int | None = None) -> None:
    """Begin to open the driver of what `select` looks at first, where that is known without it."""
    if not setup().on_demand:
        return
    with suppress(ClnnError):
        for info in _matching(_kept(), _wanted(spec))[:1]:
            driver_loading.open_ahead(info.driver)


def _wanted(spec: str | int | None) -> str | int:
    given: str | int = setting("CLNN_DEVICE") if spec is None else spec
    return given


def open_context(info: DeviceInfo) -> tuple[Any, Any]:
    """Return (new `cl.Context`, `cl.Device`) of a usable device. Raises DeviceError, ForkError."""
    if not info.usable:
        raise DeviceError(f"{info.title} cannot be used: {info.why_not}. Run: clnn doctor")
    cl = load()
    for found in _handles(info.driver):
        if found.place != info.place or found.device.name.strip() != info.name:
            continue
        device = found.in_caller if info.in_caller else found.device
        if device is not None:
            try:
                return cl.Context([device]), device
            except cl.Error as err:
                raise DeviceError(
                    f"{info.title} does not open: {err}. The driver refuses a context;"
                    f" another process may hold the device. Run: clnn doctor"
                ) from err
    raise DeviceError(
        f"{info.title} is gone: this process sees other devices than the one that listed it."
        " Call clnn.devices() in the process that uses the device."
    )


def describe(devices: Sequence[DeviceInfo]) -> str:
    """Return one line per device: its title, and why it is not usable."""
    lines = [f"{d.title} ({d.type})" + (f": {d.why_not}" if d.why_not else "") for d in devices]
    return "\n".join(f"  {line}" for line in lines)


@cache
def list_unprobed() -> tuple[DeviceInfo, ...]:
    """Return all devices, not probed, numbered in order of preference.

    Those of drivers that are loaded one by one are as they were when the driver was last listed.
    """
    if setup().on_demand:
        load()
        return _kept()
    listed = [_read(found) for found in _handles()]
    warn_if_hidden()
    return _numbered(listed)


@cache
def _kept() -> tuple[DeviceInfo, ...]:
    """Return the devices of drivers that are loaded one by one."""
    listings = driver_listing.list_each(setup().on_demand)
    return _numbered(
        [kept(one.driver.library, row, one.can_call) for one in listings for row in one.devices]
    )


def _numbered(listed: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    return tuple(replace(info, index=i) for i, info in enumerate(sorted(listed, key=_preference)))


def _as_it_is(info: DeviceInfo) -> DeviceInfo | None:
    """Return a usable device as this process sees it, None where another is in its place."""
    if not info.driver:
        return info
    for found in _handles(info.driver):
        if found.place == info.place:
            now = _read(found)
            same = all(getattr(now, name) == getattr(info, name) for name in _IDENTITY)
            known = {name: getattr(info, name) for name in NOT_KEPT}
            return _within(replace(now, **known)) if same else None
    return None


def _list_anew(driver: str) -> None:
    """List a driver again in a child process. Raises DeviceError where that was done before."""
    if driver in _listed_anew:
        raise DeviceError(
            f"devices of {driver} are listed in one process and missing in another. Set"
            " CLNN_DRIVERS=all, and run: clnn doctor"
        )
    _listed_anew.add(driver)
    driver_listing.list_each([d for d in setup().on_demand if d.library == driver], refresh=True)
    _kept.cache_clear()
    list_unprobed.cache_clear()
    with _lock:
        _probed.clear()


def _handles(driver: str = "") -> list[Handle]:
    """Return every device of a driver, of all without a driver."""
    both = bool(driver) and any(d.can_call for d in list_unprobed() if d.driver == driver)
    return handles(driver, both)


def has_caller(info: DeviceInfo) -> bool:
    """Whether a device's kernels can run in the thread that calls, in this process."""
    if not info.can_call:
        return False
    own = (found for found in _handles(info.driver) if found.place == info.place)
    return any(found.in_caller is not None for found in own)


def _read(found: Handle) -> DeviceInfo:
    cl, device = load(), found.device

    def get(name: str, default: Any) -> Any:
        try:
            value = device.get_info(getattr(cl.device_info, name))
        except (cl.Error, AttributeError):
            return default
        return value.strip("\0 \t\n") if isinstance(value, str) else value

    platform, kind = device.platform, _kind(cl, get("TYPE", 0))
    told = compiled_for(platform.name.strip()) if kind == "cpu" else ""
    extensions = tuple(sorted(get("EXTENSIONS", "").split()))
    numbered = kind == "gpu" and _NUMBERED in extensions
    major, minor = get("COMPUTE_CAPABILITY_MAJOR_NV", 0), get("COMPUTE_CAPABILITY_MINOR_NV", 0)
    return DeviceInfo(
        index=-1,
        platform=platform.name.strip(),
        platform_version=platform.version.strip(),
        name=get("NAME", "unnamed"),
        vendor=get("VENDOR", ""),
        type=kind,
        driver_version=get("DRIVER_VERSION", "") + f" for {told}" * bool(told),
        version=get("VERSION", ""),
        opencl_c_version=get("OPENCL_C_VERSION", ""),
        compute_units=get("MAX_COMPUTE_UNITS", 0),
        global_mem=get("GLOBAL_MEM_SIZE", 0),
        local_mem=get("LOCAL_MEM_SIZE", 0),
        max_alloc=get("MAX_MEM_ALLOC_SIZE", 0),
        max_work_group_size=get("MAX_WORK_GROUP_SIZE", 0),
        mem_base_addr_align=get("MEM_BASE_ADDR_ALIGN", 0),
        unified_memory=bool(get("HOST_UNIFIED_MEMORY", False)),
        extensions=extensions,
        compute_capability=(major, minor) if major else None,
        platform_index=found.platform_index,
        device_index=found.device_index,
        native_vector=get("NATIVE_VECTOR_WIDTH_FLOAT", 0),
        compiled_for=told,
        ip_version=stated_number(device, IP_VERSION) if numbered else 0,
        rounds_quotients=bool(get("SINGLE_FP_CONFIG", 0) & ROUNDS_QUOTIENTS),
    )


def _kind(cl: Any, bits: int) -> str:
    """Return the device type; a device that claims several (a simulator) counts as a CPU."""
    kinds = [kind for kind in KINDS if bits & getattr(cl.device_type, kind.upper())]
    return "cpu" if len(kinds) != 1 else kinds[0]


def _preference(info: DeviceInfo) -> tuple[Any, ...]:
    platform = info.platform.lower()
    kind = len(KINDS) if platform in _SIMULATORS else KINDS.index(info.type)
    if info.type == "gpu":
        order: tuple[Any, ...] = (info.unified_memory, -info.global_mem)
    else:
        order = (platform != _PREFERRED_CPU, 0)
    return (kind, *order, platform, info.platform_version, info.name, info.device_index)


def _with_probe(info: DeviceInfo, refresh: bool) -> DeviceInfo:
    """Return a device with what its probe found; threads that ask at once share one probe."""
    with _lock:
        known = _probed.get(info.index)
    if known is not None and not refresh:
        return known
    with _probing[info.index % len(_probing)]:
        return _probed_now(info, refresh)


def _probed_now(info: DeviceInfo, refresh: bool) -> DeviceInfo:
    with _lock:
        known = _probed.get(info.index)
    if known is not None and not refresh:
        return known
    result = probe(probe_target(info), refresh=refresh)
    multiply_rate, copy_rate, launch_ns = result.rates
    probed = replace(
        info,
        multiply_rate=multiply_rate,
        copy_rate=copy_rate,
        launch_ns=launch_ns,
        why_not=result.why_not,
        caps=_given(result.caps),
        subgroup_size=result.subgroup_size,
        usable_local_mem=result.usable_local_mem,
        max_rounds=result.max_rounds,
    )
    with _lock:
        _probed[info.index] = probed = _within(probed)
    return probed


def _given(caps: Capabilities) -> Capabilities:
    """Return what a device can do with what the system gives this process, which is asked for it here."""
    if not caps.x86_amx or may_use_tiles():
        return caps
    return replace(caps, x86_amx=Capability(False, NOT_GIVEN))


def _within(info: DeviceInfo) -> DeviceInfo:
    """Return a device with no larger buffers than it was seen to have."""
    sure = info.caps.large_buffers or not info.usable
    return info if sure else replace(info, max_alloc=min(info.max_alloc, _SURE_BUFFER))


def probe_target(info: DeviceInfo) -> ProbeTarget:
    """Return what a probe's child process needs to find the device again."""
    return ProbeTarget(
        info.platform_index,
        info.platform,
        info.platform_version,
        info.device_index,
        info.name,
        info.driver_version,
        info.cl_std,
        info.driver,
    )


def _matching(devices: Sequence[DeviceInfo], wanted: str | int) -> list[DeviceInfo]:
    """Return the devices that `wanted` names, in order of preference."""
    text = str(wanted).strip().lower()
    if isinstance(wanted, int) or text.isdecimal():
        return [info for info in devices if info.index == int(text)]
    if text == "auto":
        return list(devices)
    if text in KINDS:
        return [info for info in devices if info.type == text]
    whole = _named(devices, text)
    if whole or ":" not in text:
        return whole
    platform, _, device = (part.strip() for part in text.partition(":"))
    inside = _in_platform(devices, platform) if platform else list(devices)
    if device.isdecimal():
        return [info for info in inside if info.device_index == int(device)]
    return [info for info in inside if device and device in info.name.lower()]


def _named(devices: Sequence[DeviceInfo], text: str) -> list[DeviceInfo]:
    return _in_platform(devices, text) or [
        info for info in devices if text and text in info.name.lower()
    ]


def _in_platform(devices: Sequence[DeviceInfo], text: str) -> list[DeviceInfo]:
    """Return the devices whose platform name, else version, else vendor contains `text`."""
    for field in ("platform", "platform_version", "vendor"):
        matching = [info for info in devices if text and text in getattr(info, field).lower()]
        if matching:
            return matching
    return []


def _refusal(wanted: str, broken: Sequence[DeviceInfo]) -> DeviceError:
    """Return the error for a `wanted` that nothing answers, or only devices that do not work."""
    devices = list_unprobed()
    if not devices:
        return NothingListedError("No OpenCL device was found on this machine.")
    if not broken:
        return NoDeviceError(
            f"No OpenCL device answers to {wanted}. A device is named by auto, cpu, gpu, an index"
            f" or part of a name. Here there are:\n{describe(_known(devices))}"
        )
    everything = len(broken) == len(devices)
    others = "" if everything else f"Here there are:\n{describe(_known(devices))}\n"
    return (NoDeviceError if everything else DeviceError)(
        f"The device {wanted} does not work: a test kernel did not build, run and give the right"
        f" result.\n{describe(broken)}\n{others}"
        "Run `clnn doctor` for the causes, or name another device."
    )


def _known(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return `devices`, each as its probe found it where there was one, else without `why_not`."""
    with _lock:
        return [_probed.get(info.index, replace(info, why_not="")) for info in devices]
