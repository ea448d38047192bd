"""onnxruntime.capi._pybind_state: the names of the extension module once more."""

from __future__ import annotations

from clnn.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from clnn.onnxruntime.capi.onnxruntime_pybind11_state import __all__ as __all__
