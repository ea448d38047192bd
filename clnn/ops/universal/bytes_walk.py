"""Functions of quantised tensors, and copies of elements of any size, as launches of the universal set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from clnn.arith.quantised import limits_of
from clnn.arith.quantised_maps import (
    SHIFT,
    ByteLine,
    ByteTable,
    Dequantise,
    Quantise,
    QuantisedMap,
    QuantisedProduct,
    QuantisedSum,
    WrittenBinary,
)
from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.shared.functions import FUNCTIONS
from clnn.ops.universal.byte_steps import (
    COMPARED,
    MANY,
    OPERANDS,
    TYPES,
    Number,
    Step,
    encoded,
    steps_of,
)
from clnn.ops.universal.byte_sums import TABLE, entries_of
from clnn.ops.universal.functions import universal_launch
from clnn.ops.universal.walk import OUTER
from clnn.records import dataclass
from clnn.target import Target
from clnn.types import BOOL, F32, U8, DType

SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "long": 8, "ulong": 8}
SIZES |= {"double": 8, "int": 4, "uint": 4, "float": 4}
WITHIN = (
    "relu",
    "min",
    "max",
    "clip",
    "at_least",
    "at_most",
)  # that give no new numbers but parameters
CHOICE, WRAPPING = 1, {"add": 2, "sub": 3, "mul": 4}  # what is done beside copies and steps
JOINED, NARROW, GATHERED, TRUE = 5, 6, 11, 12
TRUTHS = {"and": 7, "or": 8, "xor": 9, "not": 10}
INDICES = (4, 8)  # bytes of places
ROUNDED = 3  # types of a dequantisation that counts from 0
_NOTHING = Const(lambda: np.zeros(TABLE, np.float32))


def universal_byte_walk(launch: Launch, target: Target) -> Launch | None:
    """Return an elementwise launch as one of the set's for bytes, None where it has no form there."""
    params = launch.params
    types, function = params["ctypes"], params["function"]
    if len(params["outer"]) > OUTER or any(type(t) is not str for t in types):
        return None
    sources = len(types) - 1
    table = _NOTHING
    if function is None and not params["post_ops"]:
        same = len(set(types)) == 1 and types[0] in SIZES and sources == 1
        return _launch(launch, target, (), table, SIZES[types[0]]) if same else None
    if function is None and set(types) == {"int"}:
        return _of_integers(launch, target)
    steps = _chain(params) if function is None else _steps(function, sources)
    if steps is None or sources > 1 + OPERANDS or not _held(types, function):
        return None
    if isinstance(function, ByteTable):
        table = Const(partial(entries_of, np.array(function.entries)))
    return _launch(launch, target, steps, table)


def _of_integers(launch: Launch, target: Target) -> Launch | None:
    """Return a sum, difference or product of two tensors of int32, None for other chains."""
    (op, *more), operands = launch.params["post_ops"], launch.params["operands"]
    if more or op.fn not in WRAPPING or op.operand is None or operands[op.operand] != 1:
        return None
    if op.swapped and op.fn == "sub":
        return None
    return _launch(launch, target, (), _NOTHING, SIZES["int"], WRAPPING[op.fn])


def universal_cast(problem: Problem, to: DType) -> Variant | None:
    """Return a cast as a launch of the set, None where it has no form there."""
    x = problem.input(0).type.dtype
    kinds = x.cl, to.cl
    if to == BOOL:
        size = x.itemsize
        whole = x.numpy.kind in "biu" and size in SIZES.values()
        return _walked(problem, "cast", (), 1, TRUE, Sizes(size)) if whole else None
    if x == BOOL:
        kinds = U8.cl, to.cl
    if not {*kinds} <= {*TYPES}:
        return None
    if x.cl == "int" and to.cl != "float":
        how = (SIZES["int"], 0) if to == x else (0, NARROW)
        return _walked(problem, "cast", (), *how)
    steps = (Step("as_int"),) if x.cl == "float" and to.cl != "float" else ()
    return _walked(problem, "cast", steps)


def universal_logic(problem: Problem, fn: str) -> Variant | None:
    """Return a comparison of floats or a choice as a launch of the set, None where it has no form there."""
    types = [o.type.dtype for o in map(problem.input, range(len(problem.inputs)))]
    if fn == "where" and types[0] == BOOL:
        return _walked(problem, fn, (), types[1].itemsize, CHOICE)
    if fn in TRUTHS and all(t == BOOL for t in types):
        return _walked(problem, fn, (), 1, TRUTHS[fn])
    if fn == "is_nan" and types[0] == F32:
        return _walked(problem, fn, (Step("not_a_number"),))
    if fn in COMPARED and all(t == F32 for t in types):
        return _walked(problem, fn, (Step(fn, operand=0),))
    return None


