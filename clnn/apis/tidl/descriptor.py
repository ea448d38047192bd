"""sTIDL_IOBufDesc_t: what a compiled TIDL network says of its input and output buffers."""

from __future__ import annotations

import os
from dataclasses import field, fields
from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis.tidl.structure import (
    NAME_BYTES,
    VERSIONS,
    Field,
    Version,
    version_of,
    version_of_size,
)
from clnn.apis.tidl.tensors import IOTensor
from clnn.errors import ModelError, ShapeError
from clnn.records import dataclass

_LARGEST = max(version.nbytes for version in VERSIONS)
_NEWEST = version_of("11_01")
_WORDS = (-(2**31), 2**31 - 1)

Ints = list[int]


@dataclass
class sTIDL_IOBufDesc_t:
    """The structure of a `*_io_1.bin` file, field by field; docs/tidl.md says what each means.

    Arrays have an element for each buffer that the version has room for, as in memory; shorter ones
    are filled up with 0 (or ""). A field that the version lacks is an empty list, or 0.
    version: of which SDK the structure is, and for how many cores.
    """

    version: Version = _NEWEST
    numInputBuf: int = 0
    numOutputBuf: int = 0
    numCores: int = 0
    numVirtualCores: int = 0
    numSuperBatches: int = 0
    inferenceMode: int = 0
    inDataFormat: Ints = field(default_factory=list)
    inResizeType: Ints = field(default_factory=list)
    resizeWidth: Ints = field(default_factory=list)
    resizeHeight: Ints = field(default_factory=list)
    inWidth: Ints = field(default_factory=list)
    inHeight: Ints = field(default_factory=list)
    inNumChannels: Ints = field(default_factory=list)
    inDIM2: Ints = field(default_factory=list)
    inDIM1: Ints = field(default_factory=list)
    inChannelPitch: Ints = field(default_factory=list)
    inNumBatches: Ints = field(default_factory=list)
    inPadL: Ints = field(default_factory=list)
    inPadT: Ints = field(default_factory=list)
    inPadR: Ints = field(default_factory=list)
    inPadB: Ints = field(default_factory=list)
    inPadCh: Ints = field(default_factory=list)
    rawDataInElementType: Ints = field(default_factory=list)
    inElementType: Ints = field(default_factory=list)
    inZeroPoint: Ints = field(default_factory=list)
    inLayout: Ints = field(default_factory=list)
    inDataId: Ints = field(default_factory=list)
    inTensorScale: list[float] = field(default_factory=list)
    inDataName: list[str] = field(default_factory=list)
    inBufSize: Ints = field(default_factory=list)
    outWidth: Ints = field(default_factory=list)
    outHeight: Ints = field(default_factory=list)
    outDIM2: Ints = field(default_factory=list)
    outDIM1: Ints = field(default_factory=list)
    outNumChannels: Ints = field(default_factory=list)
    outChannelPitch: Ints = field(default_factory=list)
    outNumBatches: Ints = field(default_factory=list)
    outPadL: Ints = field(default_factory=list)
    outPadT: Ints = field(default_factory=list)
    outPadR: Ints = field(default_factory=list)
    outPadB: Ints = field(default_factory=list)
    outPadCh: Ints = field(default_factory=list)
    outElementType: Ints = field(default_factory=list)
    outDataId: Ints = field(default_factory=list)
    outDataName: list[str] = field(default_factory=list)
    outTensorScale: list[float] = field(default_factory=list)
    outZeroPoint: Ints = field(default_factory=list)
    outLayout: Ints = field(default_factory=list)
    outBufSize: Ints = field(default_factory=list)
    numValidTensorDims: Ints = field(default_factory=list)
    _behind_names: dict[tuple[str, int], bytes] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Bring arrays to the lengths of the version. Raises ModelError for ones that are longer."""
        there = {f.name: f for f in self.version.fields}
        for name in _FIELDS:
            values, known = getattr(self, name), there.get(name)
            if known is None or not isinstance(values, list):
                continue
            if len(values) > known.count:
                raise ModelError(
                    f"{name} has {len(values)} elements, SDK {self.version.sdk} has room for"
                    f" {known.count}."
                )
            nothing: Any = {"S": "", "f4": 0.0}.get(known.kind, 0)
            setattr(self, name, values + [nothing] * (known.count - len(values)))

    @staticmethod
    def from_bytes(data: bytes) -> sTIDL_IOBufDesc_t:
        """Return the structure that `data` is; its size tells the version.

        Values are taken as they are; `check` says whether they describe buffers. Raises ModelError
        for a size that no version has.
        """
        version = version_of_size(len(data))
        made = sTIDL_IOBufDesc_t(version)
        for known in version.fields:
            setattr(made, known.name, _read(data, known, made._behind_names))
        return made

    def to_bytes(self) -> bytes:
        """Return the structure as its version has it in memory.

        Raises ModelError for a value that its field does not hold.
        """
        data = bytearray(self.version.nbytes)
        for known in self.version.fields:
            values = getattr(self, known.name)
            rows = values if isinstance(values, list) else [values]
            if len(rows) != known.count:
                raise ModelError(f"{known.name} has {len(rows)} elements, must have {known.count}.")
            data[known.offset : known.offset + known.nbytes] = self._written(known, rows)
        return bytes(data)

    def _written(self, known: Field, rows: list[Any]) -> bytes:
        if known.kind == "S":
            behind = self._behind_names
            return b"".join(
                _name(known.name, row, behind.get((known.name, k), b""))
                for k, row in enumerate(rows)
            )
        if known.kind == "i4" and not all(_WORDS[0] <= row <= _WORDS[1] for row in rows):
            raise ModelError(f"{known.name} is {rows}: a number is not one of 32 bits.")
        with np.errstate(over="ignore"):
            return np.array(rows, f"<{known.kind}").tobytes()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> sTIDL_IOBufDesc_t:
        """Return the structure of a `*_io_1.bin` file.

        Raises ModelError for a file that cannot be read, is no such structure, or whose values
        describe no buffers.
        """
        try:
            with Path(path).open("rb") as file:
                data = file.read(_LARGEST + 1)
        except OSError as err:
            raise ModelError(f"{path} cannot be read ({err.strerror}).") from err
        try:
            made = sTIDL_IOBufDesc_t.from_bytes(data)
            made.check()
        except ModelError as err:
            raise ModelError(f"{path}: {err}") from None
        return made

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the structure to a file, after `check`. Raises ModelError."""
        self.check()
        Path(path).write_bytes(self.to_bytes())

    def check(self) -> None:
        """Raise ModelError where the structure does not describe buffers, with the first fault."""
        for tensor in (*self.inputs, *self.outputs):
            tensor.check()

    @property
    def inputs(self) -> tuple[IOTensor, ...]:
        """The inputs in the order in which TIDL takes them. Raises ModelError for a wrong count."""
        return self._tensors("in", "numInputBuf", self.version.inputs)

    @property
    def outputs(self) -> tuple[IOTensor, ...]:
        """The outputs in the order in which TIDL gives them. Raises ModelError for a wrong count."""
        return self._tensors("out", "numOutputBuf", self.version.outputs)

    def _tensors(self, side: str, name: str, most: int) -> tuple[IOTensor, ...]:
        count = getattr(self, name)
        if not 0 <= count <= most:
            raise ModelError(f"{name} is {count}: must be from 0 to {most}.")
        return tuple(self._tensor(side, k) for k in range(count))

    def _tensor(self, side: str, index: int) -> IOTensor:
        def at(name: str, otherwise: int = 0) -> Any:
            values = getattr(self, f"{side}{name}")
            return values[index] if values else otherwise

        return IOTensor(
            side=side,
            name=at("DataName"),
            batches=at("NumBatches"),
            dim1=at("DIM1", 1),
            dim2=at("DIM2", 1),
            channels=at("NumChannels"),
            height=at("Height"),
            width=at("Width"),
            pads=(at("PadL"), at("PadT"), at("PadR"), at("PadB")),
            pad_channels=at("PadCh"),
            channel_pitch=at("ChannelPitch"),
            element_type=at("ElementType"),
            order=at("Layout"),
            scale=at("TensorScale"),
            zero_point=at("ZeroPoint"),
            buffer_size=at("BufSize"),
            data_id=at("DataId"),
        )

    def add(self, tensor: IOTensor) -> None:
        """Append an input or output. Raises ModelError, or ShapeError where the version has no room.

        A version without DIM1 and DIM2 takes only tensors in which they are 1.
        """
        tensor.check()
        side, name = tensor.side, "numInputBuf" if tensor.side == "in" else "numOutputBuf"
        most = self.version.inputs if side == "in" else self.version.outputs
        index = getattr(self, name)
        if index >= most:
            raise ShapeError(f"SDK {self.version.sdk} has room for {most} {side}puts.")
        for suffix, value in tensor.fields().items():
            values = getattr(self, f"{side}{suffix}")
            if values:
                values[index] = value
            elif suffix in ("DIM1", "DIM2") and value != 1:
                raise ShapeError(f"{tensor}: SDK {self.version.sdk} has no {suffix}.")
        if side == "in":
            self.rawDataInElementType[index] = tensor.element_type
            self.resizeWidth[index], self.resizeHeight[index] = tensor.width, tensor.height
        elif self.numValidTensorDims:
            self.numValidTensorDims[index] = tensor.valid_dims
        setattr(self, name, index + 1)


