"""Convolutions: plain, grouped, depthwise, transposed and separable."""

from __future__ import annotations
