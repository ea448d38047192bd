"""From template and parameters to OpenCL source text. No OpenCL needed."""

from __future__ import annotations
