"""clnn runs neural networks on any OpenCL device, with kernels specialised per shape and layout.

import clnn
session = clnn.compile_model("net.onnx")
outputs = session({"x": array})
"""

from __future__ import annotations

import logging as _logging
from typing import TYPE_CHECKING, Any

from clnn._version import __version__
from clnn.errors import ClnnError
from clnn.options import Options

if TYPE_CHECKING:
    from clnn.api import calibrate, compile_model, devices, doctor, tune_model, verify
    from clnn.apis import espdl, mli, openvx, tidl
    from clnn.bridges.qdq.quantize import QuantizedOnnx, quantize_onnx
    from clnn.bridges.quantize import Quantized, quantize
    from clnn.runtime.run.loading import load
    from clnn.runtime.run.open_session import OpenSession
    from clnn.runtime.run.session import Session
    from clnn.runtime.stages.session import StagedSession
    from clnn.runtime.stages.valued import ValuedSession

_SYSTEMS = {
    "espdl": "clnn.apis.espdl",
    "mli": "clnn.apis.mli",
    "openvx": "clnn.apis.openvx",
    "tidl": "clnn.apis.tidl",
}
_LAZY = {
    "calibrate": "clnn.api",
    "compile_model": "clnn.entry",
    "devices": "clnn.api",
    "doctor": "clnn.api",
    "Quantized": "clnn.bridges.quantize",
    "QuantizedOnnx": "clnn.bridges.qdq.quantize",
    "quantize": "clnn.bridges.quantize",
    "quantize_onnx": "clnn.bridges.qdq.quantize",
    "load": "clnn.runtime.run.loading",
    "tune_model": "clnn.api",
    "verify": "clnn.api",
    "OpenSession": "clnn.runtime.run.open_session",
    "Session": "clnn.runtime.run.session",
    "StagedSession": "clnn.runtime.stages.session",
    "ValuedSession": "clnn.runtime.stages.valued",
}

__all__ = [
    "ClnnError",
    "OpenSession",
    "Options",
    "Quantized",
    "QuantizedOnnx",
    "Session",
    "StagedSession",
    "ValuedSession",
    "__version__",
    "calibrate",
    "compile_model",
    "devices",
    "doctor",
    "espdl",
    "load",
    "mli",
    "openvx",
    "quantize",
    "quantize_onnx",
    "tidl",
    "tune_model",
    "verify",
]

_logging.getLogger("clnn").addHandler(_logging.NullHandler())


def __getattr__(name: str) -> Any:
    import importlib

    if name in _SYSTEMS:
        return importlib.import_module(_SYSTEMS[name])
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'clnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
