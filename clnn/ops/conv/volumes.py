"""Convolutions of volumes: of inputs with more spatial axes than two, as convolutions of images.

The first spatial axis, depth, joins the batch, which is a view where channels lie innermost. Each output
depth reads as many input depths as the window has: they lie side by side as channels, and so do
the weights. What is left has an axis less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Variant
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat, Expand, Reshape, Slice, Transpose, copy_variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source
from clnn.ops.problem import Problem, required
from clnn.ops.shared.window import Window
from clnn.ops.spec import ViewSpec
from clnn.records import dataclass
from clnn.traced import is_open
from clnn.types import Array, TensorType

IMAGE = 4  # axes of an image: batch, channels, height, width


@dataclass(frozen=True)
class JoinDepth(ViewSpec):
    """(n, c, depth, spatial...) as (n * depth, c, spatial...)."""

    kind = "join_depth"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type with an axis less."""
        source = required(inputs)
        n, channels, depth, *inner = source.shape
        return (TensorType((n * depth, channels, *inner), source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return depths as images."""
        x = required(inputs)
        n, channels, depth, *inner = x.shape
        return (np.moveaxis(x, 2, 1).reshape(n * depth, channels, *inner),)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the view, where images of one batch lie as those of its depths."""
        n, channels, depth, *inner = source.shape
        apart = source.transpose((0, 2, 1, *range(3, len(source.shape))))
        return apart.reshape((n * depth, channels, *inner))

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return the output seen with the input's shape."""
        return (SplitDepth(required(inputs).shape[2]),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        source, out = problem.input(0), problem.outputs[0]
        return [_copy(problem, source.layout, _split(out.layout, source.type.shape[2]))]


@dataclass(frozen=True)
class SplitDepth(ViewSpec):
    """(n * depth, c, spatial...) as (n, c, depth, spatial...)."""

    depth: int

    kind = "split_depth"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type with an axis more. Raises ShapeError where images are no whole volumes."""
        source = required(inputs)
        joined, channels, *inner = source.shape
        if joined % self.depth:
            raise ShapeError(f"{joined} images are no volumes of {self.depth}.")
        return (TensorType((joined // self.depth, channels, self.depth, *inner), source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return images as depths."""
        x = required(inputs)
        joined, channels, *inner = x.shape
        apart = x.reshape(joined // self.depth, self.depth, channels, *inner)
        return (np.moveaxis(apart, 1, 2),)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the view."""
        return _split(source, self.depth)

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return the output seen with the input's shape."""
        return (JoinDepth(),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        return [
            _copy(problem, _split(problem.input(0).layout, self.depth), problem.outputs[0].layout)
        ]


def _split(images: TensorLayout, depth: int) -> TensorLayout:
    """Return the layout of images seen as volumes; the first axis can always be cut."""
    joined, channels, *inner = images.shape
    apart = images.reshape((joined // depth, depth, channels, *inner))
    assert apart is not None
    return apart.transpose((0, 2, 1, *range(3, len(apart.shape))))


def _copy(problem: Problem, source: TensorLayout, result: TensorLayout) -> Variant:
    return copy_variant(problem, source.unpadded(), result.unpadded())


@dataclass(frozen=True)
class Taps:
    """How output depths read depths of the input: tap i of output k is depth starts[i] + k * stride.

    count: output depths. before, after: depths of zeros around the input, or taken away where
    negative. apart: from one depth of the input to the next, zeros between them.
    """

    count: int
    stride: int
    before: int
    after: int
    starts: tuple[int, ...]
    apart: int = 1

    @classmethod
    def of(cls, window: Window, extent: int) -> Taps:
        """Return those of a convolution's window along one axis."""
        (stride,), (dilation,) = window.strides, window.dilations
        (before,), (after,) = window.before, window.after
        starts = tuple(k * dilation for k in range(window.kernel[0]))
        return cls(window.output([extent])[0], stride, before, after, starts)

    @classmethod
    def transposed(
        cls, kernel: int, stride: int, dilation: int, before: int, extent: int, count: int
    ) -> Taps:
        """Return those of a transposed convolution along one axis, of `extent` depths to `count`."""
        reach = dilation * (kernel - 1)
        spread = (extent - 1) * stride + 1
        low = reach - before
        starts = tuple(reach - k * dilation for k in range(kernel))
        return cls(count, 1, low, count + reach - low - spread, starts, stride)

    def met(self, extent: int, weights: Array) -> tuple[Taps, Array]:
        """Return the taps that meet data for any output, with their weights; of open extents, all."""
        if is_open(extent) or is_open(self.count) or self.apart > 1:
            return self, weights
        ends = [
            (s - self.before, s - self.before + (self.count - 1) * self.stride) for s in self.starts
        ]
        kept = [k for k, (low, high) in enumerate(ends) if _meets(low, high, self.stride, extent)]
        if len(kept) in (0, len(ends)):
            return self, weights
        starts = [self.starts[k] for k in kept]
        dropped = max(0, min(*starts, self.before))
        starts = [start - dropped for start in starts]
        before = self.before - dropped
        after = max(starts) + (self.count - 1) * self.stride + 1 - before - extent
        fewer = replace(self, before=before, after=max(0, after), starts=tuple(starts))
        return fewer, np.ascontiguousarray(weights[:, :, kept])


def _meets(low: int, high: int, stride: int, extent: int) -> bool:
    """Whether any depth from `low` to `high`, a stride apart, lies within the extent."""
    return any(0 <= at < extent for at in range(low, high + 1, stride))


def over_images(
    node: OnnxNode,
    kernel: Sequence[int],
    taps: Sequence[Taps],
    group: int,
    image: Callable[[Source, Source], Emit],
    is_transposed: bool = False,
) -> Emit:
    """Return the convolution of input 0 with weights 1, which `image` makes for two spatial axes.

    kernel: extents of the window. taps: of each spatial axis before these. image: takes the sources
    of input and weights. is_transposed: weights have input channels first.
    """
    x, w = node.type(0).shape, node.type(1).shape
    if len(w) != len(x) or tuple(w[2:]) != tuple(kernel):
        raise ShapeError(f"weights {w} do not have kernel {tuple(kernel)} for an input of {x}.")
    channels = w[0] if is_transposed else w[1] * group
    if x[1] != channels:
        raise ShapeError(f"weights {w} of {group} groups take {channels} channels, not {x[1]}.")
    return _fold(0, x, node.consts.get(1, 1), w, taps, group, image, is_transposed)


def _fold(
    source: Source,
    x: tuple[int, ...],
    weights: Source,
    w: tuple[int, ...],
    taps: Sequence[Taps],
    group: int,
    image: Callable[[Source, Source], Emit],
    is_transposed: bool,
) -> Emit:
    """Return the convolution of a source of shape x by weights of shape w."""
    if len(x) == IMAGE:
        return image(source, weights)
    tap = taps[0]
    if isinstance(weights, np.ndarray):
        tap, weights = tap.met(x[2], weights)
        w = weights.shape
    source, x = _depths_as_channels(source, x, tap, group)
    weights, w = _taps_as_channels(weights, w, group, is_transposed)
    made = _fold(source, x, weights, w, taps[1:], group, image, is_transposed)
    return Emit(SplitDepth(tap.count), [made])


def _depths_as_channels(
    x: Source, shape: tuple[int, ...], taps: Taps, group: int
) -> tuple[Emit, tuple[int, ...]]:
    """Return a source of images, which have what an output depth reads as channels, and its shape.

    Channels of one tap lie together; those of a group of several, tap by tap for each channel.
    """
    x, shape = _padded(x, shape, taps)
    batch, channels, _, *inner = shape
    read = [_slice(x, shape, start, taps) for start in taps.starts]
    if len(read) > 1:
        x = Emit(Concat(1, mixed=group > 1), read)
    else:
        x = read[0]
    return Emit(JoinDepth(), [x]), (batch * taps.count, channels * len(read), *inner)


def _padded(x: Source, shape: tuple[int, ...], taps: Taps) -> tuple[Source, tuple[int, ...]]:
    """Return a source with zeros between depths and around them, and its shape."""
    after = taps.after
    if taps.apart > 1:
        zeros = Emit(Expand(shape), [np.zeros((1,) * len(shape), np.float32)])
        x = Emit(Concat(2, mixed=True), [x, *[zeros] * (taps.apart - 1)])
        after -= taps.apart - 1
    depth = shape[2] * taps.apart + taps.before + after
    if taps.before or after:
        rest = (0,) * (len(shape) - 3)
        x = Emit(Pad((0, 0, taps.before, *rest), (0, 0, after, *rest)), [x])
    return x, (*shape[:2], depth, *shape[3:])


def _slice(x: Source, shape: tuple[int, ...], start: int, taps: Taps) -> Source:
    """Return the depths that one tap of the window reads."""
    if start == 0 and taps.stride == 1 and taps.count == shape[2]:
        return x
    starts = tuple(start if axis == 2 else 0 for axis in range(len(shape)))
    steps = tuple(taps.stride if axis == 2 else 1 for axis in range(len(shape)))
    return Emit(Slice(starts, (*shape[:2], taps.count, *shape[3:]), steps), [x])


def _taps_as_channels(
    w: Source, shape: tuple[int, ...], group: int, is_transposed: bool
) -> tuple[Source, tuple[int, ...]]:
    """Return weights whose taps along depth are input channels, in the order of `_depths_as_channels`."""
    first, second, taps, *inner = shape
    rest = tuple(range(3, len(shape)))
    if is_transposed:
        joined = (first * taps, second, *inner)
        order = (2, 0, 1, *rest) if group == 1 else (0, 2, 1, *rest)
    else:
        joined = (first, second * taps, *inner)
        order = (0, 2, 1, *rest) if group == 1 else tuple(range(len(shape)))
    if isinstance(w, np.ndarray):  # kernels pack constants
        return w.transpose(order).reshape(joined), joined
    return Emit(Reshape(joined), [Emit(Transpose(order), [w])]), joined
