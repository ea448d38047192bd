"""The matrix product of any layout and element type: one work-item per result."""

from __future__ import annotations

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Launch, Variant, grid


def reference_variant(problem: GemmProblem) -> Variant:
    """Return the kernel that takes every problem."""
    size, local = grid(problem.target, problem.m * problem.n, problem.matrices)
    name = f"gemm_reference_{problem.dst.label}"
    params = problem.params() | {
        "name": name,
        "ctype": problem.dst.ctype,
        "b": problem.product.b,
        "wg": local,
    }
    args = problem.args(problem.b_arg)
    return Variant(name, (Launch("gemm/reference.cl.mako", params, args, size, local),))
