"""Depthwise separable convolution: one filter per channel, then a 1 x 1 convolution, as one node.

F. Chollet, Xception: Deep Learning with Depthwise Separable Convolutions, 2017 (arXiv:1610.02357).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from clnn.arith._base import FLOAT
from clnn.codegen.filters import image
from clnn.errors import ShapeError
from clnn.layout import TensorLayout, channels_last
from clnn.ops.conv.direct import NEAR_WEIGHTS, has_border, innermost
from clnn.ops.conv.packing import pack_table, pack_weights
from clnn.ops.conv.separable_workgroup import (
    BIAS,
    SHIFT,
    TAPS,
    WEIGHTS,
    constants,
    separable_groups,
)
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.tiles import Extents, Tile, conv_tiles
from clnn.ops.conv.winograd import EXPOSED
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant, by_cost, grid
from clnn.ops.problem import Border, Operand, Problem
from clnn.ops.shared.byte_scales import last_args, stored_types
from clnn.ops.shared.epilogue import heavy, operand_layouts, post_op_operands
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import LAUNCH
from clnn.ops.spec import OpSpec, batched
from clnn.types import Array, TensorType

T = TypeVar("T")
OPERANDS = 5  # where operands of steps begin
MOVED = 7  # bytes per cycle and core, of what one launch leaves to the next
NEAR_BYTES = 400 * 1024  # of a band, so that it stays in a core's second cache
LINE = 16  # elements that pixels are kept apart by where they would share few sets of a cache
CROWDED = 512  # elements after which they would
PAIRS, TILES, BANDS = 3, 4, 5  # that are worth a measurement


def per_channel(shape: Sequence[int], of: Sequence[int]) -> bool:
    """Whether an operand of a tensor (n, c, spatial...) has one element per channel."""
    full = (1,) * (len(of) - len(shape)) + tuple(shape)
    return (
        len(full) == len(of) and full[0] in (1, of[0]) and full[1:] == (of[1], *(1,) * len(of[2:]))
    )


@dataclass(frozen=True)
class Separable(OpSpec):
    """Inputs: x (n, c, spatial...), taps (c, 1, kernel...), shift (c) or None, weights (oc, c, 1...),
    bias (oc) or None, operands. Output (n, oc, spatial...).

    Each channel is filtered with its taps, plus its shift, and first_post_ops applied; a 1 x 1
    convolution with weights and bias follows, and `post_ops` of each result. Operands of first_post_ops,
    gates, have one element per channel, of each image or of all.
    """

    window: Window
    first_post_ops: tuple[PostOp, ...] = ()
    post_ops: tuple[PostOp, ...] = ()

    kind = "separable"
    layout_rule = "image"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = OPERANDS

    @property
    def gates(self) -> list[int]:
        """Inputs that first_post_ops read."""
        return post_op_operands(self.first_post_ops)

    def filters(self, channels: int) -> Conv2d:
        """Return the first convolution: inputs x, taps, shift, gates."""
        place = {k: Conv2d.first_operand + at for at, k in enumerate(self.gates)}
        post_ops = tuple(
            s if s.operand is None else replace(s, operand=place[s.operand])
            for s in self.first_post_ops
        )
        return Conv2d(self.window, channels, post_ops)

    def of_filters(self, inputs: Sequence[T]) -> list[T]:
        """Return those of a node's inputs that the first convolution has."""
        return [*inputs[:WEIGHTS], *(inputs[k] for k in self.gates)]

    @property
    def point(self) -> Conv2d:
        """The second convolution: inputs from what the first makes, weights, bias, operands."""
        one, zero = (1,) * len(self.window.kernel), (0,) * len(self.window.kernel)
        moved = OPERANDS - Conv2d.first_operand
        post_ops = tuple(
            s if s.operand is None else replace(s, operand=s.operand - moved) for s in self.post_ops
        )
        return Conv2d(Window(one, one, one, zero, zero), 1, post_ops)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError where shapes do not fit."""
        x, taps = inputs[0], inputs[TAPS]
        if x is None or taps is None or taps.shape[:2] != (x.shape[1], 1):
            raise ShapeError("a separable convolution needs an input, and one filter per channel.")
        for k in self.gates:
            gate = inputs[k] if k < len(inputs) else None
            if gate is None or not per_channel(gate.shape, x.shape):
                found = None if gate is None else gate.shape
                raise ShapeError(
                    f"an operand between the convolutions of a separable one is {found}: it must "
                    f"have one element for each of {x.shape[1]} channels."
                )
        between = self.filters(x.shape[1]).infer(self.of_filters(inputs))
        return self.point.infer([*between, *inputs[WEIGHTS:]])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return one convolution after the other, in the arrays' own precision."""
        taps = inputs[TAPS]
        assert taps is not None
        between = self.filters(len(taps)).reference(*self.of_filters(inputs))
        return self.point.reference(*between, *inputs[WEIGHTS:])

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border of zeros as wide as the filters reach."""
        assert inputs[0] is not None
        return {0: self.window.border(inputs[0].shape, 0.0)}

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many."""
        return self, (0, *batched(inputs, len(self.window.kernel) + 2, self.first_operand))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add of both convolutions."""
        taps, weights = inputs[TAPS], inputs[WEIGHTS]
        assert taps is not None and weights is not None
        pixels = outputs[0].size // weights.shape[0]
        return 2 * pixels * (taps.size + weights.size)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one kernel, two kernels, and two that take any layouts."""
        one, pair = _alone(self, problem), _pairs(self, problem)
        return [*by_cost([*one[:1], *pair[:1]]), pair[-1]]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return bands and tiles of one kernel, and the best of two kernels."""
        return by_cost([*_alone(self, problem), *_pairs(self, problem, every=True)])


def _alone(spec: Separable, problem: Problem) -> list[Variant]:
    """Return the single kernels of the device's kind, best first."""
    return _fused(spec, problem) if problem.target.is_cpu else separable_groups(spec, problem)


