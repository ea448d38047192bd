"""Arithmetic of float32 instructions for bfloat16, from exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def flushed(values: np.ndarray) -> np.ndarray:
    """Return values with 0 for those below the smallest normal number."""
    return np.where(np.abs(values) < 2.0**-126, np.float32(0), values)


def fma(a: float, b: float, c: float) -> float:
    """Return a b + c as float32, rounded once to nearest, ties to even."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if abs(exact) < Fraction(2) ** -126:
        return 0.0
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (exponent - 23)
    return float(round(exact / step) * step)
