"""Quantised tensors: what ONNX's operators for them become."""

from __future__ import annotations
