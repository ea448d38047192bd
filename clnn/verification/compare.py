"""How far an array is from the one it should be."""

from __future__ import annotations

import numpy as np

from clnn.records import dataclass
from clnn.types import Array

ULP_FLOOR = 1e-3  # smaller elements, relative to the largest, do not count in ulp


@dataclass(frozen=True)
class Difference:
    """How far a value is from the one it should be.

    max_abs: largest absolute error; relative: the same over the largest finite magnitude wanted;
    ulp: largest error in float32 steps among elements of at least 1/1000 of that magnitude. at:
    index of the largest error, got and want the elements there. Integers must be equal to pass,
    floats within `tolerance` (relative), NaN and infinities in the same places.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    max_abs: float
    relative: float
    ulp: float
    at: tuple[int, ...]
    got: float
    want: float
    tolerance: float
    passed: bool


def difference(name: str, got: Array, want: Array, tolerance: float) -> Difference:
    """Return how far `got` is from `want` (which may have more precision)."""
    if got.shape != want.shape:
        inf = float("inf")
        return Difference(
            name, got.shape, str(got.dtype), inf, inf, inf, (), 0.0, 0.0, tolerance, False
        )
    wide_got, wide_want = _wide(got), _wide(want)
    error = _errors(wide_got, wide_want)
    finite = np.isfinite(wide_want)
    largest = float(np.abs(wide_want, where=finite, out=np.zeros(want.shape)).max(initial=0.0))
    if not error.size:
        return Difference(name, got.shape, str(got.dtype), 0, 0, 0, (), 0, 0, tolerance, True)
    at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    worst = float(error[at])
    relative = 0.0 if worst == 0 else worst / largest if largest else float("inf")
    exact = got.dtype.kind != "f"
    ulp = worst if exact else _ulp(wide_got, wide_want, largest * ULP_FLOOR)
    passed = worst == 0 if exact else relative <= tolerance
    return Difference(
        name,
        got.shape,
        str(got.dtype),
        worst,
        relative,
        ulp,
        at,
        float(wide_got[at]),
        float(wide_want[at]),
        tolerance,
        passed,
    )


def _wide(array: Array) -> Array:
    return np.asarray(array, np.float64)


def _errors(got: Array, want: Array) -> Array:
    """Return absolute errors; infinite where NaN or an infinity is not met by the same."""
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want)
    same = (np.isnan(got) & np.isnan(want)) | (got == want)
    error = np.where(same, 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def _ulp(got: Array, want: Array, floor: float) -> float:
    """Return the largest distance in steps of float32 among elements of at least `floor`."""
    counted = np.isfinite(want) & np.isfinite(got) & (np.abs(want) >= floor) & (want != 0)
    if not counted.any():
        return 0.0
    with np.errstate(over="ignore"):
        step = np.spacing(np.abs(want[counted]).astype(np.float32)).astype(np.float64)
    return float((np.abs(got[counted] - want[counted]) / step).max())
