"""Names of onnxruntime's extension module: exceptions, options, values, functions of the process."""

from __future__ import annotations

from clnn.onnxruntime.binding import IOBinding as SessionIOBinding
from clnn.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
)
from clnn.onnxruntime.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from clnn.onnxruntime.nodes import ModelMetadata, NodeArg
from clnn.onnxruntime.options import RunOptions, SessionOptions
from clnn.onnxruntime.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    has_collective_ops,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from clnn.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from clnn.onnxruntime.session import InferenceSession
from clnn.onnxruntime.values import OrtDevice, OrtValue
from clnn.onnxruntime.version import get_build_info, get_version_string

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]
