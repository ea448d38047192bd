"""The devices of drivers, as this process has them."""

from __future__ import annotations

from typing import Any

from clnn.errors import DeviceError
from clnn.records import dataclass
from clnn.runtime.drivers import calling_thread
from clnn.runtime.drivers.driver_loading import platforms_of
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pinning import pin, threads
from clnn.runtime.process import forked


@dataclass(frozen=True)
class Handle:
    """A `cl.Device`, where it is listed: position of its platform, and in that.

    in_caller: the one that runs the same kernels in the thread that calls, None where there is none.
    """

    platform_index: int
    device_index: int
    device: Any
    in_caller: Any = None

    @property
    def place(self) -> tuple[int, int]:
        """Both positions."""
        return self.platform_index, self.device_index


def handles(driver: str = "", both: bool = False) -> list[Handle]:
    """Return every device of a driver, of all without a driver.

    both: it is PoCL, and has been seen to list both of its CPU devices. Raises DeviceError, ForkError.
    """
    forked.use_driver()
    cl, before = load(), threads()
    found = []
    with calling_thread.both_listed(driver, both):
        try:
            platforms = platforms_of(driver)
        except cl.Error as err:
            if err.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
                return []
            raise DeviceError(f"OpenCL cannot list its platforms: {err}. Run: clnn doctor") from err
        for p, platform in enumerate(platforms):
            try:
                devices = platform.get_devices()
            except cl.Error:  # a platform without a device, such as a driver without its hardware
                continue
            seen, hidden = calling_thread.divided(driver, devices)
            found += [
                Handle(p, d, device, calling_thread.twin_of(device, hidden))
                for d, device in enumerate(seen)
            ]
    pin(threads() - before, [platform.name.strip() for platform in platforms])
    return found
