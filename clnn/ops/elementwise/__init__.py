"""Ops that compute each element by itself."""

from __future__ import annotations
