"""Kernel variants of Resize: how its passes walk memory, and the tables that they read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.resize.sampling import Sampling, Taps
from clnn.ops.shared.element_types import move_type, move_value
from clnn.ops.shared.epilogue import operand_args, operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.loops import GRAIN, collapse, run_width, without
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import greatest, is_one, is_open, least, other
from clnn.types import F32, F64, Array, Stored

WIDTHS = (16, 8, 4, 2, 1)
ITEMS_PER_UNIT = 8  # work-items that keep one compute unit of a CPU busy
FAR = 2**20  # beyond what bytes hold
WAYS = ("repeat", "direct", "axes", "any")  # as kernels are named
MOST_COPIES = 16  # stores that resize_repeat unrolls
SOURCE: Arg = In(0)
RESULT: Arg = Out(0)


@dataclass(frozen=True)
class Frame:
    """Axes that stay, of [src, operands..., dst]: outer loops and one contiguous run."""

    extents: tuple[int, ...]
    pitches: tuple[tuple[int, ...], ...]
    inner: int
    inner_pitches: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """One launch: the operand types, layouts [src, operands..., dst] and the axes it resizes."""

    types: tuple[str, ...]
    layouts: tuple[TensorLayout, ...]
    axes: tuple[int, ...]
    post_ops: tuple[PostOp, ...]
    operands: Mapping[int, int]


def resize_variants(
    problem: Problem, taps: Mapping[int, Taps], post_ops: tuple[PostOp, ...], how: Sampling
) -> list[Variant]:
    """Return the ways to resize, best first; the last takes any layout."""
    made = {way: _one(way, problem, taps, post_ops, how) for way in WAYS}
    last = made["any"]
    assert last is not None
    fast = [v for way in ("direct", "axes") if (v := made[way]) is not None and v.cost < last.cost]
    repeated = [v for v in (made["repeat"],) if v is not None]
    return [*repeated, *sorted(fast, key=lambda v: v.cost), last]


def resize_variant(
    problem: Problem,
    taps: Mapping[int, Taps],
    post_ops: tuple[PostOp, ...],
    how: Sampling,
    name: str,
) -> Variant | None:
    """Return the way to resize that has a name, None where there is none for this problem."""
    way = next((way for way in WAYS if name.startswith(f"resize_{way}_")), None)
    found = None if way is None else _one(way, problem, taps, post_ops, how)
    return found if found is not None and found.name == name else None


def _one(
    way: str,
    problem: Problem,
    taps: Mapping[int, Taps],
    post_ops: tuple[PostOp, ...],
    how: Sampling,
) -> Variant | None:
    """Return one of WAYS to resize, None where it does not fit."""
    whole, in_turn = _whole_pass(problem, taps, post_ops), _in_turn(problem, taps, how)
    if in_turn:
        whole = replace(whole, axes=tuple(sorted(whole.axes)))
    if way == "repeat":
        return _repeated(problem, whole, taps)
    if way == "axes":
        fits = _separable(problem, taps) and not in_turn
        return _axis_by_axis(problem, whole, taps, how) if fits else None
    if way == "direct" and is_one(frame(whole.layouts, whole.axes, merge=True).inner):
        return None
    return _by_tables(way, problem, whole, taps, how, merge=way == "direct")


def _whole_pass(problem: Problem, taps: Mapping[int, Taps], post_ops: tuple[PostOp, ...]) -> Pass:
    """Return the pass that resizes all axes at once."""
    src, out = problem.input(0), problem.outputs[0]
    extras = operand_layouts(problem, post_ops)
    moved = _only_moves(taps) and not post_ops
    types = [move_type(out.memory) if moved else out.ctype] * (2 + len(extras))
    layouts = [src.layout.unpadded(), *(la for _, la in extras.values()), out.layout.unpadded()]
    axes = sorted(
        taps or [out.layout.order[-1]] if out.layout.rank else [],
        key=lambda a: -abs(other(out.layout.pitches[a])),
    )
    numbers = {k: place for k, (place, _) in extras.items()}
    return Pass(tuple(types), tuple(layouts), tuple(axes), post_ops, numbers)


def _in_turn(problem: Problem, taps: Mapping[int, Taps], how: Sampling) -> bool:
    """Whether sums must be made as Resize says of integers, whose taps a pass must have all at once."""
    real = problem.outputs[0].type.dtype.is_float and not how.in_turn
    return not (real or how.antialias or _only_moves(taps))


def _only_moves(taps: Mapping[int, Taps]) -> bool:
    """Whether outputs are inputs as they are (or the value of what lies outside)."""
    return all(t.count == 1 and bool((t.weight == 1).all()) for t in taps.values())


def frame(layouts: Sequence[TensorLayout], axes: Sequence[int], merge: bool) -> Frame:
    """Return the walk over all axes but `axes`, with an inner run where `merge` and possible."""
    loops = collapse([without(layout, axes) for layout in layouts])
    first, *extras, last = loops.inner_pitches
    runs = merge and is_one(first) and is_one(last)
    runs = runs and not any(is_open(p) or p not in (0, 1) for p in extras)
    if not runs:
        return Frame(loops.extents, loops.pitches, 1, (0,) * len(layouts))
    outer = tuple(p[:-1] for p in loops.pitches)
    return Frame(loops.extents[:-1], outer, loops.inner, loops.inner_pitches)


def _work(
    walk: Frame, last: int, target: Target, rows: int, vectors_along: int
) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return vector width, span, band and split, and (global, local) work sizes over `rows` rows.

    last: positions of a row. vectors_along: the extent that vectors lie along.
    """
    if not target.is_cpu:
        vw = max(w for w in WIDTHS if w <= target.vector and vectors_along % w == 0)
        split = vectors_along == walk.inner
        count = last * (walk.inner // vw) if split else last // vw
        params = {"vw": vw, "span": 1 if split else vw, "band": 1, "split": split}
        return params, *grid(target, count, rows)
    vw = run_width(vectors_along, target)
    items = ITEMS_PER_UNIT * target.compute_units
    span = -(-last // greatest(1, items // greatest(rows, 1)))
    span = -(-span // vw) * vw if vectors_along == last else span
    band = greatest(1, least(GRAIN // greatest(last * walk.inner, 1), rows // items))
    params = {"vw": vw, "span": span, "band": band, "split": False}
    return params, *grid(target, -(-last // span), -(-rows // band))


def _by_tables(
    label: str,
    problem: Problem,
    way: Pass,
    taps: Mapping[int, Taps],
    how: Sampling,
    source: Arg = SOURCE,
    result: Arg = RESULT,
    merge: bool = True,
) -> Variant:
    """Return the variant of one launch of the resize template, which reads all taps of the pass."""
    src, *extras, dst = way.layouts
    walk = frame(way.layouts, way.axes, merge)
    along = {a: taps.get(a) or _identity(dst.shape[a]) for a in way.axes}
    index, weight, places = _pack(along, [src.pitches[a] for a in way.axes])
    weighted = not _only_moves(along)
    rows, last = way.axes[:-1], way.axes[-1]
    loops = _with_rows(walk, [dst.shape[a] for a in rows], rows, (None, *way.layouts[1:]))
    work, global_size, local = _work(
        walk, dst.shape[last], problem.target, math.prod(loops["extents"]), walk.inner
    )
    acc, value = _arithmetic(way.types, weighted)
    shift = how.bits * len(along) if weighted else 0
    acc = "int" if shift else acc
    out = problem.outputs[0]
    result_type = out.type.dtype if isinstance(way.types[0], Stored) else out.memory
    shown = "_".join(f"{t.count}tap" for t in along.values()) if weighted else "nearest"
    name = f"resize_{label}_{shown}_{way.types[0]}_v{work['vw']}"
    params = {
        "name": name,
        "src_type": way.types[0],
        "dst_type": way.types[-1],
        "acc": acc,
        "value": value,
        "weighted": weighted,
        "in_turn": _in_turn(problem, taps, how),
        "shift": shift,
        "last": (dst.shape[last], *(la.pitches[last] for la in (*extras, dst))),
        "taps": tuple(t.count for t in along.values()),
        "fill": _fill(how) if weighted else move_value(how.extrapolation, result_type),
        "wg": local,
        **loops,
        **places,
        **work,
        **_epilogue(way, walk),
    }
    kind = {"double": np.float64, "int": np.int32}.get(acc, np.float32)
    tables = [Const(lambda: index)]
    if weighted:
        tables.append(Const(lambda: np.ldexp(weight, how.bits).astype(kind)))
    args: tuple[Arg, ...] = (source, *tables, *operand_args(problem, way.post_ops), result)
    launch = Launch("resize/resize.cl.mako", params, args, global_size, local)
    cost = math.prod(dst.shape) * math.prod(t.count for t in along.values())
    return Variant(name, (launch,), float(cost) / min(walk.inner, work["vw"]))


def _fill(how: Sampling) -> float:
    """Return what lies outside, in the type of the sums."""
    return int(np.clip(how.extrapolation, -FAR, FAR)) if how.bits else how.extrapolation


def _with_rows(
    walk: Frame,
    extents: Sequence[int],
    rows: Sequence[int],
    layouts: Sequence[TensorLayout | None],
    factor: int = 1,
) -> dict[str, Any]:
    """Return the parameters of the outer loops of a walk and, inside them, of axes `rows`.

    layouts: of [src, operands..., dst]; None where tables tell the row. factor: rows of all but src
    that one step passes.
    """
    pitches = [
        (*outer, *(0 if la is None else (factor if k else 1) * la.pitches[a] for a in rows))
        for k, (outer, la) in enumerate(zip(walk.pitches, layouts, strict=True))
    ]
    return {
        "extents": (*walk.extents, *extents) or (1,),
        "pitches": tuple(p or (0,) for p in pitches),
    }


def _epilogue(way: Pass, walk: Frame) -> dict[str, Any]:
    """Return the parameters of a walk's inner run and of the post-ops."""
    return {
        "inner": walk.inner,
        "extra_types": way.types[1:-1],
        "inner_pitches": walk.inner_pitches[1:-1],
        "post_ops": way.post_ops,
        "operands": way.operands,
    }


def _identity(extent: int) -> Taps:
    index = np.arange(extent)[:, None]
    return Taps(index, np.ones(index.shape), np.zeros(extent, bool))


def _arithmetic(types: Sequence[str], weighted: bool) -> tuple[str, str]:
    """Return the types of sums and of the value that post-ops work on."""
    if not weighted:
        return types[0], types[-1]
    acc = "double" if "double" in types else "float"
    return acc, acc if types[-1] in ("float", "half", "double") else types[-1]


def _pack(taps: Mapping[int, Taps], pitches: Sequence[int]) -> tuple[Array, Array, dict[str, Any]]:
    """Return the index and weight tables of several axes, and where each axis begins in them."""
    index: list[Array] = []
    weight: list[Array] = []
    index_at, weight_at, flags_at = [], [], []
    at = 0
    for which, pitch in zip(taps.values(), pitches, strict=True):
        index_at.append(at)
        weight_at.append(sum(w.size for w in weight))
        index.append((which.index * pitch).reshape(-1))
        weight.append(which.weight.reshape(-1))
        at += which.index.size
    if any(t.outside.any() for t in taps.values()):
        for which in taps.values():
            flags_at.append(at)
            index.append(which.outside)
            at += which.outside.size
    places = {
        "index_at": tuple(index_at),
        "weight_at": tuple(weight_at),
        "flags_at": tuple(flags_at),
    }
    return np.concatenate(index).astype(np.int32), np.concatenate(weight), places


def _separable(problem: Problem, taps: Mapping[int, Taps]) -> bool:
    """Whether to offer one launch per axis: sums in float, and nothing that lies outside."""
    weighted = [t for t in taps.values() if not t.copies]
    float_sums = problem.outputs[0].type.dtype != F64
    inside = not any(t.outside.any() for t in taps.values())
    return float_sums and inside and len(weighted) > 1


def _axis_by_axis(
    problem: Problem, whole: Pass, taps: Mapping[int, Taps], how: Sampling
) -> Variant:
    """Return the variant that resizes axis after axis, shrinking ones first, through scratch."""
    src, dst = whole.layouts[0], whole.layouts[-1]
    axes = tuple(sorted(whole.axes, key=lambda a: other(dst.shape[a]) / other(src.shape[a])))
    passes: list[tuple[Pass, Arg, Arg]] = []
    source, before, kind = SOURCE, src, whole.types[0]
    for number, axis in enumerate(axes[:-1]):
        shape = tuple(
            dst.shape[a] if a in axes[: number + 1] else d for a, d in enumerate(src.shape)
        )
        after = TensorLayout.make(shape, dst.order)
        scratch = Scratch(f"pass{number}", after.size * F32.itemsize)
        passes.append((Pass((kind, F32.cl), (before, after), (axis,), (), {}), source, scratch))
        source, before, kind = scratch, after, F32.cl
    types, layouts = (kind, *whole.types[1:]), (before, *whole.layouts[1:])
    passes.append((replace(whole, types=types, layouts=layouts, axes=axes[-1:]), source, RESULT))
    launches: list[Launch] = []
    cost = 0.0
    for way, read, written in passes:
        step = _by_tables(f"axis{way.axes[0]}", problem, way, taps, how, read, written)
        launches += step.launches
        cost += step.cost + math.prod(way.layouts[-1].shape) / 4
    name = "resize_axes_" + "_".join(f"{taps[a].count}tap" for a in axes)
    return Variant(name, tuple(launches), cost)


def _repeated(problem: Problem, way: Pass, taps: Mapping[int, Taps]) -> Variant | None:
    """Return the variant of whole factors along one or two axes, if that is what is asked."""
    src, *extras, dst = way.layouts
    factors = [taps[a].repeats(src.shape[a]) if a in taps else 1 for a in way.axes]
    if not taps or len(factors) > 2 or min(factors) < 1 or math.prod(factors) > MOST_COPIES:
        return None
    walk = frame(way.layouts, way.axes, merge=True)
    fy, fx = factors if len(factors) == 2 else (1, factors[0])
    rows, last = way.axes[:-1], way.axes[-1]
    wide = all(map(is_one, (walk.inner, src.pitches[last], dst.pitches[last])))
    wide = wide and not any(
        is_open(p) or p not in (0, 1) for p in (la.pitches[last] for la in extras)
    )
    loops = _with_rows(walk, [src.shape[a] for a in rows], rows, way.layouts, fy)
    along = src.shape[last] if wide else walk.inner
    work, global_size, local = _work(
        walk, src.shape[last], problem.target, math.prod(loops["extents"]), along
    )
    name = f"resize_repeat_{fy}x{fx}_{way.types[0]}_{'w' if wide else 'v'}{work['vw']}"
    written = (*extras, dst)
    params = {
        "name": name,
        "ctype": way.types[0],
        "last": (src.shape[last], src.pitches[last]),
        "factors": (fy, fx),
        "wide": wide,
        "steps_y": tuple(la.pitches[rows[0]] if rows else 0 for la in written),
        "steps_x": tuple(la.pitches[last] for la in written),
        "wg": local,
        **loops,
        **work,
        **_epilogue(way, walk),
    }
    args: tuple[Arg, ...] = (In(0), *operand_args(problem, way.post_ops), Out(0))
    launch = Launch("resize/resize_repeat.cl.mako", params, args, global_size, local)
    return Variant(name, (launch,))
