"""The direct convolution as variants: a register tile of pixels by output channels per work-item.

There are two families: one adds products one by one, one several of small numbers at a time. Costs are
cycles, comparable between variants of one problem.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import LARGEST_I32, Requantised, limits_of
from clnn.ops.conv.packing import moved_start, pack_table, pack_weights
from clnn.ops.conv.problem import WEIGHTS, ConvProblem, innermost, long_finish
from clnn.ops.conv.tiles import Extents, Tile, Tiles, conv_tiles, tile_cycles
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.cycles import cold_cycles
from clnn.ops.shared.epilogue import table_operands
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.shared.pairs import operands_of, pairs_of
from clnn.ops.shared.workgroup_tiles import UNSHARED, latency_hiding
from clnn.records import dataclass
from clnn.types import I8, I16, STORED_BF16, U8, DType

SWAPPED_ORDER_COST = 1.04  # cost of the group order that the size of the weights speaks against
TILES_BESIDE = 8  # register tiles that are worth a measurement beside work-groups' tiles
PACKED_TYPES = {2: "short", 4: "char"}  # of weights, by how many are packed
WHOLE_COST = 1.7  # of products of whole numbers one by one, with AVX2: a multiplication in two steps, and a sum
PLAIN_PACKING = 4  # cost of packed products in C against an instruction for them
MADD_PACKING = {2: 1.2, 4: 3.3}  # of x86's vpmaddwd, which adds two, by how many are packed
PAIRS_PACKING = 1.4  # of it where weights are packed as its pairs
BYTE = 256.0  # above the largest magnitude of a byte
LEAST_NARROWED = 4  # elements of vectors that become bytes together
MADD_VECTOR = 8  # elements of a vector of it
MADD_OPERANDS = 4  # registers of its operands besides those of other products


@dataclass(frozen=True)
class Dot:
    """How products are added (_common/dot.cl.mako): `pack_factor` at a time, `weight_limbs` of each.

    sums: accumulators of each vector of outputs. floats: operands are pairs of bfloat16.
    """

    name: str = ""
    pack_factor: int = 1
    weight_limbs: int = 1
    sums: int = 1
    floats: bool = False

    @property
    def plain_pairs(self) -> bool:
        """Whether pairs are taken apart, and their products added one by one."""
        return self.floats and self.name.startswith("plain")

    @property
    def cycles(self) -> float:
        """Cost of a product against one by one."""
        if self.floats:
            return 1.0 / self.pack_factor if self.name == "bf16x2" else 1.0
        cost = PLAIN_PACKING if "plain" in self.name else 1.0
        if self.madd:
            cost = PAIRS_PACKING if self.pairs else MADD_PACKING[self.pack_factor]
        return self.weight_limbs * cost / self.pack_factor

    @property
    def pairs(self) -> bool:
        """Whether four weights are packed as two pairs of shorts."""
        return "pairs" in self.name

    @property
    def madd(self) -> bool:
        """Whether products are added by x86's vpmaddwd."""
        return self.name.startswith("madd")


ONE = Dot()


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield kernels that add products one by one, by rising cost."""
    if ONE in dots(problem):
        yield from _of_dot(problem, ONE)


def packed_variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield kernels that add products of small numbers several at a time, by rising cost."""
    for dot in dots(problem):
        if dot != ONE:
            yield from _of_dot(problem, dot)


def _of_dot(problem: ConvProblem, dot: Dot) -> Iterator[Variant]:
    choices = [
        (cost * _order_cost(problem, channels_fastest), tile, channels_fastest)
        for cost, tile in direct_tiles(problem, dot)
        for channels_fastest in (True, False)
    ]
    for cost, tile, channels_fastest in sorted(choices, key=lambda choice: choice[0]):
        yield _variant(problem, dot, tile, cost, channels_fastest)


def _order_cost(problem: ConvProblem, channels_fastest: bool) -> float:
    return 1.0 if channels_fastest == problem.weights_stay else SWAPPED_ORDER_COST


def dots(problem: ConvProblem) -> tuple[Dot, ...]:
    """Return the ways to multiply that are worth a measurement: one by one, or packed, or both."""
    if problem.input(0).memory == STORED_BF16:
        return (of_pairs(problem) or ONE,)
    x, weights, arith = problem.input(0).plain, problem.input(WEIGHTS).type.dtype, problem.arith
    bytes_, shorts = x in (I8, U8) and weights == I8, x == I16 and weights in (I8, I16)
    halves = x in (I8, U8) and weights == I16 and arith.halves
    pack_factor = 4 if bytes_ or halves else 2 if shorts else 0
    weight_limbs = 2 if arith.acc == "long" else 1
    fits = arith.wraps and not arith.channelwise and innermost(problem.src)
    if not fits or not pack_factor or problem.ic % pack_factor or pack_factor * weight_limbs > 4:
        return (ONE,)
    kind = "wide" if weight_limbs == 2 else ""
    features = problem.target.features
    if halves:
        kind, limbs, sums = "halves", 2, 1
    else:
        limbs = sums = weight_limbs
    if "x86_vnni" in features:
        return (Dot(f"{kind or 'vnni'}{pack_factor}", pack_factor, limbs, sums),)
    if "x86_madd" in features:
        kind = "pairs" if halves else kind
        return (Dot(f"madd{kind}{pack_factor}", pack_factor, limbs, sums),)
    if pack_factor == 4 and not kind and "ptx_dp4a" in features:
        return ONE, Dot("dp4a4", pack_factor)
    return ONE, Dot(f"plain{kind}{pack_factor}", pack_factor, limbs, sums)