def universal_gather(problem: Problem, axis: int) -> Variant | None:
    """Return elements picked along an axis as a launch of the set, None where it has no form there."""
    data, index, out = problem.input(0), problem.input(1), problem.outputs[0]
    size, bytes_ = data.type.dtype.itemsize, index.type.dtype.itemsize
    if (
        data.stored
        or out.stored
        or size not in SIZES.values()
        or index.type.dtype.numpy.kind != "i"
    ):
        return None
    if bytes_ not in INDICES or not data.type.size or index.stored:
        return None
    pitches, ranks = data.layout.pitches, len(index.type.shape)
    before, after = pitches[:axis], pitches[axis + 1 :]
    views = (
        (*before, *[0] * ranks, *after),
        (*[0] * len(before), *index.layout.pitches, *[0] * len(after)),
    )
    shape, kind = out.type.shape, out.type.dtype.cl
    sources = [Walked(In(k), TensorLayout.of_pitches(shape, p), kind) for k, p in enumerate(views)]
    result = Walked(Out(0), out.layout.unpadded(), kind)
    sizes = Sizes(0, bytes_, data.type.shape[axis], pitches[axis])
    found = byte_walked("gather", sources, result, problem.target, size, GATHERED, (), sizes)
    return None if found is None else Variant("universal_gather", (found,))


@dataclass(frozen=True)
class Sizes:
    """Bytes of elements of the first source and of the second, and the axis that a gather picks along."""

    first: int = 0
    second: int = 0
    extent: int = 0
    along: int = 0


def _walked(
    problem: Problem,
    name: str,
    steps: tuple[Step, ...],
    size: int = 0,
    how: int = 0,
    sizes: Sizes | None = None,
) -> Variant | None:
    out, inputs = problem.outputs[0], [problem.input(k) for k in range(len(problem.inputs))]
    if any(o.stored for o in (out, *inputs)) or size not in (0, *SIZES.values()):
        return None
    sources = [
        Walked(In(k), x.layout.unpadded().broadcast(out.type.shape), x.type.dtype.cl)
        for k, x in enumerate(inputs)
    ]
    result = Walked(Out(0), out.layout.unpadded(), out.type.dtype.cl)
    found = byte_walked(name, sources, result, problem.target, size, how, steps, sizes)
    return None if found is None else Variant(f"universal_bytes_{name}", (found,))


def byte_walked(
    name: str,
    sources: Sequence[Walked],
    result: Walked,
    target: Target,
    size: int = 0,
    how: int = 0,
    steps: tuple[Step, ...] = (),
    sizes: Sizes | None = None,
) -> Launch | None:
    """Return the launch of a walk of elements of `size` bytes, or of types, None where it has no form there."""
    launch = walk_launch(name, sources, result, target)
    if len(launch.params["outer"]) > OUTER:
        return None
    return _launch(launch, target, steps, _NOTHING, size, how, sizes)


def _held(types: tuple[str, ...], function: Any) -> bool:
    """Whether floats hold all numbers, but for what is rounded to one anyway."""
    if not set(types) <= {*TYPES} or "int" in types[1:]:
        return False
    rounded = isinstance(function, Dequantise | Quantise) and not (
        isinstance(function, Dequantise) and len(types) > ROUNDED
    )
    return types[0] != "int" or rounded


def _chain(params: Any) -> tuple[Step, ...] | None:
    """Return post-ops of bytes that stay within their type as steps, None for others."""
    ops, types = params["post_ops"], params["ctypes"]
    kept = all(op.fn in WITHIN or FUNCTIONS[op.fn].of_bytes for op in ops)
    if not kept or any(FUNCTIONS[op.fn].looks_up for op in ops) or not set(types) <= {*TYPES[:4]}:
        return None
    if any(n == 0 for n in params["operands"].values()):
        return None
    found = steps_of(ops, {k: n - 1 for k, n in params["operands"].items()})
    return None if found is None else tuple(found)


