"""All steps in one launch, for GPUs: work-groups, each with some sequences in one direction."""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.launch import In, Launch, Variant
from clnn.ops.recurrent.cells import PRODUCTS
from clnn.ops.recurrent.panels import one_pass, packed
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.traced import greatest, is_open
from clnn.types import F32

ROWS = (1, 2, 4, 8)  # sequences of a group
LANES = 32  # of a panel's slices: members that read neighbouring weights
MOST_MEMBERS = 256
STATES = {"rnn": 2, "gru": 4, "late_gru": 2, "lstm": 3}  # in local memory, for each sequence
ROW_CYCLES, WEIGHT_CYCLES = 1.0, 4.0  # of a term: for each sequence, and for its weight


def group_variants(problem: RecurrentProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none on CPUs."""
    target, line = problem.node.target, STATES[problem.cell] * problem.hidden * F32.itemsize
    if not target.is_cpu and target.max_work_group >= LANES:
        line += problem.rounds_states * (problem.hidden + 1) * F32.itemsize
        fitting = [r for r in ROWS if r * line <= target.local_bytes]
        wanted = [r for r in fitting if r == 1 or r < 2 * greatest(problem.batch, 1)]
        for rows in sorted(wanted, key=lambda r: _cost(problem, r)):
            yield _variant(problem, rows)


def _cost(problem: RecurrentProblem, rows: int) -> float:
    """Return the estimated cycles of a compute unit."""
    groups = problem.directions * -(-int(problem.batch) // rows)
    rounds = -(-groups // problem.node.target.compute_units)
    turns = -(-problem.hidden // _members(problem))
    terms = problem.kind.gates * problem.hidden * turns
    return float(problem.steps * rounds * terms * (WEIGHT_CYCLES + rows * ROW_CYCLES))


def _members(problem: RecurrentProblem) -> int:
    most = min(MOST_MEMBERS, problem.node.target.max_work_group)
    return min(most // LANES, -(-problem.hidden // LANES)) * LANES


def _variant(problem: RecurrentProblem, rows: int) -> Variant:
    panels = packed(problem, LANES, 1, one_pass(problem.kind.phases))
    members = _members(problem)
    name = f"{problem.label}_group_r{rows}_m{members}"
    params = problem.params() | {
        "name": name,
        "weights_type": panels.ctype,
        "panels_move": panels.moves,
        "first": problem.first(),
        "phases": problem.kind.phases,
        "lanes": LANES,
        "rows": rows,
        "wg": (members, 1, 1),
    }
    inputs = (In(PRODUCTS), *problem.first_args(), *problem.extra_args())
    args = (panels.arg, *inputs, *problem.out_args())
    sizes = (members, -(-problem.batch // rows), problem.directions)
    launch = Launch("recurrent/group.cl.mako", params, args, sizes, (members, 1, 1))

    def again(other: RecurrentProblem) -> Variant | None:
        same = (other.weights.const is None) == panels.moves
        fits = same and (rows == 1 or is_open(other.batch) or rows < 2 * other.batch)
        return _variant(other, rows) if fits else None

    return Variant(name, (*panels.launches, launch), _cost(problem, rows), again=again)
