"""Tables of signal processing whose sizes are values: windows, and weights of mel bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import DTYPES, Array

MAX_ELEMENTS = 2**28
_NUMBERS = {1: "float32", 10: "float16", 11: "float64", 2: "uint8", 3: "int8", 4: "uint16"}
_NUMBERS |= {5: "int16", 6: "int32", 7: "int64", 12: "uint32", 13: "uint64"}
# Of a window: the mean, and the shares of one and of two turns.
_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


def _element(node: HostNode) -> np.dtype[Any]:
    name = _NUMBERS.get(int(node.attr("output_datatype", 1)))
    found = next((d.numpy for d in DTYPES if d.name == name), None)
    if found is None:
        raise ValueError(f"output_datatype {node.attr('output_datatype')} is not supported")
    return found


@host_op(*_WINDOWS)
def _window(node: HostNode, size: Array) -> Array:
    count, kind = int(size.reshape(-1)[0]), _element(node)
    if not 0 <= count <= MAX_ELEMENTS:
        raise ValueError(f"no window has {count} elements")
    turn = (
        2 * np.pi * np.arange(count) / np.float64(count if node.attr("periodic", 1) else count - 1)
    )
    mean, once, twice = _WINDOWS[node.op_type]
    return (mean - once * np.cos(turn) + twice * np.cos(2 * turn)).astype(kind)


@host_op("MelWeightMatrix")
def _mel_weights(
    node: HostNode, bands: Array, length: Array, rate: Array, low: Array, high: Array
) -> Array:
    """Return (length // 2 + 1, bands): triangles over frequencies, evenly spaced in mel."""
    count, size, hertz, *edges = (a.reshape(-1)[0].item() for a in (bands, length, rate, low, high))
    if count < 1 or size < 1 or hertz <= 0 or count * (size // 2 + 1) > MAX_ELEMENTS:
        raise ValueError(f"no {count} bands of a transform of {size} at {hertz} Hz")
    begin, end = (2595 * np.log10(1 + edge / 700) for edge in edges)
    mels = np.arange(count + 2) * ((end - begin) / (count + 2)) + begin
    places = ((size + 1) * (700 * (10 ** (mels / 2595) - 1)) // hertz).astype(np.int64)
    if places.min() < 0 or places.max() > size // 2 + 1:
        raise ValueError(f"bands from {edges[0]} to {edges[1]} Hz leave the half of {hertz} Hz")
    left, middle, right = places[:-2], places[1:-1], places[2:]
    bins = np.arange(size // 2 + 1)[:, None]
    rising = np.where(left == middle, 1.0, (bins - left) / np.maximum(middle - left, 1))
    falling = (right - bins) / np.maximum(right - middle, 1)
    weights = np.where((bins >= left) & (bins <= middle), rising, 0)
    return np.where((bins >= middle) & (bins < right), falling, weights).astype(_element(node))
