"""What a failed call of a driver, or of the host's memory, means: the one of clnn's errors that it becomes.

A device that is gone stays gone for its context: that is noted on the opened device, and whatever shares
it is refused from then on, before it calls the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, Protocol, TypeVar

from clnn.errors import (
    ClnnError,
    DeviceError,
    DeviceLostError,
    HostMemoryError,
    OutOfDeviceMemoryError,
)
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import never_free

# Names of pyopencl.status_code. The driver's objects are of no use any more after these.
_GONE = (
    "DEVICE_NOT_AVAILABLE",
    "INVALID_COMMAND_QUEUE",
    "INVALID_CONTEXT",
    "INVALID_DEVICE",
)
# A command that was enqueued has failed: a kernel crashed, or the driver stopped it.
_CRASHED = ("OUT_OF_RESOURCES", "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST")
_NVIDIA_FAULT = -9999  # an illegal read or write of a kernel
# What waits for commands, so that its errors may be theirs.
_WAITS = ("clFinish", "clWaitForEvents", "clEnqueueReadBuffer", "clEnqueueMapBuffer")
_NO_DEVICE_MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "INVALID_BUFFER_SIZE")
_NO_HOST_MEMORY = ("OUT_OF_HOST_MEMORY",)

Function = TypeVar("Function", bound=Callable[..., Any])


class Opened(Protocol):
    """An opened device. lost: why it cannot be used any more, empty while it can."""

    info: DeviceInfo
    lost: str


def require(device: Opened) -> None:
    """Raise DeviceLostError where the device is gone."""
    if device.lost:
        raise DeviceLostError(device.lost)


def lose(device: Opened, what: str) -> DeviceLostError:
    """Note that a device is gone, and return the error that says so. what: happened.

    Nobody can tell any more what it still writes to, so nothing of that is freed from now on.
    """
    if not device.lost:
        never_free(lambda holder: getattr(holder, "device", None) is device)
        device.lost = (
            f"{device.info.title} is lost: {what}. Sessions on it that share its context are of no use"
            " any more. Compile the model again, on this device if it recovers, else on another one."
        )
    return DeviceLostError(device.lost)


def explain(err: BaseException, device: Opened, task: str) -> NoReturn:
    """Raise what `err`, of a driver or a MemoryError, means. task: what failed, in words."""
    if isinstance(err, ClnnError):
        raise err
    raise meaning(err, device, task) from err


def meaning(err: BaseException, device: Opened, task: str) -> ClnnError:
    """Return the error that `err`, of a driver or a MemoryError, is to a caller."""
    if device.lost:
        return DeviceLostError(device.lost)
    if isinstance(err, MemoryError):
        reason = str(err).strip().rstrip(".") or "the system gives no more"
        return HostMemoryError(
            f"{task} got no memory of the host: {reason}. Give the process more memory, or make the"
            " batch or image smaller. Another try may do."
        )
    code, routine = getattr(err, "code", None), str(getattr(err, "routine", ""))
    title, short = device.info.title, str(err).splitlines()[0] if str(err) else repr(err)
    if _is(code, _GONE) or code == _NVIDIA_FAULT:
        return lose(device, f"{task} failed ({short})")
    if _is(code, _CRASHED) and routine in _WAITS:
        return lose(
            device,
            f"{task} failed ({short}): a kernel crashed, or ran longer than the driver lets it",
        )
    if _is(code, _NO_HOST_MEMORY):
        return HostMemoryError(
            f"{title} got no memory of the host for {task} ({short}). Give the process more memory, or"
            " make the batch or image smaller. Another try may do."
        )
    if _is(code, _NO_DEVICE_MEMORY):
        return OutOfDeviceMemoryError(
            f"{title} had no memory for {task} ({short}): it has {device.info.global_mem} bytes in all."
            " Free what other programs hold, use a smaller batch or image, or another device."
        )
    return DeviceError(
        f"{title} failed in {task} ({short}). Another try may do; if not, this is a defect of clnn or"
        " of the driver. Please report it."
    )


def is_of_program(err: Any) -> bool:
    """Whether a build failed for what it was to build, not for want of a device or memory."""
    return not _is(err.code, (*_GONE, *_NO_DEVICE_MEMORY, *_NO_HOST_MEMORY))


def _is(code: Any, names: tuple[str, ...]) -> bool:
    codes = load().status_code
    return any(code == getattr(codes, name, None) for name in names)


@contextmanager
def explained(device: Opened, task: str) -> Iterator[None]:
    """Raise errors of the driver and MemoryErrors inside as what they mean to a caller."""
    try:
        yield
    except (load().Error, MemoryError) as err:
        explain(err, device, task)


def explains(task: str) -> Callable[[Function], Function]:
    """Return a decorator of methods that does what `explained` does; `self._device` is the device.

    Before that is there, an error goes on as it is.
    """

    def decorate(method: Function) -> Function:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except (load().Error, MemoryError) as err:
                device = getattr(self, "_device", None)
                if device is None:
                    raise
                explain(err, device, task)

        return call  # type: ignore[return-value]

    return decorate
