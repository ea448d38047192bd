"""Kernels of convolutions as variants: direct, Winograd's and reference.

Each function makes one variant of a problem. What they take besides is tunable, and has an
estimated best; costs are cycles, comparable between variants of one problem.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.codegen.filters import image
from clnn.errors import PlanError
from clnn.layout import TensorLayout
from clnn.ops.conv.packing import over_output, pack_table, pack_weights, start_shift
from clnn.ops.conv.streaming import streams
from clnn.ops.conv.tiles import Extents, Tile, Tiles, conv_tiles
from clnn.ops.conv.winograd import cold_cycles
from clnn.ops.conv.winograd_cpu import winograd_tiles
from clnn.ops.conv.winograd_gpu import winograd_groups
from clnn.ops.conv.workgroup import group_variants
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.byte_scales import last_args, stored_types
from clnn.ops.shared.epilogue import heavy, operand_layouts
from clnn.ops.shared.workgroup_tiles import UNSHARED, latency_hiding
from clnn.target import Target
from clnn.types import I8, I16, U8, Array

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

BIAS = 2
FEW = 4  # input channels up to which their order in memory does not matter
NEAR_WEIGHTS = 256 * 1024  # weights that stay close to a core while pixels move over them
MOST_NEAR_WEIGHTS = 640 * 1024  # the same where there are more bytes of pixels than of weights
STREAMS = 3  # of a tile that are worth a measurement
SWAPPED_ORDER_COST = 1.04  # cost of the group order that the size of the weights speaks against
TILES_BESIDE = 8  # register tiles that are worth a measurement beside work-groups' tiles
PLAIN_LOTS = 4  # cost of lots of products in C against one by one


@dataclass(frozen=True)
class Dot:
    """How products are added (_common/dot.cl.mako): `lot` at a time, weights in `halves`."""

    name: str = ""
    lot: int = 1
    halves: int = 1

    @property
    def cycles(self) -> float:
        """Cost of a product against one by one."""
        plain = PLAIN_LOTS if "plain" in self.name else 1
        return self.halves * plain / self.lot


ONE = Dot()


def innermost(layout: TensorLayout) -> bool:
    """Whether the channels of a pixel are neighbours."""
    return layout.pitches[1] == 1 or layout.shape[1] == 1


def fits_fast(spec: Conv2d, problem: Problem) -> bool:
    """Whether weights are constant and the input's channels innermost, or few of them in planes."""
    x = problem.input(0)
    bias = problem.input(BIAS) if problem.has(BIAS) else None
    if problem.input(1).const is None or (bias and (bias.const is None or bias.type.rank > 1)):
        return False
    return innermost(x.layout) or (spec.accepts_nchw([x.type]) and has_border(spec, problem))


def _reads_vectors(spec: Conv2d, problem: Problem) -> bool:
    """Whether the channels of all tensors that are read are neighbours."""
    operands = [t for _, t in operand_layouts(problem, spec.post_ops).values()]
    read = innermost(problem.input(0).layout)
    return read and all(innermost(t) or not t.pitches[1] for t in operands)


def has_border(spec: Conv2d, problem: Problem) -> bool:
    """Whether the input has the border that windows reach."""
    x = problem.input(0)
    return x.border.covers(spec.window.border(x.type.shape, float(spec.arith.padding)))


def fits_depthwise(spec: Conv2d, problem: Problem) -> bool:
    """Whether there is one filter per channel."""
    channels = problem.input(0).type.shape[1]
    alone = spec.group == channels == problem.outputs[0].type.shape[1]
    alone = alone and not spec.arith.channelwise
    alone = alone and _reads_vectors(spec, problem)
    return alone and spec.group > 1 and has_border(spec, problem)


def images(problem: Problem) -> tuple[TensorLayout, TensorLayout]:
    """Return the layouts of input and output as images."""
    return image(problem.input(0).layout), image(problem.outputs[0].layout)


def label(kind: str, spec: Conv2d, extra: str) -> str:
    """Return the name of a kernel."""
    k, s = "x".join(map(str, spec.window.kernel)), "x".join(map(str, spec.window.strides))
    return f"{kind}_{spec.arith.name}_nhwc_k{k}_s{s}_{extra}"


