"""Sessions: plans that are run on a device."""

from __future__ import annotations
