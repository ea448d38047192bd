"""Products of few rows on GPUs, which the memory bounds that their matrix comes from.

Work-items side by side read neighbouring elements, and so many groups divide the sums that each
compute unit has one: of b with rows along n the sums of gemm_tiled are split between work-items; of
b with columns along k work-items of gemm_dot read neighbouring terms of a column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clnn.ops.launch import In, Launch, Variant, grid
from clnn.ops.shared.matrices import Product, Tile
from clnn.ops.shared.workgroup_tiles import UNSHARED, widest
from clnn.target import Target

if TYPE_CHECKING:
    from clnn.ops.gemm.spec import _Job

LANES = (32, 16, 8)  # work-items side by side in a group that splits the sums
ITEMS = 256  # work-items that a compute unit should have
TERMS = 32  # of the sums that are worth a work-item
MEMBERS, COLUMNS = 16, (8, 4)  # of gemm_dot: work-items along k, and tiles of columns in a group


def split_sums(found: Product, tile: Tile, target: Target) -> tuple[int, int]:
    """Return how many tiles of columns a group takes, and in how many parts it splits the sums.

    One part: groups are as for any other kernel.
    """
    blocks, rows = -(-found.n // tile.width), -(-found.m // tile.mr) * found.matrices
    fewest = target.max_work_group // 2
    fitting = [n for n in LANES if n <= fewest] or [1]
    enough = (n for n in fitting if -(-blocks // n) * rows >= target.compute_units)
    lanes = next(enough, fitting[-1])
    sums = lanes * tile.mr * tile.width * 4
    most = min(target.max_work_group // lanes, target.local_bytes // sums)
    wanted = target.compute_units * ITEMS / (blocks * rows)
    parts = 1
    while parts * 2 <= most and parts < wanted and found.k >= parts * 2 * TERMS:
        parts *= 2
    return lanes, parts


def reads_aligned(job: _Job, found: Product, tile: Tile, how: str) -> bool:
    """Whether vectors of columns of b are aligned, and the device gains by knowing it."""
    if job.target.is_cpu or tile.vw > 4 or job.problem.input(job.views.inputs[1]).stored:
        return False
    if how != "direct":
        return True
    moves = zip(found.batch.extents, found.batch.pitches[1], strict=True)
    numbers = [pitch for extent, pitch in moves if extent > 1]
    numbers += [found.n, found.b[0], job.problem.input(job.views.inputs[1]).layout.offset]
    return widest([tile.vw, *numbers]) == tile.vw


def dot_variant(job: _Job, found: Product) -> Variant:
    """Return the kernel of rows and columns that both lie along k."""
    target, vw = job.target, job.target.vector
    b, mr = In(job.views.inputs[1]), min(found.m, 4)
    members, nr = 1, min(found.n, 8 if mr == 1 else 16 // mr)
    if not target.is_cpu:
        members = _members(found, target)
        nr = min(found.n, max(1, min(members, 8) // mr))
    tiles, rows = -(-found.n // nr), -(-found.m // mr)
    if members > 1:
        group = tiles * rows * found.matrices
        columns = next((c for c in COLUMNS if group // c >= 2 * target.compute_units), COLUMNS[-1])
        columns = min(columns, target.max_work_group // members)
        local: tuple[int, ...] = (members, columns, 1)
        size: tuple[int, ...] = (members, -(-tiles // columns) * columns, rows * found.matrices)
    else:
        size, local = grid(target, tiles, rows, found.matrices)
    name = f"gemm_dot_f32_t{mr}x{nr}_v{vw}" + f"_g{members}" * (members > 1)
    params = job.params(found) | {
        "name": name,
        "b": found.b,
        "mr": mr,
        "nr": nr,
        "vw": vw,
        "members": members,
        "wg": local,
        "types": job.types(b),
    }
    launch = Launch("gemm/few_rows.cl.mako", params, job.args(b), size, local)
    return Variant(name, (launch,), _dot_cycles(found, mr, nr, members, target))


def _dot_cycles(found: Product, mr: int, nr: int, members: int, target: Target) -> float:
    """Return the estimated cycles, as those of register tiles are counted."""
    tiles, rows, vw = -(-found.n // nr), -(-found.m // mr), target.vector
    slots = max(mr * nr, mr + nr + 1) + 3
    each = found.k / vw * slots + mr * nr * (vw + members)  # lanes and members are added in the end
    cycles = tiles * rows * found.matrices * each / (2 * target.compute_units)
    return cycles if target.is_cpu else cycles * min(UNSHARED, rows)


def _members(found: Product, target: Target) -> int:
    """Return how many work-items share a column."""
    members = 1
    while members * 2 <= min(MEMBERS, target.max_work_group, found.k // target.vector):
        members *= 2
    return members
