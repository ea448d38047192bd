"""Winograd's convolution of weights that come from memory as they are, and are transformed in the kernel.

Transformed, they are 16/9 to 4 times as many: where few pixels meet many weights, that is more than
memory gives in the time of the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.conv.winograd import Matrix, fits, matrices
from clnn.ops.launch import Const, In, Launch, Out, Variant, grid
from clnn.ops.shared.epilogue import operand_args
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import Array

TAPS = 3  # of the window along an axis


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
    buffers: int = 2
    ahead: int = 0
    near: int = 32


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernel of the estimate's choice."""
    if _takes(problem):
        sizes = problem.batch, problem.oc, problem.height, problem.width
        best = plan(sizes, problem.ic, problem.target, problem.group)
        if best:
            yield _variant(problem, best)


def _takes(problem: ConvProblem) -> bool:
    target, vectors = problem.target, problem.reads_vectors and innermost(problem.dst)
    if not (target.is_cpu and fits(problem, 1, narrow=True, grouped=True) and vectors):
        return False
    if is_open(problem.batch * problem.height * problem.width):
        return False
    return problem.ic % target.vector == 0 and problem.oc % target.vector == 0


def plan(shape: tuple[int, ...], ic: int, target: Target, convs: int) -> StreamedPlan | None:
    return None


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
        "buffers": chosen.buffers,
        "ahead": chosen.ahead,
        "near": chosen.near,
        "prefetch": "prefetch" in problem.target.features,
    }
    how = chosen.my, chosen.nv, chosen.vw, chosen.chunk
    constants = [
        Const(partial(pack, problem.weights, *how, problem.group))
    ]
    if bias is not None:
        constants.append(Const(lambda: bias))
    args = (In(0), *constants, *operand_args(problem, problem.post_ops), Out(0))
    launch = Launch("conv/winograd_streamed.cl.mako", params, args, size, local)
    return Variant(name, (launch,), chosen.cycles, 1e-4)


def _name(problem: ConvProblem, chosen: StreamedPlan) -> str:
    tile = f"f{chosen.my}x{chosen.mx}_t{chosen.mr}x{chosen.nv * chosen.vw}"
    kind = f"{tile}_c{chosen.chunk}_p{chosen.parts}" + f"_s{chosen.sets}" * (chosen.sets > 1)
    return problem.label("winograd_streamed", kind)


def pack(weights: Array, m: int, nv: int, vw: int, chunk: int, convs: int = 1) -> Array:
    """Return weights (convs * oc, ic, 3, 3) as [convs][blocks][m + 2][ic][nv][3][vw], and a chunk more.

    Columns of the window are transformed, rows are not.
    """
    oc, ic = weights.shape[0] // convs, weights.shape[1]
    blocks, g = -(-oc // (nv * vw)), matrices(m).g
    packed = np.zeros((convs * blocks * len(g) * ic + chunk, nv, TAPS, vw), np.float32)
    whole = packed[:-chunk].reshape(convs, blocks, len(g), ic, nv, TAPS, vw)
    vectors = weights.reshape(convs, oc // vw, vw, ic, TAPS, TAPS)
    for v in range(oc // vw):
        whole[:, v // nv, :, :, v % nv] = np.einsum("py,cviyx->cpixv", g, vectors[:, v])
    return packed
