"""What nodes make of extents whose uses are noted (clnn.recorded): folded in such a way that it stays so.

Few whole numbers are computed one by one. Other arrays are made anew for other extents, within the
room that `Room` has; what is known of them here is their shape.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from clnn.importers.onnx import fold
from clnn.importers.onnx.limits import Budget
from clnn.importers.onnx.nodes import Consts, find_importer
from clnn.importers.onnx.scope import Call
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported
from clnn.ops.spec import ViewSpec
from clnn.recorded import integer, is_recorded, larger
from clnn.recorded_arrays import RecordedArray, is_made, items_of, whole_numbers
from clnn.records import changed, dataclass
from clnn.types import Array, TensorType, broadcast_shapes, dtype_of, normalise_axis

MOST_ITEMS = 64  # of an array that is computed number by number
ROOM = 2**24  # bytes of all arrays of one import that are made anew for other extents
WHOLE = frozenset(map(np.dtype, (np.int32, np.int64, np.bool_)))

Evaluate = Callable[[Sequence[Array | None]], list[Array]]  # a node's outputs, by onnx's evaluator


class _UnknownError(Exception):
    """What a node makes is not known for other extents."""


@dataclass
class Room:
    """Bytes of arrays that were made so far."""

    taken: int = 0

    def take(self, count: int) -> None:
        """Count bytes. Raises _UnknownError beyond the limit."""
        self.taken = self.taken + count
        if self.taken > ROOM:
            raise _UnknownError


def fold_call(
    call: Call,
    values: Sequence[Any],
    kinds: Sequence[TensorType | None],
    budget: Budget,
    room: Room,
) -> list[Any]:
    """Return the outputs of a node of known inputs. Raises as clnn.importers.onnx.fold does.

    values: data of all inputs, None where one is left out. kinds: their types.
    """
    about, count = (call.op_type, call.opset or 0, call.attributes), len(call.node.output)
    if any(map(is_made, values)):
        found = _fold_noted(call, values, kinds, fold.evaluator(*about, values, count), room)
        if found is not None:
            return found
        values = [np.asarray(v) if is_made(v) else v for v in values]
    return fold.fold(*about, call.attrs, values, count, budget)


def _fold_noted(
    call: Call, values: Sequence[Any], kinds: Sequence[Any], evaluate: Evaluate, room: Room
) -> list[Any] | None:
    """Return the outputs of a node of which some inputs follow from noted extents; None where unknown."""
    try:
        found = _numbers(call, values, evaluate)
        if found is None:
            found = _arrays(call, values, kinds, evaluate, room)
    except (_UnknownError, Unsupported, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return found


def _numbers(call: Call, values: Sequence[Any], evaluate: Evaluate) -> list[Any] | None:
    """Return the outputs number by number, None where a node does not work on few whole numbers."""
    data = values[: _MOVED.get(call.op_type, len(values))]
    few = all(
        v is not None
        and v.dtype in WHOLE
        and (v.items is not None if is_made(v) else v.size <= MOST_ITEMS)
        for v in data
    )
    if not few or (is_made(values[0]) and values[0].array.size > MOST_ITEMS):
        return None
    if call.op_type in _MOVED:
        return _moved(data, values[len(data) :], evaluate)
    compute = _COMPUTED.get(call.op_type)
    return None if compute is None else [compute(call.attrs, [*map(_items, data)], data)]


# How many inputs are moved, of nodes that give some elements of their inputs in another order; the
# other inputs say which.
_MOVED = {
    **dict.fromkeys(("Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Flatten"), 1),
    **dict.fromkeys(("Transpose", "Expand", "Tile", "Identity", "Split"), 1),
    "Concat": 2**10,
}


def _items(value: Any) -> Array:
    found: Array = value.items if is_made(value) else value.astype(object)
    return found


def _moved(data: Sequence[Any], others: Sequence[Any], evaluate: Evaluate) -> list[Any] | None:
    """Return what a node that moves elements makes, told by how it moves their positions."""
    if any(map(is_made, others)):
        return None
    every = items_of([n for v in data for n in _items(v).reshape(-1).tolist()])
    positions: list[Array] = []
    for value in data:
        begin = sum(p.size for p in positions)
        count = math.prod(_items(value).shape)
        positions.append(np.arange(begin, begin + count).reshape(_items(value).shape))
    moved = evaluate([*positions, *others])
    if sum(m.size for m in moved) > MOST_ITEMS:
        return None
    return [whole_numbers(every[m.reshape(-1)].reshape(m.shape), data[0].dtype) for m in moved]


def _each(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes elements of broadcast arrays one by one."""

    def computed(attrs: Mapping[str, Any], items: Sequence[Array], data: Sequence[Any]) -> Any:
        arrays = np.broadcast_arrays(*items)
        rows = zip(*(a.reshape(-1).tolist() for a in arrays), strict=True)
        found = [compute(*row) for row in rows]
        kind = np.dtype(bool) if all(type(n) is bool for n in found) else data[-1].dtype
        return _bounded(found, arrays[0].shape, kind)

    return computed


