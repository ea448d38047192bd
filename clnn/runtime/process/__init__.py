"""Child processes, workers and temporary folders."""

from __future__ import annotations
