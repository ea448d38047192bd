"""Depthwise separable convolutions as one kernel of work-groups that share slices, for GPUs.

The left operand of the 1 x 1 convolution's product is computed as its slices are fetched: once for
every block of output channels, in place of a launch and of memory for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from clnn.codegen.filters import image
from clnn.ops.conv.direct import has_border, innermost
from clnn.ops.conv.workgroup import along_terms, pack, pack_terms, walk
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import heavy, operand_args, operand_layouts
from clnn.ops.shared.workgroup_tiles import GemmShape, SplitK, group_tiles, right
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.conv.separable import Separable

TAPS, SHIFT, WEIGHTS, BIAS = 1, 2, 3, 4  # inputs
TAP = 3  # slots of a tap of an element: its product and its read, as depthwise kernels count them


def separable_groups(spec: Separable, problem: Problem) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first."""
    if not _fits(spec, problem) or spec.gates:
        return []
    x, out = problem.input(0), problem.outputs[0]
    operands = operand_layouts(problem, spec.post_ops).items()
    common = {
        "src": image(x.layout),
        "dst": image(out.layout),
        **spec.window.pairs(),
        "operands": {k: (place, image(layout)) for k, (place, layout) in operands},
    }
    channels, oc = x.type.shape[1], out.type.shape[1]
    computed = TAP * prod(spec.window.kernel)
    sums = GemmShape(out.type.size // oc, oc, channels, computed=computed, split=False)
    splits = group_tiles(sums, problem.target)
    return [_variant(spec, problem, common, split) for split in splits]


def _fits(spec: Separable, problem: Problem) -> bool:
    """Whether constants are there, channels innermost and the border in memory, all in float32."""
    given = [k for k in (TAPS, SHIFT, WEIGHTS, BIAS) if problem.has(k)]
    x = problem.input(0)
    if problem.uses_narrow_storage or problem.outputs[0].type.size == 0:
        return False
    constant = all(problem.input(k).const is not None for k in given)
    border = has_border(spec.filters(x.type.shape[1]), problem)
    return constant and border and innermost(x.layout)


def _variant(spec: Separable, problem: Problem, common: dict[str, Any], split: SplitK) -> Variant:
    """Return the kernel of one tile."""
    src, dst, tile = common["src"], common["dst"], split.tile
    oc, ic = dst.shape[1], src.shape[1]
    walked = walk(common, 1, tile)
    rows = prod(walked["pixels"])
    fetches = {"a": along_terms(problem, common, (ic,), tile), "b": right(tile, "rows", 4)}
    first = oc <= rows
    counts = (-(-oc // tile.bn), -(-rows // tile.bm))[:: 1 if first else -1]
    k, s = ("x".join(map(str, pair)) for pair in (spec.window.kernel, spec.window.strides))
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    order, (dy, dx) = "blocks" if first else "pixels", common["dilations"]
    wg = (tile.threads, 1, 1)
    params = {
        "name": f"separable_workgroup_f32_nhwc_k{k}_s{s}_{marks}_{split.label}_{order}",
        "ic": ic,
        "oc": oc,
        "taps": (common["kernel"], (dy * src.pitches[2], dx * src.pitches[3])),
        "has_shift": problem.has(SHIFT),
        "first_post_ops": spec.first_post_ops,
        "has_bias": problem.has(BIAS),
        "post_ops": spec.post_ops,
        "loop_epilogue": heavy(spec.post_ops),
        "tile": tile,
        "fetches": fetches,
        "channels_fastest": first,
        "wg": wg,
        **walked,
    }
    packed = constants(problem, lambda w: pack_terms(w, 1, tile), lambda b: pack(b, 1, tile.bn))
    args = (In(0), *packed, *operand_args(problem, spec.post_ops), Out(0))
    sizes = (counts[0] * tile.threads, counts[1], 1)
    launch = Launch("conv/separable_workgroup.cl.mako", params, args, sizes, wg)
    return Variant(str(params["name"]), (launch,), split.cost)


def constants(
    problem: Problem, weights: Callable[[Array], Array], bias: Callable[[Array], Array]
) -> list[Arg]:
    """Return taps, shift, weights and bias as arguments, the last two as these functions pack them."""
    table, shift, matrix, last = (
        problem.input(k).const if problem.has(k) else None for k in (TAPS, SHIFT, WEIGHTS, BIAS)
    )
    assert table is not None and matrix is not None
    args: list[Arg] = [
        problem.input(TAPS).packed(lambda: table.reshape(len(table), -1).T.copy()),
        problem.input(WEIGHTS).packed(lambda: weights(matrix)),
    ]
    if shift is not None:
        args.insert(1, Const(lambda: shift))
    if last is not None:
        args.append(Const(lambda: bias(last)))
    return args
