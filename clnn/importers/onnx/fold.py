"""Constant folding at import: shape arithmetic and other nodes whose inputs are all known.

What a node would make is bounded before it is evaluated: a file of a few bytes can ask for any
amount of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from clnn.budget import SLOW_WORK
from clnn.errors import ModelError
from clnn.importers.onnx.limits import MAX_EXTENT, Budget, show
from clnn.ops.movement.scatter import ScatterND
from clnn.ops.onnx_registry import Unsupported
from clnn.recorded_arrays import items_of, whole_numbers
from clnn.types import Array, TensorType, broadcast_shapes, normalise_axis


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Ops that onnx's reference evaluator may run at import: no control flow, no randomness, no I/O,
# no time or memory beyond what `_elements` says.
_ELEMENTWISE = _names(
    """
    Abs Add And BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike
    Ceil Clip Cos DequantizeLinear Div Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid
    Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or PRelu Pow
    Reciprocal Relu Round Sigmoid Sign Sin Softmax Sqrt Sub Sum Tan Tanh Where Xor
    """
)
_NO_LARGER = _names(
    """
    ArgMax ArgMin Concat CumSum Flatten NonZero ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Reshape ScatterElements ScatterND Slice Split Squeeze TopK
    Transpose Trilu Unsqueeze EyeLike GatherElements Size
    """
)
# Evaluated element by element in Python.
_SLOW = _names("Erf GatherElements GatherND MelWeightMatrix NonZero ScatterElements TopK")
_LARGEST_ITEM = 8
# The evaluator lacks the older forms of these, which the newer ones include.
_EVALUATED_AS = {"DequantizeLinear": 19}


class NotEvaluated(ModelError):
    """The evaluator does not take a node: it is not valid, or of a form that the evaluator lacks."""


def foldable(op_type: str) -> bool:
    """Whether a node of this type folds when all its inputs are constant."""
    return op_type in _ELEMENTWISE or op_type in _NO_LARGER or op_type in _GROWING


def fold_shape(
    op_type: str, kind: TensorType, attrs: Mapping[str, Any], budget: Budget
) -> Array | None:
    """Return the output of Shape, Size or EyeLike for an input of known type, None for others."""
    if op_type == "Shape":
        extents = kind.shape[attrs.get("start", 0) : attrs.get("end")]
        found: Array = whole_numbers(items_of(extents), np.int64)
        return found
    if op_type == "EyeLike" and kind.rank == 2 and kind.size * _LARGEST_ITEM <= budget.fold_room:
        rows, columns = kind.shape
        element: np.dtype[Any] = kind.dtype.numpy
        if "dtype" in attrs:
            element = onnx.helper.tensor_dtype_to_np_dtype(attrs["dtype"])
        budget.folded += kind.size * element.itemsize
        return np.eye(rows, columns, attrs.get("k", 0), dtype=element)
    return whole_numbers(items_of([kind.size], ()), np.int64) if op_type == "Size" else None


def constant(attrs: Mapping[str, Any]) -> Array:
    """Return the value of a Constant node. Raises ModelError where it has none."""
    for name in ("value", "sparse_value"):
        if name in attrs:
            return np.asarray(attrs[name])
    for name, dtype in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_string", object),
        ("value_strings", object),
    ):
        if name in attrs:
            return np.asarray(attrs[name], dtype)
    raise ModelError(f"a Constant node has no value: its attributes are {sorted(attrs)}.")


def fold(
    op_type: str,
    opset: int,
    attributes: Sequence[onnx.AttributeProto],
    attrs: Mapping[str, Any],
    values: Sequence[Array | None],
    n_outputs: int,
    budget: Budget,
) -> list[Array]:
    """Return the outputs of a foldable node of domain ai.onnx whose inputs are all known.

    values: None where an input is left out. Raises NotEvaluated where the evaluator does not take the
    node, Unsupported where it would make or read more than the budget allows.
    """
    arrays = [v for v in values if v is not None]
    try:
        count = _elements(op_type, values, attrs)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as err:
        raise ModelError(f"its inputs or attributes do not fit: {err}.") from err
    width = max([_LARGEST_ITEM, *(v.itemsize for v in arrays)])
    if op_type == "ConstantOfShape" and count * width <= budget.max_bytes:
        return [_filled(_value(values, 0), attrs)]
    if count > MAX_EXTENT or count * width > budget.fold_room:
        raise Unsupported(
            f"its inputs are constant, and it makes up to {count} elements of them; for a model of "
            f"{budget.stored} bytes of tensors that is refused"
        )
    work = count * (SLOW_WORK if op_type in _SLOW else width)
    if work > budget.work_room:
        raise Unsupported(
            f"its inputs are constant, and to evaluate it counts as {work} bytes of work, of which "
            f"{budget.work_room} are left"
        )
    budget.worked += work
    outputs = evaluator(op_type, opset, attributes, values, n_outputs)(values)
    budget.folded += sum(array.nbytes for array in outputs)
    return outputs


def _filled(shape: Array, attrs: Mapping[str, Any]) -> Array:
    """Return ConstantOfShape's output, of which only one element is stored."""
    item = np.asarray(attrs.get("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    extents = tuple(int(d) for d in shape.reshape(-1))
    if len(item) != 1 or min(extents, default=0) < 0:
        raise ModelError(f"a constant of shape {extents} filled with {len(item)} values is none.")
    return np.broadcast_to(item.reshape(()), extents)


def _elements(op_type: str, values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    """Return an upper bound of the elements of all outputs."""
    arrays = [v for v in values if v is not None]
    if op_type in _GROWING:
        return _GROWING[op_type](values, attrs)
    if op_type in _ELEMENTWISE and op_type not in _ONE_SHAPED:
        return math.prod(broadcast_shapes(*(v.shape for v in arrays)))
    rank = max((v.ndim for v in arrays), default=0)
    return sum(v.size for v in arrays) * (max(rank, 2) if op_type in ("NonZero", "TopK") else 1)


# Elementwise in their first input; the others are parameters of other shapes.
_ONE_SHAPED = frozenset(("BatchNormalization", "DequantizeLinear", "Clip", "CastLike"))


def _value(values: Sequence[Array | None], index: int) -> Array:
    array = values[index] if index < len(values) else None
    if array is None:
        raise ValueError(f"input {index} is missing")
    return array


def _extents(array: Array) -> int:
    """Return the product of a shape, with 1 for extents that say 'as before' (0 and -1)."""
    extents: list[int] = array.reshape(-1).tolist()
    return math.prod(max(d, 1) for d in extents)


def _range(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    start, stop, step = (_value(values, k).reshape(-1)[0].item() for k in range(3))
    return int(max(0, math.ceil((stop - start) / step)))


def _expand(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    extents: list[int] = _value(values, 1).reshape(-1).tolist()
    return math.prod(broadcast_shapes(_value(values, 0).shape, tuple(extents)))


def _tile(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    return int(_value(values, 0).size) * _extents(_value(values, 1))


def _constant_of_shape(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    return _extents(_value(values, 0))


def _pad(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    data = _value(values, 0)
    pads = attrs["pads"] if "pads" in attrs else _value(values, 1).reshape(-1).tolist()
    grown = sum(max(int(p), 0) for p in pads)
    return int(math.prod(d + grown for d in data.shape))


def _gather(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    data, indices = _value(values, 0), _value(values, 1)
    axis = normalise_axis(int(attrs.get("axis", 0)), data.ndim)
    return int(math.prod(d for a, d in enumerate(data.shape) if a != axis) * indices.size)


def _gather_nd(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    data, indices = _value(values, 0), _value(values, 1)
    return int(math.prod(data.shape[indices.shape[-1] :]) * indices.size)


def _one_hot(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    return int(_value(values, 0).size) * max(int(_value(values, 1).reshape(-1)[0]), 1)


def _window(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    return max(int(_value(values, 0).reshape(-1)[0]), 0)


def _mel_weights(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    bands, length = (int(_value(values, k).reshape(-1)[0]) for k in range(2))
    return max(bands, 1) * (max(length, 1) // 2 + 1)


def _product(values: Sequence[Array | None], attrs: Mapping[str, Any]) -> int:
    """Return a bound of the multiplications, which take the time, and so of the elements."""
    left, right = _value(values, 0), _value(values, 1)
    return int(left.size) * max(right.size // max(min(right.shape[-2:], default=1), 1), 1)


_GROWING: dict[str, Callable[[Sequence[Array | None], Mapping[str, Any]], int]] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _product,
    "MatMul": _product,
    "MelWeightMatrix": _mel_weights,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), _window),
    "Tile": _tile,
}


def _of_places(data: Array, indices: Array, axis: int = 0) -> Array:
    cut = [slice(extent) for extent in indices.shape]
    cut[axis] = slice(None)
    beside = [k for k in range(data.ndim) if k != axis % data.ndim]
    if data.ndim != indices.ndim or any(indices.shape[k] > data.shape[k] for k in beside):
        raise ValueError(f"indices {indices.shape} do not lie within data {data.shape}")
    return np.take_along_axis(data[tuple(cut)], indices, axis)


def _of_points(data: Array, indices: Array, batch_dims: int = 0) -> Array:
    shape = (*indices.shape[:-1], *data.shape[batch_dims + indices.shape[-1] :])
    found = np.empty(shape, data.dtype)
    for at in np.ndindex(*indices.shape[:batch_dims]):
        found[at] = data[at][tuple(np.moveaxis(indices[at], -1, 0))]
    return found


def _put_at_points(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Array:
    if updates.shape != (*indices.shape[:-1], *data.shape[indices.shape[-1] :]):
        raise ValueError(f"updates {updates.shape} do not fit indices {indices.shape}")
    return ScatterND(reduction).reference(data, indices, updates)[0]


# What onnx's evaluator refuses, or computes element by element.
_OWN: Mapping[str, Callable[..., Array]] = {
    "GatherElements": _of_places,
    "GatherND": _of_points,
    "ScatterND": _put_at_points,
}


def _evaluate_own(
    compute: Callable[..., Array], attrs: Mapping[str, Any], values: Sequence[Array | None]
) -> list[Array]:
    try:
        return [compute(*values, **attrs)]
    except (IndexError, TypeError, ValueError) as err:
        raise NotEvaluated(f"it cannot be evaluated: {_first_line(err)}.") from err


def evaluator(
    op_type: str,
    opset: int,
    attributes: Sequence[onnx.AttributeProto],
    values: Sequence[Array | None],
    n_outputs: int,
) -> Callable[[Sequence[Array | None]], list[Array]]:
    """Return what evaluates a node for data of the same types as `values`, in as many calls as wanted.

    It raises NotEvaluated.
    """
    if own := _OWN.get(op_type):
        given = {a.name: onnx.helper.get_attribute_value(a) for a in attributes}
        texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in given.items()}
        return partial(_evaluate_own, own, texts)
    from onnx.reference import ReferenceEvaluator

    given = {f"i{k}": v for k, v in enumerate(values) if v is not None}
    names = [f"i{k}" if f"i{k}" in given else "" for k in range(len(values))]
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = onnx.helper.make_node(op_type, names, outputs)
    node.attribute.extend(attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim
        )
        for name, v in given.items()
    ]
    version = max(opset, _EVALUATED_AS.get(op_type, opset))
    graph = onnx.helper.make_graph(
        [node], "fold", inputs, [onnx.ValueInfoProto(name=n) for n in outputs]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    made: list[ReferenceEvaluator] = []

    def evaluate(values: Sequence[Array | None]) -> list[Array]:
        feeds = {f"i{k}": v for k, v in enumerate(values) if v is not None}
        try:
            with np.errstate(all="ignore"):
                made.extend([] if made else [ReferenceEvaluator(model)])
                results = made[0].run(None, feeds)
        except MemoryError:
            raise
        except Exception as err:  # whatever numpy or the evaluator says of a wrong node
            raise NotEvaluated(f"it cannot be evaluated: {_first_line(err)}.") from err
        return [np.asarray(array) for array in results]

    return evaluate


def _first_line(err: Exception) -> str:
    lines = str(err).strip().splitlines() or [type(err).__name__]
    return show(lines[0])
