"""The convolution of bytes, and of bfloat16, by tiles of registers (x86's AMX) as variants.

Pixels of a tile lie at the same distance from each other: in a row of the image, in an image without a
border, or, where the window moves by one, in a row that reaches over the border to the next one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from clnn.arith._base import FLOAT
from clnn.ops.conv.direct import narrowing, tile_params
from clnn.ops.conv.packing import pack_table, pack_weights
from clnn.ops.conv.problem import FEW_CHANNELS, WEIGHTS, ConvProblem, innermost
from clnn.ops.conv.tiles import Tile, Tiles
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.shared import amx
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.cycles import cold_cycles
from clnn.traced import is_open
from clnn.types import Array

GATHER_CYCLES = 3  # of neighbours that are copied


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, by rising cost."""
    if _fits(problem):
        suited, target = problem.weights_stay, problem.target
        cold = cold_cycles(problem.input(WEIGHTS).type.nbytes, target)
        for choice in amx.ranked(_tiles(problem), problem.batch, cold, suited, target):
            yield _variant(problem, choice)


def _kind(problem: ConvProblem) -> str:
    """Return the kind of products, "" where tiles have none of the problem's."""
    x, weights, arith = problem.input(0), problem.input(WEIGHTS), problem.arith
    kind = amx.products(x.memory, weights.memory)
    fits = arith is FLOAT if kind == "bf16" else arith.wraps and arith.acc == "int"
    return kind if fits and not arith.channelwise else ""


def _fits(problem: ConvProblem) -> bool:
    known = not any(map(is_open, (problem.batch, problem.height, problem.width, problem.ic)))
    fits = known and amx.how(problem.target) and problem.has_border and _kind(problem)
    return bool(fits and (_runs(problem) or (innermost(problem.src) and _depth(problem))))


def _runs(problem: ConvProblem) -> tuple[tuple[int, int], ...]:
    """Return what lies side by side in a window of few channels, as (offset, length); () where it is not gathered.

    Rows of the window in each plane, or, where channels are innermost, in all of them.
    """
    (rows, columns), src, channels = problem.geometry["kernel"], problem.src, problem.ic
    few = problem.group == 1 and channels <= FEW_CHANNELS and problem.taps > 1
    if not few or _kind(problem) != "bf16" or problem.geometry["dilations"] != (1, 1):
        return ()
    planes, down, right = (src.pitches[axis] for axis in (1, 2, 3))
    if right == 1:
        return tuple((c * planes + y * down, columns) for c in range(channels) for y in range(rows))
    if right == channels and innermost(src):
        return tuple((y * down, columns * channels) for y in range(rows))
    return ()


