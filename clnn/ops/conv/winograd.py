"""Winograd's convolution F(m x m, 3 x 3): matrices, tiles, packed weights, estimated cost.

With a stride of 2 the even inputs meet the first and last tap, F(m, 2), and the odd ones the middle tap,
m products: m * 2 + 1 in all where plain sums take m * 3.

S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin, S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015 (arXiv:1509.09308).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from clnn.target import Target
from clnn.types import Array

TAPS = 3
POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
SIZES = (4, 2)
ALL_SIZES = (4, 2, 6)  # 6: worth a measurement, never the estimate's choice
STRIDED_SIZES, ALL_STRIDED_SIZES = (4, 2), (4, 2, 3)  # the same for a stride of 2
ERRORS = {2: 2e-5, 3: 2e-5, 4: 1e-4, 6: 2e-4}  # of the products, by the extent of their tiles
# By which the estimate must beat the direct kernel's; transforms of 8 x 8 cost most.
MARGINS = {2: 1.15, 4: 1.15, 6: 1.8}
STRIDED_MARGIN = 1.0  # with a stride of 2: measured, plans took at most 1.05 of what is counted
SETS = (1, 2, 3, 4)
MOST = 3  # plans of one kind that are worth a measurement
CACHES = ((2**20, 24), (2**24, 7))  # bytes that a cache holds, and gives a core per cycle
MEMORY = 3  # bytes per cycle and core beyond
MOST_SHARED = 2**26  # bytes of tiles transformed in a launch before
NARROW = 1.15  # cost of F(2, 3)'s products in tiles of one vector against what is counted
FEW_WEIGHTS = 2**22  # bytes, transformed, that cores get from the last cache fast enough
SHARED = 1.15  # cost of tiles transformed in a launch before, where weights are few
EXPOSED = 0.5  # share of the time that weights take from memory which products do not hide
AT_ONCE = 2**17  # pairs of channels whose windows are transformed at once
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Matrices:
    """Y = at [(g w g^T) * (bt d bt^T)] at^T for tiles d of extent(m, stride) and outputs of m a side."""

    at: Matrix
    g: Array
    bt: Matrix


def extent(m: int, stride: int = 1) -> int:
    """Return the inputs of m outputs in a row, which are as many products."""
    return (m - 1) * stride + TAPS


@cache
def matrices(m: int, stride: int = 1) -> Matrices:
    """Return the matrices of F(m, 3) with a stride of 1 or 2."""
    if stride == 1:
        return Matrices(*_interpolated(m, TAPS))
    even, n, middle = _interpolated(m, TAPS - 1), extent(m, stride), np.eye(m)
    g, bt = np.zeros((n, TAPS)), np.zeros((n, n))
    g[: m + 1, ::2], g[m + 1 :, 1] = even[1], 1
    bt[: m + 1, ::2], bt[m + 1 :, 1::2] = even[2], middle
    at = np.hstack([even[0], middle])
    return Matrices(tuple(map(tuple, at.tolist())), g, tuple(map(tuple, bt.tolist())))


def _interpolated(m: int, taps: int) -> tuple[Matrix, Array, Matrix]:
    """Return at, g and bt of F(m, taps), by Cook's and Toom's interpolation at m + taps - 2 points."""
    n = m + taps - 1
    points = [Fraction(p) for p in POINTS[: n - 1]]
    bt = [[*_product(points[:j] + points[j + 1 :]), Fraction(0)] for j in range(n - 1)]
    bt.append(_product(points))
    norms = [_value(row, p) for row, p in zip(bt, points, strict=False)]
    g = [[p**k / norm for k in range(taps)] for p, norm in zip(points, norms, strict=True)]
    g.append([Fraction(0)] * (taps - 1) + [Fraction(1)])
    at = [[p**i for p in points] + [Fraction(int(i == m - 1))] for i in range(m)]
    return _floats(at), np.array(g, np.float64), _floats(bt)


def _product(roots: list[Fraction]) -> list[Fraction]:
    """Return the coefficients, lowest first, of the product of (x - root)."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(-root * c for c in found), Fraction(0)]
        found = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return found