def of_pairs(problem: ConvProblem, streamed: bool = False) -> Dot | None:
    """Return how pairs of bfloat16 are multiplied, None where they are not read as pairs.

    streamed: with few channels of a tile at a time.
    """
    stored = problem.input(0).memory, problem.input(WEIGHTS).memory
    fits = stored == (STORED_BF16, STORED_BF16) and problem.arith is FLOAT
    if not fits or not innermost(problem.src) or not problem.ic or problem.ic % 2:
        return None
    how = pairs_of(problem.target, problem.ic * (problem.window.is_point and not streamed))
    return Dot(how, 2, floats=True) if how else None


def _moves_input(problem: ConvProblem, dot: Dot) -> bool:
    """Whether signed bytes are moved up by 128, since products of four take them as unsigned."""
    return dot.pack_factor == 4 and problem.input(0).plain == I8


def extents_of(problem: ConvProblem, dot: Dot) -> Extents:
    """Return what the tiles of the direct kernel depend on."""
    src = problem.src
    vector = problem.lanes if dot == ONE else problem.target.vector
    vector = min(vector, MADD_VECTOR) if dot.madd else vector
    taken = MADD_OPERANDS if dot.madd else operands_of(dot.name)
    even = src.shape[2] == 1 or src.pitches[2] == src.shape[3] * src.pitches[3]
    return Extents(
        problem.height,
        problem.width,
        problem.oc,
        vector,
        int(_moves_input(problem, dot) or dot.plain_pairs),
        dot.sums,
        even and problem.window.is_point,
        problem.target.registers - taken,
    )


