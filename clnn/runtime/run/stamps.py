"""Times inside a joined kernel: what its work-groups noted, as spans on the device's clock."""

from __future__ import annotations

from clnn.types import Array

BEGIN, END = 0, 1


def split(start: int, end: int, stamps: Array) -> list[tuple[int, int]]:
    """Return (begin, end) in ns of each call of a kernel that ran from `start` to `end`.

    stamps: cycles, (calls, groups, 2), zeros where a group had no share. A call lasts from the
    begin of its first group to the end of its last one; one that no group took part in has no
    length. The counter is set against the device's clock by the kernel's whole time, so that times
    are too long by the part of it that is not work: some microseconds, spread over all calls.
    """
    ticks = stamps.astype("int64")
    shared = ticks[..., END] > 0
    if not shared.any():
        return [(start, start)] * len(ticks)
    first = int(ticks[..., BEGIN][shared].min())
    scale = (end - start) / max(int(ticks[..., END].max()) - first, 1)
    found: list[tuple[int, int]] = []
    for call, there in zip(ticks, shared, strict=True):
        began = ended = found[-1][1] if found else start
        if there.any():
            began = start + round((int(call[there, BEGIN].min()) - first) * scale)
            ended = start + round((int(call[there, END].max()) - first) * scale)
        found.append((began, ended))
    return found
