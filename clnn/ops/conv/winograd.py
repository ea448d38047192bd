"""Winograd's convolution F(m x m, 3 x 3): where it fits, matrices, tiles, transformed weights and inputs.

With a stride of 2 the even inputs meet the first and last tap, F(m, 2), and the odd ones the middle tap,
m products: m * 2 + 1 in all where plain sums take m * 3.

S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin, S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015 (arXiv:1509.09308).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from clnn.arith._base import FLOAT
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import Arg, Launch, grid
from clnn.ops.shared.workgroup_tiles import widest
from clnn.records import dataclass
from clnn.types import Array

TAPS = 3  # of the window along an axis
POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
ERRORS = {2: 2e-5, 3: 2e-5, 4: 1e-4, 6: 2e-4}  # of the products, by the extent of their tiles
# By which the estimate must beat the direct kernel's; transforms of 8 x 8 cost most.
MARGINS = {2: 1.15, 4: 1.15, 6: 1.8}
AT_ONCE = 2**17  # pairs of channels whose windows are transformed at once
WIDEST_ALIGNED = 4  # vectors up to which tensors and scratch memory are aligned
SMALLEST_WEIGHT, LARGEST_WEIGHT = 2.0**-64, 2.0**32  # of the largest weight, see fits_transforms
Matrix = tuple[tuple[float, ...], ...]


def fits_transforms(largest: float) -> bool:
    """Whether sums of transformed weights and inputs stay numbers where the plain sums do.

    largest: magnitude among the weights. Transforms make sums up to 2**13 times as large, which leaves
    room for inputs of 2**64; where all weights are tiny, they would lose digits.
    """
    return largest == 0 or SMALLEST_WEIGHT <= largest <= LARGEST_WEIGHT


def fits(problem: ConvProblem, *strides: int, narrow: bool = False, grouped: bool = False) -> bool:
    """Whether this is a convolution of 3 x 3 in float32, with one of these strides along both axes.

    narrow: whether operands may lie in 16 bits. grouped: whether channels may be in several groups.
    """
    window = problem.window
    return (
        problem.arith is FLOAT
        and (window.kernel, window.dilations) == ((3, 3), (1, 1))
        and window.strides in [(s, s) for s in strides]
        and (problem.group == 1 or grouped)
        and problem.target.winograd
        and fits_transforms(problem.input(problem.weights_input).largest)
        and (narrow or not problem.uses_narrow_storage)
        and problem.has_border
    )


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
        return Matrices(*interpolated(m, TAPS))
    even, n, middle = interpolated(m, TAPS - 1), extent(m, stride), np.eye(m)
    g, bt = np.zeros((n, TAPS)), np.zeros((n, n))
    g[: m + 1, ::2], g[m + 1 :, 1] = even[1], 1
    bt[: m + 1, ::2], bt[m + 1 :, 1::2] = even[2], middle
    at = np.hstack([even[0], middle])
    return Matrices(tuple(map(tuple, at.tolist())), g, tuple(map(tuple, bt.tolist())))


def interpolated(m: int, taps: int) -> tuple[Matrix, Array, Matrix]:
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
    product = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *product], [*(-root * c for c in product), Fraction(0)]
        product = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return product


def _value(coefficients: list[Fraction], x: Fraction) -> Fraction:
    return sum((c * x**k for k, c in enumerate(coefficients)), Fraction(0))


def _floats(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(float(v) for v in row) for row in rows)


@dataclass(frozen=True)
class TileGrid:
    """Outputs of `images` images in tiles of m x m; m and the stride say how many products each takes.

    ic, oc: channels of each of `convs` groups.
    """

    m: int
    ic: int
    oc: int
    height: int
    width: int
    images: int
    stride: int = 1
    convs: int = 1

    @property
    def high(self) -> int:
        """Rows of tiles in an image."""
        return -(-self.height // self.m)

    @property
    def wide(self) -> int:
        """Columns of tiles in an image."""
        return -(-self.width // self.m)

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.images * self.high * self.wide

    @property
    def places(self) -> int:
        """Products of a tile and a pair of channels: the square of a tile's inputs along an axis."""
        return extent(self.m, self.stride) ** 2

    @property
    def params(self) -> dict[str, int]:
        """Template parameters."""
        return {"batch": self.images, "high": self.high, "wide": self.wide, "m": self.m}

    def elements(self, channels: int) -> int:
        """Elements that all tiles have when transformed, with so many channels."""
        return self.places * self.tiles * channels


def tile_grid(problem: ConvProblem, m: int) -> TileGrid:
    """Return the tiles of all images of a problem."""
    sizes = (problem.ic, problem.oc, problem.height, problem.width, problem.batch)
    return TileGrid(m, *sizes, problem.window.strides[0], problem.group)


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
    count = max(1, AT_ONCE // (width * ic)) * width
    for first in range(0, oc, count):
        places = transformed(weights[first : first + count], m, stride).astype(np.float32)
        for at in range(0, places.shape[1], width):
            yield (first + at) // width, places[:, at : at + width].transpose(0, 2, 1)


def input_launch(
    problem: ConvProblem,
    tiles: TileGrid,
    vw: int,
    args: tuple[Arg, ...],
    run: int = 1,
    held: int = 0,
    pitch: int = 0,
) -> Launch:
    """Return the launch that transforms the input, `vw` channels at once, `run` times each.

    held: tiles in scratch memory, copies of the last one included; pitch: elements from one to the
    next. As many as there are, without gaps, where they are 0.
    """
    src, held = problem.src, held or tiles.tiles
    size, local = grid(problem.target, held * tiles.ic * tiles.convs // (vw * run))
    starts = [src.offset, src.pitches[0], *src.pitches[2:]]
    near = (src.pitches[1] == 1 or tiles.ic == 1) and vw <= WIDEST_ALIGNED
    near = near and not problem.input(0).stored
    params = tiles.params | {
        "name": f"winograd_input_f{tiles.m}_v{vw}",
        "src": src,
        "pads": problem.geometry["pads"],
        "reach": problem.reach,
        "ctype": problem.input(0).ctype,
        "vw": vw,
        "run": run,
        "held": held,
        "tile_pitch": pitch or tiles.ic,
        "bt": matrices(tiles.m).bt,
        "aligned": near and widest([vw, *starts]) >= vw,
        "wg": local,
    }
    return Launch("conv/winograd_input.cl.mako", params, args, size, local)
