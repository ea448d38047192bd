"""The door for model files that nobody vouches for: read with a limit, parse, check structure.

Files of ESP-DL (.espdl) become ONNX models here (clnn/importers/onnx/from_espdl.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from clnn.errors import ModelError, ModelFileError
from clnn.graph.mapped import map_file
from clnn.importers.espdl.model import is_espdl
from clnn.importers.onnx.checks import check_model
from clnn.importers.onnx.distances import with_distances
from clnn.importers.onnx.from_espdl import proto_of
from clnn.importers.onnx.text_labels import with_places
from clnn.importers.onnx.wire import separate
from clnn.records import dataclass
from clnn.settings import setting
from clnn.types import Array

_PROTOBUF_LIMIT = 2**31 - 1
_SHOWN_BYTES, _LONGEST_MAGIC = 16, 64

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

Split = Callable[[memoryview], "tuple[bytes, dict[int, memoryview]]"]


@dataclass(frozen=True)
class Loaded:
    """A parsed model whose structure is checked.

    folder: of the model's file, where external data may lie (None: it is no file). large: data of
    initializers that `proto` lacks, by position. mapped: whether data is mapped from files. arrays:
    initializers that imports have read, by position. calls: nodes of the main graph as imports have
    read them, by position, without their inputs. checked: those that onnx's checker takes.
    """

    proto: onnx.ModelProto
    folder: Path | None = None
    large: Mapping[int, memoryview] = field(default_factory=dict)
    mapped: bool = False
    arrays: dict[int, Array] = field(default_factory=dict)
    calls: dict[int, Any] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)


def load_model(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto | Loaded,
) -> tuple[onnx.ModelProto, Path | None]:
    """Return a whole model, parsed and checked, and the folder for external data.

    The folder is None where the model is not a file. A ModelProto is checked and left as it is, a
    Loaded one, which has all of its data inside, returned. Raises ModelError.
    """
    if isinstance(model, Loaded):
        assert not model.large, "its data lies beside it"
        return model.proto, model.folder
    loaded = _loaded(model, False, _whole)
    return loaded.proto, loaded.folder


def load_parts(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto | Loaded,
    mapped: bool = False,
) -> Loaded:
    """Return a model as load_model does, with the data of large initializers beside it.

    A Loaded one is returned as it is. mapped: take data from the file as it is needed, instead of
    reading it now; the file must then stay as it is for as long as that data is used. Raises
    ModelError.
    """
    return model if isinstance(model, Loaded) else _loaded(model, mapped, separate)


def _whole(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    return bytes(data), {}


def _loaded(model: Any, mapped: bool, split: Split) -> Loaded:
    if isinstance(model, onnx.ModelProto):
        if not (model.graph.node or model.graph.output):
            raise ModelError("the given ModelProto holds no graph. Pass a complete model.")
        loaded = Loaded(model)
    elif isinstance(model, (bytes, bytearray, memoryview)):
        data = memoryview(bytes(model))
        loaded = Loaded(proto_of(data)) if is_espdl(data) else _parse(data, "the given data", split)
    elif isinstance(model, (str, os.PathLike)):
        path = Path(os.fspath(model))
        data = _read(path, mapped)
        if is_espdl(data):
            loaded = Loaded(proto_of(data, path), path.parent)
        else:
            loaded = _parse(data, repr(str(path)), split)
            loaded = replace(loaded, folder=path.parent, mapped=mapped)
    else:
        raise ModelError(
            f"a model was given as {type(model).__name__}. Pass the path of an .onnx file, its "
            "bytes or an onnx.ModelProto."
        )
    check_model(loaded.proto)
    return replace(loaded, proto=with_places(_with_layers(with_distances(loaded.proto))))


def _with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the loops that are layers or few turns; what finds these is imported for loops alone."""
    if not any(node.op_type in ("Loop", "Scan") for node in model.graph.node):
        return model
    from clnn.importers.onnx.loops import with_layers

    return with_layers(model)


def _read(path: Path, mapped: bool) -> memoryview:
    """Return a file's bytes, of a regular file that is not over the limit only."""
    limit = min(int(setting("CLNN_MAX_BYTES")), _PROTOBUF_LIMIT)
    try:
        # O_NONBLOCK: opening a fifo must not wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as err:
        raise ModelFileError(
            f"no model file can be read at {str(path)!r}: {err}. Check the path."
        ) from err
    try:
        status = os.fstat(handle)
        _check_file(path, status, limit)
        if mapped and status.st_size:
            return memoryview(map_file(handle, path, status.st_size))
        with os.fdopen(os.dup(handle), "rb") as file:
            return memoryview(file.read(status.st_size))
    finally:
        os.close(handle)


def _check_file(path: Path, status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        folder = stat.S_ISDIR(status.st_mode)
        hint = "a folder: pass the .onnx file in it" if folder else "not a regular file"
        raise ModelFileError(f"{str(path)!r} is {hint}.")
    if status.st_size > limit:
        raise ModelError(
            f"{str(path)!r} has {status.st_size} bytes; the limit is {limit} (CLNN_MAX_BYTES, "
            "and what ONNX files can hold). Larger models keep their weights as external data."
        )


def _parse(data: memoryview, where: str, split: Split) -> Loaded:
    proto = onnx.ModelProto()
    small, large = split(data)
    reason = "it holds no graph"
    try:
        proto.ParseFromString(small)
        if proto.graph.node or proto.graph.output:
            return Loaded(proto, large=large)
    except (DecodeError, ValueError, RecursionError) as err:
        reason = str(err).strip().rstrip(".") or type(err).__name__
    start = bytes(data[:_LONGEST_MAGIC])
    raise ModelFileError(
        f"{where} is not an ONNX model: {reason}. It has {len(data)} bytes and begins with "
        f"{start[:_SHOWN_BYTES]!r}.{_guess(start)}"
    )


def _guess(data: bytes) -> str:
    if not data:
        return " It is empty: the download or copy went wrong."
    hints = (text for at, start, text in _OTHERS if data[at : at + len(start)] == start)
    text = next(hints, "")
    return f" {text}" if text else ""
