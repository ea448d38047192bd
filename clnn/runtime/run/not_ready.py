"""What a call is told for which kernels are still being made."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clnn.graph.ir import Graph


class KernelsNotReadyError(Exception):
    """Kernels are not there that a call should not wait for.

    graph: the network at the extents asked for. made: set once they are there, or nobody makes them; None
    where they are not being made.
    """

    def __init__(self, graph: Graph, made: threading.Event | None = None) -> None:
        super().__init__("kernels for these extents are not ready")
        self.graph, self.made = graph, made
