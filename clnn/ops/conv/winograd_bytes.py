"""Winograd's convolution F(4, 3) of bytes for CPUs, exact: products of 16 bits, a quarter as many.

The matrices are those of integers: F(4, 3) divides weights by the norms of its points, (4, -6, -6, 24, 24, 1)
along an axis. Weights are left undivided, and the places of a tile are weighted by 24 over the norm when
they are transformed back, less a power of 2 that a whole row has. What comes out is 9 * 2^k times the
sum, in 32 bits that wrap: the sum itself, where it fits 32 - k bits, k up to 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from clnn.arith.quantised import Requantised, magnitudes
from clnn.ops.conv.direct import MADD_OPERANDS, MADD_PACKING, MADD_VECTOR, Dot, narrowing
from clnn.ops.conv.packing import pack_table
from clnn.ops.conv.problem import WEIGHTS, ConvProblem, innermost
from clnn.ops.conv.tiles import Tile
from clnn.ops.conv.winograd import AT_ONCE, TileGrid, tile_grid
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.cycles import MEMORY_RATE, bytes_a_cycle, cold_cycles, loop_slots
from clnn.records import dataclass
from clnn.target import Target
from clnn.types import I8, U8, Array

M, PLACES = 4, 36  # outputs of a tile along an axis, and products of a tile and a pair of channels
WORD = 4  # input channels of a word, which is two pairs
G = ((1, 0, 0), (1, 1, 1), (1, -1, 1), (1, 2, 4), (1, -2, 4), (0, 0, 1))
BT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
# Rows of F(4, 3)'s matrix times 24 over the norms, divided by 1, 2, 4 and 4.
AT = ((6, -4, -4, 1, 1, 0), (0, -2, 2, 1, -1, 0), (0, -1, -1, 1, 1, 0), (0, -1, 1, 2, -2, 6))
LARGEST_SUM = 2**25  # that 26 bits hold, of inputs that count from 128
FARTHEST = 128  # input from there
LARGEST_WEIGHT = 2**15 - 1  # transformed
LEAST_TILES = 4  # of a register tile
SETS = (1, 2, 3, 4)
CANDIDATES = 4  # plans that are worth a measurement
MARGIN = 1.25  # by which the estimate must beat the direct kernel's: in networks caches hold other things, too
INPUT_CYCLES, OUTPUT_CYCLES = 380, 150  # of a tile: for a vector of words, and of results
CACHES = ((2**20, 24), (2**24, 12))  # bytes that a cache holds, and gives a core per cycle


VNNI, MADD = Dot("vnni2", 2), Dot("madd2", 2)


@dataclass(frozen=True)
class BytesPlan:
    """mr tiles by nv vectors of vw channels at once, `sets` times, blocks of channels in `parts` shares."""

    mr: int
    nv: int
    vw: int
    parts: int
    sets: int
    cycles: float

    @property
    def rank(self) -> tuple[float, int]:
        """What plans are ordered by: their cycles, then their sets, which cost a little more."""
        return self.cycles, self.sets


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, the estimate's choice first."""
    if fits(problem):
        found = sorted(plans(_sizes(problem), problem.target), key=lambda p: p.rank)
        for chosen in found[:CANDIDATES]:
            yield _variant(problem, chosen)


def fits(problem: ConvProblem) -> bool:
    """Whether this is a convolution of 3 x 3 of bytes, of stride 1, whose sums fit 26 bits."""
    window, target = problem.window, problem.target
    if (window.kernel, window.strides, window.dilations) != ((3, 3), (1, 1), (1, 1)):
        return False
    if not (isinstance(problem.arith, Requantised) and problem.group == 1):
        return False
    if not (target.is_cpu and target.winograd):
        return False
    of_bytes = problem.input(0).plain in (I8, U8) and problem.input(WEIGHTS).type.dtype == I8
    if not of_bytes or dot_of(target) is None:
        return False
    whole = problem.ic > 0 and problem.ic % (4 * WORD) == problem.oc % width_of(target) == 0
    near = innermost(problem.src) and innermost(problem.dst) and problem.has_border
    return whole and near and bool(_narrow(problem)) and holds(problem.weights)


