"""Functions of the host's steps that a device computes sooner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from clnn.ops.host.boxes import selected
from clnn.ops.host.registry import HostFunction
from clnn.runtime.build.program import Device
from clnn.runtime.stages.boxes import WHOLE, StayOnDevice


def functions_on(device: Device, timeout: float | None) -> Mapping[str, HostFunction]:
    """Return a function for each operator that has one on a device, by ONNX op type.

    Each does what the registry's does. On GPUs there are none: what waits for what is before it,
    as boxes do, is slow there.
    """
    if not device.info.caps.host_memory:
        return {}
    return {"NonMaxSuppression": partial(selected, StayOnDevice(device, timeout), WHOLE)}
