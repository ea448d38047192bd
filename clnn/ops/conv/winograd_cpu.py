"""Winograd's convolution for CPUs: products in register tiles, transforms in the same kernel or before.

Where few tiles meet many weights, a first kernel transforms all inputs into scratch memory, so that
each weight is read once for all of them and no core transforms what another one has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np

from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.winograd import (
    ERRORS,
    MARGINS,
    TileGrid,
    extent,
    fits,
    input_launch,
    matrices,
    tile_grid,
    transformed_blocks,
)
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.shared.cycles import (
    MEMORY_RATE,
    STREAM_RATE,
    bytes_a_cycle,
    cold_cycles,
    loop_slots,
    takes_half,
)
from clnn.ops.shared.epilogue import operand_args
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open, opened
from clnn.types import Array

# Outputs of a tile along an axis, by the convolution's stride: what the estimate chooses from, and
# what is worth a measurement only.
SIZES = {1: (4, 2), 2: (4, 2)}
MEASURED_SIZES = {1: (6,), 2: (3,)}
STRIDED_MARGIN = 1.0  # MARGINS with a stride of 2, of which the estimate is not too low
SETS = (1, 2, 3, 4)
# Where their number follows from open extents: tiles transformed in place, and in a launch before.
MOST_OPEN_SETS, MOST_OPEN_SHARED_SETS = 8, 32
LEAST_TILES = 4  # of a register tile
CANDIDATES = 3  # plans of one kind that are worth a measurement
CACHES = ((2**20, 24), (2**24, 7))  # bytes that a cache holds, and gives a core per cycle
MOST_SHARED_BYTES = 2**26  # of tiles transformed in a launch before
FEW_WEIGHT_BYTES = 2**22  # transformed, that cores get from the last cache fast enough
# Of tiles transformed in a launch before, where weights are few; or tiles, and products take longer than weights.
SHARED_COST = 1.15
# Of an image that is not read or written ahead: half of a core's second cache.
NEAR_ELEMENTS = 2**17
LARGE_STRIDED_COST = 0.9  # of F(4, 3) with a stride of 2 against what is counted
NARROW_COST = 1.15  # of F(2, 3)'s products in tiles of one vector against what is counted
INPUT_SLOTS, OUTPUT_SLOTS = 5, 4  # of a vector at a place, to transform it there and back
SIZES_OF = attrgetter(*(f.name for f in fields(TileGrid)))


@dataclass(frozen=True)
class WinogradPlan:
    """Tiles of m x m outputs, mr of them by nv vectors of vw channels at once, in `parts` shares.

    pitch: elements between transformed tiles. cycles: estimated time of the slowest core. sets: of mr
    tiles that a work-item takes. shared: tiles are transformed in a launch before. stride: of the
    convolution, 1 or 2.
    """

    m: int
    mr: int
    nv: int
    vw: int
    parts: int
    pitch: int
    cycles: float
    sets: int = 1
    shared: bool = False
    stride: int = 1

    @property
    def extent(self) -> int:
        """Inputs of a tile, along an axis."""
        return extent(self.m, self.stride)

    @property
    def cost(self) -> float:
        """The cycles, as they compare with those of other kernels."""
        return self.cycles * (MARGINS[self.m] if self.stride == 1 else STRIDED_MARGIN)

    @property
    def rank(self) -> tuple[float, int]:
        """What plans are ordered by: their cycles, then their sets, which cost a little more."""
        return self.cycles, self.sets


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels of the estimate's choice, then of other plans that are worth a measurement."""
    target = problem.target
    if not _takes(problem):
        return
    sizes = problem.batch, problem.oc, problem.height, problem.width
    shape, stride = tuple(map(int, sizes)), problem.window.strides[0]
    how = (shape, problem.ic, target, target.vector, stride, problem.group)
    best = plan(*how)
    if best:
        yield _variant(problem, best)
    for other in plans(*how):
        if other != best and not (problem.pool and other.m % 2):  # tiles of whole windows
            yield _variant(problem, other)


def _takes(problem: ConvProblem) -> bool:
    """Whether these kernels compute a problem, whatever its extents."""
    target, vectors = problem.target, innermost(problem.src) and innermost(problem.dst)
    if not (target.is_cpu and fits(problem, 1, 2, narrow=True, grouped=True) and vectors):
        return False
    return min(problem.ic, problem.oc) >= target.vector


