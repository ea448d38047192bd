"""The door for model files that nobody vouches for: read with a limit, parse, check structure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from clnn.errors import ModelError
from clnn.importers.onnx_checks import check_model
from clnn.settings import setting

_PROTOBUF_LIMIT = 2**31 - 1
_SHOWN_BYTES = 16

# What files that are no ONNX models begin with (offset, bytes), and what they are.
_OTHERS = (
    (
        0,
        b"version https://git-lfs",
        "It is a Git-LFS pointer: run `git lfs pull` for the real file.",
    ),
    (0, b"PK\x03\x04", "It is a ZIP archive (PyTorch or Keras?): export the model to ONNX."),
    (0, b"\x1f\x8b", "It is compressed with gzip: unpack it first."),
    (0, b"\x89HDF", "It is an HDF5 file (Keras?): export the model to ONNX."),
    (0, b"\x80\x02", "It is a Python pickle (PyTorch?): export the model to ONNX."),
    (4, b"TFL3", "It is a TensorFlow Lite model: convert it to ONNX."),
    (4, b"ORTM", "It is onnxruntime's own format: use the .onnx file that it was made from."),
    (0, b"<!", "It is a web page: the download went wrong."),
    (0, b"<html", "It is a web page: the download went wrong."),
    (0, b"{", "It is JSON text."),
)


def load_model(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto,
) -> tuple[onnx.ModelProto, Path | None]:
    """Return a parsed model whose structure is checked, and the folder for external data.

    The folder is None where the model is not a file. A ModelProto is checked and left as it is.
    Raises ModelError.
    """
    folder = None
    if isinstance(model, onnx.ModelProto):
        proto = model
        if not (proto.graph.node or proto.graph.output):
            raise ModelError("the given ModelProto holds no graph. Pass a complete model.")
    elif isinstance(model, (bytes, bytearray, memoryview)):
        proto = _parse(bytes(model), "the given data")
    elif isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        proto, folder = _parse(_read(path), repr(str(path))), path.parent
    else:
        raise ModelError(
            f"a model was given as {type(model).__name__}. Pass the path of an .onnx file, its "
            "bytes or an onnx.ModelProto."
        )
    check_model(proto)
    return proto, folder


def _read(path: Path) -> bytes:
    """Return a file's bytes, of a regular file that is not over the limit only."""
    limit = min(int(setting("CLNN_MAX_BYTES")), _PROTOBUF_LIMIT)
    try:
        # O_NONBLOCK: opening a fifo must not wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as err:
        raise ModelError(
            f"no model file can be read at {str(path)!r}: {err}. Check the path."
        ) from err
    try:
        status = os.fstat(handle)
        _check_file(path, status, limit)
        with os.fdopen(os.dup(handle), "rb") as file:
            return file.read(status.st_size)
    finally:
        os.close(handle)


def _check_file(path: Path, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        folder = stat.S_ISDIR(status.st_mode)
        hint = "a folder: pass the .onnx file in it" if folder else "not a regular file"
        raise ModelError(f"{str(path)!r} is {hint}.")
    if status.st_size > limit:
        raise ModelError(
            f"{str(path)!r} has {status.st_size} bytes; the limit is {limit} (CLNN_MAX_BYTES, "
            "and what ONNX files can hold). Larger models keep their weights as external data."
        )


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    reason = "it holds no graph"
    try:
        proto.ParseFromString(data)
        if proto.graph.node or proto.graph.output:
            return proto
    except (DecodeError, ValueError, RecursionError) as err:
        reason = str(err).strip().rstrip(".") or type(err).__name__
    raise ModelError(
        f"{where} is not an ONNX model: {reason}. It has {len(data)} bytes and begins with "
        f"{data[:_SHOWN_BYTES]!r}.{_guess(data)}"
    )


def _guess(data: bytes) -> str:
    if not data:
        return " It is empty: the download or copy went wrong."
    found = (text for at, start, text in _OTHERS if data[at : at + len(start)] == start)
    text = next(found, "")
    return f" {text}" if text else ""