def _pairs(spec: Separable, problem: Problem, every: bool = False) -> list[Variant]:
    """Return two kernels one after the other: the best of both, or several; the last takes any layout."""
    x, out = problem.input(0), problem.outputs[0]
    if out.type.size == 0:
        return [Variant("empty", ())]
    taps, channels = tuple(spec.of_filters(problem.inputs)), x.type.shape[1]
    filters, point = spec.filters(channels), spec.point
    made = filters.infer([None if o is None else o.type for o in taps])[0]
    layout = TensorLayout.make(
        made.shape, channels_last(made.rank), align={1: _pair_pitch(x, problem)}
    )
    between = Operand(made, layout, stored=x.stored)
    itemsize = between.memory.itemsize
    scratch = Scratch("between", layout.size * itemsize, itemsize)
    first = Problem(taps, (between,), problem.target)
    second = Problem((between, *problem.inputs[WEIGHTS:]), problem.outputs, problem.target)
    moved = 2 * made.size * itemsize / (MOVED * problem.target.compute_units)
    moved += 0 if problem.target.is_cpu else LAUNCH
    ways = [
        sub.candidates(p) if every else sub.variants(p)
        for sub, p in ((filters, first), (point, second))
    ]
    chosen = [*product(*(way[:PAIRS] for way in ways))] if every else [(way[0] for way in ways)]
    last = [(filters.variants(first)[-1], point.variants(second)[-1])]
    pairs = [*chosen, *([] if every else last)]
    return [_pair(a, b, scratch, moved, spec.gates) for a, b in pairs]


def _pair(
    first: Variant, second: Variant, between: Scratch, moved: float, gates: Sequence[int]
) -> Variant:
    """Return the launches of both, the first's output being the second's first input."""

    def before(arg: Arg) -> Arg:
        if isinstance(arg, In) and arg.index >= Conv2d.first_operand:
            return In(gates[arg.index - Conv2d.first_operand], arg.shift)
        return between if isinstance(arg, Out) else arg

    def behind(arg: Arg) -> Arg:
        if not isinstance(arg, In):
            return arg
        return In(arg.index + WEIGHTS - 1, arg.shift) if arg.index else between

    launches = (*_with_args(first, before), *_with_args(second, behind))
    name = f"{first.name}+{second.name}"
    return Variant(name, launches, first.cost + second.cost + moved, first.error + second.error)


def _with_args(variant: Variant, change: Callable[[Arg], Arg]) -> list[Launch]:
    return [replace(one, args=tuple(map(change, one.args))) for one in variant.launches]


def _pitch(channels: int) -> int:
    """Return the distance of pixels in memory of their own."""
    return channels + LINE if channels % CROWDED == 0 else channels


