"""What a target system is to a bridge: grids for values, and ops for each kind of layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clnn.bridges.layers import Grid, Products
from clnn.graph.builder import GraphBuilder
from clnn.ops.shared.window import Window

Made = tuple[str, Grid, dict[str, Any]]  # a value, its grid, the constants of the layer


class Target:
    """A system; methods add its ops to a graph. One that returns None leaves the layer to float32.

    name: as clnn.quantize takes it. bits: of an element of a tensor.
    """

    name = ""
    bits = 8

    @property
    def equalise(self) -> bool:
        """Whether channels are equalised before, where nobody says."""
        return False

    def by_channel(self) -> Target | None:
        """Return the target with a scale for each output channel of the weights, None without such."""
        return None

    def grid(self, low: float, high: float) -> Grid:
        """Return the grid of a tensor whose values lie in low..high."""
        raise NotImplementedError

    def quantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Return float32 values as integers."""
        raise NotImplementedError

    def dequantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Return integers as float32 values."""
        raise NotImplementedError

    def products(self, build: GraphBuilder, x: str, grid: Grid, layer: Products) -> Made | None:
        """Return the result of a convolution with its activation."""
        return None

    def clip(self, build: GraphBuilder, x: str, grid: Grid, activation: str) -> Made | None:
        """Return a value behind RELU or RELU6."""
        return None

    def maximum(self, build: GraphBuilder, x: str, grid: Grid, window: Window) -> Made | None:
        """Return the largest elements of windows."""
        return None

    def average(
        self,
        build: GraphBuilder,
        x: str,
        grid: Grid,
        window: Window,
        limits: tuple[float, float],
    ) -> Made | None:
        """Return the averages of windows; whether padding counts is the system's rule."""
        return None

    def combine(
        self,
        build: GraphBuilder,
        fn: str,
        values: Sequence[str],
        grids: Sequence[Grid],
        limits: tuple[float, float],
    ) -> Made | None:
        """Return add, sub or mul of two values."""
        return None

    def function(self, build: GraphBuilder, fn: str, x: str, grid: Grid) -> Made | None:
        """Return a function of one value: sigmoid or tanh."""
        return None

    def softmax(self, build: GraphBuilder, x: str, grid: Grid, axis: int) -> Made | None:
        """Return softmax along an axis."""
        return None

    def regrid(self, build: GraphBuilder, x: str, grid: Grid, wanted: Grid) -> str | None:
        """Return a value with the integers of another grid."""
        return x if grid == wanted else None
