"""From source to programs on a device."""

from __future__ import annotations
