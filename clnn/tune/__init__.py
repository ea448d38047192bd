"""Tuning: which kernel of a layer is fastest on a device, measured, checked, stored and chosen."""

from __future__ import annotations
