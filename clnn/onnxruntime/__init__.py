"""onnxruntime's Python interface over clnn: a program that uses onnxruntime runs unchanged.

import clnn.onnxruntime as ort            # in the program, or
import clnn.onnxruntime; clnn.onnxruntime.install()   # before a program that imports onnxruntime, or
python -m clnn.onnxruntime PROGRAM ARGS   # the same without a change

docs/onnxruntime.md lists every call and attribute, and where it differs.
"""

from __future__ import annotations

import importlib
from typing import Any

from clnn.onnxruntime.binding import IOBinding
from clnn.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
)
from clnn.onnxruntime.install import install, uninstall
from clnn.onnxruntime.nodes import ModelMetadata, NodeArg
from clnn.onnxruntime.options import RunOptions, SessionOptions
from clnn.onnxruntime.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from clnn.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from clnn.onnxruntime.session import InferenceSession
from clnn.onnxruntime.values import OrtDevice, OrtValue
from clnn.onnxruntime.version import __version__, get_build_info, get_version_string

SessionIOBinding = IOBinding
version = __version__
package_name = "onnxruntime"
cuda_version = ""

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "capi",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "install",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "uninstall",
    "version",
]


def __getattr__(name: str) -> Any:
    if name == "capi":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(
        f"clnn.onnxruntime has no {name!r}; docs/onnxruntime.md lists what it has."
    )
