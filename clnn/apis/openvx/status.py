"""VxError: a failed call, with the status that OpenVX gives for it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from clnn.apis.openvx.enums import Status
from clnn.errors import ClnnError

_E = TypeVar("_E", bound=IntEnum)


class VxError(ClnnError):
    """A call of clnn.openvx failed; `status` is the vx_status_e value that OpenVX gives."""

    code = "CLNN-E070"

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{status.name}: {message}")
        self.status = status


def parameters(message: str) -> VxError:
    """Return the error of a parameter that is not allowed."""
    return VxError(Status.VX_ERROR_INVALID_PARAMETERS, message)


def member(group: type[_E], value: Any, what: str) -> _E:
    """Return `value` as a member of an enumeration. Raises VxError (invalid parameters)."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return group(value)
    except ValueError:
        names = ", ".join(group.__members__)
        raise parameters(f"{what} is {value!r}. Use one of {names}.") from None


def whole(value: Any, low: int, high: int, what: str) -> int:
    """Return `value` as an int in low..high. Raises VxError (invalid parameters)."""
    try:
        if isinstance(value, (bool, float)):
            raise TypeError
        number = int(value.__index__())
    except (TypeError, AttributeError):
        raise parameters(f"{what} is {value!r}: it must be a whole number.") from None
    if not low <= number <= high:
        raise parameters(f"{what} is {number}: allowed is {low} to {high}.")
    return number
