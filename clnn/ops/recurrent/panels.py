"""Recurrent weights in panels, packed on the host where they are constant, else on the device."""

from __future__ import annotations

import functools

import numpy as np

from clnn.ops.launch import Arg, Const, In, Launch, Scratch, grid
from clnn.ops.recurrent.cells import WEIGHTS
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.records import dataclass
from clnn.types import F32, I32, Array

Passes = tuple[tuple[tuple[int, ...], ...], ...]
"""For each phase, tuples of gates that are summed together."""

AHEAD = 2048  # bytes of a panel that are on their way
NEAR = 1 << 19  # bytes of weights that stay in the cache of a core's own between two steps


@dataclass(frozen=True)
class Panels:
    """Where packed weights are found. launches: those that pack them in each run."""

    arg: Arg
    ctype: str
    launches: tuple[Launch, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether they lie in scratch memory."""
        return isinstance(self.arg, Scratch)


def one_pass(phases: tuple[tuple[int, ...], ...]) -> Passes:
    """Return the passes of phases whose gates are all summed together."""
    return tuple((gates,) for gates in phases)


def pack(weights: Array, vw: int, nv: int, passes: Passes) -> Array:
    """Return recurrent weights (directions, gates * hidden, hidden) in panels of nv * vw units.

    As recurrent/pack.cl.mako makes them: [direction][phase][slice][pass][element][gate][vector][lane].
    """
    turns, rows, hidden = weights.shape
    unit = vw * nv
    slices = -(-hidden // unit)
    blocks = weights.reshape(turns, rows // hidden, hidden, hidden)
    wide = np.zeros((turns, rows // hidden, slices * unit, hidden), np.float32)
    wide[:, :, :hidden] = blocks
    return _joined(wide.reshape(turns, rows // hidden, slices, unit, hidden), passes)


def pack_bytes(weights: Array, vw: int, nv: int, passes: Passes) -> Array:
    """Return recurrent weights that are integers of a byte in panels of ints, four elements in each.

    As `pack`, with fours of elements in the place of elements, and the sums over all elements behind them.
    """
    turns, rows, hidden = weights.shape
    unit, fours = vw * nv, -(-hidden // 4)
    slices = -(-hidden // unit)
    wide = np.zeros((turns, rows // hidden, slices * unit, 4 * fours), np.int8)
    wide[:, :, :hidden, :hidden] = weights.reshape(turns, rows // hidden, hidden, hidden)
    words = np.concatenate(
        [wide.view(np.int32), wide.sum(axis=3, keepdims=True)], 3, dtype=np.int32
    )
    return _joined(words.reshape(turns, rows // hidden, slices, unit, fours + 1), passes)


def _joined(blocks: Array, passes: Passes) -> Array:
    """Return blocks (directions, gates, slices, units, elements) one behind the other, as `pack` does."""
    turns, _, slices = blocks.shape[:3]
    found = []
    for phase in passes:
        parts = [blocks[:, list(gates)].transpose(0, 2, 4, 1, 3) for gates in phase]
        lines = [part.reshape(turns, slices, -1) for part in parts]
        found.append(np.concatenate(lines, axis=2).reshape(turns, -1))
    return np.ascontiguousarray(np.concatenate(found, axis=1)).reshape(-1)


def ahead(problem: RecurrentProblem, units: int, of_bytes: bool = False) -> int:
    """Return the elements by which panels are read ahead; 0 where they stay in the caches of cores' own.

    units: compute units that divide the hidden units between them. of_bytes: panels hold bytes.
    """
    weights = problem.weights
    itemsize = F32.itemsize if weights.const is None else weights.memory.itemsize
    far = not of_bytes and weights.type.size * itemsize > NEAR * units
    return AHEAD // itemsize if far and "prefetch" in problem.node.target.features else 0


def are_bytes(problem: RecurrentProblem) -> bool:
    """Whether the layer's states are rounded to bytes, and its constant weights are signed bytes."""
    weights = problem.weights
    if not problem.rounds_states or not isinstance(weights.const, np.ndarray):
        return False
    return weights.largest <= 127 or (weights.largest == 128 and weights.const.max() <= 127)


def packed_bytes(problem: RecurrentProblem, vw: int, nv: int, passes: Passes) -> Panels:
    """Return a layer's weights of bytes in panels."""
    data = np.asarray(problem.weights.const)
    return Panels(Const(functools.partial(pack_bytes, data, vw, nv, passes)), I32.cl)


def packed(problem: RecurrentProblem, vw: int, nv: int, passes: Passes) -> Panels:
    """Return a layer's weights in panels."""
    weights = problem.weights
    data = weights.const
    if data is not None:
        arg = weights.packed(lambda: pack(np.asarray(data), vw, nv, passes))
        return Panels(arg, weights.ctype)
    slices = -(-problem.hidden // (vw * nv))
    size = problem.directions * slices * problem.kind.gates * problem.hidden * vw * nv
    scratch = Scratch("panels", size * F32.itemsize)
    sizes, local = grid(problem.node.target, problem.hidden, slices, problem.directions)
    params = {
        "name": f"recurrent_pack_v{vw}x{nv}",
        "ctype": weights.ctype,
        "pitches": weights.layout.pitches,
        "hidden": problem.hidden,
        "slices": slices,
        "passes": passes,
        "vw": vw,
        "nv": nv,
        "wg": local,
    }
    launch = Launch("recurrent/pack.cl.mako", params, (In(WEIGHTS), scratch), sizes, local)
    return Panels(scratch, F32.cl, (launch,))