def _launch(
    launch: Launch,
    target: Target,
    steps: tuple[Step, ...],
    table: Const,
    size: int = 0,
    how: int = 0,
    sizes: Sizes | None = None,
) -> Launch | None:
    sizes = sizes or Sizes()
    params = launch.params
    codes = encoded(steps, MANY)
    if codes is None:
        return None
    sources, last = len(params["ctypes"]) - 1, len(params["ctypes"]) - 1
    walked = [*range(sources), *[0] * (1 + OPERANDS - sources), last]
    more = OUTER - len(params["outer"])
    kinds = [0 if size else TYPES.index(params["ctypes"][k]) for k in walked]
    kinds[:2] = sizes.first or kinds[0], sizes.second or kinds[1]
    numbers: list[Number] = [size, how, sizes.extent, sizes.along, *kinds]
    numbers += [params["inner"], params["chunk"], params["middle"], params["rows"]]
    numbers += [1] * more + [*params["outer"]]
    for k in walked:
        numbers += [0] * more + [*params["pitches"][k]]
        numbers += [params["middle_pitches"][k], params["inner_pitches"][k]]
    given = [launch.args[k] for k in walked[:-1]]
    args: tuple[Arg, ...] = (*given, table, launch.args[-1])
    return universal_launch("bytes_walk", target, args, [*numbers, *codes], launch.global_size)


def _steps(function: Any, sources: int) -> tuple[Step, ...] | None:
    """Return an elementwise function as steps, None where the set has no form for it."""
    of = _FORMS.get(function.name) if isinstance(function, QuantisedMap) else None
    return None if of is None else of(function, sources)


def _limits(kind: DType) -> tuple[float, float]:
    low, high = limits_of(kind)
    return float(low), float(high)


def _late(kind: DType, limits: tuple[int, int] | None, shifted: bool) -> tuple[Step, ...]:
    """Return the rounding of steps that hold the zero point already; shifted: they are 128 more."""
    low, high = _limits(U8) if shifted else limits or _limits(kind)
    return (Step("round_late", (low, high, -float(SHIFT) * shifted)),)


def _dequantise(function: Dequantise, sources: int) -> tuple[Step, ...]:
    zero = (Step("sub", operand=1),) if sources > 2 else ()
    return *zero, Step("mul", operand=0)


def _quantise(function: Quantise, sources: int) -> tuple[Step, ...]:
    first = Step("mul" if function.whole else "div", operand=0)
    if function.late:
        moved = Step("add_moved", (float(SHIFT * function.shifted),), 1)
        return first, moved, *_late(function.kind, function.limits, function.shifted)
    return first, Step("round_off", function.limits or _limits(function.kind), 1)


def _sum(function: QuantisedSum, sources: int) -> tuple[Step, ...]:
    fn = "shifted_byte_sum" if function.shifted else "byte_sum"
    return (Step(fn, (*function.ratios, function.offset, *_limits(function.kind)), 0),)


def _product(function: QuantisedProduct, sources: int) -> tuple[Step, ...]:
    a, b, zero = function.zeros
    numbers = float(a), float(b), function.ratio, float(zero + SHIFT * function.shifted)
    return Step("byte_product", numbers, 0), *_late(function.kind, None, function.shifted)


def _written(function: WrittenBinary, sources: int) -> tuple[Step, ...]:
    pairs = zip(function.zeros, function.steps, strict=True)
    numbers = [float(n) for pair in pairs for n in pair]
    return (Step(f"written_{function.fn}", (*numbers, function.low, function.high), 0),)


def _written_steps(function: Any, sources: int) -> tuple[Step, ...] | None:
    (zero, begin), (step, last) = function.zeros, function.steps
    inner = steps_of(function.post_ops, {1 + k: k for k in range(sources - 1)})
    if inner is None:
        return None
    low, high = _limits(function.kinds[1])
    ends = Step("sub", (float(zero),)), Step("mul", (step,)), Step("div", (last,))
    rounding = Step("round_late", (low - begin, high - begin, float(begin)))
    return *ends[:2], *inner, ends[2], rounding


def _line(function: ByteLine, sources: int) -> tuple[Step, ...]:
    low, high = _limits(function.result)
    return (Step("byte_line", (function.ratio, function.offset, float(function.zero), low, high)),)


_FORMS: dict[str, Callable[[Any, int], tuple[Step, ...] | None]] = {
    Dequantise.name: _dequantise,
    Quantise.name: _quantise,
    QuantisedSum.name: _sum,
    QuantisedProduct.name: _product,
    WrittenBinary.name: _written,
    "written_steps": _written_steps,
    ByteLine.name: _line,
    ByteTable.name: lambda function, sources: (Step("byte_table"),),
}
