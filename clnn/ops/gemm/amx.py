"""Matrix products of bfloat16 by tiles of registers (x86's AMX): gemm/amx.cl.mako over packed panels of b."""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.gemm.problem import FEW_ROWS, GemmProblem
from clnn.ops.gemm.tiled import pack_launch
from clnn.ops.launch import Arg, Launch, Scratch, Variant, grid
from clnn.ops.shared import amx
from clnn.ops.shared.cycles import cold_cycles
from clnn.ops.shared.matrices import Panels, Tile, pack_pairs, panels_for
from clnn.traced import is_open

PACK_CYCLES = 4  # of a vector that is packed on the device


def amx_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, by rising cost."""
    problem = problem.for_packing()
    if _fits(problem):
        target, fixed = problem.target, _fixed_cycles(problem)
        for choice in amx.ranked(_tiles(problem), problem.matrices, fixed, problem.b_stays, target):
            yield _variant(problem, choice)


def _fits(problem: GemmProblem) -> bool:
    if not amx.how(problem.target) or not amx.products(problem.a.memory, problem.b.memory):
        return False
    if any(map(is_open, (problem.m, problem.n, problem.k, *problem.product.batch.extents))):
        return False
    deep = amx.depth(2 * problem.k) > 0
    return problem.m > FEW_ROWS and bool(problem.pairs) and deep


def _fixed_cycles(problem: GemmProblem) -> float:
    """Return the cycles in which b comes from memory, or is packed."""
    target, vectors = problem.target, -(-problem.n // amx.COLUMNS)
    if problem.b_is_const:
        return cold_cycles(2 * problem.k * problem.n, target)
    return PACK_CYCLES * problem.k * vectors * problem.matrices / target.compute_units


def _tiles(problem: GemmProblem) -> Iterator[tuple[Tile, amx.Work]]:
    """Yield the tiles that there are rows and columns for."""
    vectors = -(-problem.n // amx.COLUMNS)
    steps = 2 * problem.k // amx.depth(2 * problem.k)
    for ma, nv in amx.SUMS:
        tiles = -(-problem.m // (ma * amx.ROWS))
        mr = -(-problem.m // (tiles * ma)) * ma
        if nv > vectors or mr > problem.m:
            continue
        rows, blocks = problem.tiles(mr, nv * amx.COLUMNS)
        yield Tile(mr, nv, amx.COLUMNS), amx.Work(ma, nv, mr, rows, blocks, vectors, steps)


def _variant(problem: GemmProblem, choice: amx.Choice[Tile]) -> Variant:
    panels = panels_for(problem.k, problem.n, choice.tile, problem.target, True)
    packed = problem.with_packed_b(panels)
    if problem.b_is_const:
        matrices = problem.b_matrices()
        b: Arg = problem.b.packed(lambda: pack_pairs(matrices(), panels))
        launch = _launch(packed, choice, panels, "packed", b)
        return Variant(str(launch.params["name"]), (launch,), choice.cost)
    size = packed.views.b.size
    scratch = Scratch("panels", max(size, 1) * 2, 2)
    first = pack_launch(problem, choice.tile, panels, packed.views.b, scratch)
    launch = _launch(packed, choice, panels, "scratch", scratch)
    return Variant(str(launch.params["name"]), (first, launch), choice.cost)


def _sharing(problem: GemmProblem, b: Arg) -> int:
    """Return how many matrices of the batch share a constant b: all of them, or 1."""
    shares = not isinstance(b, Scratch) and not any(problem.product.batch.pitches[1])
    return problem.matrices if shares else 1


def _launch(
    problem: GemmProblem, choice: amx.Choice[Tile], panels: Panels, how: str, b: Arg
) -> Launch:
    target, tile = problem.target, choice.tile
    rows, blocks = problem.tiles(tile.mr, tile.width)
    joins = 1 if choice.channels_fastest else _sharing(problem, b)
    runs = -(-rows * joins * blocks // choice.each)
    size, local = grid(target, runs, 1, problem.matrices // joins)
    order = "blocks" if choice.channels_fastest else "rows"
    params = problem.params() | {
        "name": f"gemm_amx_bf16_{how}_{choice.ma}x{tile.nv}_t{tile.mr}x{tile.width}_{order}",
        "row": panels.row,
        "panel": panels.panel,
        "b_moves": isinstance(b, Scratch),
        "shift": False,
        "channels_fastest": choice.channels_fastest,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "ma": choice.ma,
        "each": choice.each,
        "joins": joins,
        "how": amx.how(target),
        "depth": amx.depth(2 * problem.k),
        "prefetch": "prefetch" in target.features
        and not choice.channels_fastest
        and how == "packed",
        "types": problem.types(b),
        "wg": local,
    }
    return Launch("gemm/amx.cl.mako", params, problem.args(b), size, local)
