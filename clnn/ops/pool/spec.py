"""Pooling: maximum, average or p-norm over a sliding window, with fused post-ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from clnn.arith._base import Averaging
from clnn.codegen.filters import image
from clnn.errors import DTypeError, ShapeError
from clnn.layout import row_major
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, by_cost, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.reduce import over_image
from clnn.ops.shared.epilogue import operand_args, operand_images, operand_layouts
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.window import Window, window_of
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.traced import is_open
from clnn.types import F16, F32, F64, I64, Array, DType, TensorType

COLUMNS = 20  # vectors of columns that fit the registers of a CPU
QUAD = 4  # sums of order "quads"
EDGES = 16  # output columns that the row kernel writes out one by one
WORK = 16384  # elements that one CPU work-item should read


@dataclass(frozen=True)
class Pool(OpSpec):
    """Input (n, c, spatial...), output (n, c, spatial...), for maxima perhaps their indices.

    mode: max, average or lp. count_pad: an average counts padding. power: the p of lp. indices:
    "" (none), "row" or "column": the second output, in row- or column-major order. rule: how
    averages of integers are computed. order: how a sum takes in a window's elements, where its rounding
    matters: "rows" (one by one), "columns" (each column's sum, then those), "quads" (of a whole image:
    four sums of every fourth element, the first and third, second and fourth, both, then what is left).
    """

    window: Window
    mode: str
    count_pad: bool = False
    power: float = 2.0
    indices: str = ""
    post_ops: tuple[PostOp, ...] = ()
    rule: Averaging | None = None
    order: str = ""

    kind = "pool"
    layout_rule = "image"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output types. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if x.rank != len(self.window.kernel) + 2:
            raise ShapeError(
                f"pooling of {x.shape} by a window {self.window.kernel}: ranks must match."
            )
        if not self._fits(x.dtype):
            raise DTypeError(f"{self.mode} pooling of {x.dtype.name}: not a type for it.")
        shape = (*x.shape[:2], *self.window.output(x.shape[2:]))
        pooled = TensorType(shape, x.dtype)
        return (pooled, TensorType(shape, I64)) if self.indices else (pooled,)

    def _fits(self, dtype: DType) -> bool:
        if self.rule is not None:
            return self.mode == "average" and self.rule.accepts(dtype)
        if dtype == F16 or dtype.numpy.kind == "b":
            return False
        return self.mode == "max" or dtype in (F32, F64)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the pooling tap by tap with numpy."""
        x = required(inputs)
        kind = x.dtype
        if self.mode == "max":
            best, places = self._largest(x)
            outs = (apply_post_ops(best, self.post_ops, inputs), places)
            return outs if self.indices else outs[:1]
        x = x if self.rule is None else self.rule.element(x)
        wide, outs = x.dtype, (*x.shape[:2], *self.window.output(x.shape[2:]))
        counted_in = wide if self.rule is None else np.dtype(np.int64)
        sums, count = dict[int, Array](), np.zeros(outs[2:], counted_in)
        for k, (inside, part, counted) in enumerate(self._taps(x)):
            part = np.where(inside, part, 0)
            total = sums.setdefault(self._sum_of(k), np.zeros(outs, wide))
            total += part if self.mode == "average" else np.abs(part) ** self.power
            count += counted if self.count_pad else inside
        total = self._joined(list(sums.values()), np.zeros(outs, wide))
        if self.rule is not None:
            y = self.rule.finish(total, np.broadcast_to(count, total.shape)).astype(kind)
            return (apply_post_ops(y, self.post_ops, inputs),)
        with np.errstate(all="ignore"):
            y = total / count if self.mode == "average" else total ** (1 / self.power)
        return (apply_post_ops(np.asarray(y), self.post_ops, inputs),)

    def _sum_of(self, tap: int) -> int:
        """Return which sum takes in a tap of the window, by their numbers."""
        if self.order == "columns":
            return tap % self.window.kernel[-1]
        in_fours = prod(self.window.kernel) // QUAD * QUAD
        return 0 if self.order != "quads" else tap % QUAD if tap < in_fours else tap

    def _joined(self, sums: list[Array], none: Array) -> Array:
        if self.order == "quads" and prod(self.window.kernel) >= QUAD:
            a, b, c, d, *sums = sums
            none = (a + c) + (b + d)
        for part in sums:
            none = none + part
        return none

    def _largest(self, x: Array) -> tuple[Array, Array]:
        """Return maxima and their flat indices."""
        shape = (*x.shape[:2], *self.window.output(x.shape[2:]))
        low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        best, places = np.full(shape, low, x.dtype), np.full(shape, -1, np.int64)
        spatial = x.shape[2:] if self.indices != "column" else x.shape[:1:-1]
        pitches = row_major(spatial)
        grid_ = np.indices(x.shape[2:])
        order = pitches if self.indices != "column" else pitches[::-1]
        flat = sum(
            (g * p for g, p in zip(grid_, order, strict=True)), np.zeros(x.shape[2:], np.int64)
        )
        planes = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * flat.ndim)
        where = np.broadcast_to(flat + planes * flat.size, x.shape)
        for (inside, part, _), (_, place, _) in zip(self._taps(x), self._taps(where), strict=True):
            better = (part > best) | ((part != part) & (best == best)) | (places < 0)
            best, places = (
                np.where(inside & better, part, best),
                np.where(inside & better, place, places),
            )
        return best, places

    def _taps(self, x: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield for each tap: whether it lies inside x, its elements, whether padding holds it."""
        win = self.window
        outs, after = win.output(x.shape[2:]), win.counted_after(x.shape[2:])
        for tap in np.ndindex(*win.kernel):
            inside, counted, cut = np.ones(outs, bool), np.ones(outs, bool), x
            for a, t in enumerate(tap):
                at = np.arange(outs[a]) * win.strides[a] - win.before[a] + t * win.dilations[a]
                line = tuple(-1 if b == a else 1 for b in range(len(tap)))
                inside = inside & ((at >= 0) & (at < x.shape[2 + a])).reshape(line)
                counted = counted & (at < x.shape[2 + a] + after[a]).reshape(line)
                cut = np.take(cut, np.clip(at, 0, x.shape[2 + a] - 1), axis=2 + a)
            yield inside, cut, counted

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input, unless strides leave elements out or indices are wanted, which have no fast kernel."""
        sparse = prod(self.window.kernel) < prod(self.window.strides)
        return () if self.indices or sparse else (0,)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many.

        Indices of maxima count through the batch, so that with them there is none.
        """
        if self.indices:
            return None
        return self, (0, *batched(inputs, len(self.window.kernel) + 2, 1))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per tap."""
        return outputs[0].size * prod(self.window.kernel)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel along rows of channel vectors, one per vector, and one for any layout."""
        by_rows = [_rows(self, problem)] if _fits_rows(self, problem) else []
        widest = 1 if self.indices or by_rows else _vector(problem)
        return by_rows + [_any(self, problem, vw) for vw in sorted({widest, 1}, reverse=True)]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return row kernels of several columns and bands, and the others."""
        usual = self.variants(problem)
        if not _fits_rows(self, problem):
            return usual
        high, columns = problem.outputs[0].type.shape[-2], problem.outputs[0].type.shape[-1]
        bands = [b for b in (1, 2, 4, 8, 16) if b <= high]
        tiles = [t for t in (2, 3, 4, 6, 8) if t <= columns]
        others = [_rows(self, problem, t, b) for b in bands for t in tiles]
        return by_cost([usual[0], *(replace(v, cost=1.0) for v in others)])

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the kernel of the same tile, with this window and these post-ops."""
        own = PoolProblem(problem.inputs, problem.outputs, problem.target, self)
        return super().repeat(own, variant)


@dataclass(frozen=True)
class PoolProblem(Problem):
    """A pooling with its node, which may have other pads and post-ops at other extents."""

    spec: Pool


def _vector(problem: Problem) -> int:
    """Return the widest vector of channels that input 0 can be read by."""
    x = problem.input(0)
    if x.layout.pitches[1] != 1:
        return 1
    widest = min(16, max(1, problem.target.vector * 4 // x.type.dtype.itemsize), x.type.shape[1])
    return max(w for w in (16, 8, 4, 2, 1) if w <= widest)


def _inner_columns(spec: Pool, width: int, outs: int) -> tuple[int, int]:
    """Return (first, stop) of the output columns whose windows lie inside a row of `width`."""
    win = spec.window
    first = -(-win.before[-1] // win.strides[-1])
    stop = (width + win.before[-1] - win.reach(len(win.kernel) - 1)) // win.strides[-1] + 1
    first = min(first, outs)
    return first, max(first, min(stop, outs))


def _fits_rows(spec: Pool, problem: Problem) -> bool:
    """Whether the row kernel serves: CPU, images, channels innermost, few columns at the edges."""
    x, out = problem.input(0), problem.outputs[0]
    apart = spec.indices or spec.order in ("rows", "quads")
    if not problem.target.is_cpu or apart or x.type.rank not in (3, 4):
        return False
    if x.layout.pitches[1] != 1 and x.type.shape[1] != 1:
        return False
    width, outs = x.type.shape[-1], out.type.shape[-1]
    first, stop = _inner_columns(spec, width, outs)
    return spec.window.kernel[-1] <= COLUMNS and outs - (stop - first) <= EDGES


def _tile(spec: Pool, outs: int) -> int:
    """Return how many output columns at a time keep their columns of input in registers.

    outs: columns whose windows lie inside. Of the numbers from 4 on, the one that takes the least
    code for whole tiles and the rest.
    """
    win = spec.window
    kernel, stride, dilation = win.kernel[-1], win.strides[-1], win.dilations[-1]

    def columns(tx: int) -> int:
        return len({t * stride + k * dilation for t in range(tx) for k in range(kernel)})

    fitting = [t for t in range(1, 9) if t == 1 or (columns(t) <= COLUMNS and t <= outs)]
    wide = [t for t in fitting if t >= 4] or fitting[-1:]
    return min(wide, key=lambda t: columns(t) + (columns(outs % t) if outs % t else 0))


def _common(spec: Pool, problem: Problem) -> dict[str, Any]:
    x = problem.input(0)
    return {
        "ctype": x.ctype,
        "mode": spec.mode,
        "power": spec.power,
        "count_pad": spec.count_pad,
        "post_ops": spec.post_ops,
        "rule": spec.rule,
    }


def _table(spec: Pool) -> list[Arg]:
    """Return the argument that holds the constants of a rule for integers."""
    rule = spec.rule
    return [] if rule is None else [Const(lambda: rule.table(prod(spec.window.kernel)))]


def _label(spec: Pool, problem: Problem, extra: str) -> str:
    k, s = ("x".join(map(str, v)) for v in (spec.window.kernel, spec.window.strides))
    mode = spec.mode if spec.rule is None else spec.rule.name
    return f"pool_{mode}_{problem.input(0).label}_k{k}_s{s}_{extra}"


def _rows(spec: Pool, problem: Problem, tile: int = 0, rows: int = 0) -> Variant:
    src, dst = image(problem.input(0).layout), image(problem.outputs[0].layout)
    n, channels, oh, ow = dst.shape
    vw = _vector(problem)
    first, stop = _inner_columns(spec, src.shape[3], ow)
    tx = tile or _tile(spec, stop - first)
    vectors = -(-channels // vw)
    most = -(-oh * vectors * n // (8 * problem.target.compute_units))
    least = -(-WORK // (ow * prod(spec.window.kernel) * vw))
    band = rows or max(1, min(oh, max(most, least)))
    global_size, local = grid(problem.target, vectors, -(-oh // band), n)
    name = _label(spec, problem, f"nhwc_v{vw}x{tx}_b{band}")
    after = spec.window.counted_after(problem.input(0).layout.shape[2:])
    after = (0,) * (2 - len(after)) + after
    params = (
        _common(spec, problem)
        | spec.window.pairs()
        | {
            "name": name,
            "src": src,
            "dst": dst,
            "after": after,
            "vw": vw,
            "tx": tx,
            "band": band,
            "first": first,
            "stop": stop,
            "operands": operand_images(problem, spec.post_ops),
            "wg": local,
        }
    )
    args: tuple[Arg, ...] = (In(0), *operand_args(problem, spec.post_ops), *_table(spec), Out(0))

    def again(other: PoolProblem) -> Variant | None:
        fits = _fits_rows(other.spec, other) and _vector(other) == vw
        return _rows(other.spec, other, tx, band) if fits else None

    launch = Launch("pool/pool_rows.cl.mako", params, args, global_size, local)
    return Variant(name, (launch,), again=again)


def _any(spec: Pool, problem: Problem, vw: int) -> Variant:
    src, out, win = problem.input(0).layout, problem.outputs[0], spec.window
    count = out.type.size // src.shape[1] * -(-src.shape[1] // vw)
    band = 1
    if problem.target.is_cpu:
        band = max(
            1, min(WORK // (prod(win.kernel) * vw), count // (8 * problem.target.compute_units))
        )
    global_size, local = grid(problem.target, -(-count // band))
    name = _label(spec, problem, f"v{vw}" if vw > 1 else "any")
    args: list[Arg] = [In(0), *operand_args(problem, spec.post_ops), *_table(spec), Out(0)]
    if spec.indices:
        args.append(Out(1))
    params = _common(spec, problem) | {
        "name": name,
        "src": src,
        "dst": out.layout,
        "kernel": win.kernel,
        "strides": win.strides,
        "dilations": win.dilations,
        "before": win.before,
        "after": win.counted_after(src.shape[2:]),
        "order": spec.order,
        "vw": vw,
        "band": band,
        "operands": operand_layouts(problem, spec.post_ops),
        "wg": local,
        "indices": problem.outputs[1].layout if spec.indices else None,
        "column_major": spec.indices == "column",
    }
    return Variant(name, (Launch("pool/pool.cl.mako", params, tuple(args), global_size, local),))


# ONNX Runtime has channels of images in blocks where there are whole ones (of 8 without AVX-512), and adds rows there;
# else columns first, up to this stride.
PLANE, BLOCK, FAST_STRIDE = 2, 16, 2
DILATED = 19  # the first operator set whose averages have dilations
_MODES = {"MaxPool": ("max", "max"), "AveragePool": ("average", "mean"), "LpPool": ("lp", "lp")}


@onnx_op(*_MODES)
def _pool(node: OnnxNode) -> Source | list[Source]:
    x = node.type(0)
    if x.rank < 3:
        raise Unsupported(f"pooling of {x.rank} axes; it needs batch, channels and an image")
    kernel, ceil = [int(k) for k in node.attrs["kernel_shape"]], bool(node.attr("ceil_mode", 0))
    # ONNX Runtime divides by all of the window before dilations came in.
    partial = "whole" if node.opset < DILATED and not ceil else "cut"
    window = window_of(node, kernel, x.shape[2:], ceil, partial)
    mode, fn = _MODES[node.op_type]
    power = float(node.attr("p", 2))
    if node.n_outputs > 1:
        order = "column" if node.attr("storage_order", 0) else "row"
        pool = Emit(Pool(window, mode, indices=order), [0])
        return [pool, pool.out(1)]
    # Where other extents follow, it may not be all of these.
    whole = takes_all(window, x.shape[2:]) and not node.open_images
    order = _order(node, window, whole) if mode == "average" and node.is_dequantised(0) else ""
    if whole and not order:
        return over_image(fn, x.rank, power)
    counts = bool(node.attr("count_include_pad", 0))
    return Emit(Pool(window, mode, counts, power, order=order), [0])


def _order(node: OnnxNode, window: Window, whole: bool) -> str:
    """Return how ONNX Runtime 1.32 adds, which decides what averages of bytes are rounded to at ties."""
    channels, axes = node.type(0).shape[1], len(window.kernel)
    in_blocks = axes == PLANE and not is_open(channels) and channels % BLOCK == 0
    if node.opset >= DILATED or in_blocks:
        return "rows"
    if whole:
        return "quads"
    return "columns" if axes > 1 and window.strides[-1] <= FAST_STRIDE else "rows"


def takes_all(window: Window, spatial: Sequence[int]) -> bool:
    """Whether there is one window and it is the whole image."""
    alone = window.kernel == tuple(spatial) and not any((*window.before, *window.after))
    return alone and all(
        d == 1 or k == 1 for d, k in zip(window.dilations, window.kernel, strict=True)
    )
