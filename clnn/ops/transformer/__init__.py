"""Operators that onnxruntime's transformer optimiser makes of several of ONNX's."""

from __future__ import annotations

MICROSOFT = "com.microsoft::"
