"""Ranges of values: what quantisation must know of a network's activations, as plain data."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.errors import SettingError
from clnn.graph.rounding import Range

ENDS = 2


def check_ranges(given: Mapping[str, Any]) -> dict[str, Range]:
    """Return ranges as pairs of plain floats. Raises SettingError for what is none."""
    return {str(name): _ends(str(name), value) for name, value in given.items()}


def read_ranges(path: str | os.PathLike[str]) -> dict[str, Range]:
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


def missing_range(missing: Sequence[str]) -> SettingError:
    """Return the error for values whose ranges are not known."""
    return SettingError(
        f"calibration says nothing of value {missing[0]!r} ({len(missing)} such): it was made of"
        " another network. Calibrate this one."
    )


def _ends(name: str, value: Any) -> Range:
    """Return the least and the largest element. Raises SettingError."""
    pair = value if isinstance(value, (list, tuple)) and len(value) == ENDS else ()
    plain = [isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in pair]
    low, high = map(float, pair) if plain and all(plain) else (math.nan, math.nan)
    if not -math.inf < low <= high < math.inf:
        raise SettingError(
            f"calibration: range of {name!r} is {_short(value)}, must be two numbers, the least and the"
            " largest element. Give ranges as clnn.calibrate returns them, or a list of feeds."
        )
    return low, high


def _short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"an array of shape {shape}" if shape else repr(value)[:40]