def _pair_pitch(x: Operand, problem: Problem) -> int:
    """Return the same for two kernels; tensor cores want pixels that are whole pieces of 16 bytes."""
    pitch, piece = _pitch(x.type.shape[1]), 16 // x.memory.itemsize
    return -(-pitch // piece) * piece if problem.target.tensor_kind(x.memory) else pitch


@dataclass(frozen=True)
class _Made:
    """Tunables of the kernel, and its estimated cycles."""

    cycles: float
    band: int
    tx: int
    tile: Tile


def _fused(spec: Separable, problem: Problem) -> list[Variant]:
    """Return the kernels that keep what is between in a core's cache, best first."""
    x, out = problem.input(0), problem.outputs[0]
    constant = [problem.input(k).const is not None for k in (TAPS, WEIGHTS)]
    constant += [problem.input(k).const is not None for k in (SHIFT, BIAS) if problem.has(k)]
    if not (out.type.size and all(constant) and innermost(x.layout)):
        return []
    filters = spec.filters(x.type.shape[1])
    if not has_border(filters, problem) or x.type.shape[1] < 2:
        return []
    if any(pitch > 1 for _, _, pitch in _gates(spec, problem).values()):
        return []
    return [_variant(spec, problem, made) for made in _tiles(spec, problem)]


def _tiles(spec: Separable, problem: Problem) -> list[_Made]:
    """Return the tunables that are worth a measurement, best first."""
    dst, target = image(problem.outputs[0].layout), problem.target
    channels = problem.input(0).type.shape[1]
    oh, ow = dst.shape[2:]
    tiles = conv_tiles(Extents(oh, ow, dst.shape[1], target.vector, flat=True))
    row = ow * _pitch(channels) * 4
    room = min(NEAR_BYTES, target.local_bytes)
    bands = [b for b in range(1, oh + 1) if b * row <= room]
    columns = next((t for t in (7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    found: list[_Made] = []
    for _, tile in tiles:
        if tile.vw <= channels:
            fits = [b for b in bands if _last(oh, b) * ow >= tile.mr]
            made = [_Made(_cycles(spec, problem, b, columns, tile), b, columns, tile) for b in fits]
            found += sorted(made, key=lambda m: m.cycles)[:BANDS]
    return sorted(found, key=lambda m: m.cycles)[: TILES * BANDS]


def _last(rows: int, band: int) -> int:
    """Return the rows of the last band."""
    return rows - (-(-rows // band) - 1) * band


def _cycles(spec: Separable, problem: Problem, band: int, tx: int, tile: Tile) -> float:
    """Return the estimated cycles of the busiest core."""
    dst, target, weights = image(problem.outputs[0].layout), problem.target, problem.input(WEIGHTS)
    at, channels = spec.window.pairs(), problem.input(0).type.shape[1]
    (kh, kw), (_, sx), (_, dx) = at["kernel"], at["strides"], at["dilations"]
    columns = (tx - 1) * sx + (kw - 1) * dx + 1
    filters = max(kh * (columns + kw) + tx, tx * kh * kw) / 2 + tx
    filters *= band * -(-dst.shape[3] // tx) * -(-channels // tile.vw)
    slots = max(tile.mr * tile.nv, tile.mr + tile.nv + 1) + 3
    products = -(-band * dst.shape[3] // tile.mr) * -(-dst.shape[1] // tile.channels)
    # Every band reads all weights, which stay close to a core from band to band if they are few.
    nbytes = weights.type.nbytes
    far = EXPOSED * nbytes / MOVED if nbytes > NEAR_WEIGHTS else 0.0
    rounds = -(-(-(-dst.shape[2] // band) * dst.shape[0]) // target.compute_units)
    return rounds * (filters + products * channels * slots / 2 + far)


def _variant(spec: Separable, problem: Problem, made: _Made) -> Variant:
    x, out, weights = problem.input(0), problem.outputs[0], problem.input(WEIGHTS)
    channels, tile = x.type.shape[1], made.tile
    src, dst = image(x.layout), image(out.layout)
    global_size, local = grid(problem.target, -(-dst.shape[2] // made.band), 1, dst.shape[0])
    kernel, strides = ("x".join(map(str, v)) for v in (spec.window.kernel, spec.window.strides))
    name = (
        f"separable_{FLOAT.name}_nhwc_k{kernel}_s{strides}_b{made.band}_c{made.tx}"
        f"_t{tile.mr}x{tile.channels}"
    )
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.post_ops).items()
    }
    result, stored = stored_types(problem, spec.post_ops)
    params: dict[str, Any] = {
        "name": name,
        "arith": FLOAT,
        "types": (x.ctype, weights.ctype, "float", result),
        "src": src,
        "dst": dst,
        "ic": channels,
        "oc": dst.shape[1],
        **spec.window.pairs(),
        "first_rows": int(problem.has(SHIFT)),
        "rows": int(problem.has(BIAS)),
        "first_post_ops": spec.first_post_ops,
        "gates": _gates(spec, problem),
        "post_ops": spec.post_ops,
        "operands": operands,
        "groups": 1,
        **stored,
        "mode": "flat",
        "loop_epilogue": heavy(spec.post_ops),
        "ahead": "prefetch" in problem.target.features,
        "wg": local,
        "band": made.band,
        "tx": made.tx,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "pitch": _pitch(channels),
    }
    packed = constants(
        problem,
        lambda w: pack_weights(w, 1, tile),
        lambda b: pack_table(b[np.newaxis], None, 1, tile),
    )
    args = [In(0), *map(In, spec.gates), *packed, *last_args(problem, spec.post_ops)]
    launch = Launch("conv/separable.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), made.cycles)


def _gates(spec: Separable, problem: Problem) -> dict[int, tuple[str, int, int]]:
    """Return input -> (type, pitch of images, pitch of channels) of the operands of first_post_ops."""
    found = {}
    for k in spec.gates:
        layout = problem.input(k).layout.unpadded().broadcast(problem.input(0).type.shape)
        found[k] = problem.input(k).ctype, layout.pitches[0], layout.pitches[1]
    return found
