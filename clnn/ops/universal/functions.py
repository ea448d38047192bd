"""The functions of the universal set: their templates, their tiles, and launches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clnn.ops.launch import Arg, Launch
from clnn.records import dataclass
from clnn.target import Target

# A register tile of convolutions by the elements of a vector: pixels, and vectors of channels. Its sums, a pixel and
# a row of weights fit in the registers.
TILES = {16: (14, 2), 8: (6, 2)}
OTHERS = (6, 16)  # pixels and channels with narrower vectors
TERMS = 592  # copied at once: a window of 3 x 3 with 64 channels, and no power of two
SPAN = 8  # blocks of channels that share the copies
NEAR_WEIGHTS = 1 << 19  # bytes of weights that stay close to a core while pixels move over them
MOST_NEAR_WEIGHTS = 640 * 1024  # that stay in a core's own cache beside pixels
COLUMNS = 7  # pixels of a tile of windows
SIDE = 4  # outputs of a tile of Winograd's convolutions, along an axis
PIECES = {
    "walk": 256,
    "sample": 64,
    "bytes_walk": 256,
    "bytes_pick": 4096,
    "bytes_sample": 128,
}  # elements of a tile
BYTE_TERMS = 1168  # bytes that are copied at once: whole words, and no power of two
MADD_VECTOR = 8  # ints of a vector that x86's vpmaddwd makes
ITEM_WORK = 1 << 17  # multiply-adds that are worth a work-item
ITEMS_PER_UNIT = 8  # that share a launch evenly

_TUNABLES: dict[str, tuple[str, ...]] = {
    "conv": ("vw", "nv", "mr", "kc", "most"),
    "pack": ("vw", "nv"),
    "window": ("vw", "mx"),
    "walk": ("vw", "piece"),
    "fill": (),
    "sample": ("vw", "piece"),
    "rows": ("vw",),
    "winograd_input": ("vw", "m"),
    "winograd_output": ("vw", "m"),
    "bytes_conv": ("vw", "nv", "mr", "kc", "most", "dot", "vbmi"),
    "bytes_window": ("vw", "mx", "vbmi"),
    "bytes_taps": ("vw", "nv", "mr"),
    "bytes_product": ("vw", "mr"),
    "bytes_walk": ("vw", "piece", "vbmi"),
    "bytes_fill": (),
    "bytes_pick": ("piece",),
    "bytes_sample": ("vw", "piece"),
    "bytes_softmax": ("vw",),
}
FUNCTIONS = tuple(_TUNABLES)
# The programs of the set: most networks need the first one alone.
SETS = {
    "floats": tuple(f for f in FUNCTIONS if not f.startswith("bytes_")),
    "bytes": tuple(f for f in FUNCTIONS if f.startswith("bytes_")),
}


def dot_of(target: Target) -> str:
    """Return how four products of bytes are added (kernels_cl/_common/dot.cl.mako)."""
    if "x86_vnni" in target.features:
        return "vnni4"
    return "madd4" if "x86_madd" in target.features else "plain4"


def of_bytes(target: Target) -> Target:
    """Return the target with vectors as products of bytes take them."""
    narrow = dot_of(target) == "madd4" and target.vector > MADD_VECTOR
    return replace(target, vector=MADD_VECTOR) if narrow else target


def tile_of(target: Target) -> tuple[int, int]:
    """Return the pixels of a tile of a convolution, and its vectors of channels."""
    return TILES.get(target.vector, (OTHERS[0], max(1, OTHERS[1] // target.vector)))


def tile_channels(target: Target) -> int:
    """Return the channels of a tile of a convolution: whole vectors."""
    return tile_of(target)[1] * target.vector


def function_params(function: str, target: Target) -> dict[str, object]:
    """Return the template parameters of a function of the set on a device."""
    target = of_bytes(target) if function in SETS["bytes"] else target
    pixels, vectors = tile_of(target)
    terms = TERMS if function in SETS["floats"] else BYTE_TERMS
    values: dict[str, Any] = {
        "vw": target.vector,
        "nv": vectors,
        "mr": pixels,
        "kc": terms,
        "most": SPAN,
    }
    values |= {"mx": COLUMNS, "piece": PIECES.get(function, 0), "m": SIDE, "dot": dot_of(target)}
    values["vbmi"] = int("x86_vbmi" in target.features)
    tunables = {key: values[key] for key in _TUNABLES[function]}
    return {"name": kernel_name(function), "wg": (1, 1, 1), **tunables}


def kernel_name(function: str) -> str:
    """Return the name of the kernel of a function of the set."""
    return f"universal_{function}"


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


@dataclass(frozen=True)
class Tiling:
    """How the tiles of a convolution are divided between work-items.

    band: tiles of pixels of a work-item. span: blocks of channels that it does of each. blocks: of a group.
    across: neighbouring work-items have the same pixels, not the same channels, so that a core goes on with the
    pixels that it made before.
    """

    band: int
    span: int
    blocks: int
    sizes: tuple[int, int]
    across: bool


def tiling(pixels: int, channels: int, groups: int, terms: int, target: Target) -> Tiling:
    """Return how sums of `terms` products, at so many pixels for the channels of each group, are divided."""
    high, wide = tile_of(target)[0], tile_channels(target)
    tiles, blocks = -(-pixels // high), -(-channels // wide)
    near = NEAR_WEIGHTS // (4 * wide * max(terms, 1))
    even = tiles * blocks * groups // (ITEMS_PER_UNIT * target.compute_units)
    most = max(1, min(SPAN, near, even, blocks))
    span = -(-blocks // -(-blocks // most))
    spans = -(-blocks // span) * groups
    band = banded(tiles, spans, high * wide * span * terms, target)
    across = 4 * wide * terms * blocks * groups <= MOST_NEAR_WEIGHTS
    sizes = -(-tiles // band), spans
    return Tiling(band, span, blocks, sizes[::-1] if across else sizes, across)


def banded(tiles: int, others: int, work: int, target: Target) -> int:
    """Return how many of `tiles` a work-item does, each of so much work; others: items beside them."""
    fitting = max(1, ITEM_WORK // max(work, 1))
    even = max(1, tiles * others // (ITEMS_PER_UNIT * target.compute_units))
    return max(1, min(fitting, even, tiles))


def is_universal(launch: Launch) -> bool:
    """Whether a launch is one of the set."""
    return bool(set_of(launch))


def set_of(launch: Launch) -> str:
    """Return the program of the set (SETS) that a launch is of, "" for none.

    Stored launches, which have no template, say so by their kernel's name.
    """
    return _PROGRAMS.get(launch.template or launch.params["name"], "")


_PROGRAMS = {
    said: name
    for name, functions in SETS.items()
    for function in functions
    for said in (template_of(function), kernel_name(function))
}
