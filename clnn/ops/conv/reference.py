"""The convolution that takes any layouts, borders and weights, one work-item per output element."""

from __future__ import annotations

from clnn.codegen.filters import image
from clnn.ops.conv.packing import over_output
from clnn.ops.conv.problem import BIAS, WEIGHTS, ConvProblem
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.shared.byte_scales import last_args


def reference(problem: ConvProblem) -> Variant:
    """Return the reference kernel."""
    shape, types = problem.outputs[0].type.shape, problem.params["types"]
    global_size, local = grid(problem.target, problem.outputs[0].type.size)
    args: list[Arg] = [In(0), In(WEIGHTS)]
    bias, rows = None, 0
    if problem.arith.plain_bias and problem.has(BIAS):
        operand = problem.input(BIAS)
        args.append(In(BIAS))
        types = (*types[:2], operand.ctype, types[3])
        bias, rows = over_output(operand.layout, shape), 1
    elif not problem.arith.plain_bias:
        table = problem.table
        assert table is not None
        args.append(Const(lambda: table))
        rows = len(table)
    params = problem.params | {
        "name": problem.label("conv2d_reference", "any"),
        "types": types,
        "weights": image(problem.input(WEIGHTS).layout),
        "bias": bias,
        "rows": rows,
        "groups": problem.group,
        "wg": local,
    }
    args += last_args(problem, problem.post_ops)
    launch = Launch("conv/reference.cl.mako", params, tuple(args), global_size, local)
    return Variant(params["name"], (launch,))