def _value(coefficients: list[Fraction], x: Fraction) -> Fraction:
    return sum((c * x**k for k, c in enumerate(coefficients)), Fraction(0))


def _floats(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(float(v) for v in row) for row in rows)


@dataclass(frozen=True)
class Plan:
    """Tiles of m x m outputs, mr of them by nv vectors of vw channels at once, in `parts` shares.

    stride: elements between transformed tiles. cycles: estimated time of the slowest core.
    sets: of mr tiles that a work-item takes. shared: tiles are transformed in a launch before.
    step: the convolution's stride, 1 or 2.
    """

    m: int
    mr: int
    nv: int
    vw: int
    parts: int
    stride: int
    cycles: float
    sets: int = 1
    shared: bool = False
    step: int = 1

    @property
    def extent(self) -> int:
        """Inputs of a tile, along an axis."""
        return extent(self.m, self.step)

    @property
    def cost(self) -> float:
        """The cycles, as they compare with those of other kernels."""
        return self.cycles * (MARGINS[self.m] if self.step == 1 else STRIDED_MARGIN)


def plan(shape: tuple[int, ...], ic: int, target: Target, vw: int, step: int = 1) -> Plan | None:
    """Return the cheapest plan for an output of shape (n, oc, h, w), None where none fits."""
    sizes = SIZES if step == 1 else STRIDED_SIZES
    return min(_plans(shape, ic, target, vw, sizes, step), key=_rank, default=None)


def _rank(made: Plan) -> tuple[float, int]:
    """Return what plans are ordered by: their cycles, then their sets, which cost a little more."""
    return made.cycles, made.sets


def plans(shape: tuple[int, ...], ic: int, target: Target, vw: int, step: int = 1) -> list[Plan]:
    """Return the MOST cheapest plans of each tile size, number of parts and of sets, shared or not."""
    found: dict[tuple[int, int, int, bool], list[Plan]] = {}
    sizes = ALL_SIZES if step == 1 else ALL_STRIDED_SIZES
    for made in sorted(_plans(shape, ic, target, vw, sizes, step), key=_rank):
        found.setdefault((made.m, made.parts, made.sets, made.shared), []).append(made)
    return [made for same in found.values() for made in same[:MOST]]


