"""Devices: which there are, what they can do, which one is meant."""

from __future__ import annotations
