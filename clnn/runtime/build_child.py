"""The child process that builds programs; see clnn.runtime.program."""

from __future__ import annotations

from clnn.runtime.program import child_build as main

__all__ = ["main"]
