"""Elementwise chains and copies as launches of the universal set."""

from __future__ import annotations

from clnn.ops.launch import Launch
from clnn.ops.universal.functions import universal_launch
from clnn.ops.universal.post_ops import OPERANDS, encoded
from clnn.target import Target

TEMPLATE = "elementwise/eltwise.cl.mako"
OUTER = 4  # outer loops
WORDS = ("float", "int", "uint")  # types of 4 bytes, which a copy takes as they are


def universal_walk(launch: Launch, target: Target) -> Launch | None:
    """Return an elementwise launch as one of the set, None where it has no form there."""
    params = launch.params
    types = {(type(t), str(t)) for t in params["ctypes"]}
    allowed = ("float",) if params["post_ops"] else WORDS
    fits = len(types) == 1 and types <= {(str, t) for t in allowed} and params["function"] is None
    if not fits or len(params["outer"]) > OUTER:
        return None
    # Sources that post-ops read, among them perhaps the running value's own.
    read = [params["operands"][p.operand] for p in params["post_ops"] if p.operand is not None]
    sources = list(dict.fromkeys(read))
    places = {k: sources.index(n) for k, n in params["operands"].items() if n in sources}
    codes = encoded(params["post_ops"], places)
    if codes is None:
        return None
    walked = [0, *sources, *[0] * (OPERANDS - len(sources)), len(launch.args) - 1]
    more = OUTER - len(params["outer"])
    numbers = [params["inner"], params["chunk"], params["middle"], params["rows"]]
    numbers += [1] * more + [*params["outer"]]
    for k in walked:
        numbers += [0] * more + [*params["pitches"][k]]
        numbers += [params["middle_pitches"][k], params["inner_pitches"][k]]
    args = tuple(launch.args[k] for k in walked)
    return universal_launch("walk", target, args, [*numbers, *codes], launch.global_size)
