"""What several test files share: the checkout's root and the devices to test on."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def usable_devices() -> list[str]:
    """One usable device of each OpenCL implementation present, as platform names."""
    from clnn.runtime.device.device import discover

    return sorted({info.platform for info in discover() if info.usable})
