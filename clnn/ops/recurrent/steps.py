"""All steps in one launch, for CPUs: chains of steps, each walked by work-items that share its units."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from clnn.ops.launch import Arg, In, Launch, Scratch, Variant
from clnn.ops.recurrent.cells import PRODUCTS
from clnn.ops.recurrent.panels import NEAR, ahead, are_bytes, packed, packed_bytes
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.ops.recurrent.reference import scratch_args
from clnn.records import dataclass
from clnn.traced import is_open
from clnn.types import F32

CHAINS = 12  # vectors of sums of one sequence, at most
WIDEST = 8  # sequences taken together
OPEN_TILES = (8, 4, 1)  # where the batch is read at run time
HELPERS = 4  # work-items for each share: runtimes hand several to the first thread that asks
LINE = 16  # ints from ticket to ticket, a cache line
NEAR_BYTES = 2.5  # that a core reads from there in a cycle, for each lane of its vectors
FAR_BYTES = 14.0  # that it reads from behind that
START = 60000.0  # cycles that sharing costs once: a launch before it, and a thread that comes late
TURN = 3500.0  # cycles that sharing a turn costs, waiting for a core with other load included
LOOK = 40  # cycles of a look at what the others have done
LOOKS = 50, 2000  # the least and the most that a work-item waits before it takes over a share
SPEED = {"": 1.0, "vnni4": 0.25, "madd4": 0.75, "plain4": 4.0}  # of a product, by dot
UNIT = 9.0  # cycles of a hidden unit's functions, for each gate


@dataclass(frozen=True)
class Choice:
    """Tunables of recurrent/steps, see there."""

    vw: int
    nv: int
    parts: int
    shares: int
    dot: str = ""

    @property
    def unit(self) -> int:
        """Hidden units of a slice."""
        return self.vw * self.nv


def steps_variants(problem: RecurrentProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first."""
    if problem.node.target.is_cpu and problem.is_dense:
        choices = sorted(_choices(problem), key=lambda c: _cost(problem, c))
        for choice in choices:
            yield _variant(problem, choice)


