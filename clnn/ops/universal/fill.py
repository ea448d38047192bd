"""Border fills as launches of the universal set."""

from __future__ import annotations

from clnn.ops.launch import Launch
from clnn.ops.universal.functions import universal_launch
from clnn.target import Target

TEMPLATE = "movement/border_fill.cl.mako"
OUTER = 4  # outer axes
SIZES = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
}  # bytes of elements that have a function of their own


def universal_fill(launch: Launch, target: Target) -> Launch | None:
    """Return a border fill as one of the set, None where it has no form there."""
    params = launch.params
    size = SIZES.get(params["ctype"], 0)
    if not (size or params["ctype"] == "float") or len(params["outer"]) > OUTER:
        return None
    more = OUTER - len(params["outer"])
    axes = [(1, 0, 1, 0)] * more
    axes += zip(params["outer"], params["low"], params["high"], params["pitches"], strict=True)
    value = [size, int(params["fill"])] if size else [float(params["fill"])]
    numbers = [*value, params["front"], params["real"], params["back"]]
    numbers += [number for axis in axes for number in axis]
    function = "bytes_fill" if size else "fill"
    return universal_launch(function, target, launch.args, numbers, (params["lines"],))
