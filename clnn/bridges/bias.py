"""Bias correction: what rounding of weights adds to a sum on the average is taken from its bias.

The average input over the calibration, times the error of the weights, is the average error of each
output channel. Source: Nagel and others, Data-Free Quantization Through Weight Equalization and Bias
Correction, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clnn.graph.ir import Graph
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared.window import Window
from clnn.types import Array


class Averages:
    """Average images of what products read: (c, spatial...) by value, in float64."""

    def __init__(self, graph: Graph) -> None:
        wanted = [n.inputs[0] for n in graph.nodes if isinstance(n.spec, (Conv2d, Gemm))]
        self._totals = dict.fromkeys(filter(None, wanted), np.zeros(()))
        self._seen = 0

    def see(self, values: Mapping[str, Array]) -> None:
        """Count the values of a feed."""
        self._seen += 1
        for name, total in self._totals.items():
            if name in values and values[name].ndim > 1:
                self._totals[name] = total + values[name].mean(0, dtype=np.float64)

    def images(self) -> dict[str, Array]:
        """Return the averages."""
        return {name: t / max(self._seen, 1) for name, t in self._totals.items() if t.ndim}


def window_means(image: Array, window: Window) -> Array:
    """Return averages (c, kh, kw) of what each weight of a window meets in an image (c, h, w)."""
    pads = zip(window.before, window.after, strict=True)
    padded = np.pad(image, ((0, 0), *pads))
    sizes = window.output(image.shape[1:])
    means = np.empty((len(image), *window.kernel))
    for place in np.ndindex(*window.kernel):
        parts = tuple(
            slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
            for at, dilation, size, stride in zip(
                place, window.dilations, sizes, window.strides, strict=True
            )
        )
        means[(slice(None), *place)] = padded[(slice(None), *parts)].mean((1, 2))
    return means


def average_error(error: Array, group: int, means: Array) -> Array:
    """Return what an error of the weights (oc, c / group, kh, kw) adds to each channel's sums.

    means: (c, kh, kw), of window_means.
    """
    parts = error.reshape(group, len(error) // group, -1)
    return np.asarray((parts @ means.reshape(group, -1, 1)).reshape(-1))
