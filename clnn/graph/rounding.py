"""Steps of values, weights and biases of a network that becomes quantised: one rule for graphs and ONNX models.

A value's bytes are uint8 with a zero point, so that its range, which holds 0, is divided into 255 steps. Weights
are int8 of -127 to 127 with a scale for each output channel, or one; biases int32 in steps of the sums.
"""

from __future__ import annotations

import numpy as np

from clnn.records import dataclass
from clnn.types import Array

BIAS_STEPS = 2.0**30  # that a bias takes at most
LARGEST = 127
Range = tuple[float, float]
Step = tuple[np.float32, int]  # scale, zero point


@dataclass(frozen=True)
class Rounded:
    """A product's weights in int8 and bias in int32: (integers, scale) of each; bias None: it has none.

    axis: of the weights, along which scale lies where it is more than one.
    """

    integers: Array
    scale: Array
    axis: int
    bias: Array | None
    bias_scale: Array

    @property
    def weights(self) -> Array:
        """The weights as they are multiplied."""
        return self.integers.astype(np.float32) * along(self.scale, self.axis, self.integers.ndim)

    @property
    def bias_values(self) -> Array | None:
        """The bias as it is added."""
        return None if self.bias is None else self.bias.astype(np.float32) * self.bias_scale


def step_of(given: Range) -> Step:
    """Return the scale and zero point of a value's bytes."""
    low, high = min(given[0], 0.0), max(given[1], 0.0)
    step = np.float32((high - low) / 255) if high > low else np.float32(1)
    step = max(step, np.finfo(np.float32).tiny)
    return step, int(np.clip(np.rint(-low / step), 0, 255))


def rounded(
    weights: Array,
    bias: Array | None,
    step: float,
    axis: int,
    groups: int = 1,
    per_channel: bool = True,
) -> Rounded:
    """Return a product's weights and bias in integers.

    step: of its input. axis: of output channels, in `groups`. Weights that have several have one scale.
    """
    scale = _scales(weights, axis, bias, np.float64(step), per_channel and groups == 1)
    wide = along(scale, axis, weights.ndim)
    integers = np.clip(np.rint(weights / wide), -LARGEST, LARGEST).astype(np.int8)
    steps = (np.float32(step) * scale).astype(np.float32)
    if bias is None:
        return Rounded(integers, scale, axis, None, steps)
    whole = np.rint(bias.astype(np.float64) / steps).astype(np.int32)
    channels = weights.shape[axis] * groups
    whole = np.ascontiguousarray(np.broadcast_to(whole, (channels,)))
    return Rounded(integers, scale, axis, whole, steps)


def bytes_of(array: Array) -> tuple[Array, np.float32, int]:
    """Return (integers, scale, zero point) of a constant operand in uint8 over its own range."""
    low, high = float(array.min(initial=0.0)), float(array.max(initial=0.0))
    step = np.float32((high - low) / 255) if high > low else np.float32(1)
    zero = int(np.clip(np.rint(-low / step), 0, 255))
    return np.clip(np.rint(array / step) + zero, 0, 255).astype(np.uint8), step, zero


def along(scale: Array, axis: int, rank: int) -> Array:
    """Return scales as they multiply weights."""
    return scale.reshape([-1 if a == axis and scale.size > 1 else 1 for a in range(rank)])


def _scales(
    weights: Array, axis: int, bias: Array | None, step: np.float64, per_channel: bool
) -> Array:
    """Return the scale of each output channel, or one; large enough that the bias fits 32 bits."""
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.float64)
    most = np.abs(rows).max(axis=1)
    least = np.zeros(1) if bias is None else np.abs(bias.astype(np.float64)) / (BIAS_STEPS * step)
    least = least if per_channel else least.max(keepdims=True)
    scale = np.maximum(np.maximum(most / LARGEST, least), float(np.finfo(np.float32).tiny))
    scale = np.where(most > 0, scale, np.maximum(scale, 1 / LARGEST))
    return np.asarray(scale if per_channel else scale.max(keepdims=True), np.float32)
