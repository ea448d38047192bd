"""Winograd's convolution for CPUs where few pixels meet many weights, which stream from memory.

Transformed, weights are 16/9 to 4 times as many, which memory gives in more time than their products take.
Here only their columns are transformed ahead; the kernel transforms the rows, a chunk of input channels at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.winograd import ERRORS, MARGINS, TAPS, Matrix, fits, matrices
from clnn.ops.conv.winograd_cpu import INPUT_SLOTS, OUTPUT_SLOTS
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant, grid
from clnn.ops.shared.cycles import STREAM_RATE, bytes_a_cycle, loop_slots
from clnn.ops.shared.epilogue import operand_args
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import Array

LEAST_VECTOR = 16  # narrower ones multiply for longer than memory takes for transformed weights
SIZES = (2, 2), (2, 4), (4, 4)  # outputs of a tile along y and x
CHUNK = 16  # input channels whose weights are transformed at once
LEAST_TILES, MOST_SETS = 4, 4  # of a register tile, and of these
NEAR_BYTES = 44 * 1024  # of chunks' weights, and of inputs and sums at the places of a row
MOST_BYTES = 896 * 1024  # that stay in a core's second cache beside weights that pass through
WEIGHT_SLOTS = 2  # of a vector of weights, to transform it, besides its stores


@dataclass(frozen=True)
class StreamedPlan:
    """Tiles of my x mx outputs, mr of them by nv vectors of vw channels at once, in `parts` shares.

    chunk: input channels whose weights are transformed at once. sets: of mr tiles that a work-item takes.
    """

    my: int
    mx: int
    mr: int
    nv: int
    vw: int
    chunk: int
    sets: int
    parts: int
    cycles: float = 0.0

    @property
    def places(self) -> int:
        """Products of a tile and a pair of channels."""
        return (self.my + 2) * (self.mx + 2)

    @property
    def cost(self) -> float:
        """The cycles, as they compare with those of other kernels."""
        return self.cycles * MARGINS[max(self.my, self.mx)]


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernel of the estimate's choice, then those of tiles of other sizes."""
    if _takes(problem) and _pays(problem):
        shape = problem.batch, problem.oc, problem.height, problem.width
        for one in plans(shape, problem.ic, problem.target, problem.group):
            yield _variant(problem, one)


def _takes(problem: ConvProblem) -> bool:
    """Whether these kernels compute a problem."""
    target, vectors = problem.target, innermost(problem.src) and innermost(problem.dst)
    if not (target.is_cpu and fits(problem, 1, narrow=True, grouped=True) and vectors):
        return False
    extents, vw = problem.batch * problem.height * problem.width, target.vector
    return not is_open(extents) and problem.ic % CHUNK == problem.oc % vw == 0


def _pays(problem: ConvProblem) -> bool:
    """Whether weights come from further away than a core's own caches, and products do not take longer."""
    return problem.target.vector >= LEAST_VECTOR and not problem.weights_stay


def plans(shape: tuple[int, ...], ic: int, target: Target, convs: int = 1) -> list[StreamedPlan]:
    """Return the cheapest plan of each size of tiles for an output of shape (n, oc, h, w), cheapest first.

    ic, oc: channels of each of `convs` groups.
    """
    best: dict[tuple[int, int], StreamedPlan] = {}
    for one in sorted(_plans(shape, ic, target, convs), key=attrgetter("cost", "sets")):
        best.setdefault((one.my, one.mx), one)
    return list(best.values())


