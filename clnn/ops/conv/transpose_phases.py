"""Transposed convolutions as variants: a small dense convolution per phase of the output, or any.

The outputs whose places leave the same rest when divided by the stride are a phase: they take the
same taps, from neighbouring inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.arith.real_taps import RealTaps
from clnn.budget import MAX_PHASES
from clnn.codegen.filters import image
from clnn.errors import PlanError
from clnn.ops.conv import transpose_bytes
from clnn.ops.conv.packing import by_output, pack_filters, pack_table, pack_weights
from clnn.ops.conv.problem import BIAS, NEAR_WEIGHTS, WEIGHTS, ConvProblem
from clnn.ops.conv.tiles import Tile
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Border
from clnn.ops.shared.cycles import loop_slots
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.target import Target
from clnn.types import F32, Array

LEAST_TERMS = 4  # input channels from which vectors of them are worth their sums
SMALL_TILE = 4  # pixels along an axis of tiles for small images
LOOKED_UP = 2  # loads of a byte that a table says the real number of


def phase_border(
    window: Window, shape: Sequence[int], extents: Sequence[int], fill: float
) -> Border | None:
    """Return the border that phases read around an input of `shape`; extents: of the output.

    None where the output is so much larger than taps reach that checks cost less than memory.
    """
    low, high = [], []
    for axis, (size, extent) in enumerate(zip(shape[2:], extents, strict=True)):
        s, d = window.strides[axis], window.dilations[axis]
        natural = (size - 1) * s + window.reach(axis)
        if window.before[axis] + extent >= natural + max(s, d):
            return None
        least, most = _shifts(window, axis)
        low.append(max(0, -least))
        high.append(max(0, -(-extent // s) + most - size))
    return Border((0, 0, *low), (0, 0, *high), float(fill))


def _shifts(window: Window, axis: int) -> tuple[int, int]:
    """Return the least and largest input pixel minus output pixel / stride, of all taps and phases.

    Of the phases only one takes a tap: that of the pixels whose distance to it the stride divides.
    """
    s, start = window.strides[axis], window.before[axis]
    last = (window.kernel[axis] - 1) * window.dilations[axis]
    return -((last - start) // s), -(-start // s)


def first_taps(window: Window, axis: int) -> tuple[int, ...]:
    """Return the first tap of each phase; the kernel's extent where it has none.

    Tap t of phase p is one where the stride divides p + before - t * dilation.
    """
    s, d, k = window.strides[axis], window.dilations[axis], window.kernel[axis]
    common = math.gcd(s, d)
    apart = s // common  # taps of one phase
    inverse = pow(d // common, -1, apart)
    taps = []
    for phase in range(s):
        times, rest = divmod(phase + window.before[axis], common)
        first = times * inverse % apart
        taps.append(first if rest == 0 and first < k else k)
    return tuple(taps)


@dataclass(frozen=True)
class TransposeProblem(ConvProblem):
    """A transposed convolution, of weights (ic, oc / group, kernel...).

    window: its pads in front are cut off the output, those behind follow from the output's extents.
    """

    @cached_property
    def has_border(self) -> bool:
        """Whether the input has the border that phases read."""
        x, extents = self.input(0), self.outputs[0].type.shape[2:]
        border = phase_border(self.window, x.type.shape, extents, self.arith.fill)
        return border is not None and x.border.covers(border)

    @cached_property
    def refined(self) -> Arithmetic:
        """The arithmetic as it is: what is known of whole windows does not hold for phases."""
        return self.arith

    @cached_property
    def table(self) -> Array | None:
        """The arithmetic's constants per output channel; sums of fixed point begin with nothing.

        The templates take the fill value from each input, so that a tap that meets none counts nothing.
        """
        table = self.arith.table(by_output(self.weights, self.group), self.bias)
        if table is None or self.arith is FLOAT:
            return table
        return np.concatenate([np.zeros_like(table[:1]), table[1:]])

    def name(self, kind: str) -> str:
        """Return the name of a kernel."""
        k, s = ("x".join(map(str, v)) for v in (self.window.kernel, self.window.strides))
        return f"conv_transpose_{self.arith.name}_k{k}_s{s}_{kind}"


def variants(problem: TransposeProblem) -> list[Variant]:
    """Return the phase kernels where weights are constant and finite, and the reference kernel.

    Phases multiply weights with zeros where no pixel is. There is a table of all phases, so that they
    are not for strides beyond MAX_PHASES.
    """
    constant = problem.is_constant(WEIGHTS, BIAS)
    if not constant and problem.arith is not FLOAT:
        raise PlanError(
            f"transposed convolution in {problem.arith.name}: weights and bias are computed by "
            "other nodes, and this arithmetic needs them when it is compiled. Give constants."
        )
    finite = np.isfinite(problem.input(WEIGHTS).largest)
    many = max(problem.window.strides) > MAX_PHASES
    if many or not (constant and finite) or problem.input(0).type.size == 0:
        return [_reference(problem)]
    plain = [*(_phases(problem, mode) for mode in _modes(problem)), _reference(problem)]
    fast = _of_bytes(problem) if transpose_bytes.is_fast(problem.target) else []
    return [*fast, *plain]


def candidates(problem: TransposeProblem) -> list[Variant]:
    """Return the variants, and before the reference those of tiles for images where the best does not fit."""
    *best, reference = variants(problem)
    more = _low_and_narrow(problem, _modes(problem)[-1]) if best else []
    more += _of_bytes(problem) if best else []
    return list({v.name: v for v in (*best, *more, reference)}.values())


def _of_bytes(problem: TransposeProblem, given: Tile | None = None) -> list[Variant]:
    """Return the kernel of products of bytes where it takes the problem; given: its tile, if not the best one."""
    whole = transpose_bytes.integers_of(problem)
    if whole is None:
        return []
    qh, qw = _phase_extents(problem)
    *_, vw = transpose_bytes.way_of(problem.target)
    vectors = -(-problem.oc // vw)
    best = phase_tile(qh, qw, vectors, range(1, min(4, vectors) + 1), vw, problem.target)
    tile = given or Tile(best.ty * best.tx, best.nv, vw, "row", best.ty)
    made = transpose_bytes.variant(problem, whole, tile, _firsts(problem), problem.name("bytes_"))

    def again(other: TransposeProblem) -> Variant | None:
        return next(iter(_of_bytes(other, tile) if tile.fits(*_phase_extents(other)) else ()), None)

    return [replace(made, again=again)]


def _phase_extents(problem: TransposeProblem) -> tuple[int, int]:
    """Return the rows and columns of the first phase."""
    sy, sx = problem.geometry["strides"]
    return -(-problem.height // sy), -(-problem.width // sx)


def _firsts(problem: TransposeProblem) -> tuple[tuple[int, ...], ...]:
    """Return the first tap of each phase along both axes."""
    rank = len(problem.window.kernel)
    return ((0,),) * (2 - rank) + tuple(first_taps(problem.window, a) for a in range(rank))


def _low_and_narrow(problem: TransposeProblem, mode: str) -> list[Variant]:
    """Return kernels of lower and narrower tiles, for images into which the best tile does not fit."""
    qh, qw = _phase_extents(problem)
    high, wide = (min(extent, SMALL_TILE) for extent in (qh, qw))
    sizes = dict.fromkeys([(1, wide), (high, 1), (1, 1)])
    tiles = [(size, _tile(problem, *size, mode)) for size in sizes]
    return [
        _phases(problem, mode, tile, True) for (h, w), tile in tiles if (tile.ty, tile.tx) <= (h, w)
    ]


def _modes(problem: TransposeProblem) -> list[str]:
    """Return what lanes may be, best first: see the template.

    Filters of their own and sums of few outputs have modes that suit them; any takes "spread".
    """
    ic, oc = problem.ic, problem.oc
    if problem.src.pitches[1] != 1 or problem.arith is not FLOAT:
        return ["spread"]
    if ic == oc == 1 and problem.group > 1:
        return ["depthwise", "spread"]
    few = ic >= LEAST_TERMS and oc <= max(problem.target.vector // 4, 1)
    return ["dot", "spread"] if few else ["spread"]


@dataclass(frozen=True)
class PhaseTile:
    """ty x tx pixels of a phase x nv vectors of vw lanes."""

    ty: int
    tx: int
    nv: int
    vw: int


def _tile(problem: TransposeProblem, qh: int, qw: int, mode: str) -> PhaseTile:
    """Return the tile for phases of qh x qw pixels."""
    target, vw = problem.target, problem.lanes
    if mode == "spread":
        while vw > 4 and vw // 2 >= problem.oc:
            vw //= 2
        vectors = -(-problem.oc // vw)
        looks_up = isinstance(problem.arith, RealTaps) and target.is_cpu
        each = LOOKED_UP if looks_up else 1
        return phase_tile(qh, qw, vectors, range(1, min(4, vectors) + 1), vw, target, each)
    lanes = problem.group if mode == "depthwise" else problem.ic
    while vw > lanes:
        vw //= 2
    nv = 1 if mode == "depthwise" else problem.oc
    return phase_tile(min(qh, 2), min(qw, 8), nv, (nv,), vw, target)


def phase_tile(
    height: int,
    width: int,
    vectors: int,
    counts: Sequence[int],
    vw: int,
    target: Target,
    each: int = 1,
) -> PhaseTile:
    """Return the tile for phases of height x width pixels and `vectors` vectors of `vw` lanes.

    counts: the numbers of vectors that a tile may have. each: loads of an input.
    """
    registers = target.registers
    best: tuple[float, PhaseTile] | None = None
    for nv in counts:
        most = max((registers - 1) // nv - 1, 1)  # nv vectors of weights and one pixel besides
        for ty in range(1, min(height, most) + 1):
            for tx in range(1, min(width, most // ty) + 1):
                used = height / (-(-height // ty) * ty) * width / (-(-width // tx) * tx)
                used *= vectors / (-(-vectors // nv) * nv)
                score = used * (ty * tx * nv) / loop_slots(ty * tx, nv, each=each)
                if best is None or score > best[0]:
                    best = (score, PhaseTile(ty, tx, nv, vw))
    assert best is not None
    return best[1]


def _phases(
    problem: TransposeProblem, mode: str, given: PhaseTile | None = None, loop: bool | None = None
) -> Variant:
    """Return the kernel whose work-items take tiles of one phase.

    given: the tile, where it is not to be the best one. loop: likewise whether results are finished
    in a loop.
    """
    sy, sx = problem.geometry["strides"]
    qh, qw = _phase_extents(problem)
    tile, checked = given or _tile(problem, qh, qw, mode), not problem.has_border
    groups = 1 if mode == "depthwise" else problem.group
    oc = problem.oc * problem.group // groups
    width = tile.nv if mode == "dot" else tile.nv * tile.vw
    blocks = -(-oc // width) * groups * sy * sx
    tiles = -(-qh // tile.ty) * -(-qw // tile.tx)
    channels_fastest = problem.weights.nbytes <= NEAR_WEIGHTS or not problem.target.is_cpu
    sizes = (blocks, tiles) if channels_fastest else (tiles, blocks)
    global_size, local = grid(problem.target, *sizes, problem.batch)
    shape = f"t{tile.ty}x{tile.tx}x{width}" + f"_v{tile.vw}" * (mode == "dot")
    ends = (qh % tile.ty, qw % tile.tx, problem.height % sy, problem.width % sx, oc % width)
    heavy_ends = heavy(problem.post_ops) or any(ends) or problem.arith is not FLOAT
    finishes_in_loop = heavy_ends if loop is None else loop
    params = problem.params | {
        "name": problem.name(f"{mode}_{shape}_{'checked' if checked else 'bordered'}"),
        "types": _types(problem),
        "mode": mode,
        "ic": problem.ic,
        "oc": oc,
        "groups": problem.group,
        "firsts": _firsts(problem),
        "checked": checked,
        "has_bias": problem.has(BIAS),
        "wg": local,
        "rows": problem.rows,
        "channels_fastest": channels_fastest,
        "ty": tile.ty,
        "tx": tile.tx,
        "nv": tile.nv,
        "vw": tile.vw,
        "loop_epilogue": finishes_in_loop,
    }
    args = _phase_args(problem, tile, mode)
    launch = Launch("conv/transpose.cl.mako", params, args, global_size, local)

    def again(other: TransposeProblem) -> Variant | None:
        fits = tile.ty <= -(-other.height // sy) and tile.tx <= -(-other.width // sx)
        fits = fits and mode in _modes(other) and other.input(0).type.size > 0
        return _phases(other, mode, tile, finishes_in_loop) if fits else None

    return Variant(params["name"], (launch,), again=again)


def _types(problem: TransposeProblem) -> tuple[str, ...]:
    """Return the types of input, packed weights, table and output: weights in 16 bits are packed as floats."""
    x, weights, table, out = problem.params["types"]
    return x, weights if problem.input(WEIGHTS).stored is None else F32.cl, table, out


def _phase_args(problem: TransposeProblem, tile: PhaseTile, mode: str) -> tuple[Arg, ...]:
    """Return the input, packed weights, the table, a row of padding where taps are checked, and the rest."""
    width, group = tile.nv * tile.vw if mode == "spread" else 1, problem.group
    args: list[Arg] = [In(0), Const(partial(_packed, mode, problem.weights, group, width))]
    table, x = problem.table, problem.input(0).type.dtype.numpy
    if table is not None:
        args.append(Const(lambda: pack_table(table, group, width)))
    if isinstance(problem.arith, RealTaps):
        args.append(
            Const(partial(problem.arith.stands_for, np.arange(256, dtype=np.uint8).view(x)))
        )
    if not problem.has_border:
        count, fill = max(problem.ic, tile.vw), problem.arith.fill
        args.append(problem.input(0).packed(lambda: np.full(count, fill, x)))
    return (*args, *operand_args(problem, problem.post_ops), Out(0))


def _packed(mode: str, weights: Array, group: int, width: int) -> Array:
    """Return weights as a mode reads them; of "dot" as [group][kernel][oc][ic]."""
    weights = by_output(weights, group)
    if mode == "spread":
        return pack_weights(weights, group, width)
    if mode == "depthwise":
        return pack_filters(weights)
    split = weights.reshape(group, len(weights) // group, weights.shape[1], -1)
    return np.ascontiguousarray(split.transpose(0, 3, 1, 2))


def _reference(problem: TransposeProblem) -> Variant:
    """Return the kernel that takes any layouts, borders and weights, one work-item per output."""
    operand = problem.input(BIAS) if problem.has(BIAS) and problem.arith is FLOAT else None
    table = None if problem.arith is FLOAT else problem.table
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    x, weights, tables, out = problem.params["types"]
    params = problem.params | {
        "name": problem.name("reference"),
        "types": (x, weights, operand.ctype if operand else tables, out),
        "weights": image(problem.input(WEIGHTS).layout),
        "bias": operand.layout if operand else None,
        "groups": problem.group,
        "wg": local,
        "rows": int(operand is not None) if table is None else len(table),
    }
    args: list[Arg] = [In(0), In(WEIGHTS), *([In(BIAS)] if operand else [])]
    args += [] if table is None else [Const(lambda: table)]
    args += [*operand_args(problem, problem.post_ops), Out(0)]
    launch = Launch("conv/transpose_reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(params["name"], (launch,))