def _plans(
    shape: tuple[int, ...], ic: int, target: Target, vw: int, sizes: tuple[int, ...], step: int
) -> list[Plan]:
    return [
        made
        for m in sizes
        for nv in (1, 2, 3, 4)
        if (nv - 1) * vw < shape[1]
        for mr in range(4, (31 // nv) + 1)
        if mr * nv + nv + 1 <= 32
        for parts in sorted({1, target.compute_units})
        for made in _of_tile(_Job(shape, ic, target, m, step), mr, nv, vw, parts)
    ]


@dataclass(frozen=True)
class _Job:
    """An output (n, oc, h, w) of `ic` input channels in tiles of m x m; step: the stride."""

    shape: tuple[int, ...]
    ic: int
    target: Target
    m: int
    step: int

    @property
    def places(self) -> int:
        return extent(self.m, self.step) ** 2

    @property
    def tiles(self) -> int:
        batch, _, high, wide = self.shape
        return batch * -(-high // self.m) * -(-wide // self.m)

    @property
    def packed(self) -> int:
        """Bytes of the transformed weights."""
        return self.places * self.ic * self.shape[1] * 4

    def stride(self, vw: int) -> int:
        """Return the pitch of transformed tiles: one that spreads them over a cache."""
        return self.ic + vw if self.ic % 64 == 0 else self.ic


def _of_tile(job: _Job, mr: int, nv: int, vw: int, parts: int) -> Iterator[Plan]:
    """Yield the plans of a register tile that fit local memory."""
    blocks, lot = -(-job.shape[1] // (nv * vw)), job.places * mr * nv * vw * 4
    if parts > blocks:
        return
    whole = -(-job.tiles // mr)
    inputs = job.places * mr * job.stride(vw) * 4
    choices = [(sets, False) for sets in SETS if sets == 1 or sets <= whole]
    if whole * inputs <= MOST_SHARED and job.step == 1:
        choices += [(sets, True) for sets in sorted({whole, -(-whole // 2)})]
    for sets, shared in choices:
        if sets * (lot + (0 if shared else inputs)) <= job.target.local_bytes:
            cycles = _cycles(job, (mr, nv, vw), parts, sets, shared)
            yield Plan(job.m, mr, nv, vw, parts, job.stride(vw), cycles, sets, shared, job.step)


def _cycles(job: _Job, tile: tuple[int, int, int], parts: int, sets: int, shared: bool) -> float:
    """Return the estimated time of the slowest core."""
    mr, nv, vw = tile
    units, places, ic = job.target.compute_units, job.places, job.ic
    blocks = -(-job.shape[1] // (nv * vw))
    groups, share = -(-job.tiles // (mr * sets)), -(-blocks // parts)
    slots = max(mr * nv, mr + nv + 1) + 3
    inputs = places * mr * sets * job.stride(vw) * 4 * (groups if shared else 1)
    fetched = nv * vw * 4 / _rate(job.packed + inputs + places * mr * sets * nv * vw * 4)
    if shared:
        fetched += mr * sets * 4 / _rate(inputs)
    multiply = places * ic * max(sets * slots / 2, fetched) * share
    multiply *= NARROW if (job.m, nv) == (2, 1) else 1
    spread = sets * mr * (ic // vw) * 5 * places
    gather = sets * mr * share * nv * 4 * places
    rounds = -(-groups * parts // units)
    cold = cold_cycles(job.packed, job.target)
    if shared:
        cost = -(-groups * spread // units) + rounds * (multiply + gather)
        return cost * (SHARED if job.packed <= FEW_WEIGHTS else 1) + cold
    return rounds * (multiply + spread + gather) + cold


def _rate(nbytes: int) -> int:
    """Return the bytes that a core gets per cycle, of data of which it reads so many over and over."""
    return next((rate for size, rate in CACHES if nbytes < size), MEMORY)


def cold_cycles(nbytes: int, target: Target) -> float:
    """Return the cycles that weights cost because they come from memory."""
    return EXPOSED * nbytes / (MEMORY * target.compute_units)


def transformed(weights: Array, m: int, stride: int = 1) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, as [places][oc][ic] in double precision."""
    oc, ic = weights.shape[:2]
    g = matrices(m, stride).g
    moved: Array = np.kron(g, g) @ weights.reshape(oc * ic, -1).T.astype(np.float64)
    return moved.reshape(-1, oc, ic)


def transformed_blocks(
    weights: Array, m: int, width: int, stride: int = 1
) -> Iterator[tuple[int, Array]]:
    """Yield (number, [places][ic][channels]) of each block of `width` output channels, transformed.

    The last block has the channels that are left. Few are held in double precision at once.
    """
    oc, ic = weights.shape[:2]
    step = max(1, AT_ONCE // (width * ic)) * width
    for first in range(0, oc, step):
        places = transformed(weights[first : first + step], m, stride).astype(np.float32)
        for at in range(0, places.shape[1], width):
            yield (first + at) // width, places[:, at : at + width].transpose(0, 2, 1)


def pack(weights: Array, made: Plan) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, as [blocks][places][ic][channels of a block]."""
    oc, ic = weights.shape[:2]
    ocb = made.nv * made.vw
    packed = np.zeros((-(-oc // ocb), made.extent**2, ic, ocb), np.float32)
    for block, part in transformed_blocks(weights, made.m, ocb, made.step):
        packed[block, :, :, : part.shape[2]] = part
    return packed
