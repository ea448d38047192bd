"""What a session says of its model: NodeArg and ModelMetadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from clnn.importers.onnx.port_info import PortInfo


_TYPES: dict[np.dtype[Any], str] = {
    np.dtype("float32"): "float",
    np.dtype("float64"): "double",
    **{
        np.dtype(name): name
        for name in (
            *("float16", "bool", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
        )
    },
}


def type_text(dtype: np.dtype[Any]) -> str:
    """Return what onnxruntime calls tensors of a numpy type, such as "tensor(float)"."""
    plain = dtype.newbyteorder("=")
    name = "string" if dtype.kind in "OUS" else _TYPES.get(plain, dtype.name)
    return f"tensor({name})"


class NodeArg:
    """An input, output or overridable initializer.

    name; type: such as "tensor(float)"; shape: numbers, names of symbolic dimensions, and None for
    others; [] for a scalar and where the model gives no shape.
    """

    def __init__(self, info: PortInfo) -> None:
        self._info = info

    @property
    def name(self) -> str:
        """The name."""
        return self._info.name

    @property
    def type(self) -> str:
        """The type, as text."""
        return self._info.type

    @property
    def shape(self) -> list[int | str | None]:
        """The shape."""
        return list(self._info.dims or ())

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """Head data of a model."""

    def __init__(self, head: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self.producer_name: str = head["producer_name"]
        self.graph_name: str = head["graph_name"]
        self.domain: str = head["domain"]
        self.description: str = head["description"]
        self.graph_description: str = head["graph_description"]
        self.version: int = head["version"]
        self.custom_metadata_map: dict[str, str] = dict(metadata)
