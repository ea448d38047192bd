"""onnxruntime's exceptions, as errors of clnn, and which of them stands for which error of clnn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clnn.errors import (
    ClnnError,
    DeviceError,
    ModelError,
    ModelFileError,
    ModelNodeError,
    OutOfDeviceMemoryError,
    SettingError,
    UnsupportedOpError,
)


class StatusError(ClnnError):
    """An error with one of onnxruntime's status codes; messages begin as onnxruntime's do."""

    number, label = 0, ""

    def __init__(self, text: str = "") -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.number} : {self.label} : {text}")


class Fail(StatusError):
    """A model whose structure is not sound, or a run that could not be done."""

    number, label = 1, "FAIL"


class InvalidArgument(StatusError):
    """Inputs or names that do not fit the model, or an empty model."""

    number, label = 2, "INVALID_ARGUMENT"


class NoSuchFile(StatusError):
    """There is no model file at a path."""

    number, label = 3, "NO_SUCHFILE"


class NoModel(StatusError):
    """No model is loaded. clnn does not raise it."""

    number, label = 4, "NO_MODEL"


class EngineError(StatusError):
    """An engine failed. clnn does not raise it."""

    number, label = 5, "ENGINE_ERROR"


class RuntimeException(StatusError):
    """A run failed, such as for want of memory."""

    number, label = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(StatusError):
    """A file or bytes that are no ONNX model."""

    number, label = 7, "INVALID_PROTOBUF"


class ModelLoaded(StatusError):
    """A model is loaded twice. clnn does not raise it."""

    number, label = 8, "MODEL_LOADED"


class NotImplemented(StatusError):
    """A valid model that clnn does not run; the message lists all nodes that are why."""

    number, label = 9, "NOT_IMPLEMENTED"


class InvalidGraph(StatusError):
    """A model with nodes that are not valid."""

    number, label = 10, "INVALID_GRAPH"


class EPFail(StatusError):
    """A device is not there, or does not work."""

    number, label = 11, "EP_FAIL"


class ModelLoadCanceled(StatusError):
    """Loading was cancelled. clnn does not raise it."""

    number, label = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(StatusError):
    """A model must be compiled before. clnn does not raise it."""

    number, label = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(StatusError):
    """Something is not found. clnn does not raise it."""

    number, label = 14, "NOT_FOUND"


class DeviceReset(StatusError):
    """A device was reset. clnn does not raise it."""

    number, label = 15, "DEVICE_RESET"


class FeedError(ClnnError, RuntimeError):
    """An object that cannot be made an input, or a call that cannot be done."""


class MissingFeedError(ClnnError, ValueError):
    """Inputs of the model are not among the feeds."""


class ArgumentTypeError(ClnnError, TypeError):
    """An argument is of a type that is not taken."""


EXCEPTIONS: tuple[type[StatusError], ...] = (
    *(Fail, InvalidArgument, NoSuchFile, NoModel, EngineError, RuntimeException),
    *(InvalidProtobuf, ModelLoaded, NotImplemented, InvalidGraph, EPFail),
    *(ModelLoadCanceled, ModelRequiresCompilation, NotFound, DeviceReset),
)


_THEIRS: tuple[tuple[type[ClnnError], type[Exception]], ...] = (
    (ModelFileError, InvalidProtobuf),
    (ModelNodeError, InvalidGraph),
    (UnsupportedOpError, NotImplemented),
    (ModelError, Fail),
    (OutOfDeviceMemoryError, RuntimeException),
    (DeviceError, EPFail),
    (ClnnError, Fail),
)


def translation(err: ClnnError) -> Exception:
    """Return onnxruntime's exception for an error of clnn, which is to be its cause; errors that are one already."""
    if isinstance(err, (StatusError, FeedError, MissingFeedError, ArgumentTypeError, SettingError)):
        return err
    return next(theirs for ours, theirs in _THEIRS if isinstance(err, ours))(str(err))


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of clnn in the block as onnxruntime's exceptions; the cause is clnn's own."""
    try:
        yield
    except ClnnError as err:
        made = translation(err)
        if made is err:
            raise
        raise made from err
