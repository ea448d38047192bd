"""MaxRoiPool: regions of images as outputs of one size, each the largest element of its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.codegen.filters import image
from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, F64, Array, TensorType


@dataclass(frozen=True)
class RoiMax(OpSpec):
    """Inputs: images (n, c, h, w), regions (r, 5) as number of the image, x1, y1, x2, y2, ends included.

    Output (r, c, *size). Corners times `scale` are rounded to pixels, halves away from 0. Parts of a
    region share pixels where it does not divide evenly; what has none inside of the image is 0.
    """

    size: tuple[int, int]
    scale: float = 1.0

    kind = "roi_max"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, regions = (required(inputs, k) for k in range(2))
        if x.rank != 4 or regions.rank != 2 or regions.shape[1:] != (5,):
            raise ShapeError(
                f"regions {regions.shape} of {x.shape}: must be (r, 5) and (n, c, h, w)."
            )
        if min(self.size) < 1:
            raise ShapeError(f"regions of {self.size} elements: must be positive.")
        if x.dtype not in (F32, F64) or regions.dtype != x.dtype:
            raise DTypeError(
                f"regions of {regions.dtype.name} in images of {x.dtype.name}: both must be one "
                "floating-point type."
            )
        return (TensorType((regions.shape[0], x.shape[1], *self.size), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the largest element of each part of each region."""
        x, regions = (required(inputs, k) for k in range(2))
        out = np.zeros((len(regions), x.shape[1], *self.size), x.dtype)
        for number, region in enumerate(regions):
            picture = x[min(max(int(region[0]), 0), len(x) - 1)]
            rows = self._parts(region[2], region[4], x.shape[2], self.size[0])
            columns = self._parts(region[1], region[3], x.shape[3], self.size[1])
            for y, x_ in np.ndindex(*self.size):
                part = picture[:, slice(*rows[y]), slice(*columns[x_])]
                if part.size:
                    out[number, :, y, x_] = part.max((1, 2))
        return (out,)

    def _parts(self, low: Any, high: Any, extent: int, outs: int) -> list[tuple[int, int]]:
        """Return the first pixel of each part, and that behind the last."""
        real = low.dtype.type
        scaled = [at * real(self.scale) for at in (low, high)]
        first, last = (int(np.copysign(np.floor(abs(at) + 0.5), at)) for at in scaled)
        step = real(max(last - first + 1, 1)) / real(outs)
        ends = [
            (int(np.floor(real(k) * step)), int(np.ceil(real(k + 1) * step))) for k in range(outs)
        ]
        inside = [[min(max(end + first, 0), extent) for end in pair] for pair in ends]
        return [(begin, end) for begin, end in inside]

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the image: vectors are of its channels."""
        return (0,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel for vectors of channels where these lie side by side, and one for any."""
        x = problem.input(0)
        widest, channels = 1, x.type.shape[1]
        if x.layout.pitches[1] == 1:
            lanes = max(1, problem.target.vector * 4 // x.type.dtype.itemsize)
            widest = next(w for w in (16, 8, 4, 2, 1) if w <= lanes and channels % w == 0)
        return [self._variant(problem, vw) for vw in sorted({widest, 1}, reverse=True)]

    def _variant(self, problem: Problem, vw: int) -> Variant:
        src, dst = image(problem.input(0).layout), image(problem.outputs[0].layout)
        ctype = problem.outputs[0].type.dtype.cl
        require(problem.target, self.kind, ctype)
        count, channels, rows, columns = dst.shape
        global_size, local = grid(problem.target, channels // vw, rows * columns, count)
        name = f"roi_max_{ctype}_{rows}x{columns}_v{vw}"
        params = {
            "name": name,
            "ctype": ctype,
            "src": src,
            "dst": dst,
            "regions": problem.input(1).layout,
            "scale": self.scale,
            "vw": vw,
            "wg": local,
        }
        launch = Launch("pool/roi_max.cl.mako", params, (In(0), In(1), Out(0)), global_size, local)
        return Variant(name, (launch,), cost=1.0 / vw)


@onnx_op("MaxRoiPool")
def _max_roi_pool(node: OnnxNode) -> Source:
    rows, columns = (int(n) for n in node.attrs["pooled_shape"])
    return Emit(RoiMax((rows, columns), float(node.attr("spatial_scale", 1.0))), [0, 1])
