"""ONNX models as graphs."""

from __future__ import annotations
