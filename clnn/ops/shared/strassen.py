"""Strassen's algorithm for products of rows with a constant matrix, on CPUs: seven products of blocks for eight.

In Winograd's form, of 2 x 2 blocks of each operand. Blocks are a register tile's: sums of blocks of the rows lie in
a core's cache, those of the constant are made once, and sums of products are added where results are finished. So it
costs little beside what it saves, for matrices of a few hundred rows and columns too (Huang, Smith, Henry and van de
Geijn, "Strassen's Algorithm Reloaded", SC 2016). Rows and columns are scaled by powers of two, for errors that are
relative to the row and the column of a result and not to its neighbours' (Ballard, Benson, Druinsky, Lipshitz and
Schwartz, "Improving the Numerical Stability of Fast Matrix Multiplication", 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from clnn.ops.launch import Arg, Const, Launch
from clnn.ops.shared.cycles import bytes_a_cycle, loop_slots, takes_half
from clnn.ops.shared.epilogue import heavy
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.loops import Loops
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import F32, Array

PRODUCTS = 7
# Of the largest result: 2.5e-6 were found for sums of 768 terms, 6e-6 for 4,096, where plain sums had 1e-6 and 3e-6.
ERROR = 1e-5
MOST_TERMS = 8192  # of sums whose errors stay below that
# Of what is counted, against the estimates of register tiles, as it takes more memory: where products take longer than
# their loads, and elsewhere, where it was not measured and has to be tuned.
HALF_RATE_COST, COST = 1.07, 1.15
MOST_VECTORS = 3  # of columns of a block
LEAST_ROWS = 4  # of a block
PANELS = (1, 2, 4)
MOST_GROUPS = 8  # shares of the columns
PLANS = 6  # worth a measurement
LEAST_VECTOR = 8  # lanes
LEAST_TERMS = 4  # that are added at once
# Magnitudes of the constant that leave room for sums of blocks.
LEAST_LARGEST, MOST_LARGEST = 2.0**-80, 2.0**80
LEAST_EXPONENT = -100  # of a column's factor
AHEAD = 16  # rows of the constant's sums that are on their way
GAP = 16  # floats between lines of sums
BEGIN_SLOTS, END_SLOTS = 4, 12  # of a vector of sums of each product, and of each result
ROW_SLOTS = 8  # of a vector of rows, to scale and add it
COLD_SHARE = 0.4  # of what more bytes from memory would cost, did none of them come ahead
MOST_BYTES = 768 * 1024  # of sums, that stay in a core's second cache
NEAR_BYTES = 640 * 1024  # of the constant's sums, that stay there for all rows
# Bytes that the second cache gives a core per cycle, and those behind it.
NEAR_RATE, FAR_RATE = 24, 5


@dataclass(frozen=True)
class StrassenPlan:
    """Blocks of mr rows by nv vectors of vw columns, va terms added at once.

    panels: pairs of blocks of rows that meet the same products. per: pairs of blocks of columns of a
    work-item. cycles: as they compare with those of register tiles, in the time of two multiply-adds.
    """

    mr: int
    nv: int
    vw: int
    va: int
    panels: int
    per: int
    cycles: float = 0.0

    @property
    def width(self) -> int:
        """Columns of a block."""
        return self.nv * self.vw

    @property
    def rows(self) -> int:
        """Rows of a work-item."""
        return 2 * self.mr * self.panels

    def pairs(self, n: int) -> int:
        """Return the pairs of blocks that n columns take."""
        return -(-n // (2 * self.width))

    def packed_bytes(self, k: int, n: int) -> int:
        """Return the bytes of the constant's sums."""
        return self.pairs(n) * PRODUCTS * (k // 2) * self.width * F32.itemsize

    def more_bytes(self, k: int, n: int) -> float:
        """Return the bytes that are read more than the constant has, as they count in estimates."""
        return COLD_SHARE * (self.packed_bytes(k, n) - k * n * F32.itemsize)


@dataclass(frozen=True)
class RowsProduct:
    """post_ops(a b + bias) for rows that count through loops; terms and columns lie side by side.

    rows: loops over rows, with pitches in the order a, dst, extras. extras: node input -> (number, pitch
    of the columns), of operands of the post-ops. scales: node input -> factor of such an operand.
    """

    rows: Loops
    n: int
    k: int
    extras: Mapping[int, tuple[int, int]]
    scales: Mapping[int, float]
    post_ops: tuple[PostOp, ...]
    target: Target

    @property
    def m(self) -> int:
        """Rows."""
        return int(np.prod(self.rows.extents))


def fits(target: Target, extents: Sequence[int], terms: int, columns: Sequence[int]) -> bool:
    """Whether the kernels take rows of such extents and so many terms, on a device that may round so.

    columns: pitches of a's terms, and of the columns of dst and extras.
    """
    able = target.is_cpu and target.winograd and target.vector >= LEAST_VECTOR
    if not able or any(map(is_open, (*extents, terms, *columns))):
        return False
    return (
        columns[0] == columns[1] == 1 and terms % (2 * LEAST_TERMS) == 0 and 0 < terms <= MOST_TERMS
    )


def fits_constant(largest: float) -> bool:
    """Whether columns of a constant, whose largest magnitude this is, can be scaled by powers of two."""
    return LEAST_LARGEST <= largest <= MOST_LARGEST


@lru_cache(4096)
def plans(m: int, n: int, k: int, target: Target) -> tuple[StrassenPlan, ...]:
    """Return the plans for m rows, n columns and k terms that are worth a measurement, cheapest first."""
    best: dict[tuple[int, int, int], StrassenPlan] = {}
    for made in _plans(m, n, k, target):
        cycles = _cycles(made, m, n, k, target)
        kind = made.mr, made.nv, made.panels
        if kind not in best or cycles < best[kind].cycles:
            best[kind] = replace(made, cycles=cycles)
    return tuple(sorted(best.values(), key=attrgetter("cycles"))[:PLANS])


def _plans(m: int, n: int, k: int, target: Target) -> Iterator[StrassenPlan]:
    vw, va = target.vector, target.vector
    while (k // 2) % va:
        va //= 2
    for nv in range(1, MOST_VECTORS + 1):
        # Vectors of b and an element of a lie in registers beside the sums.
        for mr in range(LEAST_ROWS, (target.registers - 1) // nv):
            for panels in PANELS:
                made = StrassenPlan(mr, nv, vw, va, panels, 1)
                if (panels > 1 and made.rows // 2 >= m) or not _fits_memory(made, k, target):
                    continue
                pairs = made.pairs(n)
                for groups in range(1, min(pairs, MOST_GROUPS) + 1):
                    yield replace(made, per=-(-pairs // groups))


def _fits_memory(made: StrassenPlan, k: int, target: Target) -> bool:
    sums = made.panels * PRODUCTS * made.mr * (k // 2 + GAP + made.width) * F32.itemsize
    return sums <= min(MOST_BYTES, target.local_bytes)


def _cycles(made: StrassenPlan, m: int, n: int, k: int, target: Target) -> float:
    """Return the estimated time of the slowest core."""
    mr, nv, half = made.mr, made.nv, k // 2
    vectors = mr * nv
    steps = half * loop_slots(mr, nv) + BEGIN_SLOTS * vectors
    rate = NEAR_RATE if made.packed_bytes(k, n) <= NEAR_BYTES else FAR_RATE
    stream = 2 * half * made.width * F32.itemsize / bytes_a_cycle(rate, target)
    pair = PRODUCTS * max(made.panels * steps, stream) + made.panels * END_SLOTS * 4 * vectors
    item = made.per * pair + made.rows * k / made.va * ROW_SLOTS
    items = -(-m // made.rows) * -(-made.pairs(n) // made.per)
    cost = HALF_RATE_COST if takes_half(target) else COST
    return cost * -(-items // target.compute_units) * item / 2


def launch(
    problem: RowsProduct,
    made: StrassenPlan,
    name: str,
    args: tuple[Arg, ...],
    constants: tuple[Callable[[], Array], Array | None],
) -> Launch:
    """Return the launch of a plan.

    args: of a, then of the extras and dst. constants: what makes b (k, n), and the bias (n,).
    """
    b, bias = constants
    pairs, n = made.pairs(problem.n), problem.n
    wide, asks = pairs * 2 * made.width, "prefetch" in problem.target.features
    params: dict[str, Any] = {
        "name": name,
        "m": problem.m,
        "n": n,
        "k": problem.k,
        "rows": problem.rows,
        "extras": dict(problem.extras),
        "scales": problem.scales,
        "has_bias": bias is not None,
        "post_ops": problem.post_ops,
        "prefetch": asks,
        "ahead": AHEAD if asks and made.packed_bytes(problem.k, n) > NEAR_BYTES else 0,
        "gap": GAP,
        "loop_epilogue": heavy(problem.post_ops),
        "mr": made.mr,
        "nv": made.nv,
        "vw": made.vw,
        "va": made.va,
        "panels": made.panels,
        "per": made.per,
        "wg": (1, 1, 1),
    }
    kept = [Const(lambda: pack(b(), made)), Const(lambda: _widened(factors(b()), wide))]
    if bias is not None:
        kept.append(Const(lambda: _widened(bias, wide)))
    size = (-(-problem.m // made.rows), -(-pairs // made.per), 1)
    first, *rest = args
    return Launch("shared/strassen.cl.mako", params, (first, *kept, *rest), size, (1, 1, 1))


def label(made: StrassenPlan) -> str:
    """Return what a kernel's name says of its plan."""
    return f"t{made.mr}x{made.width}_p{made.panels}_c{made.per}"


def factors(b: Array) -> Array:
    """Return a power of two for each column of b: its largest magnitude's, as far as results bear it, or 0."""
    largest = np.abs(b).max(axis=0)
    exponents = np.maximum(np.frexp(largest)[1] - 1, LEAST_EXPONENT)
    scales: Array = np.where(largest > 0, np.ldexp(np.float32(1), exponents), np.float32(0))
    return scales.astype(np.float32)


def pack(b: Array, made: StrassenPlan) -> Array:
    """Return the sums of blocks of b (k, n), columns divided by `factors`, as [pairs][7][k / 2][width]."""
    (k, n), width = b.shape, made.width
    pairs = made.pairs(n)
    full = np.zeros((k, pairs * 2 * width), np.float32)
    scales = factors(b)
    np.divide(b, np.where(scales > 0, scales, np.float32(1)), out=full[:, :n])
    blocks = full.reshape(2, k // 2, pairs, 2, width).transpose(0, 3, 2, 1, 4)
    packed = np.empty((pairs, PRODUCTS, k // 2, width), np.float32)
    for place, block in ((0, blocks[0, 0]), (1, blocks[1, 0]), (2, blocks[1, 1])):
        packed[:, place] = block
    np.subtract(blocks[0, 1], blocks[0, 0], out=packed[:, 4])
    np.subtract(blocks[1, 1], packed[:, 4], out=packed[:, 5])
    np.subtract(blocks[1, 1], blocks[0, 1], out=packed[:, 6])
    np.subtract(packed[:, 5], blocks[1, 0], out=packed[:, 3])
    return packed


def _widened(row: Array, count: int) -> Array:
    """Return a row with zeros behind it."""
    wide = np.zeros(count, np.float32)
    wide[: row.size] = row.reshape(-1)
    return wide
