"""What import, passes and planning may make on the host: every limit of it, in one place.

A file of a few bytes can ask for any number of nodes, and a node of a few numbers for a table as long
as the extents it names. Both are counted before they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, TypeVar

from clnn.errors import ClnnError, HostMemoryError
from clnn.records import dataclass

MAX_NODES = 100_000
"""Nodes of a model with its functions inlined, and of the graph made of it."""

TABLE_BYTES = 2**28
"""Bytes that one import, or one plan, may compute from extents and attributes alone. Constants that an
import folds may take as much, and GROWTH times the bytes of the model's own tensors besides."""

GROWTH = 16
"""See TABLE_BYTES."""

FOLD_WORK = 2**32
"""Bytes that the evaluation of constants may read and write in one import, and WORK_GROWTH times
the bytes of the model's own tensors besides."""

WORK_GROWTH = 64
"""See FOLD_WORK."""

SLOW_WORK = 256
"""Bytes for which an element counts that onnx's evaluator computes in a Python loop."""

MAX_PHASES = 4096
"""Outputs between two inputs of a transposed convolution, along an axis, for which tables are made."""

Made = TypeVar("Made")


@dataclass
class Tables:
    """Tables that were made so far: their bytes, and each by what tells it from others."""

    used: int = 0
    made: dict[Hashable, Any] = field(default_factory=dict)

    def take(self, nbytes: int, what: str) -> None:
        """Count a table. Raises HostMemoryError beyond TABLE_BYTES."""
        if self.used + nbytes > TABLE_BYTES:
            others = f", with {self.used} of others" if self.used else ""
            raise HostMemoryError(
                f"{what} wants a table of {nbytes} bytes{others}; all that are computed from shapes "
                f"may take {TABLE_BYTES} together. Make the shape smaller."
            )
        self.used += nbytes


_tables: ContextVar[Tables | None] = ContextVar("clnn_tables", default=None)


def take_table(nbytes: int, what: str) -> None:
    """Count a table of the host that is about to be made, with all others of this import or plan.

    what: names it in the message. Raises HostMemoryError beyond TABLE_BYTES.
    """
    (_tables.get() or Tables()).take(nbytes, what)


def table_once(key: Hashable, nbytes: int, what: str, make: Callable[[], Made]) -> Made:
    """Return make(), counted and kept as long as this import or plan goes on.

    key: tells the table from all others. Raises HostMemoryError beyond TABLE_BYTES.
    """
    tables = _tables.get() or Tables()
    if key not in tables.made:
        tables.take(nbytes, what)
        tables.made[key] = make()
    table: Made = tables.made[key]
    return table


@contextmanager
def counted_tables() -> Iterator[None]:
    """Count the tables made inside together; inside of another such block, with those of it."""
    if _tables.get() is not None:
        yield
        return
    token = _tables.set(Tables())
    try:
        yield
    finally:
        _tables.reset(token)


@contextmanager
def host_memory(task: str) -> Iterator[None]:
    """Say in a HostMemoryError what `task` was where the process gets no more memory."""
    try:
        yield
    except MemoryError as err:
        if isinstance(err, ClnnError):
            raise
        reason = str(err).strip().rstrip(".") or "the system gives no more"
        raise HostMemoryError(
            f"{task} got no memory of the host: {reason}. Make the model's shapes smaller, or give "
            "the process more memory."
        ) from err
