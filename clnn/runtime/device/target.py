"""A device as code generation sees it, and what options allow of it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from clnn.logs import log
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.probe import CAPABILITY_NAMES
from clnn.runtime.device.processor import is_narrow, lists
from clnn.runtime.device.units import units_of
from clnn.settings import setting
from clnn.target import Target

INSTRUCTIONS = frozenset({"ptx_mma", "ptx_ldmatrix", "ptx_cp_async"})
FLOAT_BYTES = 4
NARROW, WIDE = 8, 16  # floats of a vector of kernels for CPUs


def target_of(info: DeviceInfo) -> Target:
    """Return what code generation needs to know of a device."""
    features = {name for name in CAPABILITY_NAMES if getattr(info.caps, name)}
    cpu, units = kind_of(info) == "cpu", units_of(info)
    if not cpu or vector_of(info) < WIDE:
        features.discard("half_rate")
    launch_products, element_products = measured(info, units.count)
    return Target(
        kind="cpu" if cpu else "gpu",
        vector=vector_of(info) if cpu else 4,
        compute_units=units.count,
        max_work_group=info.max_work_group_size,
        local_bytes=info.usable_local_mem,
        features=frozenset(features),
        tensor=tensor_cores(features),
        max_rounds=info.max_rounds,
        lanes=units.lanes,
        unit_registers=units.registers,
        resident=units.resident,
        item_registers=units.item_registers,
        item_room=units.item_room,
        asks_for=units.asks_for,
        launch_products=launch_products,
        element_products=element_products,
    )


def measured(info: DeviceInfo, units: int) -> tuple[int, int]:
    """Return Target's launch_products and element_products, of two digits, 0 where they are not known."""
    launch = info.multiply_rate * info.launch_ns / (1000 * units) if units else 0
    element = FLOAT_BYTES * info.multiply_rate / info.copy_rate if info.copy_rate else 0
    return _two_digits(launch), _two_digits(element)


def _two_digits(value: float) -> int:
    return max(1, int(float(f"{value:.1e}"))) if value else 0


def kind_of(info: DeviceInfo) -> str:
    """Return Target.kind of a device, as CLNN_DEVICE_KIND allows.

    A CPU's driver that ends loops gets the kernels of GPUs, whose work-items do few rounds.
    """
    asked = str(setting("CLNN_DEVICE_KIND"))
    if asked != "auto":
        return asked
    beside = info.caps.work_groups or info.max_rounds
    return "cpu" if info.type == "cpu" and not beside else "gpu"


def vector_of(info: DeviceInfo) -> int:
    """Return Target.vector of a CPU, as CLNN_CPU_VECTOR allows.

    That is 8 where the driver states registers of 8 floats and the processor has no wider ones, and
    where the driver was told to compile for a processor without. A register that the compiler has to
    make of two is one of half as many.
    """
    asked = str(setting("CLNN_CPU_VECTOR"))
    if asked != "auto":
        return int(asked)
    stated = info.native_vector == NARROW and not lists("avx512f")
    return NARROW if stated or is_narrow(info.compiled_for) else WIDE


def tensor_cores(features: Set[str]) -> str:
    """Return Target.tensor of a device with `features`, as CLNN_TENSOR_CORES allows."""
    asked = str(setting("CLNN_TENSOR_CORES"))
    if asked != "auto":
        return "" if asked == "off" else asked
    return "ptx" if features >= INSTRUCTIONS else ""


def allowed(target: Target, options: Options) -> Target:
    """Return the target with what `options` let it use."""
    return replace(target, winograd=options.winograd, tf32=options.dtype == "tf32")


def products(target: Target, options: Options) -> str:
    """Return how a session multiplies: "float32", or the type of operands on tensor cores.

    Says why where "tf32" was asked for and cannot be had, in the log too.
    """
    if options.dtype == "f32":
        return "float32"
    if target.tensor:
        return f"{options.dtype} on {'emulated ' * (target.tensor == 'emulated')}tensor cores"
    if options.dtype != "tf32":
        return "float32"
    log.warning("dtype tf32: the device has no tensor cores that clnn uses; arithmetic is float32")
    return "float32, for want of tensor cores"