def _bounded(found: Sequence[Any], shape: Sequence[int], kind: Any) -> Any:
    """Return numbers as an array of a type that holds them, which is noted."""
    if kind != np.dtype(bool):
        limits = np.iinfo(kind)
        if not all(int(limits.min) <= n <= int(limits.max) for n in found):
            raise _UnknownError
    return whole_numbers(items_of(found, shape), kind)


def _quotient(a: Any, b: Any) -> Any:
    if a < 0 or b <= 0:  # where rounding towards zero is another number
        raise _UnknownError
    return a // b


def _cast(attrs: Mapping[str, Any], items: Sequence[Array], data: Sequence[Any]) -> Any:
    kind = onnx.helper.tensor_dtype_to_np_dtype(attrs["to"])
    if kind not in WHOLE or data[0].dtype == np.dtype(bool):
        raise _UnknownError
    found = items[0].reshape(-1).tolist()
    if kind == np.dtype(bool):
        found = [bool(n != 0) for n in found]
    return _bounded(found, items[0].shape, kind)


def _least(a: Any, b: Any) -> Any:
    return a if a <= b else b


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _product(attrs: Mapping[str, Any], items: Sequence[Array], data: Sequence[Any]) -> Any:
    if len(items) != 1 or attrs.get("axes") or items[0].ndim != 1:
        raise _UnknownError
    shape = (1,) if attrs.get("keepdims", 1) else ()
    return _bounded([math.prod(items[0].tolist())], shape, data[0].dtype)


_COMPUTED: Mapping[str, Callable[..., Any]] = {
    **{name: _each(compute) for name, compute in (
        ("Add", operator.add), ("Sub", operator.sub), ("Mul", operator.mul), ("Div", _quotient),
        ("Equal", operator.eq), ("Less", operator.lt), ("LessOrEqual", operator.le),
        ("Greater", operator.gt), ("GreaterOrEqual", operator.ge), ("Not", operator.not_),
        ("Max", larger), ("Min", _least), ("Where", _chosen), ("Neg", operator.neg),
    )},
    "Cast": _cast,
    "ReduceProd": _product,
}  # fmt: skip


def _arrays(
    call: Call,
    values: Sequence[Any],
    kinds: Sequence[TensorType | None],
    evaluate: Evaluate,
    room: Room,
) -> list[Any]:
    """Return outputs that are made anew for other extents. Raises _UnknownError."""
    if len(call.node.output) != 1:
        raise _UnknownError
    if call.op_type in _VIEWS:
        made = _viewed(call, values, kinds)
    elif call.op_type in _SHAPES:
        made = _evaluated(_SHAPES[call.op_type](call.attrs, values), evaluate, values)
    else:
        raise _UnknownError
    if made.array.dtype == object or made.array.shape != _plain(made.shape):
        raise _UnknownError
    room.take(made.nbytes)
    return [made]


def _today(value: Any) -> Any:
    return value.array if is_made(value) else value


