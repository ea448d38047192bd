"""Sliding windows: kernel, stride, dilation and padding of convolutions and poolings."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.errors import ShapeError
from clnn.ops.onnx_registry import OnnxNode, Unsupported
from clnn.ops.problem import Border
from clnn.recorded import larger
from clnn.records import dataclass


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window over the spatial axes, outermost first.

    ceil: a last window may begin inside and end outside. partial: "cut" or "whole" where there is one window,
    too, if the image and its pads lack less than a stride to hold it, as ONNX's division towards zero has it for
    poolings; averages that count pads count all of a whole one, and what is inside of others.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    ceil: bool = False
    partial: str = ""

    def __post_init__(self) -> None:
        ranks = {
            len(self.kernel),
            len(self.strides),
            len(self.dilations),
            len(self.before),
            len(self.after),
        }
        if len(ranks) != 1:
            raise ShapeError(f"window attributes have different lengths: {self}.")
        if min((*self.kernel, *self.strides, *self.dilations)) < 1:
            raise ShapeError(f"kernel, strides and dilations must be at least 1: {self}.")
        if min((*self.before, *self.after)) < 0:
            raise ShapeError(f"pads must not be negative: {self}.")

    @property
    def is_point(self) -> bool:
        """Whether each output reads the one input at its own place."""
        return {*self.kernel, *self.strides} == {1} and not any((*self.before, *self.after))

    def axes(self, first: int, end: int | None = None) -> Window:
        """Return the window along some of the spatial axes."""
        part = slice(first, end)
        shape = self.kernel[part], self.strides[part], self.dilations[part]
        return Window(*shape, self.before[part], self.after[part], self.ceil, self.partial)

    def reach(self, axis: int) -> int:
        """Extent of the dilated kernel along a spatial axis."""
        return self.dilations[axis] * (self.kernel[axis] - 1) + 1

    def output(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return the output's spatial extents. Raises ShapeError where the kernel does not fit."""
        counts = []
        for a, extent in enumerate(spatial):
            room = self._room(a, extent)
            if self._lacks(a, room):
                counts.append(1)
                continue
            if room < 0:
                raise ShapeError(
                    f"kernel of extent {self.reach(a)} does not fit spatial axis {a} of extent "
                    f"{extent} with pads {self.before[a]} and {self.after[a]}."
                )
            count = room // self.strides[a] + 1
            if self.ceil and room % self.strides[a]:
                starts_inside = count * self.strides[a] < extent + self.before[a]
                count += int(starts_inside)
            counts.append(count)
        return tuple(counts)

    def _room(self, axis: int, extent: int) -> int:
        """How far a window may move over an axis and its pads; negative where it does not fit."""
        return extent + (self.before[axis] + self.after[axis] - self.reach(axis))

    def _lacks(self, axis: int, room: int) -> bool:
        """Whether the one window along an axis is larger than the image and its pads."""
        return bool(self.partial) and -self.strides[axis] < room < 0

    def counted_after(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return the elements behind each axis that averages count where they count pads."""
        if self.partial != "whole":
            return self.after
        return tuple(map(larger, self.after, self.needed_after(spatial)))

    def needed_after(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return the elements behind each spatial axis that windows really reach."""
        outs = self.output(spatial)
        counts = zip(outs, self.strides, spatial, strict=True)
        return tuple(
            self.after[a]  # a number, where behind others is what the extent makes of it
            if stride == 1
            else larger(0, (count - 1) * stride + (self.reach(a) - self.before[a]) - extent)
            for a, (count, stride, extent) in enumerate(counts)
        )

    def border(self, shape: Sequence[int], fill: float) -> Border:
        """Return the border that windows reach around a tensor of `shape` (n, c, spatial...)."""
        return Border((0, 0, *self.before), (0, 0, *self.needed_after(shape[2:])), fill)

    def pairs(self) -> dict[str, tuple[int, int]]:
        """Return kernel, strides, dilations and pads as (y, x); 1-D windows get y = 1."""

        def pair(values: tuple[int, ...], missing: int) -> tuple[int, int]:
            return (missing, values[0]) if len(values) == 1 else (values[0], values[1])

        return {
            "kernel": pair(self.kernel, 1),
            "strides": pair(self.strides, 1),
            "dilations": pair(self.dilations, 1),
            "pads": pair(self.before, 0),
        }


def window_of(
    node: OnnxNode,
    kernel: Sequence[int],
    spatial: Sequence[int],
    ceil: bool = False,
    partial: str = "",
) -> Window:
    """Return the window of an ONNX node: kernel_shape is given, the rest are its attributes."""
    rank = len(kernel)
    strides = [int(s) for s in node.attr("strides", [1] * rank)]
    dilations = [int(d) for d in node.attr("dilations", [1] * rank)]
    pads = [int(p) for p in node.attr("pads", [0] * 2 * rank)]
    if len(spatial) != rank or len(strides) != rank or len(dilations) != rank:
        raise ShapeError(
            f"{node.op_type}: kernel {list(kernel)}, strides {strides}, dilations {dilations} and "
            f"input extents {list(spatial)} must have the same number of axes."
        )
    auto = str(node.attr("auto_pad", "NOTSET"))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same_pads(spatial, kernel, strides, dilations, auto == "SAME_UPPER")
    elif auto == "VALID":
        pads = [0] * 2 * rank
    elif auto != "NOTSET":
        raise Unsupported(f"auto_pad {auto!r} is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    if len(pads) != 2 * rank:
        raise ShapeError(f"{node.op_type}: pads {pads} must be {2 * rank} numbers.")
    return Window(
        tuple(int(k) for k in kernel),
        tuple(strides),
        tuple(dilations),
        tuple(pads[:rank]),
        tuple(pads[rank:]),
        ceil,
        partial,
    )


def _same_pads(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    upper: bool,
) -> list[int]:
    low, high = [], []
    for extent, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        outs = -(-extent // s)
        total = max(0, (outs - 1) * s + d * (k - 1) + 1 - extent)
        small, large = total // 2, total - total // 2
        low.append(small if upper else large)
        high.append(large if upper else small)
    return low + high
