"""Samples and ranges for quantisation, as the commands take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clnn.cli import _common
from clnn.errors import SettingError

if TYPE_CHECKING:
    from clnn.types import Array


def given(text: str | None, names: Sequence[str]) -> int | str | list[dict[str, Array]] | None:
    """Return what --calibrate says: a number of samples, a file of ranges, or samples.

    names: the model's inputs. Raises SettingError for a file that is none of these.
    """
    if text is None:
        return None
    if text.isdecimal() and int(text):
        return int(text)
    return text if text.endswith(".json") else read_samples(text, names)


def read_samples(text: str, names: Sequence[str]) -> list[dict[str, Array]]:
    """Return the samples of an .npz file, arrays with samples along their first axis."""
    loaded = _common.load_arrays(Path(text))
    arrays: Mapping[str, Array] = (
        loaded if isinstance(loaded, dict) else dict.fromkeys(names, loaded)
    )
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or counts == {0}:
        raise SettingError(
            f"{text} has {sorted(counts)} samples: every array's first axis must be samples, as many"
            " of each input."
        )
    return [{name: array[k] for name, array in arrays.items()} for k in range(counts.pop())]
