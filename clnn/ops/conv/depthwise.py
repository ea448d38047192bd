"""Convolutions of one filter per channel as variants, with tiles of columns by rows of a band."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clnn.arith._base import FLOAT
from clnn.ops.conv.direct import common, images, label, lanes, table_of
from clnn.ops.launch import Arg, Const, In, Launch, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.byte_scales import last_args
from clnn.ops.shared.workgroup_tiles import latency_hiding

if TYPE_CHECKING:
    from clnn.ops.conv.spec import Conv2d

SPREAD_ITEMS = 512  # work-items that a GPU's compute unit should have


def _depthwise_tile(spec: Conv2d, problem: Problem) -> tuple[int, int, int]:
    """Return the vector width, columns at a time and rows of a work-item that are estimated best."""
    channels, oh, ow = images(problem)[1].shape[1:]
    most = min(channels, lanes(spec, problem.target))
    vw = min((w for w in (16, 8, 4, 2, 1) if w <= most), key=lambda w: (-(-channels // w), -w))
    if not problem.target.is_cpu:
        rows, items = problem.outputs[0].type.shape[0] * oh * -(-channels // vw), SPREAD_ITEMS
        enough = (t for t in (4, 2) if rows * -(-ow // t) >= items * problem.target.compute_units)
        return vw, min(ow, next(enough, 1)), 1
    tx = next((t for t in (7, 6, 5, 4) if ow % t == 0), min(ow, 6))
    return vw, tx, max(1, min(oh, 4 * oh * channels // vw // 256))


def depthwise_tiles(spec: Conv2d, problem: Problem) -> list[tuple[int, int, int]]:
    """Return the tiles that are worth a measurement, the estimated best one among them."""
    vw, tx, band = _depthwise_tile(spec, problem)
    _, oh, ow = images(problem)[1].shape[1:]
    bands = sorted({band, 1, 2, 4, 8, -(-oh // problem.target.compute_units), oh})
    columns = sorted({tx, 2, 4, 6, 7, 8})
    if not problem.target.is_cpu:
        bands, columns = [1, 2, 4], sorted({tx, 1, 2, 4})
    return [
        (w, t, b)
        for w in sorted({vw, max(vw // 2, 1)})
        for t in columns
        if t <= ow
        for b in bands
        if b <= oh
    ]


def depthwise(spec: Conv2d, problem: Problem, vw: int = 0, tx: int = 0, band: int = 0) -> Variant:
    """Return the kernel of one filter per channel: columns in registers, `band` rows a work-item."""
    params = common(spec, problem)
    dst = params["dst"]
    channels, oh, ow = dst.shape[1:]
    best = _depthwise_tile(spec, problem)
    vw, tx, band = (vw, tx, band) if vw else best
    # Reads of a column of inputs are shared by its outputs; the estimated best tile comes first.
    columns = (tx - 1) * params["strides"][1] + (params["kernel"][1] - 1) * params["dilations"][1]
    slots = max(2 * params["kernel"][0] * (columns + 1) + tx, tx * int(np.prod(params["kernel"])))
    vectors = -(-channels // vw)
    cost = dst.shape[0] * oh * -(-ow // tx) * vectors * slots / 2
    cost *= (1 + 0.05 * ((vw, tx, band) != best)) / problem.target.compute_units
    rows = -(-oh // band) * dst.shape[0] * vectors
    cost *= -(-rows // problem.target.compute_units) * problem.target.compute_units / rows
    bands, spread = -(-oh // band), not problem.target.is_cpu
    sizes = (vectors * -(-ow // tx) * bands, 1) if spread else (vectors, bands)
    cost /= latency_hiding(sizes[0] * dst.shape[0], problem.target) if spread else 1.0
    global_size, local = grid(problem.target, *sizes, dst.shape[0])
    weights, table = problem.input(1).const, table_of(params["arith"], problem)
    assert weights is not None
    taps = int(np.prod(weights.shape[2:]))
    args: list[Arg] = [
        In(0),
        problem.input(1).packed(lambda: weights.reshape(channels, taps).T.copy()),
    ]
    if table is not None:
        args.append(Const(lambda: table))
    name = label("depthwise", spec, f"v{vw}x{tx}_b{band}" + "_spread" * spread)
    starts = [
        channels,
        problem.input(0).layout.offset,
        params["src"].pitches[0],
        *params["src"].pitches[2:],
    ]
    plain = spec.arith is FLOAT and not problem.uses_narrow_storage
    aligned = spread and plain and vw <= 4 and not any(x % vw for x in starts)
    params |= {
        "name": name,
        "rows": 0 if table is None else len(table),
        "wg": local,
        "vw": vw,
        "tx": tx,
        "band": band,
        "spread": spread,
        "aligned": aligned,
    }
    args += last_args(problem, spec.post_ops)
    launch = Launch("conv/depthwise.cl.mako", params, tuple(args), global_size, local)
    return Variant(name, (launch,), cost)
