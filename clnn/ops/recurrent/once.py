"""Layers of one step, for CPUs: work-items that wait for nobody, a launch for each phase."""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.launch import In, Launch, Scratch, Variant
from clnn.ops.recurrent.cells import PRODUCTS, STATE
from clnn.ops.recurrent.panels import ahead, one_pass, packed
from clnn.ops.recurrent.problem import FIRST, RecurrentProblem
from clnn.traced import is_open
from clnn.types import F32

SUMS = 24  # vectors of sums that stay in registers
CHAINS = 8  # sums that keep a core busy, and that fit 16 registers of half a vector
BYTES = 30.0  # of weights that a core reads in a cycle
UNIT = 9.0  # cycles of a hidden unit's functions, for each gate
PHASE = 2000.0  # cycles from one phase to the next


def once_variants(problem: RecurrentProblem) -> Iterator[Variant]:
    """Yield the kernels of a layer of one step, best first."""
    if not _fits(problem):
        return
    most = max(map(len, _phases(problem)))
    heights = {_balanced(int(problem.batch), r) for r in (1, 2, SUMS // most)}
    for rows in sorted(heights, key=lambda r: _cost(problem, r)):
        yield _variant(problem, rows)


def _fits(problem: RecurrentProblem) -> bool:
    node = problem.node
    if not node.target.is_cpu or is_open(problem.steps) or is_open(problem.batch):
        return False
    one = problem.steps == 1 and problem.batch > 0 and not problem.rounds_states
    dense = [problem.first_pitches(k)[-1] == 1 for k in FIRST if node.has(k)]
    return one and problem.is_dense and (all(dense) or problem.hidden == 1)


def _phases(problem: RecurrentProblem) -> tuple[tuple[int, ...], ...]:
    """Return the gates of each phase: one phase where no state is multiplied."""
    phases = problem.kind.phases
    return phases if problem.node.has(STATE) else (tuple(g for p in phases for g in p),)


def _balanced(batch: int, most: int) -> int:
    """Return how many sequences tiles take, at most `most`, so that they are of about one size."""
    return -(-batch // -(-batch // most))


def _width(problem: RecurrentProblem) -> int:
    vw = 1
    while vw < min(problem.node.target.vector, 16) and vw < problem.hidden:
        vw *= 2
    return vw


def _cost(problem: RecurrentProblem, rows: int) -> float:
    """Return the estimated cycles of a compute unit."""
    target, hidden, vw = problem.node.target, problem.hidden, _width(problem)
    gates, phases = problem.kind.gates, len(_phases(problem))
    items = -(-hidden // vw) * -(-int(problem.batch) // rows) * problem.directions
    terms = gates * hidden * vw if problem.node.has(STATE) else 0
    most = max(map(len, _phases(problem)))
    crowded = 2 if rows * most > CHAINS else 1
    item = max(terms * F32.itemsize / BYTES, crowded * rows * terms / (2 * target.vector))
    item += rows * gates * vw * UNIT / target.vector
    return float(-(-items // target.compute_units) * item + (phases - 1) * PHASE)


def _variant(problem: RecurrentProblem, rows: int) -> Variant:
    phases, vw, node = _phases(problem), _width(problem), problem.node
    slices, has_state = -(-problem.hidden // vw), node.has(STATE)
    row, tiles = slices * vw, -(-int(problem.batch) // rows)
    name = f"{problem.label}_once_r{rows}_v{vw}"
    panels = packed(problem, vw, 1, one_pass(phases)) if has_state else None
    lines = problem.directions * problem.batch * row * F32.itemsize
    kept = (Scratch("reset", lines), Scratch("update", lines)) if len(phases) > 1 else ()
    params = problem.params() | {
        # Of no state the hidden gate's product is 0, whether or not the reset gate was before it.
        "kind": "late_gru" if problem.cell == "gru" and not has_state else problem.cell,
        "row": row,
        "weights_type": panels.ctype if panels else "float",
        "panels_move": panels is not None and panels.moves,
        "ahead": ahead(problem, node.target.compute_units),
        "first": problem.first(),
        "phases": phases,
        "slices": slices,
        "vw": vw,
        "rows": rows,
        "wg": (1, 1, 1),
    }

    def launch(phase: int) -> Launch:
        last, own = phase + 1 == len(phases), len(phases[phase])
        twice = problem.hidden % 2 == 0 and own * rows < CHAINS
        own_params = {
            "name": name if last else f"{name}_p{phase}",
            "phase": phase,
            "chains": 1 + twice,
        }
        firsts = [In(k) for k in FIRST if node.has(k) and (last or k == STATE)]
        extras = problem.extra_args() if last else ()
        outs = problem.out_args() if last else ()
        weights = (panels.arg,) if panels else ()
        args = (In(PRODUCTS), *weights, *firsts, *extras, *outs, *kept)
        sizes = (tiles, slices, problem.directions)
        return Launch("recurrent/once.cl.mako", params | own_params, args, sizes, (1, 1, 1))

    launches = (*(panels.launches if panels else ()), *map(launch, range(len(phases))))
    return Variant(name, launches, _cost(problem, rows))