def _plans(shape: tuple[int, ...], ic: int, target: Target, convs: int) -> Iterator[StreamedPlan]:
    images, oc, height, width = shape
    vw, parts = target.vector, target.compute_units
    for my, mx in SIZES:
        tiles = images * -(-height // my) * -(-width // mx)
        for nv in (1, 2, 3, 4):
            if nv * vw * parts > oc:
                break
            # Registers hold the sums, a vector of weights for each, and one element of a tile.
            for mr in range(LEAST_TILES, (target.registers - 1 - nv) // nv + 1):
                sets = -(-tiles // mr)
                made = StreamedPlan(my, mx, mr, nv, vw, CHUNK, sets, parts)
                if sets <= MOST_SETS and _fits(made, ic, target):
                    yield replace(made, cycles=_cycles(made, oc, ic, target, convs))


def _fits(made: StreamedPlan, ic: int, target: Target) -> bool:
    """Whether local memory holds a plan's tiles and sums, and the nearest cache what a row of places takes."""
    held, channels, row = made.mr * made.sets, made.nv * made.vw, made.mx + 2
    near = 4 * row * (CHUNK * (channels + held) + held * channels)
    ahead = 4 * 2 * TAPS * CHUNK * channels
    far = 4 * made.places * held * (ic + channels)
    return near + ahead <= NEAR_BYTES and near + far <= min(target.local_bytes, MOST_BYTES)


def _cycles(made: StreamedPlan, oc: int, ic: int, target: Target, convs: int) -> float:
    """Return the estimated time of the slowest core."""
    channels, held = made.nv * made.vw, made.mr * made.sets
    blocks = -(-oc // channels)
    rounds, share = -(-made.parts * convs // target.compute_units), -(-blocks // made.parts)
    sums, step = made.mr * made.nv, loop_slots(made.mr, made.nv) / 2
    products = made.places * made.sets * (ic * step + ic // CHUNK * sums)
    transforms = (made.my + 2) * ic * made.nv * (made.mx + 2 + WEIGHT_SLOTS)
    fetched = (made.my + 2) * TAPS * ic * channels * 4 / bytes_a_cycle(STREAM_RATE, target)
    before = held * ic // made.vw * INPUT_SLOTS * made.places
    after = held * made.nv * OUTPUT_SLOTS * made.places
    return rounds * (share * (max(products + transforms, fetched) + after) + before)


def scaled(m: int) -> tuple[Matrix, Matrix]:
    """Return the matrix of outputs and that of weights, the latter in integers.

    What integers leave out, columns of the other take in.
    """
    made = matrices(m)
    norms = [row[0] if row[0] else row[-1] for row in made.g]
    at = [[float(a * n) for a, n in zip(row, norms, strict=True)] for row in made.at]
    g = [[float(round(w / n)) for w in row] for row, n in zip(made.g, norms, strict=True)]
    return tuple(map(tuple, at)), tuple(map(tuple, g))


def _variant(problem: ConvProblem, chosen: StreamedPlan) -> Variant:
    high, wide = -(-problem.height // chosen.my), -(-problem.width // chosen.mx)
    groups = -(-problem.batch * high * wide // (chosen.mr * chosen.sets))
    size, local = grid(problem.target, groups, chosen.parts, problem.group)
    name, bias = _name(problem, chosen), problem.bias
    along_y, (at, g) = matrices(chosen.my), scaled(chosen.mx)
    params = problem.params | {
        "name": name,
        "ic": problem.ic,
        "oc": problem.oc,
        "convs": problem.group,
        "reach": problem.reach,
        "my": chosen.my,
        "mx": chosen.mx,
        "at": (along_y.at, at),
        "g": g,
        "bt": (along_y.bt, matrices(chosen.mx).bt),
        "has_bias": bias is not None,
        "wg": local,
        "mr": chosen.mr,
        "nv": chosen.nv,
        "vw": chosen.vw,
        "chunk": chosen.chunk,
        "sets": chosen.sets,
        "parts": chosen.parts,
        "prefetch": "prefetch" in problem.target.features,
    }
    how = chosen.my, chosen.nv, chosen.vw
    constants = [Const(partial(pack, problem.weights, *how, problem.group))]
    if bias is not None:
        constants.append(Const(lambda: bias))
    args: tuple[Arg, ...] = (In(0), *constants, *operand_args(problem, problem.post_ops), Out(0))
    launch = Launch("conv/winograd_streamed.cl.mako", params, args, size, local)
    return Variant(name, (launch,), chosen.cost, ERRORS[max(chosen.my, chosen.mx)])


def _name(problem: ConvProblem, chosen: StreamedPlan) -> str:
    tile = f"f{chosen.my}x{chosen.mx}_t{chosen.mr}x{chosen.nv * chosen.vw}"
    kind = f"{tile}_c{chosen.chunk}_p{chosen.parts}" + f"_s{chosen.sets}" * (chosen.sets > 1)
    return problem.label("winograd_streamed", kind)


def pack(weights: Array, m: int, nv: int, vw: int, convs: int = 1) -> Array:
    """Return weights (convs * oc, ic, 3, 3) as [convs][blocks][m + 2][ic][nv][3][vw].

    Columns of the window are transformed, rows are not.
    """
    oc, ic = weights.shape[0] // convs, weights.shape[1]
    blocks, g = -(-oc // (nv * vw)), matrices(m).g
    packed = np.zeros((convs, blocks, len(g), ic, nv, TAPS, vw), np.float32)
    vectors = weights.reshape(convs, oc // vw, vw, ic, TAPS, TAPS)
    for v in range(oc // vw):
        packed[:, v // nv, :, :, v % nv] = np.einsum("py,cviyx->cpixv", g, vectors[:, v])
    return packed
