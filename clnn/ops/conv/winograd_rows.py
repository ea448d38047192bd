"""Winograd's convolution along one axis, for CPUs: wide windows, and those over few input channels.

Sums over few channels are short, and wide windows have many places: where both axes were transformed, transforms
would take what products save. Along rows alone, or columns where windows are higher than wide, sums run over all
lines of the window. A line's taps are taken in parts: with a stride of 2 its even and its odd ones, since each meets
a correlation of stride 1; 7 taps are F(4, 4) and F(4, 3), 13 products where plain sums take 28.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache, partial
from operator import attrgetter

import numpy as np

from clnn.arith._base import FLOAT
from clnn.ops.conv.problem import ConvProblem, innermost, long_finish
from clnn.ops.conv.winograd import Matrix, fits_transforms, interpolated
from clnn.ops.conv.winograd_cpu import NEAR_ELEMENTS
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.shared.cycles import LOOP_SLOTS, bytes_a_cycle, cold_cycles, takes_half
from clnn.ops.shared.epilogue import operand_args
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import Array

SIZES = (4, 3, 2)  # outputs of a tile
LANES = 8  # most places of a part: interpolation has as many points, infinity included
MOST_STRIDE = 2  # along lines: more parts than two have too few taps each
LEAST_VECTOR = 4  # output channels
MOST_LINES = 32  # of a band
# Of the largest output, by the outputs of a tile; 2e-6 were found.
ERRORS = {2: 5e-6, 3: 5e-6, 4: 1e-5}
# Of what is counted, against the direct kernel's estimate: where products take longer than their loads; elsewhere; and
# with fewer registers, where less is summed per load.
HALF_RATE_COST, COST, NARROW_COST = 0.85, 1.1, 1.25
WIDE = 16  # elements of vectors of which there are 32
INPUT_CYCLES = 0.75  # of an input at a place, to transform it
OUTPUT_CYCLES = 1.0  # of a vector at a place, to make outputs of it
NEAR_BYTES = 16 * 1024  # of weights of a vector of channels, that stay in the nearest cache
MOST_BYTES = 768 * 1024  # of these and of transformed inputs, that stay in a core's second cache
SECOND_RATE, LAST_RATE = 24, 7  # bytes that the second and the last cache give a core per cycle


@dataclass(frozen=True)
class Part:
    """Taps of a row of the window, from `first` on, a stride apart, and the matrices of F(m, taps)."""

    first: int
    taps: int
    at: Matrix
    g: Array
    bt: Matrix

    @property
    def places(self) -> int:
        """Products of a tile."""
        return len(self.bt)


@dataclass(frozen=True)
class Lines:
    """A convolution in lines of outputs: rows, or columns.

    images, ic, oc: as of the problem. count: lines of an image; height, step: lines of the window, and
    from one window to the next. length: outputs of a line; taps, stride: the same along lines.
    """

    images: int
    ic: int
    oc: int
    count: int
    height: int
    step: int
    length: int
    taps: int
    stride: int

    def met(self, band: int) -> int:
        """Return the lines of inputs that so many lines of outputs meet."""
        return (band - 1) * self.step + self.height

    @property
    def bands(self) -> list[int]:
        """Lines of a band that divide an image evenly, the last one of which may have less."""
        return sorted({-(-self.count // k) for k in range(1, self.count + 1)})


@dataclass(frozen=True)
class RowsPlan:
    """`tiles` tiles of m outputs at once, by a vector of vw channels; band: lines of outputs of a work-item.

    cycles: as they compare with those of other kernels.
    """

    m: int
    tiles: int
    vw: int
    band: int
    cycles: float = 0.0


@cache
def parts_of(taps: int, stride: int, m: int) -> tuple[Part, ...]:
    """Return the parts of a row of so many taps."""
    parts = []
    for phase in range(min(stride, taps)):
        count = -(-(taps - phase) // stride)
        pieces = -(-count // (LANES + 1 - m))
        done = 0
        for piece in range(pieces):
            size = -(-(count - done) // (pieces - piece))
            parts.append(Part(phase + done * stride, size, *_matrices(m, size)))
            done += size
    return tuple(parts)


def _matrices(m: int, taps: int) -> tuple[Matrix, Array, Matrix]:
    """Return at, g and bt of F(m, taps); inputs that meet one tap stay as they are."""
    if taps > 1:
        return interpolated(m, taps)
    same: Matrix = tuple(map(tuple, np.eye(m).tolist()))
    return same, np.ones((m, 1)), same


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernel of the estimate's choice, then those of tiles of other sizes."""
    if _takes(problem):
        for one in plans(lines_of(problem), problem.target):
            yield _variant(problem, one)


