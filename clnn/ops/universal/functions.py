"""The functions of the universal set: their templates, their tiles, and launches of them."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.ops.launch import Arg, Launch
from clnn.target import Target

# A register tile of so many pixels by channels takes 12 of 16 registers of 8 floats, and is long enough for 32
# registers of 16.
PIXELS, CHANNELS, TERMS = 6, 16, 64
COLUMNS = 4  # pixels of a tile of windows
PIECE = 64  # elements of a tile of an elementwise chain
ITEM_WORK = 1 << 17  # multiply-adds that are worth a work-item
ITEMS_PER_UNIT = 8  # that share a launch evenly

_TUNABLES: dict[str, tuple[str, ...]] = {
    "conv": ("vw", "nv", "mr", "kc"),
    "window": ("vw", "mx"),
    "walk": ("vw", "piece"),
    "fill": (),
    "sample": ("vw", "piece"),
    "rows": ("vw",),
}
FUNCTIONS = tuple(_TUNABLES)


def tile_channels(target: Target) -> int:
    """Return the channels of a tile of a convolution: whole vectors."""
    return max(CHANNELS, target.vector)


def function_params(function: str, target: Target) -> dict[str, object]:
    """Return the template parameters of a function of the set on a device."""
    values = {
        "vw": target.vector,
        "nv": tile_channels(target) // target.vector,
        "mr": PIXELS,
        "kc": TERMS,
    }
    values |= {"mx": COLUMNS, "piece": PIECE}
    tunables = {key: values[key] for key in _TUNABLES[function]}
    return {"name": f"universal_{function}", "wg": (1, 1, 1), **tunables}


def template_of(function: str) -> str:
    """Return the template of a function of the set."""
    return f"universal/{function}.cl.mako"


def universal_launch(
    function: str,
    target: Target,
    args: tuple[Arg, ...],
    numbers: Sequence[int | float],
    sizes: tuple[int, ...],
) -> Launch:
    """Return the launch of a function of the set with these arguments and numbers."""
    sizes = (*sizes, 1, 1)[:3]
    params = function_params(function, target)
    plain = tuple(n if isinstance(n, float) else int(n) for n in numbers)
    return Launch(template_of(function), params, args, sizes, (1, 1, 1), numbers=plain)


def banded(tiles: int, others: int, work: int, target: Target) -> int:
    """Return how many of `tiles` a work-item does, each of so much work; others: items beside them."""
    fitting = max(1, ITEM_WORK // max(work, 1))
    even = max(1, tiles * others // (ITEMS_PER_UNIT * target.compute_units))
    return max(1, min(fitting, even, tiles))


def is_universal(launch: Launch) -> bool:
    """Whether a launch is one of the set."""
    return launch.template in map(template_of, FUNCTIONS)
