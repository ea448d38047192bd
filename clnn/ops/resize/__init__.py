"""Resampling of images."""

from __future__ import annotations
