"""Determinants, which no plan has."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array


@host_op("Det")
def _det(node: HostNode, x: Array) -> Array:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError("a determinant is of square matrices")
    return np.asarray(np.linalg.det(x.astype(np.float64)), x.dtype)
