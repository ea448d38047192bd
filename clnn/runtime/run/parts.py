"""What a session is made of, apart from how it was come by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clnn.plan.plan import Plan
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.fused_launch import FusedLaunches

Build = Callable[[Device, Mapping[str, str]], None]  # kernel title -> source


@dataclass(frozen=True)
class Parts:
    """A plan on a device with its constants; its launches as few kernels, None where each is one.

    products: as in Placement.
    """

    device: Device
    plan: Plan
    constants: Constants
    fused: FusedLaunches | None
    products: str
