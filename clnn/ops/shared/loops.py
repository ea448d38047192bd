"""Loop nests over several layouts at once: which axes to walk, merged as far as pitches allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clnn.layout import TensorLayout
from clnn.ops.launch import grid
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import alike, greatest, is_one, is_open, least

GRAIN = 4096  # elements that are worth a work-item on a CPU


@dataclass(frozen=True)
class Loops:
    """Axes from outermost to innermost: extents, and for each operand its pitch on each axis."""

    extents: tuple[int, ...]
    pitches: tuple[tuple[int, ...], ...]

    @property
    def inner(self) -> int:
        """Extent of the innermost axis."""
        return self.extents[-1]

    @property
    def inner_pitches(self) -> tuple[int, ...]:
        """Pitch of each operand on the innermost axis."""
        return tuple(p[-1] for p in self.pitches)

    def has_inner_pitches(self, *pitches: int) -> bool:
        """Whether these are the pitches of the innermost axis, whatever the network's shape."""
        return all(map(alike, self.inner_pitches, pitches))

    def with_inner(self, place: int) -> Loops:
        """Return the loops with the one at `place` moved innermost."""
        order = [k for k in range(len(self.extents)) if k != place] + [place]
        return Loops(
            tuple(self.extents[k] for k in order),
            tuple(tuple(p[k] for k in order) for p in self.pitches),
        )

    def padded(self, count: int) -> Loops:
        """Return the loops with leading ones of extent 1, so that there are at least `count`."""
        more = max(0, count - len(self.extents))
        return Loops((1,) * more + self.extents, tuple((0,) * more + p for p in self.pitches))


def collapse(layouts: Sequence[TensorLayout]) -> Loops:
    """Return the fewest loops that walk all `layouts` (equal shapes) together.

    Axes are ordered by the pitches of the last layout (the one written), outermost first.
    """
    lead = layouts[-1]
    axes = [a for a in lead.order if not is_one(lead.shape[a])]
    extents: list[int] = []
    pitches: list[list[int]] = []
    for axis in axes:
        here = [la.pitches[axis] for la in layouts]
        if extents and all(
            alike(o, i * lead.shape[axis]) for o, i in zip(pitches[-1], here, strict=True)
        ):
            extents[-1] *= lead.shape[axis]
            pitches[-1] = here
        else:
            extents.append(lead.shape[axis])
            pitches.append(here)
    if not extents:
        extents, pitches = [1], [[1] * len(layouts)]
    return Loops(tuple(extents), tuple(zip(*pitches, strict=True)))


def without(layout: TensorLayout, axes: Sequence[int]) -> TensorLayout:
    """Return the layout of index 0 along `axes`, without these axes."""
    return layout.along([a for a in range(layout.rank) if a not in axes])


def even_chunk(extent: int, most: int, multiple: int = 1) -> int:
    """Return the largest divisor of `extent` that is at most `most` and a multiple of `multiple`.

    Falls back to `extent` where there is none.
    """
    largest = min(most, extent) // multiple * multiple
    divisors = (d for d in range(largest, 0, -multiple) if extent % d == 0)
    return next(divisors, extent)


def run_width(inner: int, target: Target) -> int:
    """Return the vector width for runs of `inner` elements that lie side by side.

    At most `inner`, but for an open one, where kernels tell runs that are shorter.
    """
    vw = 1
    while vw < target.vector and (is_open(inner) or vw * 2 <= inner):
        vw *= 2
    return vw


def run_work(
    loops: Loops, target: Target, contiguous: bool
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return how a kernel walks the innermost loop as runs, in rows of the others.

    That is the parameters that tell, and (global, local) work sizes. A work-item walks `chunk`
    elements of each of `band` rows, `vw` at a time; the share that begins at `last` reaches to the
    end of the run. The last vector of a run may overlap the one before it, which belongs to the
    same work-item; what is left of an open run is walked one by one. contiguous: runs can be read
    and written by vectors.
    """
    inner, outer = loops.inner, loops.extents[:-1]
    rows = math.prod(outer)
    vw = run_width(inner, target) if contiguous else 1
    if target.is_cpu:
        chunk = -(-GRAIN // vw) * vw if is_open(inner) else min(inner, -(-GRAIN // vw) * vw)
        fitting = GRAIN // greatest(1, least(inner, chunk))
        band = greatest(1, least(fitting, rows // (8 * target.compute_units)))
    else:
        chunk, band = vw, 1
    shares = -(-inner // chunk)
    if not is_open(inner) and shares > 1 and inner % chunk and inner % chunk < vw:
        shares -= 1
    params = {
        "extents": outer or (1,),
        "pitches": tuple(p[:-1] or (0,) for p in loops.pitches),
        "inner": inner,
        "inner_pitches": loops.inner_pitches,
        "vw": vw,
        "chunk": chunk,
        "last": (shares - 1) * chunk,
        "band": band,
    }
    return params, *grid(target, shares, -(-rows // band))