def _steps(problem: ConvProblem) -> int:
    """Return how often operands of a tile of sums are read."""
    runs = _runs(problem)
    nbytes = (len(runs) * runs[0][1] if runs else problem.ic) * problem.input(0).memory.itemsize
    return -(-nbytes // _depth(problem)) * (1 if runs else problem.taps)


def _depth(problem: ConvProblem) -> int:
    """Return the bytes of a tile's rows of terms."""
    runs, itemsize = _runs(problem), problem.input(0).memory.itemsize
    if not runs:
        return amx.depth(problem.ic * itemsize)
    nbytes = len(runs) * runs[0][1] * itemsize
    words = -(-nbytes // amx.WORD)
    return -(-words // -(-nbytes // amx.BYTES)) * amx.WORD


def _shapes(problem: ConvProblem, ma: int) -> Iterator[tuple[str, int, int]]:
    """Yield (mode, rows of the image, pixels) of tiles of `ma` left ones."""
    height, width, src = problem.height, problem.width, problem.src
    pitch = src.pitches[3]

    def evenly(pixels: int) -> int:
        """Return the pixels of tiles that share so many with the least overlap."""
        tiles = -(-pixels // (ma * amx.ROWS))
        return int(-(-pixels // (tiles * ma)) * ma)

    if problem.window.is_point and (src.shape[2] == 1 or src.pitches[2] == src.shape[3] * pitch):
        mr = evenly(height * width)
        if mr <= height * width:
            yield "flat", 1, mr
        return
    if (mr := evenly(width)) <= width:
        yield "row", 1, mr
    if _runs(problem):
        return
    if 1 < ma <= height and width <= amx.ROWS:
        yield "row", ma, ma * width
    if problem.geometry["strides"] == (1, 1) and src.pitches[2] % pitch == 0:
        mr, span = ma * amx.ROWS, src.pitches[2] // pitch
        if span >= width and mr <= (height - 1) * span + width:
            yield "wide", 1, mr


def _span(problem: ConvProblem, mode: str) -> int:
    return int(problem.src.pitches[2] // problem.src.pitches[3]) if mode == "wide" else 0


def _count(problem: ConvProblem, tile: Tile) -> int:
    """Return the tiles of pixels of an image."""
    span = _span(problem, tile.mode)
    size = (problem.height, problem.width, tile.mr, tile.rows)
    return Tiles(tile.mode, *size, span=span).count


def _tiles(problem: ConvProblem) -> Iterator[tuple[Tile, amx.Work]]:
    """Yield the tiles that there are pixels and channels for."""
    vectors, group = -(-problem.oc // amx.COLUMNS), problem.group
    steps, runs = _steps(problem), _runs(problem)
    for ma, nv in amx.SUMS:
        if nv > vectors:
            continue
        for mode, rows, mr in _shapes(problem, ma):
            tile = Tile(mr, nv, amx.COLUMNS, mode, rows)
            size = _count(problem, tile), -(-vectors // nv) * group, vectors * group
            gather = mr * GATHER_CYCLES * len(runs)
            yield tile, amx.Work(ma, nv, mr, *size, steps, gather)


def _variant(problem: ConvProblem, choice: amx.Choice[Tile]) -> Variant:
    tile, kind, target = choice.tile, _kind(problem), problem.target
    blocks = -(-problem.oc // tile.channels) * problem.group
    runs = -(-_count(problem, tile) * blocks // choice.each)
    global_size, local = grid(target, runs, 1, problem.batch)
    order = "blocks" if choice.channels_fastest else "pixels"
    shape = f"{choice.ma}x{tile.nv}_{tile.mr}" + f"_r{tile.rows}" * (tile.rows > 1)
    name = problem.label("conv2d_amx", f"{kind}_{shape}_{tile.mode}_{order}")
    types, arith = problem.params["types"], problem.refined
    params = tile_params(problem, tile) | {
        "name": name,
        "arith": arith.packed_products(),
        "types": (types[0], types[1] if kind == "bf16" else "char", *types[2:]),
        "ma": choice.ma,
        "each": choice.each,
        "how": amx.how(target),
        "products": kind,
        "depth": _depth(problem),
        "runs": _runs(problem),
        "loop_epilogue": True,
        "channels_fastest": choice.channels_fastest,
        "narrow": narrowing(problem, tile),
        "wg": local,
    }
    launch = Launch("conv/amx.cl.mako", params, _args(problem, tile), global_size, local)
    return Variant(name, (launch,), choice.cost)


def _flat(problem: ConvProblem) -> Array:
    """Return weights as (oc, terms, 1) in the order in which windows are gathered, zeros behind them."""
    given, terms = problem.weights, _steps(problem) * _depth(problem)
    by_taps = given.reshape(*given.shape[:2], -1)
    pixels = len(_runs(problem)) == problem.geometry["kernel"][0]
    ordered = (by_taps.transpose(0, 2, 1) if pixels else by_taps).reshape(len(given), -1)
    flat = np.zeros((len(given), terms // problem.input(0).memory.itemsize, 1), given.dtype)
    flat[:, : ordered.shape[1], 0] = ordered
    return flat


def _args(problem: ConvProblem, tile: Tile) -> tuple[Arg, ...]:
    """Return the input, packed weights, the arithmetic's table, and the rest."""
    weights = _flat(problem) if _runs(problem) else problem.weights
    table, group, factor = (
        problem.table,
        problem.group,
        amx.WORD // problem.input(0).memory.itemsize,
    )
    pack = functools.partial(pack_weights, weights, group, tile.channels, factor)
    args: list[Arg] = [In(0), problem.input(WEIGHTS).packed(pack)]
    if table is not None:
        args.append(Const(lambda: pack_table(table, group, tile.channels)))
    return (*args, *last_args(problem, problem.post_ops))
