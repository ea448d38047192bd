"""Why there is no usable device, and what to do about it."""

from __future__ import annotations
