"""Faces over graph and runtime, each in one system's own terms."""

from __future__ import annotations
