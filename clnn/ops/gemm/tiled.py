"""Matrix products by tiles of registers: each work-item reads the rows and columns of its own tile.

b is read in panels of a tile's columns. A constant is packed so on the host; else its columns are
read where they lie, or packed by a launch of its own. Where a GPU has more work-items than tiles of
columns, those of a work-group divide the terms of the sums between them (split-K).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from clnn.layout import TensorLayout
from clnn.ops.gemm.packing import Unpacked, pack_matrices
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, Const, Launch, Scratch, Variant, grid
from clnn.ops.shared.matrices import (
    ITEMS_PER_UNIT,
    Panels,
    Tile,
    pack_pairs,
    pack_panels,
    panels_for,
)
from clnn.ops.shared.workgroup_tiles import UNSHARED, widest
from clnn.records import dataclass
from clnn.traced import is_one, is_open
from clnn.types import F32

CPU_TILES, GPU_TILES = 10, 4  # worth a measurement in each order; GPUs have work-groups' tiles too
SWAPPED_ORDER_COST = 1.04  # cost of the group order that the size of b speaks against
PACK_SLOTS = 4  # slots of a vector that is packed on the device
AHEAD = 16  # rows of a panel that are on their way
# Bytes of it where one row of a meets a panel of float32, on processors with AMX: there, 4 KiB are worse than none.
ALONE_AHEAD, SHORT_AHEAD = 1536, "x86_amx"
NEAR_PANEL = 16384  # bytes of one that stays in the nearest cache
LANES = (32, 16, 8)  # work-items side by side in a group that splits the sums
SPLIT_ITEMS = 256  # work-items that a compute unit should have, where sums are split
MIN_SLICE_TERMS = 32  # terms of a sum that are worth a work-item


@dataclass(frozen=True)
class _Choice:
    """A tile, the order of tiles, and the estimated cycles.

    channels_fastest: neighbouring work-items take neighbouring blocks of columns, not of rows.
    """

    tile: Tile
    channels_fastest: bool
    cost: float


def packed_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels that read b packed: on the host where it is a constant, else on the device."""
    problem = problem.for_packing()
    return (_packed(problem, choice) for choice in _choices(problem))


def _packed(problem: GemmProblem, choice: _Choice) -> Variant:
    """Return the kernel of a choice, for a problem in its orientation."""
    made = (_packed_on_host if problem.b_is_const else _packed_on_device)(problem, choice)

    def again(other: GemmProblem) -> Variant | None:
        other = other.for_packing()
        fits = other.b_is_const == problem.b_is_const and _fits_rows(other, choice.tile)
        return _packed(other, choice) if fits else None

    return replace(made, again=again)


