"""onnxruntime.capi.onnxruntime_inference_collection: sessions, bindings and values."""

from __future__ import annotations

from clnn.onnxruntime.binding import IOBinding
from clnn.onnxruntime.providers import get_available_providers
from clnn.onnxruntime.session import InferenceSession
from clnn.onnxruntime.values import OrtDevice, OrtValue

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "get_available_providers"]