def common(spec: Conv2d, problem: Problem) -> dict[str, Any]:
    """Return the parameters that all kernels of a problem have. Raises PlanError."""
    src, dst = images(problem)
    operands = {
        k: (place, image(layout))
        for k, (place, layout) in operand_layouts(problem, spec.post_ops).items()
    }
    x, w = problem.input(0), problem.input(1)
    table = "float" if spec.arith.acc == "float" else "int"
    given = x.ctype if spec.arith is FLOAT else x.plain.cl
    if x.memory.scale != spec.arith.step and spec.arith is not FLOAT:
        raise PlanError(f"convolution in {spec.arith.name} of a value stored as {x.memory.name}.")
    result, stored = stored_types(problem, spec.post_ops)
    return {
        "src": src,
        "dst": dst,
        **spec.window.pairs(),
        "post_ops": spec.post_ops,
        "operands": operands,
        "arith": _refined(spec, problem),
        "types": (given, w.ctype, table, result),
        **stored,
    }


def lanes(spec: Conv2d, target: Target) -> int:
    """Return how many accumulators fill a vector register."""
    return target.vector // 2 if spec.arith.acc == "long" else target.vector


def weights_stay(problem: Problem) -> bool:
    """Whether all weights stay close to a core while pixels move over them, rather than the reverse."""
    pixels, weights = problem.input(0).type.nbytes, problem.input(1).type.nbytes
    return weights <= NEAR_WEIGHTS or weights <= min(MOST_NEAR_WEIGHTS, pixels)


def dots(spec: Conv2d, problem: Problem) -> tuple[Dot, ...]:
    """Return the ways to multiply that the direct kernel has, best first."""
    x, w, arith = problem.input(0).plain, problem.input(1).type, spec.arith
    lot = 4 if x in (I8, U8) and w.dtype == I8 else 2 if x == I16 and w.dtype in (I8, I16) else 0
    halves = 2 if arith.acc == "long" else 1
    apart = not innermost(problem.input(0).layout)
    if (
        not arith.wraps
        or arith.channelwise
        or not lot
        or w.shape[1] % lot
        or lot * halves > 4
        or apart
    ):
        return (ONE,)
    kind = "wide" if halves == 2 else ""
    if "x86_vnni" in problem.target.features:
        return (Dot(f"{kind or 'vnni'}{lot}", lot, halves),)
    if lot == 4 and "ptx_dp4a" in problem.target.features:
        return Dot("dp4a4", lot), ONE
    return ONE, Dot(f"plain{kind}{lot}", lot, halves)


def _refined(spec: Conv2d, problem: Problem) -> Arithmetic:
    """Return the arithmetic with what is known of the problem's constants.

    Raises PlanError where it needs constants and there are none.
    """
    weights = problem.input(1).const
    bias = problem.input(BIAS).const if problem.has(BIAS) else None
    if weights is not None and (bias is not None or not problem.has(BIAS)):
        return spec.arith.refine(weights, bias)
    if spec.arith.plain_bias:
        return spec.arith
    raise PlanError(
        f"convolution in {spec.arith.name}: weights and bias are computed by other nodes, and "
        "this arithmetic needs them when it is compiled. Give them as constants."
    )


def table_of(arith: Arithmetic, problem: Problem) -> Array | None:
    """Return the arithmetic's constants per output channel."""
    weights = problem.input(1).const
    assert weights is not None
    return arith.table(weights, problem.input(BIAS).const if problem.has(BIAS) else None)


def _extents(spec: Conv2d, problem: Problem, dot: Dot) -> Extents:
    """Return what the tiles of the direct kernel depend on."""
    src, dst = images(problem)
    vector = lanes(spec, problem.target) if dot == ONE else problem.target.vector
    spread = int(dot.lot == 4 and problem.input(0).plain == I8)
    channels = dst.shape[1] // spec.group
    even = src.shape[2] == 1 or src.pitches[2] == src.shape[3] * src.pitches[3]
    even = even and spec.window.is_point
    return Extents(dst.shape[2], dst.shape[3], channels, vector, spread, dot.halves, even)


