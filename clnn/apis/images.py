"""What the faces of several systems share: images with channels last in graphs, digests of constants."""

from __future__ import annotations

import hashlib

from clnn.graph.builder import GraphBuilder
from clnn.types import Array


def from_image(build: GraphBuilder, value: str) -> str:
    """Return an image (h, w, c) as (1, c, h, w)."""
    return build.transpose(build.reshape(value, (1, *build.shape(value))), (0, 3, 1, 2))


def to_image(build: GraphBuilder, value: str) -> str:
    """Return (1, c, h, w) as an image (h, w, c)."""
    _, c, h, w = build.shape(value)
    return build.reshape(build.transpose(value, (0, 2, 3, 1)), (h, w, c))


def digest(*arrays: Array) -> bytes:
    """Return a digest of constants."""
    total = hashlib.blake2b(digest_size=16)
    for array in arrays:
        total.update(repr((array.shape, array.dtype.str)).encode())
        total.update(array.tobytes())
    return total.digest()