def plan(
    shape: tuple[int, ...], ic: int, target: Target, vw: int, stride: int = 1, convs: int = 1
) -> WinogradPlan | None:
    """Return the cheapest plan for an output of shape (n, oc, h, w), None where none fits.

    ic, oc: channels of each of `convs` groups.
    """
    every = _plans(shape, ic, target, vw, stride, convs, SIZES[stride])
    return min(every, key=lambda p: p.rank, default=None)


def plans(
    shape: tuple[int, ...], ic: int, target: Target, vw: int, stride: int = 1, convs: int = 1
) -> list[WinogradPlan]:
    """Return the cheapest plans of each tile size, number of parts and of sets, shared or not."""
    alike: dict[tuple[int, int, int, bool], list[WinogradPlan]] = {}
    every = _plans(shape, ic, target, vw, stride, convs, SIZES[stride] + MEASURED_SIZES[stride])
    for one in sorted(every, key=lambda p: p.rank):
        alike.setdefault((one.m, one.parts, one.sets, one.shared), []).append(one)
    return [one for same in alike.values() for one in same[:CANDIDATES]]


def _plans(
    shape: tuple[int, ...],
    ic: int,
    target: Target,
    vw: int,
    stride: int,
    convs: int,
    sizes: tuple[int, ...],
) -> Iterator[WinogradPlan]:
    images, oc, height, width = shape
    for m in sizes:
        tiles = TileGrid(m, ic, oc, height, width, images, stride, convs)
        for nv in (1, 2, 3, 4):
            # Registers hold the sums, a vector of weights for each, and one element of a tile.
            for mr in range(LEAST_TILES, (target.registers - 1 - nv) // nv + 1):
                for parts in sorted({1, target.compute_units}):
                    if (nv - 1) * vw < oc:
                        yield from _of_tile(tiles, target, mr, nv, vw, parts)


def _pitch(ic: int, vw: int) -> int:
    """Return the pitch of transformed tiles: whole vectors, and one that spreads them over a cache."""
    whole = -(-ic // vw) * vw
    return whole + vw if whole % 64 == 0 else whole


def _weight_bytes(tiles: TileGrid) -> int:
    """Return the bytes of the transformed weights."""
    return tiles.places * tiles.ic * tiles.oc * 4


def _of_tile(
    tiles: TileGrid, target: Target, mr: int, nv: int, vw: int, parts: int
) -> Iterator[WinogradPlan]:
    """Yield the plans of a register tile that fit local memory."""
    blocks, sums = -(-tiles.oc // (nv * vw)), tiles.places * mr * nv * vw * 4
    if parts > blocks:
        return
    whole, pitch = -(-tiles.tiles // mr), _pitch(tiles.ic, vw)
    inputs = tiles.places * mr * pitch * 4
    choices = [(sets, False) for sets in SETS if sets == 1 or sets <= whole]
    shared_bytes = whole * inputs * tiles.convs
    if shared_bytes <= MOST_SHARED_BYTES and tiles.stride == 1 and tiles.ic % vw == 0:
        choices += [(sets, True) for sets in sorted({whole, -(-whole // 2)})]
    for sets, shared in choices:
        if sets * (sums + (0 if shared else inputs)) <= target.local_bytes:
            cycles = _cycles(tiles, target, (mr, nv, vw), parts, sets, shared)
            apart = _pitch(tiles.ic * tiles.convs, vw) if shared else pitch
            yield WinogradPlan(
                tiles.m, mr, nv, vw, parts, apart, cycles, sets, shared, tiles.stride
            )


def _cycles(
    tiles: TileGrid,
    target: Target,
    tile: tuple[int, int, int],
    parts: int,
    sets: int,
    shared: bool,
) -> float:
    """Return the estimated time of the slowest core."""
    mr, nv, vw = tile
    units, places, ic, weights = target.compute_units, tiles.places, tiles.ic, _weight_bytes(tiles)
    blocks = -(-tiles.oc // (nv * vw))
    groups, share = -(-tiles.tiles // (mr * sets)), -(-blocks // parts)
    inputs = places * mr * sets * _pitch(ic, vw) * 4 * (groups if shared else 1)
    rate = _rate(weights + inputs + places * mr * sets * nv * vw * 4, target)
    again = mr * sets * 4 / _rate(inputs, target) if shared else 0.0

    def multiplied(rate: float) -> float:
        """Return the cycles of the products of all weights, of which a cycle brings `rate` bytes."""
        fetched = nv * vw * 4 / rate + again
        return places * ic * max(sets * loop_slots(mr, nv) / 2, fetched) * share

    rounds = -(-groups * parts * tiles.convs // units)
    first = min(rate, bytes_a_cycle(STREAM_RATE, target)) if takes_half(target) else rate
    multiply = multiplied(first) + (rounds - 1) * multiplied(rate)
    multiply *= NARROW_COST if (tiles.m, nv) == (2, 1) else 1
    multiply *= LARGE_STRIDED_COST if (tiles.m, tiles.stride) == (4, 2) else 1
    before = sets * mr * -(-ic // vw) * INPUT_SLOTS * places
    after = sets * mr * share * nv * OUTPUT_SLOTS * places
    cold = _cold(weights * tiles.convs, rate, target, shared)
    if shared:
        cost = -(-groups * before * tiles.convs // units) + multiply + rounds * after
        few = weights <= FEW_WEIGHT_BYTES or (takes_half(target) and sets * groups <= SETS[-1])
        return cost * (SHARED_COST if few else 1) + cold
    return multiply + rounds * (before + after) + cold


def _rate(nbytes: int, target: Target) -> float:
    """Return the bytes that a core gets per cycle, of data of which it reads so many over and over."""
    far = STREAM_RATE if takes_half(target) else MEMORY_RATE
    return bytes_a_cycle(next((rate for size, rate in CACHES if nbytes < size), far), target)


def _cold(weights: int, rate: float, target: Target, shared: bool) -> float:
    """Return the cycles that weights cost because they come from memory, besides those that products hide.

    None where products take long and weights are read ahead, or where they are fetched from there all the time.
    """
    if takes_half(target) or (shared and rate == MEMORY_RATE):
        return 0.0
    return cold_cycles(weights, target)


def _variant(problem: ConvProblem, chosen: WinogradPlan, name: str = "") -> Variant:
    """Return the kernel of a plan. name: that of the kernel which it repeats at other extents.

    Sets and parts are open where extents are: kernels for all shapes read them at run time.
    """
    tiles, kernel = tile_grid(problem, chosen.m), matrices(chosen.m, chosen.stride)
    sets, parts, most_sets = chosen.sets, chosen.parts, chosen.sets
    if is_open(tiles.tiles):
        most_sets = _most_open_sets(chosen, problem.target)
        if sets > most_sets:
            fitting = _resized(problem, chosen)
            sets, parts = fitting.sets, fitting.parts
        sets, parts = opened(sets, sets), opened(parts, parts)
    groups = -(-tiles.tiles // (chosen.mr * sets))
    size, local = grid(problem.target, groups, parts, tiles.convs)
    source: In | Scratch = In(0)
    launches = []
    if chosen.shared:
        held, run = groups * chosen.mr * sets, tiles.ic * tiles.convs // chosen.vw
        source = Scratch("transformed", 4 * tiles.places * held * chosen.pitch)
        args: tuple[Arg, ...] = (In(0), source)
        launches.append(input_launch(problem, tiles, chosen.vw, args, run, held, chosen.pitch))
    name, bias = name or _name(problem, chosen), problem.bias
    params = problem.params | {
        "name": name,
        "shared": chosen.shared,
        "ic": tiles.ic,
        "oc": tiles.oc,
        "convs": tiles.convs,
        "reach": problem.reach,
        "m": chosen.m,
        "bt": kernel.bt,
        "at": kernel.at,
        "has_bias": bias is not None,
        "pool": problem.pool,
        "wg": local,
        "mr": chosen.mr,
        "nv": chosen.nv,
        "vw": chosen.vw,
        "parts": parts,
        "tile_pitch": chosen.pitch,
        "sets": sets,
        "most_sets": most_sets,
        **_ahead(problem.target),
    }
    # Of the plan, no more than decides: equal constants of other shapes are told by what makes them.
    how = (chosen.m, chosen.stride, chosen.nv * chosen.vw, chosen.vw)
    constants = [Const(partial(pack, problem.weights, *how, problem.group))]
    constants += [] if bias is None else [Const(lambda: bias)]
    args = (source, *constants, *operand_args(problem, problem.post_ops), Out(0))
    launches.append(Launch("conv/winograd_cpu.cl.mako", params, args, size, local))

    def again(other: ConvProblem) -> Variant | None:
        return _variant(other, _resized(other, chosen), name) if _takes(other) else None

    def cost_at(other: ConvProblem) -> float:
        return _resized(other, chosen).cost if _takes(other) else math.inf

    error = ERRORS[chosen.m]
    return Variant(name, tuple(launches), chosen.cost, error, again=again, cost_at=cost_at)


def _ahead(target: Target) -> dict[str, int]:
    """Return the template parameters that say what is asked for ahead of its use."""
    return {"prefetch": "prefetch" in target.features, "near": NEAR_ELEMENTS}


def _resized(problem: ConvProblem, chosen: WinogradPlan) -> WinogradPlan:
    """Return a plan with the sets and parts that are best for a problem, and its cycles there."""
    tiles = tile_grid(problem, chosen.m)
    sizes = tuple(map(int, SIZES_OF(tiles)))
    if not is_open(tiles.tiles):
        tile = chosen.mr, chosen.nv, chosen.vw
        sizing = tile, chosen.parts, chosen.sets, chosen.shared
        return replace(chosen, cycles=_cycles(TileGrid(*sizes), problem.target, *sizing))
    return _best_size(sizes, problem.target, chosen)


@lru_cache(1024)
def _best_size(sizes: tuple[int, ...], target: Target, chosen: WinogradPlan) -> WinogradPlan:
    tiles = TileGrid(*sizes)
    blocks = -(-tiles.oc // (chosen.nv * chosen.vw))
    tile = chosen.mr, chosen.nv, chosen.vw
    cycles, sets, parts = min(
        (_cycles(tiles, target, tile, parts, sets, chosen.shared), sets, parts)
        for sets in _open_sets(chosen, tiles, target)
        for parts in {1, target.compute_units}
        if parts <= blocks
    )
    return replace(chosen, sets=sets, parts=parts, cycles=cycles)


def _open_sets(chosen: WinogradPlan, tiles: TileGrid, target: Target) -> list[int]:
    """Return the numbers of sets that are worth it for some extents, of those a plan's kernel may take."""
    whole, most = -(-tiles.tiles // chosen.mr), _most_open_sets(chosen, target)
    found = {*range(1, MOST_OPEN_SETS + 1), *((whole, -(-whole // 2)) if chosen.shared else ())}
    return sorted(sets for sets in found if sets <= most)


def _most_open_sets(chosen: WinogradPlan, target: Target) -> int:
    """Return the most sets that a plan's kernel for all extents has local memory for."""
    inputs = 0 if chosen.shared else chosen.pitch
    a_set = chosen.extent**2 * chosen.mr * 4 * (chosen.nv * chosen.vw + inputs)
    most = MOST_OPEN_SHARED_SETS if chosen.shared else MOST_OPEN_SETS
    return max(1, min(most, target.local_bytes // a_set))


def _name(problem: ConvProblem, chosen: WinogradPlan) -> str:
    tile = f"f{chosen.m}_t{chosen.mr}x{chosen.nv * chosen.vw}_p{chosen.parts}"
    sets = "_shared" * chosen.shared + f"_s{chosen.sets}" * (chosen.sets > 1)
    return problem.label("winograd", f"{tile}{sets}")


def pack(weights: Array, m: int, stride: int, channels: int, vw: int, convs: int = 1) -> Array:
    """Return weights (convs * oc, ic, 3, 3) transformed, as [convs][blocks][places][ic][channels of a block].

    Where vectors of `vw` do not divide the channels, those that are left lie at the end of the last one.
    """
    if convs > 1:
        each = np.split(weights, convs)
        return np.concatenate([pack(one, m, stride, channels, vw) for one in each])
    oc, ic = weights.shape[:2]
    packed = np.zeros((-(-oc // channels), extent(m, stride) ** 2, ic, channels), np.float32)
    for block, part in transformed_blocks(weights, m, channels, stride):
        count, left = part.shape[2], part.shape[2] % vw
        packed[block, :, :, : count - left] = part[:, :, : count - left]
        if left:
            end = count - left + vw
            packed[block, :, :, end - left : end] = part[:, :, count - left :]
    return packed
