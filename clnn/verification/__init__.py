"""Comparing what a device computes with what another engine, or the plain reference, computes."""

from __future__ import annotations
