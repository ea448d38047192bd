"""Weights of some taps of a window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.types import Array, TensorType


def may_leave_out(weights: Array) -> bool:
    """Whether taps that meet the zeros of a border alone change nothing: no number of them makes NaN of zeros."""
    return bool(np.isfinite(weights).all())


def weights_of(
    name: str, taps: Sequence[range], types: dict[str, TensorType], consts: dict[str, Array]
) -> str:
    """Return the constant of a convolution's weights at some taps along each axis, which all that ask share.

    It is added to `types` and `consts` where it is not all of the constant `name`.
    """
    whole = consts[name]
    cut = tuple(slice(t.start, t.stop) for t in taps)
    kept: Array = np.ascontiguousarray(whole[(slice(None), slice(None), *cut)])
    if kept.shape == whole.shape:
        return name
    part = f"{name}:taps" + ",".join(f"{c.start}-{c.stop}" for c in cut)
    if part not in consts:
        consts[part] = kept
        types[part] = TensorType(kept.shape, types[name].dtype)
    return part
