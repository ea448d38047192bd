"""Recurrent weights in panels, packed on the host where they are constant, else on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clnn.ops.launch import Arg, In, Launch, Scratch, grid
from clnn.ops.recurrent.cells import WEIGHTS
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.types import F32, Array

Passes = tuple[tuple[int, ...], ...]


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


def pack(weights: Array, vw: int, nv: int, passes: Passes) -> Array:
    """Return recurrent weights (directions, gates * hidden, hidden) in panels of nv * vw units.

    As recurrent/pack.cl.mako makes them: [direction][slice][pass][element][gate][vector][lane].
    """
    turns, rows, hidden = weights.shape
    unit = vw * nv
    slices = -(-hidden // unit)
    blocks = weights.reshape(turns, rows // hidden, hidden, hidden)
    wide = np.zeros((turns, rows // hidden, slices * unit, hidden), np.float32)
    wide[:, :, :hidden] = blocks
    wide = wide.reshape(turns, rows // hidden, slices, unit, hidden)
    panels = [
        wide[:, list(gates)].transpose(0, 2, 4, 1, 3).reshape(turns, slices, -1) for gates in passes
    ]
    return np.ascontiguousarray(np.concatenate(panels, axis=2)).reshape(-1)


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
