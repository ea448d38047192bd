"""DeformSample: what the windows of a deformable convolution read, each tap at a place of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import gcd, prod

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Arg, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, F64, Array, TensorType


@dataclass(frozen=True)
class DeformSample(OpSpec):
    """Inputs: x (n, c, d1..dr), offsets (n, offset_groups * taps * r, o1..or), mask (n, offset_groups * taps, o1..or).

    Output (n, taps * c, o1..or): of each group of channels tap by tap, of each tap the group's channels. A tap
    of output o reads x at its place in the window plus its offset, outermost axis first, linearly between
    elements, 0 outside, times the mask where there is one. Groups of offsets divide the channels evenly.
    """

    window: Window
    group: int = 1
    offset_groups: int = 1

    kind = "deform_sample"
    layout_rule = "image"

    @property
    def taps(self) -> int:
        """Places of a window."""
        return prod(self.window.kernel)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, offsets = (required(inputs, k) for k in range(2))
        mask = inputs[2] if len(inputs) > 2 else None
        rank = len(self.window.kernel)
        if x.rank != rank + 2 or not 1 <= rank <= 3:
            raise ShapeError(
                f"windows {self.window.kernel} in {x.shape}: must be (n, c, one to three extents), an extent of"
                " the window for each."
            )
        for groups, what in ((self.group, "group"), (self.offset_groups, "offset_group")):
            if groups < 1 or x.shape[1] % groups:
                raise ShapeError(f"{what} {groups} does not divide {x.shape[1]} channels.")
        outs, places = self.window.output(x.shape[2:]), self.offset_groups * self.taps
        for name, given, channels in (("offsets", offsets, rank), ("mask", mask, 1)):
            wanted = (x.shape[0], places * channels, *outs)
            if given is not None and given.shape != wanted:
                raise ShapeError(f"{name} {given.shape} must be {wanted}.")
            if given is not None and given.dtype != x.dtype:
                raise DTypeError(f"{name} of {given.dtype.name} for an input of {x.dtype.name}.")
        if x.dtype not in (F32, F64):
            raise DTypeError(
                f"a deformable convolution of {x.dtype.name}: must be float32 or float64."
            )
        return (TensorType((x.shape[0], self.taps * x.shape[1], *outs), x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the weighted sums of the elements around each place."""
        x, offsets = (required(inputs, k) for k in range(2))
        mask, win, rank = inputs[2] if len(inputs) > 2 else None, self.window, x.ndim - 2
        n, c, outs, share = len(x), x.shape[1], offsets.shape[2:], x.shape[1] // self.offset_groups
        moves = offsets.reshape(n, self.offset_groups, self.taps, rank, *outs)
        found = np.zeros((n, c, self.taps, *outs), x.dtype)
        for image, part in product(range(n), range(self.offset_groups)):
            channels = slice(part * share, (part + 1) * share)
            for tap, place in enumerate(np.ndindex(*win.kernel)):
                at = [
                    np.arange(outs[a]).reshape(-1, *[1] * (rank - 1 - a)) * win.strides[a]
                    + (place[a] * win.dilations[a] - win.before[a])
                    + moves[image, part, tap, a]
                    for a in range(rank)
                ]
                found[image, channels, tap] = _linear(x[image, channels], at)
        if mask is not None:
            each = mask.reshape(n, self.offset_groups, 1, self.taps, *outs)
            found = (found.reshape(n, self.offset_groups, share, self.taps, *outs) * each).reshape(
                found.shape
            )
        grouped = found.reshape(n, self.group, c // self.group, self.taps, *outs)
        return (np.swapaxes(grouped, 2, 3).reshape(n, self.taps * c, *outs),)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Return two operations for each element that is read."""
        return sum(2 * t.size * 2 ** (t.rank - 2) for t in outputs)

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the image: vectors are of its channels."""
        return (0,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel for vectors of channels where these lie side by side, and one for any."""
        x, out, widest = problem.input(0), problem.outputs[0], 1
        channels = x.type.shape[1]
        if x.layout.pitches[1] == 1:
            lanes = max(1, problem.target.vector * 4 // x.type.dtype.itemsize)
            alike = gcd(channels // self.group, channels // self.offset_groups)
            widest = next(w for w in (16, 8, 4, 2, 1) if w <= lanes and alike % w == 0)
        ctype = out.type.dtype.cl
        require(problem.target, self.kind, ctype)
        return [self._variant(problem, ctype, vw) for vw in sorted({widest, 1}, reverse=True)]

    def _variant(self, problem: Problem, ctype: str, vw: int) -> Variant:
        src, dst, win = problem.input(0).layout, problem.outputs[0].layout, self.window
        mask = problem.inputs[2] if len(problem.inputs) > 2 else None
        count, channels, positions = dst.shape[0], src.shape[1], prod(dst.shape[2:])
        global_size, local = grid(problem.target, channels // vw, positions, count * self.taps)
        sizes = "x".join(map(str, win.kernel))
        masked = "_masked" if mask is not None else ""
        name = f"deform_sample_k{sizes}_g{self.group}_{self.offset_groups}{masked}_{ctype}_v{vw}"
        params = {
            "name": name,
            "ctype": ctype,
            "src": src,
            "offsets": problem.input(1).layout,
            "mask": mask and mask.layout,
            "dst": dst,
            "kernel": win.kernel,
            "strides": win.strides,
            "dilations": win.dilations,
            "before": win.before,
            "group": self.group,
            "offset_groups": self.offset_groups,
            "vw": vw,
            "wg": local,
        }
        read = [In(k) for k, operand in enumerate(problem.inputs) if operand is not None]
        args: tuple[Arg, ...] = (*read, Out(0))
        launch = Launch("resize/deform_sample.cl.mako", params, args, global_size, local)
        return Variant(name, (launch,), cost=1.0 / vw)


def _linear(x: Array, at: Sequence[Array]) -> Array:
    """Return x (c, d1..dr) between its elements at places along each axis, 0 outside."""
    out = np.zeros((len(x), *np.broadcast_shapes(*(a.shape for a in at))), x.dtype)
    base = [np.floor(a) for a in at]
    for corner in product((0, 1), repeat=len(at)):
        weight, inside, index = x.dtype.type(1), np.True_, []
        for a, k in enumerate(corner):
            share, place = at[a] - base[a], base[a] + k
            weight = weight * (share if k else 1 - share)
            inside = inside & (place >= 0) & (place < x.shape[1 + a])
            index.append(np.clip(np.nan_to_num(place), 0, x.shape[1 + a] - 1).astype(np.int64))
        with np.errstate(invalid="ignore"):
            out += weight * np.where(inside, x[(slice(None), *index)], 0)
    return out
