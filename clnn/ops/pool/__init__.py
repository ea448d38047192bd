"""Pooling over windows."""

from __future__ import annotations
