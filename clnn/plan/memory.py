"""Where each buffer of a run lies in the arena: blocks that live at different steps share memory.

The arena is planned before anything is allocated. Among placements of the same size the planner
takes one where padded tensors of one geometry have memory to themselves and lie at one offset: no
other tensor writes to their borders, so that these need not be filled again before each run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import gcd, lcm

from clnn.errors import PlanError
from clnn.plan.placement import (
    Budget,
    PlacementProblem,
    first_fit,
    height,
    meetings,
    peak_of,
    solve,
)
from clnn.plan.plan import MemoryPlan
from clnn.plan.slots import dirty, reserve
from clnn.records import dataclass

# Visits of neighbours that a search may make, for each block and in all.
WORK_PER_BLOCK, MOST_WORK = 1200, 8_000_000
BORDER_WORK_PER_BLOCK, MOST_BORDER_WORK = 400, 4_000_000
MOST_MEETINGS = 4_000_000  # pairs of blocks alive together, beyond which there is no search


@dataclass(frozen=True)
class Block:
    """Memory that is in use in the launch steps `first` to `last`, both included.

    `size` and `align` are in bytes. `geometry` stands for where a padded tensor has its border:
    blocks of equal geometry at one offset have their borders in the same bytes. None: no border.
    """

    key: str
    size: int
    first: int
    last: int
    align: int = 1
    geometry: Hashable = None


def plan_memory(
    blocks: Sequence[Block], *, base_align: int, spare: int = 0, room: float = 1.0
) -> MemoryPlan:
    """Return offsets such that blocks in use at a common step share no byte.

    Every offset is a multiple of `base_align` and of the block's own `align` (bytes). The arena may
    grow by `spare` bytes over the smallest that is found, or to `room` times the lower bound, to
    keep more borders from being overwritten. The answer depends on the arguments only. Raises
    PlanError for keys given twice, negative sizes, lives that end before they begin and alignments
    below 1.
    """
    _check_blocks(blocks, base_align, spare)
    aligns = [lcm(block.align, base_align) for block in blocks]
    unit = gcd(*aligns) if aligns else base_align
    sizes = [-(-block.size // unit) for block in blocks]
    aligns = [align // unit for align in aligns]
    firsts, lasts = [block.first for block in blocks], [block.last for block in blocks]
    if meetings(firsts, lasts) > MOST_MEETINGS:
        spans = first_fit(sizes, aligns, firsts, lasts)
        lower_bound = peak_of(sizes, firsts, lasts)
    else:
        problem = PlacementProblem(sizes, aligns, firsts, lasts)
        spans = solve(problem, Budget(min(WORK_PER_BLOCK * len(blocks), MOST_WORK)))
        lower_bound = problem.lower_bound
        ceiling = max(height(spans) + spare // unit, int(lower_bound * room))
        budget = Budget(min(BORDER_WORK_PER_BLOCK * len(blocks), MOST_BORDER_WORK))
        spans = reserve(problem, [block.geometry for block in blocks], spans, ceiling, budget)
    offsets = {block.key: span[0] * unit for block, span in zip(blocks, spans, strict=True)}
    return MemoryPlan(offsets, height(spans) * unit, lower_bound * unit)


def _check_blocks(blocks: Sequence[Block], base_align: int, spare: int) -> None:
    if base_align < 1 or spare < 0:
        raise PlanError(
            f"base_align is {base_align} and spare {spare} bytes. They must be at least 1 and 0."
        )
    seen: set[str] = set()
    for block in blocks:
        if block.key in seen:
            raise PlanError(f"two blocks have the key {block.key!r}. Give each its own.")
        seen.add(block.key)
        if block.size < 0 or block.align < 1 or block.last < block.first:
            raise PlanError(
                f"{block} cannot be placed. A block has a size of 0 or more bytes, an alignment of "
                "1 or more, and a last step that is not before its first."
            )


def dirty_borders(blocks: Sequence[Block], plan: MemoryPlan) -> set[str]:
    """Return the keys of padded blocks whose border bytes another block may have written.

    These are the blocks with a geometry that have a byte in common with any other block of another
    geometry, of none, or at another offset, whenever that lives. The borders of all other
    padded blocks stay as they were filled when the arena was made.
    """
    spans = [(plan.offsets[b.key], plan.offsets[b.key] + b.size) for b in blocks]
    flags = dirty(spans, [block.geometry for block in blocks])
    return {
        b.key for b, spoilt in zip(blocks, flags, strict=True) if spoilt and b.geometry is not None
    }
