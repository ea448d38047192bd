"""Ranges for bytes with a zero point: least and largest values over samples, and what of them to keep.

A histogram of a value's elements over its whole range tells how much a narrower one would clip. All
methods keep 0 within the range, as zero points must stand for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clnn.errors import SettingError
from clnn.types import Array

METHODS = ("minmax", "percentile", "entropy", "mse")
BINS, LEVELS = 2048, 256
TAIL = 5e-5  # of the elements, which percentile leaves out on either side
NARROWEST = 0.2  # part of an end that entropy and mse try at least, in each round
TRIED = 41  # parts that they try
ROUNDS = 2
Range = tuple[float, float]


class RangeObserver:
    """Notes least and largest elements of values, then histograms between them.

    The samples are seen twice: by `see`, and, where the method needs it, by `count`.
    """

    def __init__(self, names: Sequence[str], method: str) -> None:
        if method not in METHODS:
            raise SettingError(f"method is {method!r}. Use one of {', '.join(METHODS)}.")
        self.method, self._samples = method, 0
        self._ranges: dict[str, Range] = dict.fromkeys(names, (0.0, 0.0))
        self._counts = {name: np.zeros(BINS) for name in names}

    @property
    def counts(self) -> bool:
        """Whether the method needs histograms."""
        return self.method != "minmax"

    def see(self, values: Mapping[str, Array]) -> None:
        """Widen ranges by one sample. Raises SettingError for a value with NaN or infinity."""
        self._samples += 1
        for name, (low, high) in self._ranges.items():
            array = values[name]
            least, most = float(array.min(initial=0.0)), float(array.max(initial=0.0))
            if not (np.isfinite(least) and np.isfinite(most)):
                raise SettingError(
                    f"calibration: value {name!r} has NaN or infinity with sample {self._samples}."
                    " Leave that sample out, or check its preprocessing."
                )
            self._ranges[name] = (min(low, least), max(high, most))

    def count(self, values: Mapping[str, Array]) -> None:
        """Count the elements of one sample."""
        for name, (low, high) in self._ranges.items():
            if high > low:
                self._counts[name] += np.histogram(values[name], BINS, (low, high))[0]

    def ranges(self) -> dict[str, Range]:
        """Return value -> (low, high). Raises SettingError where there was no sample."""
        if not self._samples:
            raise SettingError("calibration got no samples. Give at least one feed of all inputs.")
        return {name: self._kept(name) for name in self._ranges}

    def _kept(self, name: str) -> Range:
        low, high = self._ranges[name]
        if not self.counts or high <= low or not self._counts[name].any():
            return low, high
        return kept(self._counts[name], low, high, self.method)


def kept(counts: Array, low: float, high: float, method: str) -> Range:
    """Return the part of a range that a method keeps; counts: a histogram over all of it."""
    edges = np.linspace(low, high, len(counts) + 1)
    if method == "percentile":
        share = np.cumsum(counts) / counts.sum()
        first = edges[int(np.searchsorted(share, TAIL, "right"))]
        last = edges[int(np.searchsorted(share, 1 - TAIL)) + 1]
        return min(float(first), 0.0), max(float(last), 0.0)
    if method == "entropy":
        counts = _without_zeros(counts, edges)
    cost = _divergence if method == "entropy" else _square_error
    centres = (edges[:-1] + edges[1:]) / 2
    parts = np.linspace(1.0, NARROWEST, TRIED)
    for _ in range(ROUNDS):  # one end after the other
        if high > 0:
            high *= float(min(parts, key=lambda p: cost(counts, centres, low, high * p)))
        if low < 0:
            low *= float(min(parts, key=lambda p: cost(counts, centres, low * p, high)))
    return low, high


def _without_zeros(counts: Array, edges: Array) -> Array:
    """Return a histogram whose bin at 0 is as its neighbours: rectified zeros stand for themselves."""
    at = min(max(int(np.searchsorted(edges, 0.0, "right")) - 1, 0), len(counts) - 1)
    others = [counts[k] for k in (at - 1, at + 1) if 0 <= k < len(counts)]
    smooth = counts.copy()
    smooth[at] = min(counts[at], max(others, default=counts[at]))
    return smooth if smooth.any() else counts


def _square_error(counts: Array, centres: Array, low: float, high: float) -> float:
    """Return the squared error of bytes over [low, high]."""
    step = (high - low) / (LEVELS - 1)
    near = np.rint(np.clip(centres, low, high) / step) * step
    return float((counts * (centres - near) ** 2).sum())


def _divergence(counts: Array, centres: Array, low: float, high: float) -> float:
    """Return the relative entropy of elements clipped to [low, high] against their bytes."""
    inside = (centres >= low) & (centres <= high)
    given = np.where(inside, counts, 0.0)
    first, last = np.flatnonzero(inside)[[0, -1]]
    given[first] += counts[:first].sum()
    given[last] += counts[last + 1 :].sum()
    level = np.rint((np.clip(centres, low, high) - low) / (high - low) * (LEVELS - 1)).astype(int)
    kept_counts, used = np.where(inside, counts, 0.0), inside & (counts > 0)
    total = np.bincount(level, kept_counts, LEVELS)
    bins = np.bincount(level, used.astype(float), LEVELS)
    spread = np.where(used, (total / np.maximum(bins, 1))[level], 0.0)
    if not spread.sum():
        return float("inf")
    p, q = given / given.sum(), spread / spread.sum()
    counted = p > 0
    return float((p[counted] * np.log(p[counted] / np.maximum(q[counted], 1e-12))).sum())
