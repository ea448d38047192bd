"""Dimensions as files give them: a number, a name, or unknown."""

from __future__ import annotations

from typing import Any

# What exporters write for "unknown" where a name belongs: not one extent wherever it stands.
UNKNOWN = frozenset(("", "?", "-1", "None"))


def symbol(dim: Any) -> str:
    """Return the name of a symbolic dimension, "" where it is a number or unknown.

    A dimension named "?" and the like, or with an empty name, is unknown: two of them may differ.
    """
    name: str = dim.dim_param.strip() if dim.HasField("dim_param") else ""
    return "" if name in UNKNOWN else str(dim.dim_param)


def is_fixed(dim: Any) -> bool:
    """Whether a dimension is a number; a negative one stands for unknown."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)
