"""What a device can do at most: multiply-adds and bytes per second."""

from __future__ import annotations
