"""Winograd's convolution for CPUs: products in register tiles, transforms in the same kernel or before.

Where few tiles meet many weights, a first kernel transforms all inputs into scratch memory, so that
each weight is read once for all of them and no core transforms what another one has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clnn.ops.conv.winograd import ERRORS, Plan, matrices, pack, plan, plans
from clnn.ops.conv.winograd_gpu import Shape, input_launch
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_args

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

BIAS = 2


def winograd_tiles(
    spec: Conv2d, problem: Problem, common: dict[str, Any], every: bool
) -> list[Variant]:
    """Return the best plan's kernel, or `every` one worth a measurement.

    common: parameters that all kernels of the problem have. The convolution is 3 x 3, of stride 1 or 2
    along both axes, channels of all tensors are innermost.
    """
    dst, target = common["dst"].shape, problem.target
    ic, vw = common["src"].shape[1], target.vector
    if ic % vw or dst[1] % vw:
        return []
    step = spec.window.strides[0]
    best = plan(dst, ic, target, vw, step)
    found = plans(dst, ic, target, vw, step) if every else [best] if best else []
    return [_variant(spec, problem, common, made) for made in found]


def _variant(spec: Conv2d, problem: Problem, common: dict[str, Any], made: Plan) -> Variant:
    src, dst = common["src"], common["dst"]
    high, wide = (-(-extent // made.m) for extent in dst.shape[2:])
    shape = Shape(made.m, src.shape[1], dst.shape[1], high, wide, dst.shape[0], dst.shape[0])
    groups = -(-shape.tiles // (made.mr * made.sets))
    size, local = grid(problem.target, groups, made.parts)
    first: In | Scratch = In(0)
    launches = []
    if made.shared:
        held = groups * made.mr * made.sets
        first = Scratch("spread", 4 * shape.places * held * made.stride)
        run = shape.ic // made.vw
        launches.append(
            input_launch(problem, common, shape, made.vw, (In(0), first), run, held, made.stride)
        )
    name = _name(spec, made)
    kernel = matrices(made.m, made.step)
    params = common | {
        "name": name,
        "shared": made.shared,
        "ic": shape.ic,
        "oc": shape.oc,
        "reach": tuple(src.shape[a] + src.after[a] - 1 for a in (2, 3)),
        "m": made.m,
        "bt": kernel.bt,
        "at": kernel.at,
        "has_bias": problem.has(BIAS),
        "wg": local,
        "mr": made.mr,
        "nv": made.nv,
        "vw": made.vw,
        "parts": made.parts,
        "stride": made.stride,
        "sets": made.sets,
        "ahead": "prefetch" in problem.target.features,
    }
    args = [first, *_constants(problem, made), *operand_args(problem, spec.post_ops), Out(0)]
    launches.append(Launch("conv/winograd_cpu.cl.mako", params, tuple(args), size, local))
    return Variant(name, tuple(launches), made.cost, ERRORS[made.m])


def _name(spec: Conv2d, made: Plan) -> str:
    tile = f"f{made.m}_t{made.mr}x{made.nv * made.vw}_p{made.parts}"
    sets = "_shared" * made.shared + f"_s{made.sets}" * (made.sets > 1)
    return f"winograd_{spec.arith.name}_nhwc_k3x3_s{made.step}x{made.step}_{tile}{sets}"


def _constants(problem: Problem, made: Plan) -> list[Arg]:
    """Return transformed weights, and the bias where there is one, as arguments."""
    weights = problem.input(1).const
    assert weights is not None
    args: list[Arg] = [Const(lambda: pack(weights, made))]
    if problem.has(BIAS):
        bias = problem.input(BIAS).const
        assert bias is not None
        args.append(Const(lambda: bias))
    return args
