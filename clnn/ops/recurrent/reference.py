"""The kernel that takes any layouts: a work-item for each sequence and direction."""

from __future__ import annotations

from math import inf

from clnn.ops.launch import Arg, In, Launch, Scratch, Variant, grid
from clnn.ops.recurrent.cells import PRODUCTS, WEIGHTS
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.types import F32


def scratch_args(problem: RecurrentProblem, row: int) -> tuple[Arg, ...]:
    """Return scratch memory for states of `row` elements: cells, what is between phases, states."""
    lines = problem.directions * problem.batch * row * F32.itemsize
    found = [Scratch("cells", 2 * lines)] if problem.cell == "lstm" else []
    if len(problem.kind.phases) > 1:
        found += [Scratch("reset", lines), Scratch("update", lines)]
    return (*found, Scratch("states", 2 * lines))


def _rounded(problem: RecurrentProblem) -> tuple[Arg, ...]:
    """Return scratch memory for rounded states, where they are."""
    lines = problem.directions * problem.batch * problem.hidden * F32.itemsize
    return (Scratch("rounded", lines),) * problem.rounds_states


def reference_variant(problem: RecurrentProblem) -> Variant:
    """Return the kernel."""
    lines = problem.directions * problem.batch
    size, local = grid(problem.node.target, lines)
    name = f"{problem.label}_reference"
    params = problem.params() | {
        "name": name,
        "weights": (problem.weights.ctype, problem.weights.layout.pitches),
        "first": problem.first(),
        "phases": problem.kind.phases,
        "wg": local,
    }
    args = (
        In(PRODUCTS),
        In(WEIGHTS),
        *problem.first_args(),
        *problem.extra_args(),
        *problem.out_args(),
        *_rounded(problem),
        *scratch_args(problem, problem.hidden),
    )
    launch = Launch("recurrent/reference.cl.mako", params, args, size, local)
    return Variant(name, (launch,), inf)
