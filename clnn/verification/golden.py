"""Golden inputs and outputs that a model file brings along: those of ESP-DL do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from clnn.errors import SettingError
from clnn.importers.espdl.model import EspModel, is_espdl, read_espdl


def golden_of(model: Any) -> EspModel | None:
    """Return what an .espdl file (or its bytes) says, None for all other models.

    Raises ModelError for a damaged file.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            if not is_espdl(file.read(4)):
                return None
        return read_espdl(path.read_bytes())
    if isinstance(model, (bytes, bytearray, memoryview)) and is_espdl(bytes(model[:4])):
        return read_espdl(bytes(model))
    return None


def with_golden(model: Any) -> EspModel:
    """Return the same. Raises SettingError for a model without golden outputs."""
    found = golden_of(model)
    if found is None or not found.test_outputs:
        raise SettingError(
            "the model brings no golden values: only .espdl files do, where they were exported with"
            " test values. Use against='onnxruntime' or 'reference'."
        )
    return found


def engine_for(model: Any) -> str:
    """Return what a model is compared with where nothing is asked for."""
    found = golden_of(model)
    if found is None:
        return "onnxruntime"
    return "golden" if found.test_outputs else "reference"
