"""Data movement of MLI: permute, mov functions, argmax, and helpers over tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, FX8, FX16, SA8, SA32, SHAPE, TYPE, need
from clnn.apis.mli.config import MliArgmaxCfg, MliMovCfg, MliPermuteCfg
from clnn.apis.mli.engine import Builder, named, run, status_of
from clnn.apis.mli.enums import MliStatus
from clnn.apis.mli.tensor import Array, FxParams, MliTensor, SaParams, contiguous, valid
from clnn.graph.ir import Graph
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Slice, Transpose
from clnn.ops.rows.arg import ArgExtreme
from clnn.ops.rows.mli_argmax import MliTopK

FORMATS = {"fx8": FX8, "fx16": FX16, "sa8": SA8}


def _permuted(
    params: FxParams | SaParams | None, order: Sequence[int]
) -> FxParams | SaParams | None:
    """Return quantisation with its axis moved."""
    if isinstance(params, SaParams) and params.dim >= 0:
        return replace(params, dim=list(order).index(params.dim))
    return params


def _permute(fmt: str, given: MliTensor, cfg: MliPermuteCfg, out: MliTensor) -> None:
    """Put the axes in another order. out gets the input's quantisation, along the moved axis."""
    checks.config(cfg, MliPermuteCfg)
    for tensor, name in ((given, "in"), (out, "out")):
        checks.typed(tensor, name, FORMATS[fmt])
    checks.apart(given, out, "in")
    order = tuple(int(a) for a in cfg.perm_dim[: given.rank])
    need(
        sorted(order) == list(range(given.rank)),
        CONFIG,
        f"perm_dim {order} is not an order of {given.rank} axes.",
    )
    wanted = tuple(given.shape[a] for a in order)
    need(out.shape == wanted, SHAPE, f"out is {out.shape}, must be {wanted}.")

    def make() -> Graph:
        build = Builder()
        x = build.input("x", given.shape, given.dtype)
        return build.graph({"y": build.add(Transpose(order), x)})

    key = ("permute", order, given.shape, given.dtype.str)
    out.view()[...] = run(key, make, {"x": given.view()})["y"] if order else given.view()
    out.el_params = _permuted(given.el_params, order)


def _numbers(values: Sequence[int], rank: int, name: str, least: int) -> tuple[int, ...]:
    found = tuple(int(v) for v in values[:rank])
    fits = len(found) == rank and min(found, default=least) >= least
    need(fits, CONFIG, f"{name} {tuple(values)}: {rank} numbers of at least {least} are wanted.")
    return found


@status_of
def mli_mov_tensor_sync(given: MliTensor, cfg: MliMovCfg, out: MliTensor) -> None:
    """Copy a tensor: take a part of it, of that every n-th element, permute, pad with zeros.

    The result is written at cfg.dst_offset of out, whose elements outside of it stay as they are.
    out gets the input's quantisation.
    """
    checks.config(cfg, MliMovCfg)
    valid(given, "in")
    valid(out, "out")
    checks.apart(given, out, "in")
    need(given.el_type == out.el_type, TYPE, f"in has {given.el_type}, out has {out.el_type}.")
    need(given.rank == out.rank >= 1, SHAPE, f"in is {given.shape}, out is {out.shape}.")
    part, order, pad = _moves(given, cfg)
    shape = tuple(part.extents[a] + pad.before[a] + pad.after[a] for a in order)
    start = _numbers(cfg.dst_offset, out.rank, "dst_offset", 0)
    fits = all(s + d <= e for s, d, e in zip(start, shape, out.shape, strict=True))
    need(fits, SHAPE, f"{shape} at {start} does not lie inside of out, which is {out.shape}.")

    def make() -> Graph:
        build = Builder()
        x = build.add(part, build.input("x", given.shape, given.dtype))
        return build.graph({"y": build.add(Transpose(order), build.add(pad, x))})

    key = ("mov", part, order, pad, given.shape, given.dtype.str)
    place = tuple(slice(s, s + d) for s, d in zip(start, shape, strict=True))
    out.view()[place] = run(key, make, {"x": given.view()})["y"]
    out.el_params = _permuted(given.el_params, order)


