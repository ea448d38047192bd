"""ESP-DL 3.x: integers whose scales are powers of two, as the ESP32-S3 and the C kernels, or the ESP32-P4, compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from clnn.arith.espdl import FLOOR, GRAIN, HALF_EVEN, HALF_UP, EspProducts
from clnn.arith.espdl_maps import (
    EspAverage,
    EspQuantise,
    EspRequantise,
    product,
    tabulated,
    total,
)
from clnn.arith.mli_maps import BY_BITS, Clip
from clnn.bridges.layers import RELU6, Grid, Products, integers
from clnn.bridges.target import Made, Target
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import F32, Array

LEAST = 2.0**-20  # the smallest range that an exponent is made for
BIAS = {8: 2**31 - 1, 16: 2**39 - 1}  # largest magnitude
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def exponent_of(bits: int, largest: float) -> int:
    """Return the least exponent with which a magnitude fits integers of so many bits."""
    return math.ceil(math.log2(max(largest, LEAST) / (2 ** (bits - 1) - 1)))


def exponent(grid: Grid) -> int:
    """Return the exponent of a grid."""
    return round(math.log2(grid.step))


@dataclass(frozen=True)
class EspTarget(Target):
    """ESP-DL with int8, or with int16. rounding: of ties; per_channel: exponents of weights."""

    name: str = "espdl-int8"
    bits: int = 8
    rounding: str = HALF_UP
    per_channel: bool = False

    @property
    def equalise(self) -> bool:
        """Whether weights have 8 bits and one exponent for a layer."""
        return self.bits == 8 and not self.per_channel

    def by_channel(self) -> EspTarget:
        """Return the ESP32-P4, whose kernels take an exponent for each output channel."""
        return replace(self, rounding=HALF_EVEN, per_channel=True)

    def _grid(self, power: int) -> Grid:
        return Grid(BY_BITS[self.bits], 2.0**power)

    def grid(self, low: float, high: float) -> Grid:
        """Return the grid of the least exponent that holds low..high."""
        return self._grid(exponent_of(self.bits, max(abs(low), abs(high))))

    def quantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Round to nearest, ties as the chip has them."""
        return build.add(FixedMap(EspQuantise(self.bits, exponent(grid), self.rounding)), value)

    def dequantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Multiply by the step."""
        return build.add(Eltwise((PostOp("mul", (grid.step,)),)), build.add(Cast(F32), value))

    def regrid(self, build: GraphBuilder, x: str, grid: Grid, wanted: Grid) -> str | None:
        """Shift to another exponent."""
        if grid == wanted:
            return x
        shift = exponent(wanted) - exponent(grid)
        return build.add(FixedMap(EspRequantise((self.bits, self.bits), shift, self.rounding)), x)

    def products(self, build: GraphBuilder, x: str, grid: Grid, layer: Products) -> Made | None:
        """Convolve with weights of one exponent; the bias has that of the sums."""
        out = self.grid(*layer.limits)
        largest = np.abs(layer.weights).reshape(len(layer.weights), -1).max(1)
        ends = largest if self.per_channel else largest.max(keepdims=True)
        powers = np.array([exponent_of(self.bits, float(m)) for m in ends])
        inner = exponent(grid) + powers
        limit = 2 ** (self.bits - 1) - 1
        each = powers.reshape(-1, 1, 1, 1)
        weights = integers(_steps(layer.weights, each), limit).astype(BY_BITS[self.bits].numpy)
        kind = np.int32 if self.bits == 8 else np.int64
        # behind channels of their own exponents the chip adds the bias to sums without their last bits
        grain = GRAIN if len(set(powers.tolist())) > 1 else 0
        settled = layer.settled(np.ldexp(weights.astype(np.float64), each))
        if grain and layer.means is not None:
            settled = settled + out.step / 2  # such sums are rounded down
        bias = integers(_steps(settled, inner + grain), BIAS[self.bits] >> grain) * 2**grain
        rule = self._rule(out, tuple(int(e) for e in exponent(out) - inner), layer.activation)
        spec = Conv2d(layer.window, layer.group, arith=rule)
        made = build.add(spec, x, build.const(weights), build.const(bias.astype(kind)))
        data = {"weights": weights, "bias": bias.astype(kind), "activation": layer.activation}
        return made, out, data | {"exponents": (tuple(powers.tolist()), tuple(inner.tolist()))}

    def _rule(self, out: Grid, shifts: tuple[int, ...], activation: str) -> EspProducts:
        low, high = out.limits
        low = 0 if activation else low
        high = min(high, int(6 / out.step)) if activation == RELU6 else high
        if len(set(shifts)) > 1:
            return EspProducts(self.bits, shifts, FLOOR, grain=GRAIN, low=low, high=high)
        return EspProducts(self.bits, shifts[:1], self.rounding, low=low, high=high)

    def clip(self, build: GraphBuilder, x: str, grid: Grid, activation: str) -> Made | None:
        """Clip integers."""
        high = grid.limits[1]
        high = min(high, int(6 / grid.step)) if activation == RELU6 else high
        made = build.add(FixedMap(Clip(self.bits, 0, high)), x)
        return made, grid, {"activation": activation}

    def maximum(self, build: GraphBuilder, x: str, grid: Grid, window: Window) -> Made | None:
        """Take the largest integers."""
        return build.add(Pool(window, "max"), x), grid, {"window": window}

    def average(
        self,
        build: GraphBuilder,
        x: str,
        grid: Grid,
        window: Window,
        limits: tuple[float, float],
    ) -> Made | None:
        """Average what lies inside of the image, in float32 as ESP-DL's C kernels do."""
        out = self.grid(*limits)
        rule = EspAverage(self.bits, exponent(out) - exponent(grid), self.rounding)
        return build.add(Pool(window, "average", rule=rule), x), out, {"window": window}

    def combine(
        self,
        build: GraphBuilder,
        fn: str,
        values: Sequence[str],
        grids: Sequence[Grid],
        limits: tuple[float, float],
    ) -> Made | None:
        """Add and subtract at the exponent of the result; multiply and round once."""
        out = self.grid(*limits)
        if fn == "mul":
            function = product(
                self.bits, [exponent(g) for g in grids], exponent(out), self.rounding
            )
            return build.add(FixedMap(function), *values), out, {"fn": fn}
        same = exponent(out)
        moved = [self.regrid(build, v, g, out) for v, g in zip(values, grids, strict=True)]
        added = total(self.bits, (same, same), same, fn == "sub", self.rounding)
        return build.add(FixedMap(added), *moved), out, {"fn": fn}

    def function(self, build: GraphBuilder, fn: str, x: str, grid: Grid) -> Made | None:
        """Look a function up in a table of all integers."""
        out = self._grid(1 - self.bits)
        table = tabulated(self.bits, exponent(grid), exponent(out), FUNCTIONS[fn], self.rounding)
        return build.add(FixedMap(table), x), out, {"fn": fn}


def _steps(values: Array, power: Array | int) -> Array:
    """Return values in steps of 2**power."""
    return np.ldexp(values.astype(np.float64), -power)


ESPDL_INT8 = EspTarget()
ESPDL_INT16 = EspTarget("espdl-int16", 16)
