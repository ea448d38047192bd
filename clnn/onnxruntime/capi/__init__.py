"""onnxruntime.capi: the modules of it that programs import from."""

from __future__ import annotations

from clnn.onnxruntime.capi import (
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
)

__all__ = ["_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state"]
