"""Detected objects as TIDL's SSD post-processing writes them: a header, then objects of equal size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from clnn.apis.tidl.enums import ObjectType
from clnn.errors import ModelError, ShapeError
from clnn.records import dataclass
from clnn.types import Array

HEADER_BYTES = 20
OBJECT_BYTES = 28  # without key points
KEY_POINT_BYTES = 12
MOST_KEY_POINTS = 32
OBJECT_SIZEOF = OBJECT_BYTES + MOST_KEY_POINTS * KEY_POINT_BYTES
_HEADER = np.dtype([("numbers", "<f4", 4), ("kind", "<i4")])


@dataclass(frozen=True)
class TIDL_ODLayerHeaderInfo:
    """The header: how many objects there are and where they lie; counts are floats in memory.

    objInfoSize: bytes from one object to the next. objInfoOffset: bytes from the header to the first.
    odObjectType: bits of ObjectType.
    """

    numDetObjects: float
    objInfoSize: float
    odNumKeyPoints: float = 0.0
    objInfoOffset: float = float(HEADER_BYTES)
    odObjectType: int = int(ObjectType.Detect2DBox)

    @staticmethod
    def from_bytes(data: bytes) -> TIDL_ODLayerHeaderInfo:
        """Return the header that `data` begins with. Raises ModelError where it is shorter."""
        if len(data) < HEADER_BYTES:
            raise ModelError(
                f"{len(data)} bytes hold no header of objects, which has {HEADER_BYTES}."
            )
        numbers, kind = np.frombuffer(data[:HEADER_BYTES], _HEADER)[0]
        count, size, points, offset = map(float, numbers)
        return TIDL_ODLayerHeaderInfo(count, size, points, offset, int(kind))

    def to_bytes(self) -> bytes:
        """Return the 20 bytes of the header."""
        *numbers, kind = astuple(self)
        return np.array([(tuple(numbers), kind)], _HEADER).tobytes()


@dataclass(frozen=True)
class TIDL_ODLayerKeyPoint:
    """A key point of an object."""

    x: float
    y: float
    kpt_confidence: float


@dataclass(frozen=True)
class TIDL_ODLayerObjInfo:
    """One object; coordinates are those of the network, for SSD fractions of the image."""

    ObjId: float
    label: float
    score: float
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    keyPoints: tuple[TIDL_ODLayerKeyPoint, ...] = ()


def write_objects(
    objects: Sequence[TIDL_ODLayerObjInfo], memory: Array, key_points: int = 0
) -> None:
    """Write a header and objects to the begin of a buffer's bytes (uint8); what is behind stays.

    key_points: of each object, at most 32; an object that has fewer gets zeros. Raises ShapeError where
    they do not fit.
    """
    if not 0 <= key_points <= MOST_KEY_POINTS:
        raise ShapeError(
            f"{key_points} key points are asked, an object has 0 to {MOST_KEY_POINTS}."
        )
    size = OBJECT_BYTES + KEY_POINT_BYTES * key_points
    kind = ObjectType.Detect2DBox | (ObjectType.DetectKeyPoints if key_points else 0)
    header = TIDL_ODLayerHeaderInfo(len(objects), size, key_points, HEADER_BYTES, int(kind))
    rows = np.zeros((len(objects), size // 4), "<f4")
    for row, each in zip(rows, objects, strict=True):
        points = [value for point in each.keyPoints for value in astuple(point)]
        numbers = (*astuple(each)[:7], *points)
        if len(numbers) > len(row):
            raise ShapeError(f"an object has {len(each.keyPoints)} key points, not {key_points}.")
        row[: len(numbers)] = numbers
    data = header.to_bytes() + rows.tobytes()
    if len(data) > memory.size:
        raise ShapeError(f"{len(objects)} objects take {len(data)} bytes, there are {memory.size}.")
    memory[: len(data)] = np.frombuffer(data, np.uint8)


def parse_objects(data: bytes | Array) -> tuple[TIDL_ODLayerHeaderInfo, list[TIDL_ODLayerObjInfo]]:
    """Return the header and the objects of a buffer of detections, as bytes from the header on.

    Raises ModelError where the header's numbers lead out of the buffer or are none.
    """
    whole = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    header = TIDL_ODLayerHeaderInfo.from_bytes(whole)
    count = _count(header.numDetObjects, "numDetObjects")
    size = _count(header.objInfoSize, "objInfoSize")
    points = _count(header.odNumKeyPoints, "odNumKeyPoints")
    offset = _count(header.objInfoOffset, "objInfoOffset")
    if not header.odObjectType & ObjectType.DetectKeyPoints:
        points = 0
    need = OBJECT_BYTES + KEY_POINT_BYTES * points
    if points > MOST_KEY_POINTS or (count and size < need):
        raise ModelError(f"objects of {size} bytes hold no {points} key points: these take {need}.")
    if count and (offset < HEADER_BYTES or offset + (count - 1) * size + need > len(whole)):
        raise ModelError(
            f"{count} objects of {size} bytes from byte {offset} on do not lie behind the header in a"
            f" buffer of {len(whole)} bytes."
        )
    return header, [_object(whole, offset + k * size, points) for k in range(count)]


def _count(value: float, name: str) -> int:
    if not (np.isfinite(value) and 0 <= value < 2**31 and value == int(value)):
        raise ModelError(f"{name} is {value}: must be a whole number of at least 0.")
    return int(value)


def _object(data: bytes, at: int, points: int) -> TIDL_ODLayerObjInfo:
    numbers = np.frombuffer(data, "<f4", 7 + 3 * points, at).tolist()
    found = [TIDL_ODLayerKeyPoint(*numbers[k : k + 3]) for k in range(7, len(numbers), 3)]
    identity, label, score, *corners = numbers[:7]
    x0, y0, x1, y1 = corners
    return TIDL_ODLayerObjInfo(identity, label, score, x0, y0, x1, y1, tuple(found))
