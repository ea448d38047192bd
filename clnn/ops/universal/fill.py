"""Border fills as launches of the universal set."""

from __future__ import annotations

from clnn.ops.launch import Launch
from clnn.ops.universal.functions import universal_launch
from clnn.target import Target

TEMPLATE = "movement/border_fill.cl.mako"
OUTER = 4  # outer axes


def universal_fill(launch: Launch, target: Target) -> Launch | None:
    """Return a border fill as one of the set, None where it has no form there."""
    params = launch.params
    if params["ctype"] != "float" or len(params["outer"]) > OUTER:
        return None
    more = OUTER - len(params["outer"])
    axes = [(1, 0, 1, 0)] * more
    axes += zip(params["outer"], params["low"], params["high"], params["pitches"], strict=True)
    numbers = [float(params["fill"]), params["front"], params["real"], params["back"]]
    numbers += [number for axis in axes for number in axis]
    return universal_launch("fill", target, launch.args, numbers, launch.global_size)
