"""Random windows of convolutions, and maps for them."""

from __future__ import annotations

import numpy as np

from clnn.ops.shared.window import Window


def drawn(seed):
    """Return a window of one or two axes and a shape, all random."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 3))
    kernel = tuple(int(k) for k in rng.integers(1, 6, rank))
    extents = tuple(int(e) for e in rng.integers(3, 14, rank))
    dilations = tuple(int(d) for d in rng.integers(1, 9, rank))
    strides = tuple(int(s) for s in rng.integers(1, 4, rank))
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    before = tuple(int(rng.integers(0, r + 3)) for r in reach)
    after = tuple(
        max(int(rng.integers(0, r + 3)), r + 1 - e - b)
        for r, e, b in zip(reach, extents, before, strict=True)
    )
    window = Window(kernel, strides, dilations, before, after, bool(rng.integers(2)))
    return window, (int(rng.integers(1, 3)), 4, *extents)
