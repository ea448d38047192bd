"""The device that a caller names; where the machine has none, the error says why."""

from __future__ import annotations

from clnn.errors import NoDeviceError
from clnn.runtime.device import device


def select_device(spec: str | int | None = None) -> device.DeviceInfo:
    """Return what clnn.runtime.device.device.select does, with all causes where it finds nothing.

    Public functions and commands take their device from here. Raises NoDeviceError or DeviceError.
    """
    try:
        return device.select(spec)
    except device.NothingListedError:
        from clnn.runtime.doctor.doctor import no_device

        raise NoDeviceError(no_device()) from None
