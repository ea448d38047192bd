"""Elementwise chains and copies as launches of the universal set."""

from __future__ import annotations

from dataclasses import replace

from clnn.ops.launch import Launch, Scratch
from clnn.ops.universal.functions import universal_launch
from clnn.ops.universal.post_ops import OPERANDS, encoded
from clnn.target import Target

TEMPLATE = "elementwise/eltwise.cl.mako"
OUTER = 4  # outer loops
WORDS = ("float", "int", "uint")  # types of 4 bytes, which a copy takes as they are


def universal_walks(launch: Launch, target: Target) -> tuple[Launch, ...] | None:
    """Return an elementwise launch as launches of the set, None where it has no form there.

    A chain with more post-ops or operands than one takes is cut, and what lies between goes through scratch
    memory.
    """
    if whole := universal_walk(launch, target):
        return (whole,)
    for cut in range(len(launch.params["post_ops"]) - 1, 0, -1):
        head, rest = _cut(launch, cut)
        first = universal_walk(head, target)
        if first is not None and rest is not None:
            behind = universal_walks(rest, target)
            return behind and (first, *behind)
    return None


def _cut(launch: Launch, cut: int) -> tuple[Launch, Launch | None]:
    """Return the first `cut` post-ops of a launch, and the others where these do not read its source."""
    params, last = launch.params, len(launch.args) - 1
    extents = *params["outer"], params["middle"], params["inner"]
    pitches = [
        *params["pitches"][last],
        params["middle_pitches"][last],
        params["inner_pitches"][last],
    ]
    span = 1 + sum((n - 1) * abs(p) for n, p in zip(extents, pitches, strict=True))
    between = Scratch(f"between{len(params['post_ops'])}", 4 * span)
    ops = params["post_ops"]
    head = replace(
        launch,
        params={**params, "post_ops": ops[:cut]},
        args=(*launch.args[:-1], between),
    )
    again = any(p.operand is not None and not params["operands"][p.operand] for p in ops[cut:])
    if again or min(pitches) < 0:
        return head, None
    behind = {**params, "post_ops": ops[cut:]}
    for what in ("pitches", "middle_pitches", "inner_pitches"):
        behind[what] = (params[what][last], *params[what][1:])
    return head, replace(launch, params=behind, args=(between, *launch.args[1:]))


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