def _takes(problem: ConvProblem) -> bool:
    """Whether these kernels compute a problem, and those that transform both axes do not."""
    target, window = problem.target, problem.window
    if not (target.is_cpu and target.winograd and problem.arith is FLOAT and problem.group == 1):
        return False
    if is_open(problem.batch * problem.height * problem.width) or set(window.dilations) != {1}:
        return False
    both = window.kernel == (3, 3) and min(problem.ic, problem.oc) >= target.vector
    return (
        not both
        and problem.geometry["strides"][_axis(problem)] <= MOST_STRIDE
        and problem.oc >= LEAST_VECTOR
        and innermost(problem.dst)
        and problem.has_border
        and fits_transforms(problem.input(problem.weights_input).largest)
    )


def _axis(problem: ConvProblem) -> int:
    """Return the axis along which lines lie: 1, or 0 where windows are higher than wide."""
    height, width = problem.geometry["kernel"]
    return int(height <= width)


def lines_of(problem: ConvProblem) -> Lines:
    """Return a problem in lines along the longer axis of its window."""
    axis, outputs = _axis(problem), (problem.height, problem.width)
    pairs = (outputs, problem.geometry["kernel"], problem.geometry["strides"])
    across, along = ([int(pair[at]) for pair in pairs] for at in (1 - axis, axis))
    return Lines(int(problem.batch), int(problem.ic), int(problem.oc), *across, *along)


@lru_cache(1024)
def plans(lines: Lines, target: Target) -> tuple[RowsPlan, ...]:
    """Return the cheapest plan of each size of tiles that saves products, cheapest first."""
    best: dict[int, RowsPlan] = {}
    for m in SIZES:
        parts = parts_of(lines.taps, lines.stride, m)
        if sum(part.places for part in parts) < m * lines.taps:
            for one in _plans(lines, target, parts, m):
                if m not in best or one.cycles < best[m].cycles:
                    best[m] = one
    return tuple(sorted(best.values(), key=attrgetter("cycles")))


def _plans(lines: Lines, target: Target, parts: tuple[Part, ...], m: int) -> Iterator[RowsPlan]:
    vw = target.vector
    while vw > lines.oc:
        vw //= 2
    # Registers hold the sums and a vector of weights.
    most = (target.registers - 1) // max(part.places for part in parts)
    for tiles in range(1, most + 1):
        for band in lines.bands:
            made = RowsPlan(m, tiles, vw, band)
            inputs, weights = _input_bytes(lines, parts, made), _weight_bytes(lines, parts, vw)
            fits = inputs <= target.local_bytes and inputs + weights <= MOST_BYTES
            if fits and band <= MOST_LINES:
                yield replace(made, cycles=_cycles(lines, target, parts, made))


def _input_bytes(lines: Lines, parts: tuple[Part, ...], made: RowsPlan) -> int:
    """Return the bytes of a band's inputs, transformed."""
    return 4 * lines.met(made.band) * made.tiles * lines.ic * LANES * len(parts)


def _weight_bytes(lines: Lines, parts: tuple[Part, ...], vw: int) -> int:
    """Return the bytes of the transformed weights of a vector of channels."""
    return 4 * lines.height * lines.ic * sum(part.places for part in parts) * vw


