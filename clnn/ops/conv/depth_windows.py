"""What windows along depth read, as images: each output depth has the depths of its window as channels.

A view where the depths of a pixel are neighbours, channels innermost, and zeros lie around them:

    a pixel's channels     0 | a a | b b | c c | 0      three depths of two channels, a depth of zeros on each side
    images of 3 depths     [ . . . . . . . ]            image 0: zeros, a, b
                               [ . . . . . . . ]        image 1: a, b, c; it begins one depth further on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.movement.views import copy_launch
from clnn.ops.problem import Border, Problem, required
from clnn.ops.shared.element_types import move_type
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.spec import ViewSpec
from clnn.records import changed, dataclass
from clnn.types import Array, TensorType

DEPTH = 2  # the axis of volumes (n, c, depth, spatial...)


@dataclass(frozen=True)
class DepthWindows(ViewSpec):
    """(1, c, depth, spatial...) as (count, kernel * c, spatial...), channels of a depth together.

    Image k has the depths from k * stride - before on; those beyond the volume are zeros. Input 1 is a
    zero of the volume's type.
    """

    kernel: int
    stride: int
    before: int
    count: int

    kind = "depth_windows"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type with an axis less."""
        source = required(inputs)
        _, channels, _, *inner = source.shape
        return (TensorType((self.count, self.kernel * channels, *inner), source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the windows of the volume between zeros."""
        x = required(inputs)
        pads = [(0, 0)] * x.ndim
        pads[DEPTH] = (self.before, self._after(x.shape[DEPTH]))
        x = np.pad(x, pads)[0]
        images = [
            np.concatenate([x[:, at + i] for i in range(self.kernel)])
            for at in range(0, self.count * self.stride, self.stride)
        ]
        return (np.stack(images),)

    def _after(self, depth: int) -> int:
        """Return the depths behind the volume that windows reach."""
        return max(0, (self.count - 1) * self.stride + self.kernel - self.before - depth)

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return zeros around the depths, as far as windows reach."""
        shape = required(inputs).shape
        before, after = [0] * len(shape), [0] * len(shape)
        before[DEPTH], after[DEPTH] = self.before, self._after(shape[DEPTH])
        return {0: Border(tuple(before), tuple(after))}

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the view of a volume whose border is as `takes` wants it."""
        _, channels, _, *inner = source.shape
        pitch = source.pitches[DEPTH]
        if source.shape[0] != 1 or source.pitches[1] != 1 or pitch != channels:
            return None
        return changed(
            source,
            shape=(self.count, self.kernel * channels, *inner),
            pitches=(self.stride * pitch, *source.pitches[1:DEPTH], *source.pitches[DEPTH + 1 :]),
            before=(0, 0, *source.before[DEPTH + 1 :]),
            after=(0, 0, *source.after[DEPTH + 1 :]),
            offset=source.offset - self.before * pitch,
        )

    def takes(self, source: TensorLayout, fill: float | None) -> bool:
        """Whether zeros lie as far around the depths as windows reach."""
        after = self._after(source.shape[DEPTH])
        wide = source.before[DEPTH] >= self.before and source.after[DEPTH] >= after
        return wide and (fill == 0 or not (self.before or after))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return copies: of what each tap reads of the volume, and of zeros beyond."""
        if problem.outputs[0].aliased or problem.input(0).aliased:
            return [Variant("view", ())]
        return [Variant("copies", tuple(self._copies(problem)))]

    def _copies(self, problem: Problem) -> Iterator[Launch]:
        source, out = problem.input(0).layout.unpadded(), problem.outputs[0].layout.unpadded()
        channels, depth = source.shape[1:3]
        volume = changed(
            source, shape=source.shape[1:], pitches=source.pitches[1:], **_without_padding(source)
        ).transpose((1, 0, *range(2, source.rank - 1)))
        for tap in range(self.kernel):
            low = tap - self.before
            first = min(self.count, max(0, -(low // self.stride)))
            end = max(first, min(self.count, -((low - depth) // self.stride)))
            images = out.slice(1, tap * channels, channels)
            if end > first:
                read = volume.slice(0, first * self.stride + low, end - first, self.stride)
                yield copy_launch(problem, 0, read, images.slice(0, first, end - first))
            for start, stop in ((0, first), (end, self.count)):
                if stop > start:
                    yield _zeros(problem, images.slice(0, start, stop - start))


def _without_padding(source: TensorLayout) -> dict[str, tuple[int, ...]]:
    none = (0,) * (source.rank - 1)
    return {"before": none, "after": none}


def _zeros(problem: Problem, result: TensorLayout) -> Launch:
    """Return the launch that writes the zero that is input 1 to a part of the output."""
    ctype, out = move_type(problem.outputs[0].memory), problem.outputs[0].layout
    zero = problem.input(1).layout.broadcast(result.shape)
    written = Walked(Out(0, result.offset - out.offset), result, ctype)
    return walk_launch("copy", [Walked(In(1), zero, ctype)], written, problem.target)
