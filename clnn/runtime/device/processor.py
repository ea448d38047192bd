"""What the host's processor says of itself."""

from __future__ import annotations

from pathlib import Path


def lists(feature: str) -> bool:
    """Tell whether this machine's processor lists a feature, such as avx512f; False where none is told."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return feature in text.split()
