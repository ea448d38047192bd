"""TensorLayout: where each element of a tensor lies in a buffer. Pure geometry, no device.

A layout maps a logical index (i0, i1, ...) to an element of a storage:

    element = offset + sum(index[axis] * pitch[axis])

*Padding* is memory next to the real elements along an axis that belongs to the tensor and holds a
fixed fill value: `before[axis]` elements in front of index 0 and `after[axis]` behind the last.
Views (slice, transpose, reshape, broadcast) are layouts over the same storage.

    order HWC, padding 1, C = 2          . . . . . . . .      . padding
    shape (1, 2, 2, 2) as NCHW           . . a A b B . .      a, b: channel 0   A, B: channel 1
    pitches n 32, c 1, h 8, w 2          . . c C d D . .
    offset 10                            . . . . . . . .
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from clnn.errors import ShapeError
from clnn.records import changed, dataclass
from clnn.traced import alike, is_one, opened, other
from clnn.types import Array, normalise_axis


@dataclass(frozen=True)
class TensorLayout:
    """Geometry of one tensor in a storage; all numbers are in elements.

    shape: logical extents. pitches: distance of neighbours along each axis (0: broadcast, negative:
    reversed). before, after: padding on each side of each axis. offset: first real element.
    size: elements of the whole storage that this layout was made for.
    """

    shape: tuple[int, ...]
    pitches: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    offset: int
    size: int

    @staticmethod
    def make(
        shape: Sequence[int],
        order: Sequence[int] | None = None,
        before: Sequence[int] | None = None,
        after: Sequence[int] | None = None,
        align: dict[int, int] | None = None,
    ) -> TensorLayout:
        """Return a layout with a storage of its own.

        order: axes from outermost to innermost (default row-major). before, after: padding per
        axis. align: for an axis, a number that the padded extent is rounded up to (more `after`
        memory that is not padding, as TIDL's line pitch). Raises ShapeError.
        """
        shape = tuple(d if isinstance(d, int) else int(d) for d in shape)
        rank = len(shape)
        order = tuple(range(rank)) if order is None else tuple(order)
        if sorted(order) != list(range(rank)):
            raise ShapeError(f"order {order} is not a permutation of the {rank} axes of {shape}.")
        lo = _per_axis("before", before, rank)
        hi = _per_axis("after", after, rank)
        pitches = [0] * rank
        pitch = 1
        for axis in reversed(order):
            pitches[axis] = pitch
            extent = lo[axis] + shape[axis] + hi[axis]
            if align and axis in align:
                extent = -(-extent // align[axis]) * align[axis]
            pitch *= extent
        offset = sum(p * q for p, q in zip(lo, pitches, strict=True))
        return TensorLayout(shape, tuple(pitches), lo, hi, offset, pitch)

    @staticmethod
    def of_pitches(
        shape: Sequence[int], pitches: Sequence[int], offset: int = 0, size: int = 0
    ) -> TensorLayout:
        """Return a layout without padding whose elements lie at these pitches."""
        zero = (0,) * len(shape)
        return TensorLayout(tuple(shape), tuple(pitches), zero, zero, offset, size)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def order(self) -> tuple[int, ...]:
        """Axes from outermost to innermost in memory (axes of extent 1 keep their logical place)."""
        moving = [a for a in range(self.rank) if not is_one(self.shape[a])]
        ranked = iter(sorted(moving, key=lambda a: (-abs(other(self.pitches[a])), a)))
        return tuple(a if is_one(self.shape[a]) else next(ranked) for a in range(self.rank))

    @property
    def has_padding(self) -> bool:
        """Whether any axis has padding."""
        return any(self.before) or any(self.after)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        return self.pitches_match(row_major(self.shape))

    def pitches_match(self, pitches: Sequence[int]) -> bool:
        """Whether `pitches` address the same elements (axes of extent 1 do not count)."""
        rows = [*zip(self.shape, self.pitches, pitches, strict=True)]
        here = all(d == 1 or p == q for d, p, q in rows) or 0 in self.shape
        return here and all(other(d) == 1 or other(p) == other(q) for d, p, q in rows)

    @property
    def span(self) -> tuple[int, int]:
        """First and one past the last element that the real tensor touches."""
        low = high = self.offset
        for extent, pitch in zip(self.shape, self.pitches, strict=True):
            reach = (max(extent, 1) - 1) * pitch
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high + 1

    def element_offset(self, padding: Sequence[int]) -> int:
        """Return the first element of the tensor seen with `padding` before each axis.

        `padding` must be at most `before`: this is ESP-DL's get_element_ptr(padding).
        """
        for axis, (want, have) in enumerate(zip(padding, self.before, strict=True)):
            if not 0 <= want <= have:
                raise ShapeError(f"padding {want} on axis {axis} is asked, the layout has {have}.")
        return self.offset - sum(p * q for p, q in zip(padding, self.pitches, strict=True))

    def moved(self, elements: int, size: int) -> TensorLayout:
        """Return the layout moved by `elements` into a storage of `size` elements."""
        return changed(self, offset=self.offset + elements, size=size)

    def unpadded(self) -> TensorLayout:
        """Return the same view without a claim on the padding."""
        zero = (0,) * self.rank
        return changed(self, before=zero, after=zero)

    def along(self, axes: Sequence[int]) -> TensorLayout:
        """Return the view of index 0 on all other axes, with `axes` in this order, unpadded."""
        shape, pitches = (tuple(of[a] for a in axes) for of in (self.shape, self.pitches))
        return TensorLayout.of_pitches(shape, pitches, self.offset, self.size)

    def transpose(self, perm: Sequence[int]) -> TensorLayout:
        """Return the view whose axis i is axis perm[i] of this one."""
        if sorted(perm) != list(range(self.rank)):
            raise ShapeError(f"permutation {tuple(perm)} does not fit rank {self.rank}.")

        def pick(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[a] for a in perm)

        return changed(
            self,
            shape=pick(self.shape),
            pitches=pick(self.pitches),
            before=pick(self.before),
            after=pick(self.after),
        )

    def slice(self, axis: int, start: int, extent: int, step: int = 1) -> TensorLayout:
        """Return the view of `extent` indices from `start` on along `axis`.

        Padding stays on the sides that still touch the edge of the tensor.
        """
        axis = normalise_axis(axis, self.rank)
        last = start + (extent - 1) * step
        if extent > 0 and not (0 <= start < self.shape[axis] and 0 <= last < self.shape[axis]):
            raise ShapeError(
                f"slice {start}..{last} leaves axis {axis} of extent {self.shape[axis]}."
            )
        keep_lo = self.before[axis] if step == 1 and start == 0 else 0
        keep_hi = self.after[axis] if step == 1 and last == self.shape[axis] - 1 else 0
        return TensorLayout(
            _with(self.shape, axis, extent),
            _with(self.pitches, axis, self.pitches[axis] * step),
            _with(self.before, axis, keep_lo),
            _with(self.after, axis, keep_hi),
            self.offset + start * self.pitches[axis],
            self.size,
        )

    def broadcast(self, shape: Sequence[int]) -> TensorLayout:
        """Return the view broadcast to `shape` by numpy's rule (pitch 0 on stretched axes)."""
        shape = tuple(shape)
        lead = len(shape) - self.rank
        if lead < 0:
            raise ShapeError(f"cannot broadcast {self.shape} to the lower rank of {shape}.")
        pitches, before, after = [0] * lead, [0] * lead, [0] * lead
        for axis, extent in enumerate(self.shape):
            if extent not in (1, shape[lead + axis]):
                raise ShapeError(f"cannot broadcast {self.shape} to {shape} on axis {lead + axis}.")
            target, pitch = shape[lead + axis], self.pitches[axis]
            same = alike(extent, target)
            pitches.append(pitch if same else _stretched(pitch, extent, target))
            before.append(self.before[axis] if same else 0)
            after.append(self.after[axis] if same else 0)
        return changed(
            self, shape=shape, pitches=tuple(pitches), before=tuple(before), after=tuple(after)
        )

    def reshape(self, shape: Sequence[int]) -> TensorLayout | None:
        """Return the view with another shape in row-major order, or None when it needs a copy."""
        new = tuple(shape)
        if math.prod(new) != math.prod(self.shape):
            raise ShapeError(f"cannot reshape {self.shape} to {new}: element counts differ.")
        if 0 in new:
            return TensorLayout.make(new).moved(self.offset, self.size)
        groups = reshape_groups(self.shape, new)
        pitches = [0] * len(new)
        before, after = [0] * len(new), [0] * len(new)
        for olds, news in groups:
            pair = _lone_pair(self.shape, olds, new, news)
            if pair:
                source, target = pair
                pitches[target] = self.pitches[source]
                before[target], after[target] = self.before[source], self.after[source]
                continue
            inner = self._merged_pitch(olds)
            if inner is None:
                return None
            for axis in reversed(news):
                pitches[axis] = inner
                inner *= new[axis]
        return changed(
            self, shape=new, pitches=tuple(pitches), before=tuple(before), after=tuple(after)
        )

    def _merged_pitch(self, axes: Sequence[int]) -> int | None:
        """Pitch of `axes` walked as one axis, or None when they are not evenly spaced."""
        moving = [a for a in axes if not is_one(self.shape[a])]
        if not moving:
            return 1
        for outer, inner in pairwise(moving):
            if not alike(self.pitches[outer], self.pitches[inner] * self.shape[inner]):
                return None
        return self.pitches[moving[-1]]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the pitches of a dense row-major tensor."""
    pitches, pitch = [], 1
    for extent in reversed(shape):
        pitches.append(pitch)
        pitch *= extent
    return tuple(reversed(pitches))


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the memory order (N, spatial..., C) for logical axes (N, C, spatial...)."""
    return tuple(range(rank)) if rank < 3 else (0, *range(2, rank), 1)


def reshape_groups(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split two shapes of equal element count into the finest groups of axes with equal products.

    Of open extents: groups that are so at the network's other shape, too.
    """
    there = [*map(other, old)], [*map(other, new)]
    if math.prod(there[0]) == math.prod(there[1]):
        groups = _reshape_groups(*there)
        if all(math.prod(old[a] for a in o) == math.prod(new[a] for a in n) for o, n in groups):
            return groups
    return _reshape_groups(old, new)


def _reshape_groups(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        left = right = 1
        if i < len(old):
            olds, left, i = [i], old[i], i + 1
        if j < len(new):
            news, right, j = [j], new[j], j + 1
        while left != right:
            if left < right or (left == 0 and i < len(old)):
                olds.append(i)
                left, i = left * old[i], i + 1
            else:
                news.append(j)
                right, j = right * new[j], j + 1
        groups.append((tuple(olds), tuple(news)))
    return groups


def _stretched(pitch: int, extent: int, target: int) -> int:
    """Return the pitch of an axis that is stretched here, or at the network's other shape, or at both."""
    here = 0 if extent == 1 else pitch
    there = 0 if other(extent) == 1 else other(pitch)
    return here if here == there else opened(here, there)


def _lone_pair(
    old: Sequence[int], olds: Sequence[int], new: Sequence[int], news: Sequence[int]
) -> tuple[int, int] | None:
    """Return the one axis of each side that matters, when a group has just one on both."""
    if len(olds) == 1 and len(news) == 1:
        return olds[0], news[0]
    sources = [a for a in olds if not is_one(old[a])]
    targets = [a for a in news if not is_one(new[a])]
    return (sources[0], targets[0]) if len(sources) == 1 and len(targets) == 1 else None


def _per_axis(name: str, values: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if values is None:
        return (0,) * rank
    # Recorded numbers stay what they are; bool is an int that templates refuse to print.
    out = tuple(v if isinstance(v, int) and not isinstance(v, bool) else int(v) for v in values)
    if len(out) != rank or min(out, default=0) < 0:
        raise ShapeError(f"padding {name} is {out}: must be {rank} numbers >= 0.")
    return out


def _with(values: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*values[:axis], value, *values[axis + 1 :])


def lay_out(array: Array, layout: TensorLayout, fill: float = 0.0) -> Array:
    """Return a flat array of the layout's storage with `array` placed in it."""
    flat = np.full(max(layout.size, 1), fill, dtype=array.dtype)
    view_of(flat, layout)[...] = array
    return flat


def view_of(flat: Array, layout: TensorLayout) -> Array:
    """Return the strided numpy view of `layout` over a flat storage array."""
    if 0 in layout.shape:
        return np.empty(layout.shape, flat.dtype)
    # numpy makes views of the types that it has itself.
    known = flat if flat.dtype.isbuiltin == 1 else flat.view(f"u{flat.itemsize}")
    seen = np.lib.stride_tricks.as_strided(
        known[layout.offset :], layout.shape, tuple(p * flat.itemsize for p in layout.pitches)
    )
    return seen if known is flat else seen.view(flat.dtype)
