"""Depthwise separable convolutions as one kernel of work-groups that share chunks, for GPUs.

The left operand of the 1 x 1 convolution's product is computed as its chunks are fetched: once for
every block of output channels, in place of a launch and of memory for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from clnn.ops.conv.packing import pack_table
from clnn.ops.conv.separable_problem import SeparableProblem
from clnn.ops.conv.workgroup import along_terms, pack_terms, walk
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.shared.epilogue import heavy, operand_args
from clnn.ops.shared.workgroup_tiles import GemmShape, SplitK, group_tiles, right

TAP_SLOTS = 3  # of a tap of an element: its product and its read, as depthwise kernels count them


def variants(problem: SeparableProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none on CPUs."""
    if problem.target.is_cpu or problem.gates or problem.uses_narrow_storage:
        return
    if not problem.fits_fast:
        return
    pixels = problem.batch * problem.height * problem.width
    computed = TAP_SLOTS * problem.taps
    sums = GemmShape(pixels, problem.oc, problem.ic, computed=computed, split=False)
    for split in group_tiles(sums, problem.target):
        yield _variant(problem, split)


def _variant(problem: SeparableProblem, split: SplitK) -> Variant:
    """Return the kernel of one tile."""
    src, tile, oc, ic = problem.src, split.tile, problem.oc, problem.ic
    walked = walk(problem, tile)
    rows = prod(walked["pixels"])
    fetches = {"a": along_terms(problem, (ic,), tile), "b": right(tile, "rows", 4)}
    channels_fastest = oc <= rows
    counts = (-(-oc // tile.bn), -(-rows // tile.bm))[:: 1 if channels_fastest else -1]
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    order, (dy, dx) = "blocks" if channels_fastest else "pixels", problem.geometry["dilations"]
    wg = (tile.threads, 1, 1)
    params = {
        "name": problem.label("separable_workgroup", f"{marks}_{split.label}_{order}"),
        "ic": ic,
        "oc": oc,
        "taps": (problem.geometry["kernel"], (dy * src.pitches[2], dx * src.pitches[3])),
        "has_shift": problem.shift is not None,
        "first_post_ops": problem.first_post_ops,
        "has_bias": problem.bias is not None,
        "post_ops": problem.post_ops,
        "loop_epilogue": heavy(problem.post_ops),
        "tile": tile,
        "fetches": fetches,
        "channels_fastest": channels_fastest,
        "wg": wg,
        **walked,
    }
    constants = problem.constants(
        lambda weights: pack_terms(weights, 1, tile), lambda bias: pack_table(bias, 1, tile.bn)
    )
    args = (In(0), *constants, *operand_args(problem, problem.post_ops), Out(0))
    sizes = (counts[0] * tile.threads, counts[1], 1)
    launch = Launch("conv/separable_workgroup.cl.mako", params, args, sizes, wg)
    return Variant(str(params["name"]), (launch,), split.cost)