def _moves(given: MliTensor, cfg: MliMovCfg) -> tuple[Slice, tuple[int, ...], Pad]:
    """Return which part is taken, the order of axes, and the zeros around the part."""
    rank = given.rank
    offset = _numbers(cfg.offset, rank, "offset", 0)
    size = _numbers(cfg.size, rank, "size", 0)
    step = _numbers(cfg.sub_sample_step, rank, "sub_sample_step", 1)
    size = tuple(s or d - o for s, d, o in zip(size, given.shape, offset, strict=True))
    inside = all(s > 0 and o + s <= d for o, s, d in zip(offset, size, given.shape, strict=True))
    need(
        inside, CONFIG, f"offset {offset} and size {size} leave the input, which is {given.shape}."
    )
    order = tuple(int(a) for a in cfg.perm_dim[:rank])
    need(sorted(order) == list(range(rank)), CONFIG, f"perm_dim {order} is not an order of axes.")
    before = _numbers(cfg.padding_pre, rank, "padding_pre", 0)
    after = _numbers(cfg.padding_post, rank, "padding_post", 0)
    count = tuple(-(-s // n) for s, n in zip(size, step, strict=True))
    return Slice(offset, count, step), order, Pad(before, after)


def _argmax(fmt: str, given: MliTensor, cfg: MliArgmaxCfg, out: MliTensor) -> None:
    """Write where the largest elements are: offsets in the input's memory, in elements.

    out: sa32 (indices of the axis, topk), or (1, topk) for the whole tensor.
    """
    checks.config(cfg, MliArgmaxCfg)
    checks.typed(given, "in", FORMATS[fmt])
    checks.typed(out, "out", SA32)
    checks.apart(given, out, "in")
    need(given.rank >= 1, SHAPE, "in is a scalar: it needs an axis.")
    checks.axis(cfg.axis, given.rank)
    rows = given.shape[cfg.axis] if cfg.axis >= 0 else 1
    length = given.count // rows
    need(1 <= cfg.topk <= length, CONFIG, f"topk {cfg.topk} is not 1..{length}.")
    need(out.shape == (rows, cfg.topk), SHAPE, f"out is {out.shape}, must be {(rows, cfg.topk)}.")
    found = _largest(given, cfg.axis, rows, cfg.topk)
    out.view()[...] = _offsets(given, cfg.axis, found)


def _largest(given: MliTensor, axis: int, rows: int, count: int) -> Array:
    """Return, for each row, the places (row-major in what a row holds) of its largest elements."""

    def make() -> Graph:
        build = Builder()
        x = build.input("x", given.shape, given.dtype)
        if axis > 0:
            x = build.transpose(x, (axis, *(a for a in range(given.rank) if a != axis)))
        x = build.reshape(x, (rows, given.count // rows))
        spec = ArgExtreme(True, 1, latest=True) if count == 1 else MliTopK(count)
        return build.graph({"y": build.add(spec, x)})

    key = ("argmax", given.shape, given.dtype.str, axis, count)
    return run(key, make, {"x": given.view()})["y"].astype(np.int64)


def _offsets(given: MliTensor, axis: int, places: Array) -> Array:
    """Return memory offsets of places within rows."""
    kept = [a for a in range(given.rank) if a != axis]
    indices = np.unravel_index(places, [given.shape[a] for a in kept])
    offset = sum(
        (i * given.mem_stride[a] for i, a in zip(indices, kept, strict=True)), np.zeros_like(places)
    )
    return offset if axis < 0 else offset + np.arange(len(places))[:, None] * given.mem_stride[axis]


def mli_hlp_count_elem_num(tensor: MliTensor, start_dim: int = 0) -> int:
    """Return the number of elements over the axes from `start_dim` on; 0 for a wrong axis."""
    if not 0 <= start_dim <= tensor.rank:
        return 0
    return int(np.prod(tensor.shape[start_dim:], dtype=np.int64))


def mli_hlp_tensor_element_size(tensor: MliTensor) -> int:
    """Return the bytes of an element."""
    return int(tensor.dtype.itemsize)


def mli_hlp_create_subtensor(
    tensor: MliTensor, offset: Sequence[int], size: Sequence[int], sub_tensor_rank: int
) -> MliTensor:
    """Return a part of a tensor in the same memory, without leading axes of extent 1.

    Raises Refused where the part leaves the tensor.
    """
    fits = len(offset) == len(size) == tensor.rank and all(
        o >= 0 and s >= 1 and o + s <= d for o, s, d in zip(offset, size, tensor.shape, strict=True)
    )
    bad = MliStatus.MLI_STATUS_BAD_FUNC_CFG
    need(fits, bad, f"part {tuple(size)} at {tuple(offset)} of {tensor.shape}.")
    drop = tensor.rank - sub_tensor_rank
    alone = drop >= 0 and all(s == 1 for s in size[:drop])
    need(alone, bad, f"a part of {tuple(size)} does not have {sub_tensor_rank} axes.")
    first = sum(o * s for o, s in zip(offset, tensor.mem_stride, strict=True))
    raw = tensor.data.reshape(-1).view(np.uint8)[first * tensor.dtype.itemsize :]
    shape = tuple(int(s) for s in size)
    return MliTensor(
        raw,
        shape[drop:],
        tensor.el_type,
        tensor.el_params,
        (tensor.mem_stride or contiguous(shape))[drop:],
    )


mli_krn_permute_fx8, mli_krn_permute_fx16, mli_krn_permute_sa8 = (
    named(_permute, f"mli_krn_permute_{f}", f) for f in FORMATS
)
mli_krn_argmax_fx16, mli_krn_argmax_sa8 = (
    named(_argmax, f"mli_krn_argmax_{f}", f) for f in ("fx16", "sa8")
)
