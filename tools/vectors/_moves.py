"""Finds how a tensor was moved, from what was read and what was written.

Records of data movement lack the configuration. Elements are mostly different, so that one that
explains all of the output is the one that was used, or does the same.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np

Axis = tuple[int, int]  # (offset, step)


def found_move(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the fields of MliMovCfg with which x became y, or a part of y.

    Raises ValueError where there are none.
    """
    for order in permutations(range(x.ndim)):
        turned = np.transpose(y, np.argsort(order))  # with the axes of x
        before, after = zeros_around(turned)
        core = turned[
            tuple(slice(b, d - a) for b, a, d in zip(before, after, turned.shape, strict=True))
        ]
        taken = found_part(x, core)
        if taken is not None:
            return {
                "offset": tuple(o for o, _ in taken),
                "sub_sample_step": tuple(s for _, s in taken),
                "size": tuple((n - 1) * s + 1 for n, (_, s) in zip(core.shape, taken, strict=True)),
                "perm_dim": order,
                "padding_pre": before,
                "padding_post": after,
            }
    return {"dst_offset": found_place(x, y)}


def zeros_around(y: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many slices of zeros begin and end each axis."""
    before, after = [], []
    for axis in range(y.ndim):
        other = tuple(a for a in range(y.ndim) if a != axis)
        held = np.flatnonzero((y != 0).any(axis=other))
        before.append(int(held[0]) if held.size else 0)
        after.append(y.shape[axis] - 1 - int(held[-1]) if held.size else 0)
    return tuple(before), tuple(after)


def found_part(x: np.ndarray, core: np.ndarray) -> tuple[Axis, ...] | None:
    """Return offset and step of each axis with which a part of x is `core`."""
    ways: list[list[Axis]] = []
    for extent, count in zip(x.shape, core.shape, strict=True):
        steps = range(1, (extent - 1) // (count - 1) + 1) if count > 1 else (1,)
        ways.append([(o, s) for s in steps for o in range(extent - (count - 1) * s)])
    first, last = core[(0,) * core.ndim], core[(-1,) * core.ndim]
    for way in product(*ways):
        ends = tuple(o + (n - 1) * s for (o, s), n in zip(way, core.shape, strict=True))
        if x[tuple(o for o, _ in way)] != first or x[ends] != last:
            continue
        part = x[tuple(slice(o, e + 1, s) for (o, s), e in zip(way, ends, strict=True))]
        if np.array_equal(part, core):
            return way
    return None


def found_place(x: np.ndarray, y: np.ndarray) -> tuple[int, ...]:
    """Return where in y all of x lies."""
    rooms = [range(b - a + 1) for a, b in zip(x.shape, y.shape, strict=True)]
    for start in product(*rooms):
        box = tuple(slice(s, s + d) for s, d in zip(start, x.shape, strict=True))
        if np.array_equal(y[box], x):
            return start
    raise ValueError(f"no movement turns {x.shape} into this {y.shape}")