def direct_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels that read the columns of b where they lie, side by side."""
    problem = problem.oriented()
    fits = problem.b_is_dense and not problem.b_is_const and not problem.pairs
    if fits and not is_open(problem.n):
        for choice in _choices(problem, problem.n):
            yield _direct(problem, choice)


def _direct(problem: GemmProblem, choice: _Choice) -> Variant:
    """Return the kernel of a choice, for a problem in its orientation."""
    width = choice.tile.width
    panels = Panels(width, problem.product.b[0], width, 0)
    launch = _launch(problem, choice, panels, "direct", problem.b_arg)

    def again(other: GemmProblem) -> Variant | None:
        other = other.oriented()
        fits = other.b_is_dense and not other.b_is_const and width <= other.n
        fits = fits and not is_open(other.n) and _fits_rows(other, choice.tile)
        return _direct(other, choice) if fits else None

    return Variant(str(launch.params["name"]), (launch,), choice.cost, again=again)


def _fits_rows(problem: GemmProblem, tile: Tile) -> bool:
    """Whether a tile has no more rows than the result; on CPUs open ones may be less."""
    return tile.mr <= problem.m or (problem.target.is_cpu and is_open(problem.m))


def is_best_direct(problem: GemmProblem) -> bool:
    """Whether reading a dense b in place is expected to beat packing it first.

    It is where b stays in a cache, and where few rows walk over it; GPUs gain nothing by panels.
    """
    problem = problem.oriented()
    if problem.b_is_near or not problem.target.is_cpu:
        return True
    return problem.m <= 2 * next(_choices(problem, problem.n)).tile.mr


def register_tile_cost(problem: GemmProblem) -> float:
    """Return the estimated cycles of the best tile, wherever b lies."""
    return next(_choices(problem.oriented())).cost


def _choices(problem: GemmProblem, columns: float = inf) -> Iterator[_Choice]:
    """Yield the tiles of at most so many columns that are worth a measurement, best first.

    First in the order that suits the size of b, then in the other one.
    """
    target, suited = problem.target, problem.b_stays or not problem.target.is_cpu
    tiles = problem.register_tiles(columns)[: CPU_TILES if target.is_cpu else GPU_TILES]
    for channels_fastest in (suited, not suited):
        speed = problem.k * problem.matrices / target.compute_units
        speed *= 1.0 if channels_fastest == suited else SWAPPED_ORDER_COST
        for cycles, tile in tiles:
            factor = 1.0 if target.is_cpu else _gpu_factor(problem, tile, channels_fastest)
            yield _Choice(tile, channels_fastest, cycles * factor * speed)


def _gpu_factor(problem: GemmProblem, tile: Tile, channels_fastest: bool) -> float:
    """Return the factor on a tile's cost that GPUs make.

    Each tile of rows fetches b anew, as far as caches bear it; slices of the sums keep more units
    busy than the tiles alone.
    """
    rows, blocks = problem.tiles(tile.mr, tile.width)
    slices = split_k(problem, tile)[1] if channels_fastest else 1
    items = blocks * rows * problem.matrices
    idle = max(1.0, problem.target.compute_units * ITEMS_PER_UNIT / items)
    return min(UNSHARED, rows) / min(slices, idle)


def split_k(problem: GemmProblem, tile: Tile) -> tuple[int, int]:
    """Return how many blocks of columns a group takes, and into how many slices it divides the sums.

    With one slice, groups are as for any other kernel.
    """
    target, (rows, blocks) = problem.target, problem.tiles(tile.mr, tile.width)
    rows *= problem.matrices
    fitting = [n for n in LANES if n <= target.max_work_group // 2] or [1]
    enough = (n for n in fitting if -(-blocks // n) * rows >= target.compute_units)
    lanes = next(enough, fitting[-1])
    sums = lanes * tile.mr * tile.width * F32.itemsize
    most = min(target.max_work_group // lanes, target.local_bytes // sums)
    wanted = target.compute_units * SPLIT_ITEMS / (blocks * rows)
    slices = 1
    while slices * 2 <= most and slices < wanted and problem.k >= slices * 2 * MIN_SLICE_TERMS:
        slices *= 2
    return lanes, slices


def _packed_on_host(problem: GemmProblem, choice: _Choice) -> Variant:
    """B is a constant: packed once."""
    panels, pack = _panels(problem, choice.tile), pack_pairs if problem.pairs else pack_panels
    matrices = problem.b_matrices()
    b = problem.b.packed(lambda: pack(matrices(), panels))
    launch = _launch(problem.with_packed_b(panels), choice, panels, "packed", b)
    return Variant(str(launch.params["name"]), (launch,), choice.cost)


def _panels(problem: GemmProblem, tile: Tile) -> Panels:
    return panels_for(problem.k, problem.n, tile, problem.target, bool(problem.pairs))


def _packed_on_device(problem: GemmProblem, choice: _Choice) -> Variant:
    """B is packed in each run, each of its matrices once."""
    target = problem.target
    panels = _panels(problem, choice.tile)
    packed = problem.with_packed_b(panels)
    size, item = packed.views.b.size, 2 if problem.pairs else F32.itemsize
    scratch = Scratch("panels", max(size, 1) * item, item)
    first = pack_launch(problem, choice.tile, panels, packed.views.b, scratch)
    launch = _launch(packed, choice, panels, "scratch", scratch)
    cost = choice.cost + PACK_SLOTS * size / (2 * target.vector * target.compute_units)
    return Variant(str(launch.params["name"]), (first, launch), cost)


def pack_launch(
    problem: GemmProblem, tile: Tile, panels: Panels, packed: TensorLayout, scratch: Scratch
) -> Launch:
    """Return the launch that packs b; its batch loops run over b's own matrices."""
    given = Unpacked(problem.views.b, problem.b.ctype, problem.b_arg, bool(problem.pairs))
    return pack_matrices(given, tile, panels, packed, scratch, problem.target)