def _choices(problem: RecurrentProblem) -> Iterator[Choice]:
    units, hidden = problem.node.target.compute_units, problem.hidden
    vw = 1
    while vw < min(problem.node.target.vector, 16) and vw < hidden:
        vw *= 2
    parts = {1} if is_open(problem.batch) else {1, min(units, max(problem.batch, 1))}
    ways = product((1, 2, 4), sorted(parts), sorted({1, units}), _dots(problem, vw))
    for nv, part, share, dot in ways:
        slices = -(-hidden // (vw * nv))
        most = max(len(gates) for gates in problem.kind.phases)
        fits = nv == 1 or (slices >= units and nv * most <= CHAINS)
        if fits and share <= slices and (part == 1 or share == 1):
            yield Choice(vw, nv, part, share, dot)


def _dots(problem: RecurrentProblem, vw: int) -> tuple[str, ...]:
    """Return how states may be multiplied: as floats, and as bytes where the weights are such."""
    if not are_bytes(problem):
        return ("",)
    features = problem.node.target.features
    if "x86_vnni" in features and vw == 16:
        return ("vnni4", "")
    return ("madd4", "") if "x86_madd" in features and 1 < vw <= 8 else ("", "plain4")


def passes_of(problem: RecurrentProblem, choice: Choice) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return for each phase its gates in groups whose sums fit the registers."""
    sums = problem.node.target.registers * 3 // 4
    fitting = max(sums // (choice.nv * max(tiles_of(problem, choice))), 1)

    def groups(gates: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        size = -(-len(gates) // -(-len(gates) // fitting))
        return tuple(gates[k : k + size] for k in range(0, len(gates), size))

    return tuple(groups(gates) for gates in problem.kind.phases)


def tiles_of(problem: RecurrentProblem, choice: Choice) -> tuple[int, ...]:
    """Return how many sequences are taken together, widest first; 1 where any number may be left."""
    if is_open(problem.batch):
        return OPEN_TILES
    batch, parts = int(problem.batch), choice.parts
    rows = {(p + 1) * batch // parts - p * batch // parts for p in range(parts)}
    count = -(-max(rows) // WIDEST)
    tile = max(-(-max(rows) // max(count, 1)), 1)
    rests = {r % tile for r in rows} - {0}
    tail = min(rests, default=0)
    if not tail:
        return (tile,)
    return (tile, tail) if rests == {tail} else (tile, 1)


def _cost(problem: RecurrentProblem, choice: Choice) -> float:
    """Return the estimated cycles of a compute unit."""
    busy = problem.directions * choice.parts * choice.shares
    rounds = -(-busy // problem.node.target.compute_units)
    step, start = _share_cycles(problem, choice), 0.0
    if choice.shares > 1:
        step, start = step + len(problem.kind.phases) * TURN, START
    return float(int(problem.steps) * step * rounds + start)


def _share_cycles(problem: RecurrentProblem, choice: Choice) -> float:
    """Return the estimated cycles of one share's part of a step."""
    target, hidden, gates = problem.node.target, problem.hidden, problem.kind.gates
    slices = -(-hidden // choice.unit)
    units = -(-slices // choice.shares) * choice.unit
    rows = -(-int(problem.batch) // choice.parts)
    weights = gates * hidden * units * (1 if choice.dot else F32.itemsize)
    near = min(weights, NEAR)
    read = near / (NEAR_BYTES * min(target.vector, 16)) + (weights - near) / FAR_BYTES
    multiply = rows * gates * hidden * units / (2 * target.vector) * SPEED[choice.dot]
    chains = min(choice.nv * max(map(len, problem.kind.phases)) * min(rows, WIDEST), 8)
    return max(read, multiply * 8 / chains) + rows * gates * units * UNIT / target.vector


def _patience(problem: RecurrentProblem, choice: Choice) -> int:
    """Return how many looks a work-item waits for others: about as long as a share takes."""
    turn = _share_cycles(problem, choice) / len(problem.kind.phases)
    return int(min(max(turn / LOOK, LOOKS[0]), LOOKS[1]))


def _variant(problem: RecurrentProblem, choice: Choice) -> Variant:
    hidden, target = problem.hidden, problem.node.target
    tiles, passes = tiles_of(problem, choice), passes_of(problem, choice)
    slices = -(-hidden // choice.unit)
    row = slices * choice.unit
    across = "open" if is_open(problem.batch) else "x".join(map(str, tiles))
    tile = f"r{across}_v{choice.vw}x{choice.nv}_p{choice.parts}_s{choice.shares}"
    name = f"{problem.label}_steps_{tile}{'_' * bool(choice.dot)}{choice.dot}"
    pack = packed_bytes if choice.dot else packed
    panels = pack(problem, choice.vw, choice.nv, passes)
    tickets = problem.directions * choice.parts * 2 * choice.shares * LINE
    shared = choice.shares > 1
    claims = (Scratch("tickets", tickets * F32.itemsize),) if shared else ()
    lines = problem.directions * choice.shares * problem.batch
    rounded = (Scratch("rounded", lines * (row + LINE) * F32.itemsize),) * problem.rounds_states
    start = (_start_launch(problem, row, tickets, claims),) if shared else ()
    params = problem.params() | {
        "name": name,
        "row": row,
        "weights_type": panels.ctype,
        "panels_move": panels.moves,
        "first": {} if shared else problem.first(),
        "passes": passes,
        "ahead": ahead(problem, choice.shares, bool(choice.dot)),
        "fetches": shared and "prefetch" in target.features,
        "slices": slices,
        "dot": choice.dot,
        "vw": choice.vw,
        "nv": choice.nv,
        "tiles": tiles,
        "parts": choice.parts,
        "shares": choice.shares,
        "helpers": HELPERS if shared else 1,
        "patience": _patience(problem, choice) if shared else 0,
        "wg": (1,),
    }
    args = (
        In(PRODUCTS),
        panels.arg,
        *(() if shared else problem.first_args()),
        *problem.extra_args(),
        *problem.out_args(),
        *claims,
        *rounded,
        *scratch_args(problem, row),
    )
    items = problem.directions * choice.parts * (choice.shares * HELPERS if shared else 1)
    steps = Launch("recurrent/steps.cl.mako", params, args, (items,), (1,))

    def again(other: RecurrentProblem) -> Variant | None:
        fits = other.is_dense and (other.weights.const is None) == panels.moves
        fits = fits and (not choice.dot or are_bytes(other))
        fits = fits and (is_open(other.batch) or tiles_of(other, choice) == tiles)
        return _variant(other, choice) if fits else None

    return Variant(name, (*panels.launches, *start, steps), _cost(problem, choice), again=again)


def _start_launch(
    problem: RecurrentProblem, row: int, tickets: int, claims: tuple[Arg, ...]
) -> Launch:
    """Return the launch that puts first states and zeroed tickets into scratch memory."""
    lines = problem.directions * problem.batch
    given = problem.first()
    has_cell = problem.cell == "lstm"
    params = {
        "name": f"recurrent_start_{'_'.join(given) or 'zeros'}",
        "hidden": problem.hidden,
        "row": row,
        "directions": problem.directions,
        "batch": problem.batch,
        "first": given,
        "has_cell": has_cell,
        "tickets": tickets,
        "wg": (1,),
    }
    scratch = scratch_args(problem, row)
    kept = (*scratch[:1], scratch[-1]) if has_cell else scratch[-1:]
    args = (*problem.first_args(), *claims, *kept)
    return Launch("recurrent/start.cl.mako", params, args, (lines,), (1,))
