"""onnxruntime's enumerations."""

from __future__ import annotations

from enum import IntEnum


class _Listed(IntEnum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Listed):
    """How much a graph is changed. ORT_DISABLE_ALL: no fusing passes; all others: all passes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Listed):
    """Whether nodes run side by side: without meaning here, for a plan runs as a whole."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Listed):
    """In which order nodes run: without meaning here, for the planner orders them."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Listed):
    """Kinds of allocators, for signatures only."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Listed):
    """Kinds of memory, for signatures only."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0