_FIELDS = tuple(
    f.name for f in fields(sTIDL_IOBufDesc_t) if f.name not in ("version", "_behind_names")
)


def _read(data: bytes, known: Field, behind: dict[tuple[str, int], bytes]) -> Any:
    """Return the value of a field, a number or a list."""
    part = data[known.offset : known.offset + known.nbytes]
    if known.kind != "S":
        values = np.frombuffer(part, f"<{known.kind}").tolist()
        return values[0] if known.count == 1 else values
    names = []
    for k in range(known.count):
        name, _, rest = part[k * NAME_BYTES : (k + 1) * NAME_BYTES].partition(b"\0")
        names.append(name.decode("utf-8", "surrogateescape"))
        if rest.strip(b"\0"):
            behind[known.name, k] = rest
    return names


def _name(field_name: str, name: str, behind: bytes) -> bytes:
    """Return a name as its 512 bytes. behind: what lay behind its end in a structure that was read."""
    data = name.encode("utf-8", "surrogateescape")
    if len(data) >= NAME_BYTES and (len(data) > NAME_BYTES or behind):
        raise ModelError(
            f"{field_name}: name {name[:40]!r}... has {len(data)} bytes, {NAME_BYTES} are there."
        )
    if b"\0" in data:
        raise ModelError(f"{field_name}: name {name!r} holds a zero byte.")
    if len(data) + 1 + len(behind) == NAME_BYTES:
        return data + b"\0" + behind
    return data.ljust(NAME_BYTES, b"\0")
