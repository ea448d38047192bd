"""Limits of what a model may ask for, counted in Python integers, which do not wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from clnn.budget import FOLD_WORK, GROWTH, MAX_NODES, TABLE_BYTES, WORK_GROWTH
from clnn.errors import ModelError, ShapeError
from clnn.records import dataclass
from clnn.settings import setting
from clnn.types import TensorType

MAX_RANK = 8
MAX_EXTENT = 2**31 - 1
MAX_DEPTH = 16
NEWEST_OPSET = 28
_SHOWN = 80


def show(name: str | bytes) -> str:
    """Return a name of the model for a message: quoted, escaped, not too long.

    Protobuf hands over as bytes what is not UTF-8.
    """
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return repr(name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "...")


OWN_DOMAIN = "clnn"
"""Of nodes that other nodes are made into, and that ONNX has not: clnn/ops says what they mean."""


def default_domain(domain: str) -> str:
    """Return the domain with ONNX's two spellings of its own made one."""
    return domain or "ai.onnx"


@dataclass
class Budget:
    """What an import has used: nodes (inlined ones count each time) and bytes of constants.

    stored: bytes of the model's own tensors. folded: bytes of constants computed from them, for
    which there is room in proportion: a small file must not fill memory. worked: bytes that their
    evaluation read and wrote.
    """

    max_bytes: int = field(default_factory=lambda: int(setting("CLNN_MAX_BYTES")))
    nodes: int = 0
    stored: int = 0
    folded: int = 0
    worked: int = 0

    def take_node(self) -> None:
        """Count one node. Raises ModelError beyond the limit."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ModelError(
                f"the model has more than {MAX_NODES} nodes after its functions are inlined. "
                "Files that grow like this are refused."
            )

    def take_stored(self, count: int, what: str) -> None:
        """Count bytes of one tensor of the file. Raises ModelError beyond the limit."""
        self.stored += count
        if self.stored > self.max_bytes:
            raise ModelError(
                f"{what} wants {count} bytes, which makes {self.stored} bytes of tensors; the "
                f"limit is {self.max_bytes}. Raise CLNN_MAX_BYTES if that is meant."
            )

    @property
    def fold_room(self) -> int:
        """Bytes that constants computed at import may still take."""
        limit = min(self.max_bytes, TABLE_BYTES + GROWTH * self.stored)
        return max(limit - self.folded, 0)

    @property
    def work_room(self) -> int:
        """Bytes that the evaluation of constants may still read and write."""
        return max(FOLD_WORK + WORK_GROWTH * self.stored - self.worked, 0)


def check_dims(what: str, dims: Sequence[int]) -> int:
    """Return the number of elements. Raises ModelError for a rank or an extent out of range."""
    if len(dims) > MAX_RANK:
        raise ModelError(f"{what} has {len(dims)} axes. clnn takes at most {MAX_RANK}.")
    wrong = [d for d in dims if not 0 <= d <= MAX_EXTENT]
    if wrong:
        raise ModelError(
            f"{what} has shape {list(dims)}: extent {wrong[0]} is not from 0 to {MAX_EXTENT}. "
            "The file is not valid."
        )
    return math.prod(dims)


def check_type(what: str, kind: TensorType) -> None:
    """Refuse a tensor that kernels could not index. Raises ShapeError with the numbers."""
    limit = int(setting("CLNN_MAX_BYTES"))
    reason = ""
    if kind.rank > MAX_RANK:
        reason = f"clnn takes at most {MAX_RANK} axes"
    elif kind.size > MAX_EXTENT or any(d > MAX_EXTENT for d in kind.shape):
        reason = f"kernels index with 32 bits, at most {MAX_EXTENT} elements"
    elif kind.nbytes > limit:
        reason = f"the limit is {limit} bytes (CLNN_MAX_BYTES)"
    if reason:
        raise ShapeError(
            f"{what} is {kind!r}: {kind.size} elements, {kind.nbytes} bytes; {reason}. "
            "Make the batch or the image smaller."
        )
