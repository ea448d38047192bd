"""The child process that builds programs; see clnn.runtime.build.program."""

from __future__ import annotations

from clnn.runtime.build.program import child_build as main

__all__ = ["main"]
