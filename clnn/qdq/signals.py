"""Signal to noise of a network's outputs over samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from clnn.types import Array

NUMBERS = "biuf"
Outputs = Mapping[str, Array]


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB; infinity where there is no noise."""
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


class Signals:
    """Signal and noise of each output, added up over samples."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sums = {name: [0.0, 0.0] for name in names}

    def see(self, wanted: Outputs, made: Outputs) -> None:
        """Add a sample; an output of another shape is all noise."""
        for name, sums in self._sums.items():
            signal, noise = powers(wanted[name], made[name])
            sums[0] += signal
            sums[1] += noise

    @property
    def each(self) -> dict[str, float]:
        """Signal to noise of each output in dB."""
        return {name: decibels(*sums) for name, sums in self._sums.items()}

    @property
    def whole(self) -> float:
        """Signal to noise of all outputs in dB: of the mean of their noises, each by its own signal."""
        shares = [_share(*sums) for sums in self._sums.values()]
        return decibels(1.0, sum(shares) / max(len(shares), 1))


def powers(wanted: Array, made: Array) -> tuple[float, float]:
    """Return signal and noise of an array, of where the wanted one is finite; texts have neither."""
    if wanted.dtype.kind not in NUMBERS:
        return 0.0, 0.0
    real = wanted.astype(np.float64)
    finite = np.isfinite(real)
    signal = float((real[finite] ** 2).sum())
    if made.shape != wanted.shape:
        return signal, signal
    noise = float(((made.astype(np.float64)[finite] - real[finite]) ** 2).sum())
    return signal, noise if math.isfinite(noise) else math.inf


def compared(wanted: Sequence[Outputs], made: Iterable[Outputs]) -> Signals:
    """Return the signals of all samples."""
    found = Signals(wanted[0])
    for real, rough in zip(wanted, made, strict=True):
        found.see(real, rough)
    return found


def _share(signal: float, noise: float) -> float:
    if noise == 0:
        return 0.0
    return noise / signal if signal > 0 else math.inf
