"""The errors that clnn raises. Every message says what happened (with values), why, and what to do.

Each class carries a stable ``code`` for machines. Errors that a caller can cause by wrong values
also derive from the built-in that Python programmers expect (``ValueError``, ``KeyError``...).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class ClnnError(Exception):
    """Base of every error that clnn raises on purpose."""

    code = "CLNN-E000"

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.__class__.__name__


class ShapeError(ClnnError, ValueError):
    """A shape, rank or axis does not fit."""

    code = "CLNN-E001"


class OpenShapeError(ShapeError):
    """A model leaves dimensions open where all of them must be known."""


class DTypeError(ClnnError, TypeError):
    """An element type does not fit."""

    code = "CLNN-E002"


class InputNameError(ClnnError, KeyError):
    """An input or output name is missing, unknown or given twice."""

    code = "CLNN-E003"


class ModelError(ClnnError, ValueError):
    """A model file is not readable, not valid, or not safe to load."""

    code = "CLNN-E010"


class ModelFileError(ModelError):
    """What was given is no model at all: no file, nothing that can be parsed, or a damaged .clnn file."""


class ModelNodeError(ModelError):
    """A node of a model is not valid: attributes, inputs or their types do not fit its operator."""


class UnsupportedOpError(ClnnError, NotImplementedError):
    """A model holds nodes that clnn cannot run; the message lists all of them.

    problems: one object per node, with its name, operator and reason, where the importer has them.
    """

    code = "CLNN-E011"

    def __init__(self, message: str = "", problems: Iterable[Any] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class HostMemoryError(ClnnError, MemoryError):
    """Import, passes or planning want more of the host's memory than they may have, or than is there."""

    code = "CLNN-E012"


class DeviceError(ClnnError, RuntimeError):
    """A device exists but cannot be used."""

    code = "CLNN-E020"


class NoDeviceError(DeviceError):
    """No usable OpenCL device answers the request."""

    code = "CLNN-E021"


class BuildError(DeviceError):
    """An OpenCL program did not build."""

    code = "CLNN-E022"


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """The device cannot hold the buffers of a plan."""

    code = "CLNN-E023"


class DeviceLostError(DeviceError):
    """A device stopped answering; the session on it is broken."""

    code = "CLNN-E024"


class ForkError(DeviceLostError):
    """A process uses OpenCL that was forked from one that had used it."""

    code = "CLNN-E025"


class TemplateError(ClnnError):
    """A kernel template could not be rendered (a defect of clnn, not of the model)."""

    code = "CLNN-E030"


class PlanError(ClnnError):
    """A graph could not be planned (a defect of clnn, not of the model)."""

    code = "CLNN-E031"


class PickleError(ClnnError, TypeError):
    """An object that lives on a device is pickled or copied."""

    code = "CLNN-E032"


class SettingError(ClnnError, ValueError):
    """An option or an environment variable has a value that is not allowed."""

    code = "CLNN-E040"


class CacheError(ClnnError):
    """A command on the cache (never its use by a session) could not do what was asked."""

    code = "CLNN-E050"


class MissingPackageError(ClnnError, ImportError):
    """An optional Python package that a command needs is not installed."""

    code = "CLNN-E060"
