"""Dot products of four bytes, as several instructions compute them."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, expect


def four_bytes(seed: int) -> np.ndarray[Any, Any]:
    """Return 64 quadruples of bytes, the extremes first."""
    values = np.random.default_rng(seed).integers(0, 256, (64, 4), np.uint8)
    values[:4] = [[0, 0, 0, 0], [255] * 4, [128] * 4, [127] * 4]
    return values


def check_dots(bench: ProbeBench, file: str) -> int:
    """Compare the kernel `dots` of a file with NumPy, three signednesses."""
    a, b = four_bytes(1), four_bytes(2)
    out = np.zeros((64, 3), np.int32)
    words = (a.view(np.uint32).ravel(), b.view(np.uint32).ravel(), out)
    got = bench.run(bench.kernel(file, "dots"), 64, None, words, out)
    unsigned, signed = (a.astype(np.int32), b.astype(np.int32)), a.view(np.int8).astype(np.int32)
    b_signed = b.view(np.int8).astype(np.int32)
    columns = (signed * b_signed, unsigned[0] * unsigned[1], unsigned[0] * b_signed)
    expect(got, np.stack([c.sum(1) for c in columns], 1).astype(np.int32))
    return 1
