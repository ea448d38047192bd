"""GridSample: samples of images or volumes at positions that a tensor says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, F64, Array, TensorType

MODES = {"nearest": 1, "linear": 2, "cubic": 4}  # samples along an axis
PADDINGS = ("zeros", "border", "reflection")
CUBIC = -0.75  # the coefficient of ONNX's cubic filter
_NAMES = {"bilinear": "linear", "bicubic": "cubic"}  # of operator set 16


@dataclass(frozen=True)
class GridSample(OpSpec):
    """Inputs: x (n, c, d1, ..., dr), positions (n, o1, ..., or, r) in -1..1, the innermost axis of x first.

    Output (n, c, o1, ..., or). mode: nearest (of two as near the even one), linear or cubic. padding: what
    lies outside of x: zeros, its border, or x reflected. align_corners: -1 and 1 are the centres of the
    outermost elements, else their outer edges.
    """

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    kind = "grid_sample"
    layout_rule = "image"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, at = (required(inputs, k) for k in range(2))
        spatial = x.rank - 2
        fits = x.rank == at.rank and at.shape[-1:] == (spatial,) and x.shape[:1] == at.shape[:1]
        if not 1 <= spatial <= 3 or not fits:
            raise ShapeError(
                f"samples of {x.shape} at positions {at.shape}: must be (n, c, one to three extents) and "
                "(n, as many extents, their number)."
            )
        if not all(x.shape[2:]) and all(at.shape):
            raise ShapeError(f"samples of {x.shape}: an axis without elements has none.")
        if x.dtype not in (F32, F64) or at.dtype != x.dtype:
            raise DTypeError(
                f"samples of {x.dtype.name} at positions of {at.dtype.name}: both must be one floating-point"
                " type."
            )
        return (TensorType((*x.shape[:2], *at.shape[1:-1]), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the weighted sums of the elements around each position."""
        x, at = (required(inputs, k) for k in range(2))
        extents, rank = x.shape[2:], x.ndim - 2
        where = [self._denormalised(at[..., rank - 1 - a], extents[a]) for a in range(rank)]
        along = [self._taps(w, extent) for w, extent in zip(where, extents, strict=True)]
        image = np.arange(len(x)).reshape(-1, *[1] * rank)
        out = np.zeros((len(x), *at.shape[1:-1], x.shape[1]), x.dtype)
        with np.errstate(invalid="ignore"):
            for taps in product(*along):
                weight, known = np.ones(at.shape[:-1]), np.ones(at.shape[:-1], bool)
                for _, w, inside in taps:
                    weight, known = weight * w, known & inside
                values = np.moveaxis(x, 1, -1)[(image, *(index for index, _, _ in taps))]
                out += weight[..., None] * np.where(known[..., None], values, 0)
        return (np.moveaxis(out, -1, 1),)

    def _denormalised(self, at: Array, extent: int) -> Array:
        one, two = at.dtype.type(1), at.dtype.type(2)
        if self.align_corners:
            found = (at + one) / two * at.dtype.type(extent - 1)
        else:
            found = ((at + one) * at.dtype.type(extent) - one) / two
        return np.asarray(np.rint(found) if self.mode == "nearest" else found)

    def _ends(self, extent: int) -> tuple[float, float]:
        return (0.0, extent - 1.0) if self.align_corners else (-0.5, extent - 0.5)

    def _moved(self, at: Array, extent: int) -> Array:
        if self.padding == "border":
            return np.clip(at, 0, extent - 1)
        low, high = self._ends(extent)
        if low == high:
            return np.full_like(at, low)
        span = high - low
        beyond = np.where(at < low, low - at, at - high)
        turns = np.floor(beyond / span)
        rest, odd = beyond - turns * span, np.mod(turns, 2) != 0
        from_low = np.where(at < low, ~odd, odd)
        mirrored = np.where(from_low, low + rest, high - rest)
        return np.where((at < low) | (at > high), mirrored, at)

    def _taps(self, at: Array, extent: int) -> list[tuple[Array, Array, Array]]:
        """Return for each sample along an axis its index, its weight, and whether it lies in x."""
        base = np.floor(at)
        share = at - base
        weights = {
            "nearest": lambda: [np.ones_like(at)],
            "linear": lambda: [1 - share, share],
            "cubic": lambda: [_cubic(abs(share - k)) for k in range(-1, 3)],
        }[self.mode]()
        found = []
        for k, weight in enumerate(weights, -1 if self.mode == "cubic" else 0):
            place = base + k
            inside = (place >= 0) & (place < extent)
            if self.padding != "zeros":
                place, inside = self._moved(place, extent), np.ones_like(inside)
            index = np.clip(np.nan_to_num(np.rint(place)), 0, extent - 1).astype(np.int64)
            found.append((index, weight, inside))
        return found

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the image: vectors are of its channels."""
        return (0,)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op for `count` images, and both inputs."""
        return self, (0, 1)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Return two operations for each sample."""
        return sum(2 * t.size * MODES[self.mode] ** (t.rank - 2) for t in outputs)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel for vectors of channels where these lie side by side, and one for any."""
        x, out, widest = problem.input(0), problem.outputs[0], 1
        channels = x.type.shape[1]
        if x.layout.pitches[1] == 1:
            lanes = max(1, problem.target.vector * 4 // x.type.dtype.itemsize)
            widest = next(w for w in (16, 8, 4, 2, 1) if w <= lanes and channels % w == 0)
        ctype = out.type.dtype.cl
        require(problem.target, self.kind, ctype)
        return [self._variant(problem, ctype, vw) for vw in sorted({widest, 1}, reverse=True)]

    def _variant(self, problem: Problem, ctype: str, vw: int) -> Variant:
        src, at, dst = problem.input(0).layout, problem.input(1).layout, problem.outputs[0].layout
        count, channels, *extents = dst.shape
        positions = 1
        for extent in extents:
            positions = positions * extent
        global_size, local = grid(problem.target, channels // vw, positions, count)
        corners = "_corners" if self.align_corners else ""
        name = f"grid_sample_{len(extents)}d_{self.mode}_{self.padding}{corners}_{ctype}_v{vw}"
        params = {
            "name": name,
            "ctype": ctype,
            "src": src,
            "grid": at,
            "dst": dst,
            "mode": self.mode,
            "padding": self.padding,
            "align_corners": self.align_corners,
            "vw": vw,
            "wg": local,
        }
        args = (In(0), In(1), Out(0))
        launch = Launch("resize/grid_sample.cl.mako", params, args, global_size, local)
        return Variant(name, (launch,), cost=1.0 / vw)


def _cubic(distance: Array) -> Array:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * CUBIC - 4 * CUBIC
    return np.where(distance <= 1, near, far)


@onnx_op("GridSample")
def _grid_sample(node: OnnxNode) -> Source:
    mode, padding = str(node.attr("mode", "linear")), str(node.attr("padding_mode", "zeros"))
    mode = _NAMES.get(mode, mode)
    if mode not in MODES or padding not in PADDINGS:
        raise Unsupported(f"mode {mode} with padding {padding}")
    return Emit(GridSample(mode, padding, bool(node.attr("align_corners", 0))), [0, 1])