def direct_tiles(problem: ConvProblem, dot: Dot) -> list[tuple[float, Tile]]:
    """Return (estimated cycles, tile) of the tiles that are worth a measurement, best first."""
    times, target = _products(problem, dot), problem.target
    tiles = conv_tiles(extents_of(problem, dot))
    if target.is_cpu:
        cold = cold_cycles(problem.input(WEIGHTS).type.nbytes, target)
        return [(cycles * times + cold, tile) for cycles, tile in tiles]
    pixels, channels = problem.height * problem.width, problem.oc * problem.group

    def alone(cycles: float, tile: Tile) -> float:
        """Cost where each work-item fetches its operands itself, and few of them wait for it."""
        items = problem.batch * -(-pixels // tile.mr) * -(-channels // tile.channels)
        return cycles * times * UNSHARED / latency_hiding(items, target)

    costs = [(alone(cycles, tile), tile) for cycles, tile in tiles]
    return sorted(costs, key=lambda pair: pair[0])[:TILES_BESIDE]


def tile_cost(problem: ConvProblem, dot: Dot, tile: Tile) -> float:
    """Return a tile's estimated cycles on a CPU, infinite where it does not fit the problem."""
    if not fits_tile(problem, dot, tile):
        return math.inf
    cold = cold_cycles(problem.input(WEIGHTS).type.nbytes, problem.target)
    return tile_cycles(extents_of(problem, dot), tile) * _products(problem, dot) + cold


def _products(problem: ConvProblem, dot: Dot) -> float:
    """Return the steps that each output element takes a core, for all images and groups."""
    steps = problem.taps * problem.ic * problem.group * problem.batch
    whole = "x86_madd" in problem.target.features and dot == ONE and problem.arith.acc == "int"
    return steps * dot.cycles * (WHOLE_COST if whole else 1.0) / problem.target.compute_units


def _variant(
    problem: ConvProblem, dot: Dot, tile: Tile, cost: float, channels_fastest: bool
) -> Variant:
    """Return the kernel of a tile; without the border it checks each tap instead.

    channels_fastest: neighbouring work-items have neighbouring blocks of channels, not of pixels.
    """
    if not problem.has_border:
        tile = replace(tile, mode="checked", rows=1)
    tiles, blocks = work_sizes(problem, tile)
    sizes = (blocks, tiles) if channels_fastest else (tiles, blocks)
    global_size, local = grid(problem.target, *sizes, problem.batch)
    types, arith = problem.params["types"], problem.refined
    packed = PACKED_TYPES.get(dot.pack_factor, types[1])
    params = tile_params(problem, tile) | {
        "name": kernel_name(problem, tile, dot.name, "blocks" if channels_fastest else "pixels"),
        "arith": arith if dot == ONE else arith.packed_products(),
        "types": (types[0], types[1] if dot.floats else packed, *types[2:]),
        "dot": dot.name,
        "channels_fastest": channels_fastest,
        "narrow": narrowing(problem, tile),
        "wg": local,
    }
    args = tile_args(problem, dot, tile)
    launch = Launch("conv/direct.cl.mako", params, args, global_size, local)

    def again(other: ConvProblem) -> Variant | None:
        fits = dot in dots(other) and fits_tile(other, dot, tile)
        return _variant(other, dot, tile, cost, channels_fastest) if fits else None

    def cost_at(other: ConvProblem) -> float:
        return tile_cost(other, dot, tile) * _order_cost(other, channels_fastest)

    told = cost_at if problem.target.is_cpu else None
    return Variant(params["name"], (launch,), cost, again=again, cost_at=told)


def fits_tile(problem: ConvProblem, dot: Dot, tile: Tile) -> bool:
    """Whether a tile that suits other extents can be used for a problem's."""
    if problem.has_border == (tile.mode == "checked"):
        return False
    return tile.fits(problem.height, problem.width) and (
        tile.mode != "flat" or extents_of(problem, dot).flat
    )


def work_sizes(problem: ConvProblem, tile: Tile) -> tuple[int, int]:
    """Return the tiles of an image, and the blocks of channels of all groups."""
    tiles = Tiles(tile.mode, problem.height, problem.width, tile.mr, tile.rows).count
    return tiles, -(-problem.oc // tile.channels) * problem.group


def kernel_name(problem: ConvProblem, tile: Tile, *ways: str) -> str:
    """Return the name of a kernel; ways: what sets it apart besides its tile."""
    shape = f"{tile.rows}x{tile.mr // tile.rows}" if tile.rows > 1 else str(tile.mr)
    words = [f"t{shape}x{tile.channels}", tile.mode, *filter(None, ways)]
    return problem.label("conv2d_direct", "_".join(words))


def tile_params(problem: ConvProblem, tile: Tile) -> dict[str, Any]:
    """Return the template parameters of a problem in register tiles."""
    return problem.params | {
        "ic": problem.ic,
        "oc": problem.oc,
        "groups": problem.group,
        "rows": problem.rows,
        "mode": tile.mode,
        "mr": tile.mr,
        "th": tile.rows,
        "nv": tile.nv,
        "vw": tile.vw,
        "prefetch": "prefetch" in problem.target.features,
        "loop_epilogue": long_finish(problem) or problem.arith is not FLOAT,
    }


def narrowing(problem: ConvProblem, tile: Tile) -> str:
    """Return how four vectors of results become bytes at a time (_common/narrow.cl.mako), or ""."""
    arith, target = problem.refined, problem.target
    if not (isinstance(arith, Requantised) and arith.bounded and target.is_cpu):
        return ""
    steps = problem.post_ops
    if len(steps) > 1 or not all(FUNCTIONS[step.fn].of_bytes for step in steps):
        return ""
    if any(step.fn == "byte_sum" and not _saturates(step, arith.kind) for step in steps):
        return ""
    if tile.vw < LEAST_NARROWED or not innermost(problem.dst):
        return ""
    instructions = {16: "x86_vnni", 8: "x86_madd"}.get(tile.vw, "")
    if table_operands(steps):
        return "x86" if target.features >= {instructions, "x86_vbmi"} else ""
    return "x86" if instructions in target.features else "plain"


def _saturates(step: PostOp, kind: DType) -> bool:
    """Whether a sum of bytes is clipped to its type, and fits 32 bits before."""
    first, second, offset, *ends = step.params
    return (
        tuple(ends) == limits_of(kind)
        and BYTE * (abs(first) + abs(second)) + abs(offset) < LARGEST_I32
    )


def tile_args(problem: ConvProblem, dot: Dot, tile: Tile) -> tuple[Arg, ...]:
    """Return the input, packed weights, the arithmetic's table, a row of padding, and the rest."""
    x, weights, table, arith = problem.input(0), problem.weights, problem.table, problem.arith
    blocks, limb_width = (problem.group, tile.channels), tile.vw if dot.weight_limbs > 1 else 0
    split = "pairs" if dot.pairs else "halves" if dot.sums < dot.weight_limbs else "limbs"
    how = (*blocks, dot.pack_factor, arith.channelwise, limb_width, split)
    pack = functools.partial(pack_weights, weights, *how)
    args: list[Arg] = [In(0), problem.input(WEIGHTS).packed(pack)]
    if table is not None:
        rows = moved_start(table, weights) if _moves_input(problem, dot) else table
        args.append(Const(lambda: pack_table(rows, *blocks)))
    if tile.mode == "checked":
        channels, element = max(problem.ic, 1), x.type.dtype.numpy
        args.append(x.packed(lambda: np.full(channels, arith.fill, element)))
    return (*args, *last_args(problem, problem.post_ops))
