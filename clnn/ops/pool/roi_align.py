"""RoiAlign: regions of images as outputs of one size, each the mean or maximum of bilinear samples."""

from __future__ import annotations

from collections.abc import Sequence

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

_FIRST_HALF_PIXEL = 16  # the operator set that says where samples begin


@dataclass(frozen=True)
class RoiAlign(OpSpec):
    """Inputs: images (n, c, h, w), regions (r, 4) as x1, y1, x2, y2, the image of each region.

    size: (height, width) of each region's output. samples: per output and axis, 0 for as many as
    the region has pixels there. half_pixel: samples are shifted by half a pixel, and regions may be
    smaller than one.
    """

    size: tuple[int, int]
    mode: str = "avg"
    samples: int = 0
    scale: float = 1.0
    half_pixel: bool = True

    kind = "roi_align"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, regions, images = (required(inputs, k) for k in range(3))
        count = regions.shape[0] if regions.rank else -1
        if x.rank != 4 or regions.shape != (count, 4) or images.shape != (count,):
            raise ShapeError(
                f"regions {regions.shape} of images {x.shape} by {images.shape}: must be (r, 4), "
                "(n, c, h, w) and (r)."
            )
        if x.dtype not in (F32, F64) or regions.dtype != x.dtype:
            raise DTypeError(
                f"regions of {regions.dtype.name} in images of {x.dtype.name}: both must be one "
                "floating-point type."
            )
        if images.dtype.numpy.kind not in "iu":
            raise DTypeError(f"numbers of images are {images.dtype.name}: must be integers.")
        return (TensorType((count, x.shape[1], *self.size), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the samples of each region, folded."""
        x, regions, images = (required(inputs, k) for k in range(3))
        out = np.zeros((len(regions), x.shape[1], *self.size), x.dtype)
        for number, (region, which) in enumerate(zip(regions, images, strict=True)):
            picture = x[min(max(int(which), 0), len(x) - 1)]
            rows = self._axis(region[1], region[3], x.shape[2], self.size[0])
            columns = self._axis(region[0], region[2], x.shape[3], self.size[1])
            for cell in np.ndindex(*self.size):
                out[number][:, cell[0], cell[1]] = self._cell(
                    picture, rows[cell[0]], columns[cell[1]]
                )
        return (out,)

    def _axis(
        self, low: float, high: float, extent: int, outs: int
    ) -> list[list[tuple[int, int, float, bool]]]:
        """Return for each output the samples: lower and upper pixel, weight of the upper, inside."""
        offset = 0.5 if self.half_pixel else 0.0
        begin, length = low * self.scale - offset, (high - low) * self.scale
        length = length if self.half_pixel else max(length, 1.0)
        count = self.samples or int(np.ceil(length / outs))
        found = []
        for out in range(outs):
            line = []
            for k in range(count):
                at = begin + (out + (k + 0.5) / count) * length / outs
                inside = -1 <= at <= extent
                at = min(max(at, 0), extent - 1)
                first = int(at)
                line.append((first, min(first + 1, extent - 1), at - first, inside))
            found.append(line)
        return found

    def _cell(
        self,
        picture: Array,
        rows: Sequence[tuple[int, int, float, bool]],
        columns: Sequence[tuple[int, int, float, bool]],
    ) -> Array:
        values: list[Array] = []
        for y0, y1, v, y_inside in rows:
            for x0, x1, u, x_inside in columns:
                weight = float(y_inside and x_inside)
                four = (
                    weight * (1 - v) * (1 - u) * picture[:, y0, x0],
                    weight * (1 - v) * u * picture[:, y0, x1],
                    weight * v * (1 - u) * picture[:, y1, x0],
                    weight * v * u * picture[:, y1, x1],
                )
                values.append(np.sum(four, 0) if self.mode == "avg" else np.max(four, 0))
        if not values:
            return np.zeros(len(picture), picture.dtype)
        fold = np.mean if self.mode == "avg" else np.max
        return np.asarray(fold(values, axis=0))

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the image: vectors are of its channels."""
        return (0,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel for vectors of channels where these lie side by side, and one for any."""
        x = problem.input(0)
        widest = 1
        if x.layout.pitches[1] == 1:
            lanes = max(1, problem.target.vector * 4 // x.type.dtype.itemsize)
            widest = max(w for w in (16, 8, 4, 2, 1) if w <= min(lanes, max(x.type.shape[1], 1)))
            widest = widest if x.type.shape[1] % widest == 0 else 1
        return [self._variant(problem, vw) for vw in sorted({widest, 1}, reverse=True)]

    def _variant(self, problem: Problem, vw: int) -> Variant:
        src, dst = image(problem.input(0).layout), image(problem.outputs[0].layout)
        ctype = problem.outputs[0].type.dtype.cl
        require(problem.target, "roi_align", ctype)
        count, channels, rows, columns = dst.shape
        global_size, local = grid(problem.target, channels // vw, rows * columns, count)
        name = f"roi_align_{self.mode}_{ctype}_{rows}x{columns}_v{vw}"
        params = {
            "name": name,
            "ctype": ctype,
            "index_type": problem.input(2).type.dtype.cl,
            "src": src,
            "dst": dst,
            "regions": problem.input(1).layout,
            "images": problem.input(2).layout,
            "mode": self.mode,
            "samples": self.samples,
            "scale": self.scale,
            "half_pixel": self.half_pixel,
            "vw": vw,
            "wg": local,
        }
        args = (In(0), In(1), In(2), Out(0))
        launch = Launch("pool/roi_align.cl.mako", params, args, global_size, local)
        return Variant(name, (launch,), cost=1.0 / vw)


@onnx_op("RoiAlign")
def _roi_align(node: OnnxNode) -> Source:
    usual = "half_pixel" if node.opset >= _FIRST_HALF_PIXEL else "output_half_pixel"
    where = node.attr("coordinate_transformation_mode", usual)
    spec = RoiAlign(
        (int(node.attr("output_height", 1)), int(node.attr("output_width", 1))),
        str(node.attr("mode", "avg")),
        int(node.attr("sampling_ratio", 0)),
        float(node.attr("spatial_scale", 1.0)),
        where == "half_pixel",
    )
    return Emit(spec, [0, 1, 2])
