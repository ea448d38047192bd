"""The OpenCL loader and the drivers behind it, before a device is opened."""

from __future__ import annotations