def _cycles(lines: Lines, target: Target, parts: tuple[Part, ...], made: RowsPlan) -> float:
    """Return the estimated time of the slowest core."""
    blocks, places = -(-lines.oc // made.vw), sum(part.places for part in parts)
    steps = sum(part.places * (made.tiles + 1) + LOOP_SLOTS for part in parts) / 2
    weights, sums = _weight_bytes(lines, parts, made.vw), lines.height * lines.ic * steps
    if weights > NEAR_BYTES:
        met = _input_bytes(lines, parts, replace(made, band=1))
        sums = max(sums, (weights + met) / bytes_a_cycle(SECOND_RATE, target))
    sums += made.tiles * places * OUTPUT_CYCLES
    inputs = lines.met(made.band) * made.tiles * lines.ic * places * INPUT_CYCLES
    item = blocks * made.band * sums + inputs
    if blocks * weights > MOST_BYTES:
        item += blocks * weights / bytes_a_cycle(LAST_RATE, target)
    items = -(-lines.length // (made.m * made.tiles)) * -(-lines.count // made.band) * lines.images
    cycles = -(-items // target.compute_units) * item + cold_cycles(blocks * weights, target)
    if made.vw < WIDE:
        return cycles * NARROW_COST
    return cycles * (HALF_RATE_COST if takes_half(target) else COST)


def _variant(problem: ConvProblem, chosen: RowsPlan) -> Variant:
    lines, axis = lines_of(problem), _axis(problem)
    parts = parts_of(lines.taps, lines.stride, chosen.m)
    columns, bands = -(-lines.length // (chosen.m * chosen.tiles)), -(-lines.count // chosen.band)
    size, local = grid(problem.target, columns, bands, problem.batch)
    name, bias = problem.label("winograd_rows", _name(chosen)), problem.bias
    params = problem.params | {
        "name": name,
        "ic": problem.ic,
        "oc": problem.oc,
        "reach": problem.reach,
        "axis": axis,
        "parts": tuple((part.first, part.at, part.bt) for part in parts),
        "lanes": LANES,
        "has_bias": bias is not None,
        "prefetch": "prefetch" in problem.target.features,
        "near": NEAR_ELEMENTS,
        "loop_epilogue": long_finish(problem),
        "wg": local,
        "m": chosen.m,
        "tiles": chosen.tiles,
        "vw": chosen.vw,
        "band": chosen.band,
    }
    how = problem.weights, axis, chosen.m, lines.stride, chosen.vw
    constants = [Const(partial(pack, *how))]
    if bias is not None:
        constants.append(Const(lambda: bias))
    args: tuple[Arg, ...] = (In(0), *constants, *operand_args(problem, problem.post_ops), Out(0))
    launch = Launch("conv/winograd_rows.cl.mako", params, args, size, local)
    return Variant(name, (launch,), chosen.cycles, ERRORS[chosen.m])


def _name(chosen: RowsPlan) -> str:
    return f"f{chosen.m}_t{chosen.tiles}x{chosen.vw}_b{chosen.band}"


def pack(weights: Array, axis: int, m: int, stride: int, vw: int) -> Array:
    """Return weights (oc, ic, [kh,] kw) as [blocks][parts][lines][ic][places][vw], transformed along lines.

    axis: 1 where lines are rows, 0 where they are columns. Where vectors do not divide the channels,
    those that are left lie at the end of the last one.
    """
    oc, ic = weights.shape[:2]
    images = weights.reshape(oc, ic, -1, weights.shape[-1])
    images = images if axis else images.swapaxes(2, 3)
    blocks, left, taps = -(-oc // vw), oc % vw, images.shape[3]
    full = np.zeros((blocks * vw, *images.shape[1:]), np.float64)
    full[: oc - left] = images[: oc - left]
    full[len(full) - left :] = images[oc - left :]
    vectors = full.reshape(blocks, vw, *images.shape[1:])
    packed = [
        np.einsum("pk,bvcyk->bycpv", part.g, vectors[..., part.first :: stride][..., : part.taps])
        for part in parts_of(taps, stride, m)
    ]
    flat = [part.reshape(blocks, -1) for part in packed]
    return np.concatenate(flat, axis=1).astype(np.float32)