def _sizes(problem: ConvProblem) -> TileGrid:
    """Return the tiles of a problem in today's numbers, also where they are open."""
    shape = problem.oc, problem.height, problem.width, problem.batch
    return TileGrid(M, int(problem.ic), *map(int, shape))


def dot_of(target: Target) -> Dot | None:
    """Return how products of shorts are added, None where the processor has no instruction for it."""
    known = {"x86_vnni": VNNI, "x86_madd": MADD}
    return next((dot for feature, dot in known.items() if feature in target.features), None)


def width_of(target: Target) -> int:
    """Return the channels of a vector."""
    return min(target.vector, MADD_VECTOR) if dot_of(target) == MADD else target.vector


def holds(weights: Array) -> bool:
    """Whether sums of bytes that count from 128 fit 26 bits, in every output channel."""
    return bool(magnitudes(weights).max(initial=0) * FARTHEST < LARGEST_SUM)


def _narrow(problem: ConvProblem) -> str:
    return narrowing(problem, Tile(1, 1, width_of(problem.target), "row"))


def plans(tiles: TileGrid, target: Target) -> Iterator[BytesPlan]:
    """Yield the plans that fit local memory."""
    vw, registers = width_of(target), target.registers
    registers -= MADD_OPERANDS if dot_of(target) == MADD else 0
    for nv in (1, 2, 3, 4):
        # Registers hold the sums, a vector of weights for each, and one pair of a tile.
        for mr in range(LEAST_TILES, (registers - 1 - nv) // nv + 1):
            whole, blocks = -(-tiles.tiles // mr), -(-tiles.oc // (nv * vw))
            for parts in sorted({1, target.compute_units}):
                for sets in (s for s in SETS if s == 1 or s <= whole):
                    one = BytesPlan(mr, nv, vw, parts, sets, 0)
                    fits = _local_bytes(tiles, one) <= target.local_bytes
                    if parts <= blocks and (nv - 1) * vw < tiles.oc and fits:
                        yield replace(one, cycles=_cycles(tiles, target, one))


def pitch_of(ic: int) -> int:
    """Return the words from tile to tile when transformed: such that they spread over a cache."""
    pairs = ic // 2
    return pairs + 16 if pairs % 64 == 0 else pairs


def _local_bytes(tiles: TileGrid, plan: BytesPlan) -> int:
    """Return the bytes of a work-item's transformed inputs and products."""
    return 4 * PLACES * plan.mr * plan.sets * (pitch_of(tiles.ic) + plan.nv * plan.vw)


def _cycles(tiles: TileGrid, target: Target, plan: BytesPlan) -> float:
    """Return the estimated time of the slowest core."""
    mr, nv, sets, parts = plan.mr, plan.nv, plan.sets, plan.parts
    blocks = -(-tiles.oc // (nv * plan.vw))
    groups, share = -(-tiles.tiles // (mr * sets)), -(-blocks // parts)
    weights = 2 * PLACES * tiles.ic * tiles.oc
    size = weights // parts + _local_bytes(tiles, plan)
    rate = next((rate for held, rate in CACHES if size < held), MEMORY_RATE)
    times = MADD_PACKING[2] if dot_of(target) == MADD else 1.0
    fetched = nv * plan.vw * 4 / bytes_a_cycle(rate, target)
    steps = max(sets * loop_slots(mr, nv) * times / 2, fetched)
    multiply = PLACES * tiles.ic // 2 * steps * share
    before = sets * mr * tiles.ic / (WORD * plan.vw) * INPUT_CYCLES
    after = sets * mr * share * nv * OUTPUT_CYCLES
    rounds = -(-groups * parts // target.compute_units)
    return rounds * (multiply + before + after) + cold_cycles(weights, target)


def _variant(problem: ConvProblem, chosen: BytesPlan) -> Variant:
    """Return the kernel of a plan."""
    tiles, target, vw = tile_grid(problem, M), problem.target, chosen.vw
    groups, width = -(-tiles.tiles // (chosen.mr * chosen.sets)), chosen.nv * chosen.vw
    size, local = grid(target, groups, chosen.parts)
    types, lanes, dot = problem.params["types"], lanes_of(problem.ic, vw), dot_of(target)
    assert dot is not None
    sets = f"_s{chosen.sets}" * (chosen.sets > 1)
    params = problem.params | {
        "name": problem.label("winograd_bytes", f"t{chosen.mr}x{width}_p{chosen.parts}{sets}"),
        "arith": problem.refined.packed_products(),
        "types": (types[0], "short", *types[2:]),
        "ic": tiles.ic,
        "oc": tiles.oc,
        "rows": problem.rows,
        "reach": problem.reach,
        "bt": BT,
        "at": AT,
        "dot": dot.name,
        "narrow": _narrow(problem),
        "prefetch": "prefetch" in target.features,
        "wg": local,
        "mr": chosen.mr,
        "nv": chosen.nv,
        "vw": vw,
        "lanes": lanes,
        "sets": chosen.sets,
        "parts": chosen.parts,
        "tile_pitch": pitch_of(tiles.ic),
    }
    weights, table = problem.weights, problem.table
    assert table is not None
    if problem.input(0).plain == U8:
        table = moved_start(table, weights)
    args: tuple[Arg, ...] = (
        In(0),
        problem.input(WEIGHTS).packed(partial(pack, weights, width, lanes)),
        Const(lambda: pack_table(table, 1, width)),
        *last_args(problem, problem.post_ops),
    )
    launch = Launch("conv/winograd_bytes.cl.mako", params, args, size, local)

    def again(other: ConvProblem) -> Variant | None:
        return _variant(other, _resized(other)) if fits(other) else None

    def _resized(other: ConvProblem) -> BytesPlan:
        return replace(chosen, cycles=_cycles(_sizes(other), target, chosen))

    def cost_at(other: ConvProblem) -> float:
        return _resized(other).cycles * MARGIN if fits(other) else math.inf

    cost = chosen.cycles * MARGIN
    return Variant(params["name"], (launch,), cost, again=again, cost_at=cost_at)


def moved_start(table: Array, weights: Array) -> Array:
    """Return a table whose sums begin so that unsigned inputs may count from 128."""
    shift = FARTHEST * weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int64)
    moved = table.copy()
    moved[0] = (table[0].astype(np.int64) + shift).astype(table.dtype)
    return moved


def lanes_of(ic: int, most: int) -> int:
    """Return how many words of four channels are transformed at once, up to `most`."""
    return next(lanes for lanes in (16, 8, 4) if lanes <= most and ic % (WORD * lanes) == 0)


def pairs_of(ic: int, lanes: int) -> Array:
    """Return the channels (ic / 2, 2) in the order in which words come apart: even bytes, then odd ones."""
    words = np.arange(ic).reshape(-1, lanes, WORD)
    return np.stack([words[..., 0::2], words[..., 1::2]], axis=1).reshape(-1, 2)


def pack(weights: Array, width: int, lanes: int) -> Array:
    """Return weights (oc, ic, 3, 3) transformed, as [blocks][places][ic / 2][width][2], int16."""
    oc, ic = weights.shape[:2]
    g, order = np.array(G, np.float32), pairs_of(ic, lanes).ravel()
    both, blocks = np.kron(g, g), -(-oc // width)
    packed = np.zeros((blocks, PLACES, ic // 2, width, 2), np.int16)
    at_once = max(1, AT_ONCE // (width * ic))
    for first in range(0, blocks, at_once):
        part = weights[first * width : (first + at_once) * width]
        moved = both @ part.reshape(len(part) * ic, 9).T.astype(np.float32)
        places = moved.astype(np.int16).reshape(PLACES, len(part), ic)[:, :, order]
        for at in range(0, len(part), width):
            pairs = places[:, at : at + width].reshape(PLACES, -1, ic // 2, 2)
            packed[first + at // width, :, :, : pairs.shape[1]] = pairs.transpose(0, 2, 1, 3)
    return packed
