"""Model files of ESP-DL 3.x: read, write, compile for a chip."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clnn.errors import MissingPackageError, ModelFileError
from clnn.importers.espdl.model import EspModel, read_espdl

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session

Source = str | os.PathLike[str] | bytes | EspModel


def read(source: str | os.PathLike[str] | bytes, name: str = "") -> EspModel:
    """Return what an .espdl file says, by its path or its bytes; name: of one in a package.

    Raises ModelError for a file that is damaged, encrypted or not there.
    """
    if isinstance(source, bytes):
        return read_espdl(source, name)
    try:
        data = Path(source).read_bytes()
    except OSError as err:
        raise ModelFileError(f"no model file can be read at {os.fspath(source)!r}: {err}.") from err
    return read_espdl(data, name)


def write(model: EspModel, path: str | os.PathLike[str]) -> None:
    """Write an .espdl file. Raises MissingPackageError without the flatbuffers package."""
    try:
        from clnn.importers.espdl.write import write_espdl
    except ImportError as err:
        raise MissingPackageError(
            f"flatbuffers cannot be imported: {err}. It writes .espdl files. Run: pip install"
            " clnn[espdl]."
        ) from err

    Path(path).write_bytes(write_espdl(model))


def compile_model(
    source: Source, device: str | int | None = None, chip: str = "", name: str = ""
) -> Session:
    """Return a session that runs an .espdl model as a chip does.

    chip: one of clnn.arith.espdl.CHIPS, perhaps with "+lanes"; "": what CLNN_ESPDL_CHIP says, else the
    file's name. Raises as clnn.compile_model does.
    """
    from clnn.compile import compile_fixed
    from clnn.importers.onnx.from_espdl import proto_of

    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    model = source if isinstance(source, EspModel) else read(source, name)
    return compile_fixed(proto_of(model, path, chip), device)
