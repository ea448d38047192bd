"""What is known of one OpenCL device, and what of it is kept between processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clnn.records import dataclass
from clnn.runtime.device.probe import UNPROBED_CAPABILITIES, Capabilities
from clnn.runtime.drivers.calling_thread import name_in_caller


@dataclass(frozen=True)
class DeviceInfo:
    """One OpenCL device. Sizes are bytes; `mem_base_addr_align` is bits, as OpenCL reports it.

    `native_vector` is how many floats a register holds, as the driver states it (0: not stated).
    `compiled_for` names the processor that its driver was told to compile for by a variable ('': the host's, as drivers
    do by themselves); `driver_version` ends with it, since programs and measurements hold for it alone.

    `why_not` says why the device is not `usable`. `subgroup_size` and `usable_local_mem` were
    measured by the probe (0: none), and so was `max_rounds`: after so many rounds in all, the device
    ends a work-item's loops (0: never). Of GPUs it measured `multiply_rate`, millions of float32 products
    added in a second, `copy_rate`, millions of bytes read or written in a second, and `launch_ns`, from the
    end of a launch to that of the next (0: not measured). `compute_capability` is NVIDIA's, else None.
    `can_call`: its driver can run its kernels in the thread that calls, too, as `in_caller` says that it does.
    `rounds_quotients`: its driver states that float32 quotients and roots are rounded to the nearest where programs
    are built so. `ip_version` numbers the architecture of Intel's GPUs, as drivers/queries.py has it (0: not stated).
    `driver` is the library of a driver that is loaded on demand, else ''. Positions are those in the driver's list of
    platforms (in the loader's, without a `driver`) and in the platform's list of devices.
    """

    index: int
    platform: str
    platform_version: str
    name: str
    vendor: str
    type: str
    driver_version: str
    version: str
    opencl_c_version: str
    compute_units: int
    global_mem: int
    local_mem: int
    max_alloc: int
    max_work_group_size: int
    mem_base_addr_align: int
    unified_memory: bool
    extensions: tuple[str, ...]
    compute_capability: tuple[int, int] | None
    platform_index: int
    device_index: int
    native_vector: int = 0
    compiled_for: str = ""
    ip_version: int = 0
    rounds_quotients: bool = False
    driver: str = ""
    why_not: str = "not probed"
    subgroup_size: int = 0
    usable_local_mem: int = 0
    max_rounds: int = 0
    multiply_rate: int = 0
    copy_rate: int = 0
    launch_ns: int = 0
    can_call: bool = False
    in_caller: bool = False
    caps: Capabilities = UNPROBED_CAPABILITIES

    @property
    def usable(self) -> bool:
        """Whether kernels were built, run and checked on the device."""
        return not self.why_not

    @property
    def cl_std(self) -> str:
        """The build option under which `caps` hold, such as "-cl-std=CL3.0"."""
        version = re.match(r"OpenCL C (\d+)\.", self.opencl_c_version)
        major = int(version.group(1)) if version else 1
        return "-cl-std=CL3.0" if major >= 3 else f"-cl-std=CL{'2.0' if major == 2 else '1.2'}"

    @property
    def place(self) -> tuple[int, int]:
        """Position of its platform, and in that."""
        return self.platform_index, self.device_index

    @property
    def driver_name(self) -> str:
        """The name under which the driver has what runs its kernels."""
        return name_in_caller(self.name) if self.in_caller else self.name

    @property
    def title(self) -> str:
        """Index, device and platform on one line, and where its kernels run in the thread that calls."""
        how = ", in the thread that calls" if self.in_caller else ""
        return f"[{self.index}] {self.name} on {self.platform}{how}"


# What is kept of a device between processes is all but these.
NOT_KEPT = (
    "index",
    "driver",
    "why_not",
    "subgroup_size",
    "usable_local_mem",
    "max_rounds",
    "multiply_rate",
    "copy_rate",
    "launch_ns",
    "can_call",
    "in_caller",
    "caps",
)


def row_of(info: DeviceInfo) -> dict[str, Any]:
    """Return what is kept of a device between processes, as JSON has it."""
    return {f.name: getattr(info, f.name) for f in fields(info) if f.name not in NOT_KEPT}


def kept(driver: str, row: Mapping[str, Any], can_call: bool = False) -> DeviceInfo:
    """Return a device from what row_of gave."""
    version = row["compute_capability"]
    lists = {
        "extensions": tuple(row["extensions"]),
        "compute_capability": tuple(version) if version else None,
    }
    return DeviceInfo(index=-1, driver=driver, can_call=can_call, **{**row, **lists})