def _evaluated(shape: Sequence[int], evaluate: Evaluate, values: Sequence[Any]) -> RecordedArray:
    """Return what the evaluator makes."""
    if math.prod(shape) > ROOM:
        raise _UnknownError
    make = partial(_evaluate_one, evaluate)
    return RecordedArray(make(*map(_today, values)), shape, make, values)


def _evaluate_one(evaluate: Evaluate, *values: Array | None) -> Array:
    return evaluate(values)[0]


_VIEWS = frozenset(
    ("Reshape", "Slice", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Expand", "Flatten")
)


def _viewed(call: Call, values: Sequence[Any], kinds: Sequence[TensorType | None]) -> RecordedArray:
    """Return what a node makes that renames elements: by the specs of the ops that it becomes."""
    importer = find_importer(call)
    if importer is None:
        raise _UnknownError
    known = Consts({k: v for k, v in enumerate(values) if v is not None})
    node = OnnxNode(call.op_type, call.opset or 0, call.attrs, tuple(kinds), known)
    source = importer(node)

    def made(source: Source) -> Any:
        if not isinstance(source, Emit):
            return values[source] if isinstance(source, int) else source
        spec, inputs = source.spec, [made(s) for s in source.inputs]
        if not isinstance(spec, ViewSpec):
            raise _UnknownError
        given = [TensorType(v.shape, dtype_of(v.dtype)) for v in inputs]
        shape = spec.infer(given)[0].shape
        if math.prod(shape) > ROOM:
            raise _UnknownError
        now = changed(spec, **{name: _plain(value) for name, value in vars(spec).items()})
        today = now.reference(*map(_today, inputs))[0]
        return RecordedArray(today, shape, _referred, (spec, *inputs))

    found = made(source)  # type: ignore[arg-type]
    if not is_made(found):
        raise _UnknownError
    return found  # type: ignore[no-any-return]


def _referred(spec: ViewSpec, *inputs: Array) -> Array:
    found: Array = spec.reference(*inputs)[0]
    return found


def _plain(value: Any) -> Any:
    """Return a number, or numbers, as they are today."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.value if is_recorded(value) else value


def _broadcast(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    return broadcast_shapes(*(tuple(v.shape) for v in values))


def _range(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    if any(v.dtype not in WHOLE or (is_made(v) and v.items is None) for v in values):
        raise _UnknownError
    start, stop, step = (integer(v.reshape(-1).tolist()[0]) for v in values)
    if step <= 0:
        raise _UnknownError
    return (larger(0, -((start - stop) // step)),)


def _filled(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    if not is_made(values[0]) or values[0].items is None:
        raise _UnknownError
    shape = tuple(map(integer, values[0].items.reshape(-1).tolist()))
    if any(n < 0 for n in shape):
        raise _UnknownError
    return shape


def _gathered(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    data, indices = (tuple(v.shape) for v in values)
    axis = normalise_axis(int(attrs.get("axis", 0)), len(data))
    return *data[:axis], *indices, *data[axis + 1 :]


def _of_indices(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(values[1].shape)


def _of_points(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    data, (*outer, depth) = (tuple(v.shape) for v in values)
    return *outer, *data[int(attrs.get("batch_dims", 0)) + int(depth) :]


def _same(attrs: Mapping[str, Any], values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(values[0].shape)


_ELEMENTWISE = """
    Add Sub Mul Div Mod Pow Min Max Where And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual
"""
_ONE_BY_ONE = """
    Abs Cast Ceil Cos CumSum Exp Floor Identity Log Neg Not Reciprocal Relu Round Sigmoid Sign Sin
    Sqrt Tanh Trilu
"""
# Shapes of what the evaluator makes.
_SHAPES: Mapping[str, Callable[[Mapping[str, Any], Sequence[Any]], tuple[int, ...]]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
    **dict.fromkeys(_ONE_BY_ONE.split(), _same),
    "ConstantOfShape": _filled,
    "Gather": _gathered,
    "GatherElements": _of_indices,
    "GatherND": _of_points,
    "Range": _range,
}
