"""Depthwise separable convolutions as one kernel for CPUs: what is between stays in a core's cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter

from clnn.ops.conv.edges import stays_inside
from clnn.ops.conv.packing import pack_table, pack_weights
from clnn.ops.conv.problem import NEAR_WEIGHTS, long_finish
from clnn.ops.conv.separable_problem import WEIGHTS, SeparableProblem
from clnn.ops.conv.tiles import Extents, Tile, conv_tiles
from clnn.ops.launch import In, Launch, Variant, grid
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.cache_sets import spread_pitch
from clnn.ops.shared.cycles import EXPOSED, block_slots, bytes_a_cycle
from clnn.ops.shared.epilogue import heavy
from clnn.records import dataclass

CACHE_RATE = 7  # bytes per cycle and core, of what one launch or band leaves to the next
NEAR_BYTES = 400 * 1024  # of a band, so that it stays in a core's second cache
HELD = 4  # registers in which compilers keep numbers of functions that stand before and behind the products
TILES, BANDS = 4, 5  # that are worth a measurement: register tiles, and bands of each


@dataclass(frozen=True)
class BandPlan:
    """Tunables of the kernel: rows of a band, columns at a time, register tile; estimated cycles."""

    cycles: float
    band: int
    tx: int
    tile: Tile


def variants(problem: SeparableProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none on GPUs."""
    if not _takes(problem):
        return
    for plan in _plans(problem):
        yield _variant(problem, plan)


def _takes(problem: SeparableProblem) -> bool:
    """Whether this kernel computes a problem, whatever its extents."""
    if not problem.target.is_cpu or not problem.fits_fast or problem.ic < 2:
        return False
    return all(pitch <= 1 for _, _, pitch in problem.gates.values())


def _fits(problem: SeparableProblem, plan: BandPlan) -> bool:
    """Whether a plan for other extents can be used for a problem's."""
    pixels = plan.band * problem.width + plan.tile.mr
    near = pixels * spread_pitch(problem.ic) * 4 <= problem.target.local_bytes
    return near and _takes(problem)


def _plans(problem: SeparableProblem) -> list[BandPlan]:
    """Return the tunables that are worth a measurement, best first."""
    target, oh, ow = problem.target, int(problem.height), int(problem.width)
    row = ow * spread_pitch(problem.ic) * 4
    bands = [b for b in range(1, oh + 1) if b * row <= min(NEAR_BYTES, target.local_bytes)]
    columns = next((t for t in (7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    held = HELD if heavy(problem.post_ops) and heavy(problem.first_post_ops) else 0
    extents = Extents(
        oh, ow, problem.oc, target.vector, flat=True, registers=target.registers - held
    )
    plans: list[BandPlan] = []
    for _, tile in conv_tiles(extents):
        if tile.vw <= problem.ic:
            fits = [b for b in bands if _last(oh, b) * ow >= tile.mr]
            of_tile = [BandPlan(_cycles(problem, b, columns, tile), b, columns, tile) for b in fits]
            plans += sorted(of_tile, key=attrgetter("cycles"))[:BANDS]
    return sorted(plans, key=attrgetter("cycles"))[: TILES * BANDS]


def _last(rows: int, band: int) -> int:
    """Return the rows of the last band."""
    return rows - (-(-rows // band) - 1) * band


def _cycles(problem: SeparableProblem, band: int, tx: int, tile: Tile) -> float:
    """Return the estimated cycles of the busiest core."""
    (kh, kw), (_, sx), (_, dx) = (problem.geometry[k] for k in ("kernel", "strides", "dilations"))
    columns = (tx - 1) * sx + (kw - 1) * dx + 1
    filters = max(kh * (columns + kw) + tx, tx * kh * kw) / 2 + tx
    width = int(problem.width)
    filters *= band * -(-width // tx) * -(-problem.ic // tile.vw)
    slots = block_slots(tile.mr, tile.nv, -(-problem.oc // tile.vw))
    products = -(-band * width // tile.mr)
    # Every band reads all weights, which stay close to a core from band to band if they are few.
    nbytes = problem.input(WEIGHTS).type.nbytes
    rate = bytes_a_cycle(CACHE_RATE, problem.target)
    far = EXPOSED * nbytes / rate if nbytes > NEAR_WEIGHTS else 0.0
    bands = -(-int(problem.height) // band) * int(problem.batch)
    rounds = -(-bands // problem.target.compute_units)
    return rounds * (filters + products * problem.ic * slots / 2 + far)


def _variant(problem: SeparableProblem, plan: BandPlan) -> Variant:
    """Return the kernel of a plan."""
    tile = plan.tile
    bands, inside = -(-problem.height // plan.band), stays_inside(problem, plan.tx, overlap=True)
    global_size, local = grid(problem.target, bands, 1, problem.batch)
    tunables = f"b{plan.band}_c{plan.tx}_t{tile.mr}x{tile.channels}"
    params = problem.params | {
        "name": problem.label("separable", tunables),
        "ic": problem.ic,
        "oc": problem.oc,
        "first_rows": int(problem.shift is not None),
        "rows": int(problem.bias is not None),
        "first_post_ops": problem.first_post_ops,
        "gates": problem.gates,
        "groups": 1,
        "mode": tile.mode,
        "loop_epilogue": long_finish(problem),
        "prefetch": "prefetch" in problem.target.features,
        "wg": local,
        "band": plan.band,
        "tx": plan.tx,
        "inside": inside,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "pitch": spread_pitch(problem.ic),
        "most_floats": problem.target.local_bytes // 4,
    }
    constants = problem.constants(
        lambda weights: pack_weights(weights, 1, tile.channels),
        lambda bias: pack_table(bias, 1, tile.channels),
    )
    args = (In(0), *map(In, problem.gates), *constants, *last_args(problem, problem.post_ops))
    launch = Launch("conv/separable.cl.mako", params, args, global_size, local)

    def again(other: SeparableProblem) -> Variant | None:
        return _variant(other, plan) if _fits(other, plan) else None

    def cost_at(other: SeparableProblem) -> float:
        fits = _fits(other, plan)
        return _cycles(other, plan.band, plan.tx, tile) if fits else math.inf

    unread = (0,) if inside else ()
    return Variant(
        params["name"], (launch,), plan.cycles, again=again, cost_at=cost_at, unread=unread
    )
