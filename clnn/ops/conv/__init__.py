"""Convolutions: plain, grouped, depthwise, transposed and separable; families.py lists their kernels."""

from __future__ import annotations
