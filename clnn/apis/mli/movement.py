"""Data movement of MLI: permute, mov functions, argmax, and helpers over tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, ELEMENTS, SA32, SHAPE, TYPE, need
from clnn.apis.mli.config import MliArgmaxCfg, MliMovCfg, MliPermuteCfg
from clnn.apis.mli.engine import compute, named, status_of
from clnn.apis.mli.enums import MliStatus
from clnn.apis.mli.tensor import FxParams, MliTensor, SaParams, contiguous, valid
from clnn.graph.builder import GraphBuilder
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Slice
from clnn.ops.rows.arg import ArgExtreme
from clnn.ops.rows.mli_argmax import MliTopK
from clnn.types import Array


def _permuted(
    params: FxParams | SaParams | None, order: Sequence[int]
) -> FxParams | SaParams | None:
    """Return quantisation with its axis moved."""
    if isinstance(params, SaParams) and params.dim >= 0:
        return replace(params, dim=list(order).index(params.dim))
    return params


def _permute(fmt: str, in_: MliTensor, cfg: MliPermuteCfg, out: MliTensor) -> None:
    """Put the axes in another order. out gets the input's quantisation, along the moved axis."""
    checks.config(cfg, MliPermuteCfg)
    for tensor, name in ((in_, "in"), (out, "out")):
        checks.typed(tensor, name, ELEMENTS[fmt])
    checks.apart(in_, out, "in")
    order = tuple(int(a) for a in cfg.perm_dim[: in_.rank])
    need(
        sorted(order) == list(range(in_.rank)),
        CONFIG,
        f"perm_dim {order} is not an order of {in_.rank} axes.",
    )
    wanted = tuple(in_.shape[a] for a in order)
    need(out.shape == wanted, SHAPE, f"out is {out.shape}, must be {wanted}.")

    def ops(build: GraphBuilder, x: str) -> str:
        return build.transpose(x, order)

    out.view()[...] = compute(("permute", order), ops, in_.view()) if order else in_.view()
    out.el_params = _permuted(in_.el_params, order)


def _numbers(values: Sequence[int], rank: int, name: str, least: int) -> tuple[int, ...]:
    numbers = tuple(int(v) for v in values[:rank])
    fits = len(numbers) == rank and min(numbers, default=least) >= least
    need(fits, CONFIG, f"{name} {tuple(values)}: {rank} numbers of at least {least} are wanted.")
    return numbers


@status_of
def mli_mov_tensor_sync(in_: MliTensor, cfg: MliMovCfg, out: MliTensor) -> None:
    """Copy a tensor: take a part of it, of that every n-th element, permute, pad with zeros.

    The result is written at cfg.dst_offset of out, whose elements outside of it stay as they are.
    out gets the input's quantisation.
    """
    checks.config(cfg, MliMovCfg)
    valid(in_, "in")
    valid(out, "out")
    checks.apart(in_, out, "in")
    need(in_.el_type == out.el_type, TYPE, f"in has {in_.el_type}, out has {out.el_type}.")
    need(in_.rank == out.rank >= 1, SHAPE, f"in is {in_.shape}, out is {out.shape}.")
    part, order, pad = _moves(in_, cfg)
    shape = tuple(part.extents[a] + pad.before[a] + pad.after[a] for a in order)
    start = _numbers(cfg.dst_offset, out.rank, "dst_offset", 0)
    fits = all(s + d <= e for s, d, e in zip(start, shape, out.shape, strict=True))
    need(fits, SHAPE, f"{shape} at {start} does not lie inside of out, which is {out.shape}.")

    def ops(build: GraphBuilder, x: str) -> str:
        return build.transpose(build.add(pad, build.add(part, x)), order)

    place = tuple(slice(s, s + d) for s, d in zip(start, shape, strict=True))
    out.view()[place] = compute(("mov", part, order, pad), ops, in_.view())
    out.el_params = _permuted(in_.el_params, order)


def _moves(in_: MliTensor, cfg: MliMovCfg) -> tuple[Slice, tuple[int, ...], Pad]:
    """Return which part is taken, the order of axes, and the zeros around the part."""
    rank = in_.rank
    offset = _numbers(cfg.offset, rank, "offset", 0)
    size = _numbers(cfg.size, rank, "size", 0)
    step = _numbers(cfg.sub_sample_step, rank, "sub_sample_step", 1)
    size = tuple(s or d - o for s, d, o in zip(size, in_.shape, offset, strict=True))
    inside = all(s > 0 and o + s <= d for o, s, d in zip(offset, size, in_.shape, strict=True))
    need(inside, CONFIG, f"offset {offset} and size {size} leave the input, which is {in_.shape}.")
    order = tuple(int(a) for a in cfg.perm_dim[:rank])
    need(sorted(order) == list(range(rank)), CONFIG, f"perm_dim {order} is not an order of axes.")
    before = _numbers(cfg.padding_pre, rank, "padding_pre", 0)
    after = _numbers(cfg.padding_post, rank, "padding_post", 0)
    count = tuple(-(-s // n) for s, n in zip(size, step, strict=True))
    return Slice(offset, count, step), order, Pad(before, after)


def _argmax(fmt: str, in_: MliTensor, cfg: MliArgmaxCfg, out: MliTensor) -> None:
    """Write where the largest elements are: offsets in the input's memory, in elements.

    out: sa32 (indices of the axis, topk), or (1, topk) for the whole tensor.
    """
    checks.config(cfg, MliArgmaxCfg)
    checks.typed(in_, "in", ELEMENTS[fmt])
    checks.typed(out, "out", SA32)
    checks.apart(in_, out, "in")
    need(in_.rank >= 1, SHAPE, "in is a scalar: it needs an axis.")
    checks.axis(cfg.axis, in_.rank)
    rows = in_.shape[cfg.axis] if cfg.axis >= 0 else 1
    length = in_.count // rows
    need(1 <= cfg.topk <= length, CONFIG, f"topk {cfg.topk} is not 1..{length}.")
    need(out.shape == (rows, cfg.topk), SHAPE, f"out is {out.shape}, must be {(rows, cfg.topk)}.")
    places = _largest(in_, cfg.axis, rows, cfg.topk)
    out.view()[...] = _offsets(in_, cfg.axis, places)


def _largest(in_: MliTensor, axis: int, rows: int, count: int) -> Array:
    """Return, for each row, the places (row-major in what a row holds) of its largest elements."""

    def ops(build: GraphBuilder, x: str) -> str:
        if axis > 0:
            x = build.transpose(x, (axis, *(a for a in range(in_.rank) if a != axis)))
        x = build.reshape(x, (rows, in_.count // rows))
        spec = ArgExtreme(True, 1, latest=True) if count == 1 else MliTopK(count)
        return build.add(spec, x)

    return compute(("argmax", axis, count), ops, in_.view()).astype(np.int64)


def _offsets(in_: MliTensor, axis: int, places: Array) -> Array:
    """Return memory offsets of places within rows."""
    kept = [a for a in range(in_.rank) if a != axis]
    indices = np.unravel_index(places, [in_.shape[a] for a in kept])
    offset = sum(
        (i * in_.mem_stride[a] for i, a in zip(indices, kept, strict=True)), np.zeros_like(places)
    )
    return offset if axis < 0 else offset + np.arange(len(places))[:, None] * in_.mem_stride[axis]


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
    named(_permute, f"mli_krn_permute_{f}", f) for f in ELEMENTS
)
mli_krn_argmax_fx16, mli_krn_argmax_sa8 = (
    named(_argmax, f"mli_krn_argmax_{f}", f) for f in ("fx16", "sa8")
)
