"""Where rows in memory of kernels' own lie, so that a cache holds many of them at once."""

from __future__ import annotations

SET_ELEMENTS = 512  # rows that are multiples of this apart would share few sets of a cache
LINE_ELEMENTS = 16  # by which they are moved apart


def spread_pitch(elements: int) -> int:
    """Return the elements from one row to the next, of rows of so many."""
    return elements + LINE_ELEMENTS if elements % SET_ELEMENTS == 0 else elements
