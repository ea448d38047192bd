"""Which nodes the universal set computes, and how."""

from __future__ import annotations

from clnn.codegen.filters import image
from clnn.graph.ir import Node
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.launch import EMPTY, Launch, Variant
from clnn.ops.pool.spec import Pool
from clnn.ops.problem import Problem
from clnn.ops.rows.reduce import Reduce
from clnn.ops.spec import OpSpec
from clnn.ops.universal import fill, walk
from clnn.ops.universal.conv import universal_conv
from clnn.ops.universal.product import universal_product
from clnn.ops.universal.window import MODES, WindowSize, universal_window
from clnn.plan.schedule import Instead
from clnn.target import Target

IMAGES = (3, 4)  # axes of an image


def universal_kernels(target: Target) -> Instead:
    """Return the kernels of the universal set, for plans of a target."""

    def variant(node: Node, problem: Problem) -> Variant | None:
        if not problem.outputs[0].type.size:
            return EMPTY
        return universal_variant(node.spec, problem)

    def filled(launch: Launch) -> Launch | None:
        return universal_form(launch, target)

    return Instead(variant, filled)


def universal_variant(spec: OpSpec, problem: Problem) -> Variant | None:
    """Return a node as launches of the universal set, None where it has no form there.

    The first output has elements.
    """
    if isinstance(spec, Conv2d):
        return universal_conv(spec.problem(problem))
    if isinstance(spec, Gemm):
        return universal_product(spec.problem(problem))
    if isinstance(spec, Pool):
        return _pool(spec, problem)
    if isinstance(spec, Reduce) and (found := _image_reduction(spec, problem)):
        return found
    usual = spec.variants(problem)[0]
    launches = [universal_form(launch, problem.target) for launch in usual.launches]
    made = tuple(launch for launch in launches if launch is not None)
    return Variant(f"universal_{usual.name}", made) if len(made) == len(launches) else None


def universal_form(launch: Launch, target: Target) -> Launch | None:
    """Return a launch as one of the universal set, None where it has no form there."""
    if launch.template == walk.TEMPLATE:
        return walk.universal_walk(launch, target)
    if launch.template == fill.TEMPLATE:
        return fill.universal_fill(launch, target)
    return None


def _pool(spec: Pool, problem: Problem) -> Variant | None:
    x = problem.input(0).type
    special = spec.indices or spec.rule is not None or spec.ordered
    if spec.mode not in MODES or special or x.rank not in IMAGES:
        return None
    counted = None
    if spec.count_pad and spec.mode == "average":
        extents, after = (1, *x.shape[2:])[-2:], (0, *spec.window.after)[-2:]
        counted = (extents[0] + after[0], extents[1] + after[1])
    window = WindowSize(**spec.window.pairs(), counted=counted)
    return universal_window(problem, spec.mode, window, spec.post_ops)


def _image_reduction(spec: Reduce, problem: Problem) -> Variant | None:
    """Return the mean or maximum of each channel of an image, None for all other reductions."""
    rank = problem.input(0).type.rank
    whole = spec.axes == tuple(range(2, rank)) and spec.keepdims
    if spec.fn not in MODES or not whole or rank not in IMAGES:
        return None
    height, width = image(problem.input(0).layout).shape[2:]
    return universal_window(problem, spec.fn, WindowSize((height, width)), spec.post_ops)