def direct_tiles(spec: Conv2d, problem: Problem, dot: Dot) -> list[tuple[float, Tile]]:
    """Return (estimated cycles, tile) of the direct kernel's tiles that are worth a measurement."""
    src, dst = images(problem)
    products = int(np.prod(spec.window.kernel)) * src.shape[1] // spec.group
    times = products * spec.group * dst.shape[0] * dot.cycles / problem.target.compute_units
    weights = problem.input(1).type
    cold = cold_cycles(weights.nbytes, problem.target)
    found = conv_tiles(_extents(spec, problem, dot))
    if problem.target.is_cpu:
        return [(cycles * times + cold, tile) for cycles, tile in found]
    _, oc, oh, ow = dst.shape

    def alone(cycles: float, tile: Tile) -> float:
        """Cost where each work-item fetches its operands itself, and few of them wait for it."""
        items = dst.shape[0] * -(-oh * ow // tile.mr) * -(-oc // tile.channels)
        return cycles * times * UNSHARED / latency_hiding(items, problem.target)

    costs = [(alone(cycles, tile), tile) for cycles, tile in found]
    return sorted(costs, key=lambda pair: pair[0])[:TILES_BESIDE]


def streamed(spec: Conv2d, problem: Problem, every: bool = False) -> list[Variant]:
    """Return the direct kernel that reads its weights once, or `every` one worth a try.

    None for other than floats, and where weights stay close to a core while pixels move over them.
    """
    weights, target = problem.input(1).const, problem.target
    assert weights is not None
    fits = spec.arith is FLOAT and target.is_cpu and has_border(spec, problem)
    if not fits or not innermost(problem.input(0).layout) or weights_stay(problem):
        return []
    taps, ic = int(np.prod(spec.window.kernel)), weights.shape[1]
    extents = _extents(spec, problem, ONE)
    found = [
        direct(spec, problem, ONE, tile, cost * made.factor, False, made.chunk, made.bands)
        for cost, tile in direct_tiles(spec, problem, ONE)
        for made in streams(extents, tile, ic, taps, target.local_bytes)[: STREAMS if every else 1]
    ]
    return found[: None if every else 1]


def direct(
    spec: Conv2d,
    problem: Problem,
    dot: Dot,
    tile: Tile,
    cost: float,
    first: bool | None = None,
    chunk: int = 0,
    bands: int = 1,
) -> Variant:
    """Return the register-tiled kernel; first: blocks of channels are neighbours, not pixels.

    chunk: input channels that a work-item takes through all tiles of its band at once, 0 for a
    work-item per tile.
    """
    params = common(spec, problem)
    dst, arith = params["dst"], params["arith"]
    oc, ic = dst.shape[1] // spec.group, params["src"].shape[1] // spec.group
    mode = tile.mode if has_border(spec, problem) else "checked"
    tile = tile if mode != "checked" else replace(tile, rows=1)
    weights = problem.input(1).const
    assert weights is not None
    better = weights_stay(problem)
    first = better if first is None else first
    blocks = -(-oc // tile.channels) * spec.group
    tiles = Tiles(mode, dst.shape[2], dst.shape[3], tile.mr, tile.rows).count
    extents = (blocks, bands) if chunk else (blocks, tiles) if first else (tiles, blocks)
    global_size, local = grid(problem.target, *extents, dst.shape[0])
    order = f"c{chunk}_b{bands}" if chunk else "blocks" if first else "pixels"
    ways = "".join(f"_{way}" for way in (mode, dot.name, order) if way)
    shape = f"{tile.rows}x{tile.mr // tile.rows}" if tile.rows > 1 else str(tile.mr)
    name = label("conv2d_direct", spec, f"t{shape}x{tile.channels}{ways}")
    args, rows = _direct_constants(spec, problem, arith, dot, tile)
    if mode == "checked":
        x = problem.input(0)
        args.append(x.packed(lambda: np.full(max(ic, 1), arith.padding, x.type.dtype.numpy)))
    if dot.lot > 1:
        params["arith"] = params["arith"].lots()
    if dot.lot == 2:
        params["types"] = (params["types"][0], "short", *params["types"][2:])
    params |= {
        "name": name,
        "ic": ic,
        "oc": oc,
        "groups": spec.group,
        "mode": mode,
        "dot": dot.name,
        "rows": rows,
        "channels_fastest": first,
        "wg": local,
        "mr": tile.mr,
        "th": tile.rows,
        "nv": tile.nv,
        "vw": tile.vw,
        "chunk": chunk,
        "bands": bands,
        "ahead": "prefetch" in problem.target.features,
        "loop_epilogue": heavy(spec.post_ops) or arith is not FLOAT,
    }
    args = [In(0), *args, *last_args(problem, spec.post_ops)]
    launch = Launch("conv/direct.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost if first == better else cost * SWAPPED_ORDER_COST)


def _direct_constants(
    spec: Conv2d, problem: Problem, arith: Arithmetic, dot: Dot, tile: Tile
) -> tuple[list[Arg], int]:
    """Return packed weights and the arithmetic's table as arguments, and the table's rows."""
    weights, table = problem.input(1).const, table_of(arith, problem)
    assert weights is not None
    packing = (weights, spec.group, tile, dot.lot, arith.channelwise, dot.halves)
    args: list[Arg] = [problem.input(1).packed(functools.partial(pack_weights, *packing))]
    if table is None:
        return args, 0
    moved = dot.lot == 4 and problem.input(0).plain == I8
    start = start_shift(weights) if moved else None
    return [*args, Const(lambda: pack_table(table, start, spec.group, tile))], len(table)


def workgroups(spec: Conv2d, problem: Problem) -> list[Variant]:
    """Return the kernels whose work-groups share operands, best first: none on CPUs."""
    if (
        problem.target.is_cpu
        or spec.arith is not FLOAT
        or problem.uses_narrow_storage
        or fits_depthwise(spec, problem)
        or not has_border(spec, problem)
    ):
        return []
    return group_variants(spec, problem, common(spec, problem))


def winograd(spec: Conv2d, problem: Problem, every: bool = False) -> list[Variant]:
    """Return Winograd's convolution where it fits: the best plan, or `every` one worth a try."""
    win, target = spec.window, problem.target
    strides = ((1, 1), (2, 2)) if target.is_cpu else ((1, 1),)
    plain = (win.kernel, win.dilations) == ((3, 3), (1, 1)) and win.strides in strides
    if not (
        spec.arith is FLOAT
        and plain
        and spec.group == 1
        and target.winograd
        and not problem.uses_narrow_storage
        and has_border(spec, problem)
    ):
        return []
    params = common(spec, problem)
    if not target.is_cpu:
        return winograd_groups(spec, problem, params, every)
    if not (_reads_vectors(spec, problem) and innermost(problem.outputs[0].layout)):
        return []
    return winograd_tiles(spec, problem, params, every)


def reference(spec: Conv2d, problem: Problem) -> Variant:
    """Return the kernel that takes any layouts, borders and weights."""
    params = common(spec, problem)
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    args: list[Arg] = [In(0), In(1)]
    bias, rows = None, 0
    if spec.arith.plain_bias and problem.has(BIAS):
        given = problem.input(BIAS).layout
        args.append(In(BIAS))
        params["types"] = (*params["types"][:2], problem.input(BIAS).ctype, params["types"][3])
        bias, rows = over_output(given, problem.outputs[0].type.shape), 1
    elif not spec.arith.plain_bias:
        table = table_of(params["arith"], problem)
        assert table is not None
        args.append(Const(lambda: table))
        rows = len(table)
    name = label("conv2d_reference", spec, "any")
    params |= {
        "name": name,
        "weights": image(problem.input(1).layout),
        "bias": bias,
        "rows": rows,
        "groups": spec.group,
        "wg": local,
    }
    args += last_args(problem, spec.post_ops)
    launch = Launch("conv/reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,))
