"""Ranges of values: what quantisation must know of a network's activations, measured over samples."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.errors import SettingError
from clnn.types import Array

METHODS = ("max", "percentile")
PERCENTILE = 99.99  # of the magnitudes within one sample


class Observer:
    """Notes the largest magnitude of values over samples.

    method: "max", or "percentile": of each sample the magnitude that 99.99 % of a value's elements do
    not exceed, so that a few outliers are clipped.
    """

    def __init__(self, names: Sequence[str], method: str) -> None:
        if method not in METHODS:
            raise SettingError(f"method is {method!r}. Use one of {', '.join(METHODS)}.")
        self._method, self._samples = method, 0
        self._most = dict.fromkeys(names, 0.0)

    def see(self, values: Mapping[str, Array]) -> None:
        """Take note of one sample. Raises SettingError for a value with NaN or infinity."""
        self._samples += 1
        for name in self._most:
            found = self._magnitude(np.abs(values[name]))
            if not math.isfinite(found):
                raise SettingError(
                    f"calibration: value {name!r} has NaN or infinity with sample {self._samples}."
                    " Leave that sample out, or check its preprocessing."
                )
            self._most[name] = max(self._most[name], found)

    def _magnitude(self, values: Array) -> float:
        largest = float(values.max(initial=0.0))
        if self._method == "max" or not values.size or not math.isfinite(largest):
            return largest
        return float(np.percentile(values, PERCENTILE))

    def ranges(self) -> dict[str, float]:
        """Return value -> largest magnitude. Raises SettingError where there was no sample."""
        if not self._samples:
            raise SettingError("calibration got no samples. Give at least one feed of all inputs.")
        return dict(self._most)


def check_ranges(given: Mapping[str, Any]) -> dict[str, float]:
    """Return ranges as plain floats. Raises SettingError for what is none."""
    found = {}
    for name, value in given.items():
        number = value if isinstance(value, (int, float, np.number)) else math.nan
        if isinstance(value, bool) or not (0 <= float(number) < math.inf):
            raise SettingError(
                f"calibration: range of {name!r} is {_short(value)}, must be a number of 0 or more."
                " Give ranges as clnn.calibrate returns them, or a list of feeds."
            )
        found[str(name)] = float(number)
    return found


def read_ranges(path: str | os.PathLike[str]) -> dict[str, float]:
    """Return the ranges of a JSON file. Raises SettingError for a file that holds none."""
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"no calibration file at {os.fspath(path)}. Check the path.") from None
    except (OSError, ValueError) as err:
        raise SettingError(f"{os.fspath(path)} is no JSON file of ranges: {err}.") from err
    if not isinstance(given, dict):
        raise SettingError(f"{os.fspath(path)} is no JSON object of ranges by value name.")
    return check_ranges(given)


def _short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"an array of shape {shape}" if shape else repr(value)[:40]