def _launch(problem: GemmProblem, choice: _Choice, panels: Panels, how: str, b: Arg) -> Launch:
    """Return the launch that multiplies; how: where b lies, "packed", "scratch" or "direct"."""
    target, tile = problem.target, choice.tile
    rows, blocks = problem.tiles(tile.mr, tile.width)
    joins, splits = 1, choice.channels_fastest and not target.is_cpu
    lanes, slices = split_k(problem, tile) if splits else (1, 1)
    if slices > 1:
        across = -(-blocks // lanes) * lanes
        size: tuple[int, ...] = (across, rows * slices, problem.matrices)
        local: tuple[int, ...] = (lanes, slices, 1)
    elif choice.channels_fastest:
        size, local = grid(target, blocks, rows, problem.matrices)
    else:
        joins = problem.sharing
        size, local = grid(target, rows * joins, blocks, problem.matrices // joins)
    ahead = _ahead(problem, panels, tile, b)
    order = "blocks" if choice.channels_fastest else "rows"
    kind = problem.pairs or "f32"
    name = f"gemm_tiled_{kind}_{how}_t{tile.mr}x{tile.width}_{order}" + f"_p{slices}" * (slices > 1)
    params = problem.params() | {
        "name": name,
        "row": panels.row,
        "panel": panels.panel,
        "b_moves": not isinstance(b, Const),
        "shift": how == "direct",
        "channels_fastest": choice.channels_fastest,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "k_slices": slices,
        "wg": local,
        "types": problem.types(b),
        "aligned": _reads_aligned(problem, tile, how),
        "dot": problem.pairs,
        "ahead": ahead,
        "next_panel": how == "packed"
        and not is_one(rows * joins)
        and _reads_next(problem, ahead, choice),
        "joins": joins,
    }
    return Launch("gemm/tiled.cl.mako", params, problem.args(b), size, local)


def _ahead(problem: GemmProblem, panels: Panels, tile: Tile, b: Arg) -> int:
    """Return the rows of b by which a panel is read ahead: it does not stay in the nearest cache."""
    row, features = panels.width * F32.itemsize, problem.target.features
    far = is_open(problem.k) or problem.k * row > NEAR_PANEL
    if not far or "prefetch" not in features:
        return 0
    is_float = isinstance(b, Scratch) or problem.b.memory.itemsize == F32.itemsize
    short = tile.mr == 1 and is_float and not problem.pairs and SHORT_AHEAD in features
    return ALONE_AHEAD // row if short else AHEAD


def _reads_next(problem: GemmProblem, ahead: int, choice: _Choice) -> bool:
    """Whether tiles of rows that walk a panel read the next one ahead: it comes from beyond the second cache."""
    near = choice.channels_fastest or bool(problem.pairs)
    return not near and ahead > 0


def _reads_aligned(problem: GemmProblem, tile: Tile, how: str) -> bool:
    """Whether vectors of columns of b are aligned, and the device gains by knowing it."""
    if problem.target.is_cpu or tile.vw > 4 or problem.b.stored:
        return False
    starts = [*problem.batch_pitches()[1], problem.n, problem.product.b[0], problem.b.layout.offset]
    return how != "direct" or widest([tile.vw, *starts]) == tile.vw
