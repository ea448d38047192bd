"""Ops that move elements: views, padding, gathering."""

from __future__ import annotations
