"""Kinds of nodes that random networks are drawn from: control flow, recurrence, shapes from values, indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from drawing import Drawer
from onnx import TensorProto, helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MODEST = ("Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Softsign")


def _open(name: str, kind: int = FLOAT, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _scalar(d: Drawer, x: str) -> str | None:
    """Return the largest of x as a scalar."""
    rank = d.of(x).ndim
    made = d.node("ReduceMax", [x, d.const(list(range(rank)))], keepdims=0)
    return made[0] if made else None


def _recurrent(d: Drawer) -> None:
    x = d.pick("f", (3,))
    if x is None:
        x = d.array((d.up_to(5), d.up_to(3), d.up_to(6)))
        d.net.inputs.append(x)
    t, batch, width = d.of(x).shape
    op, hidden = d.one_of(("LSTM", "GRU", "RNN")), d.up_to(6)
    direction = d.one_of(("forward", "reverse", "bidirectional"))
    ways = 1 + (direction == "bidirectional")
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    inputs = [x, d.weights(ways, rows, width), d.weights(ways, rows, hidden)]
    inputs.append(d.weights(ways, 2 * rows) if d.chance.random() < 0.6 else "")
    if d.chance.random() < 0.3:
        inputs.append(d.const(d.chance.integers(1, t + 1, batch), "int32"))
    elif d.chance.random() < 0.4:
        inputs += ["", d.weights(ways, batch, hidden)]
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = d.up_to(1, 0)
    d.node(op, inputs, d.up_to(3 if op == "LSTM" else 2), **attrs)


def _branch(d: Drawer) -> None:
    x = d.pick("f", range(1, 5))
    most = x and _scalar(d, x)
    if not most or x is None:
        return
    truth = d.node("Greater", [most, d.const(d.up_to(6, -6) / 4, "float32")])
    if not truth:
        return
    then = [helper.make_node(d.one_of(MODEST), [x], ["t0"])]
    other = [helper.make_node("Add", [x, x], ["e0"])]
    if d.chance.random() < 0.4:
        then.append(helper.make_node("Transpose", ["t0"], ["t1"]))
    if d.chance.random() < 0.4:
        other.append(helper.make_node(d.one_of(MODEST), ["e0"], ["e1"]))
    graphs = [
        helper.make_graph(nodes, name, [], [_open(nodes[-1].output[0])])
        for nodes, name in ((then, "then"), (other, "other"))
    ]
    d.node("If", truth, then_branch=graphs[0], else_branch=graphs[1])


def _loop(d: Drawer) -> None:
    x = d.pick("f", range(1, 5))
    if x is None:
        return
    trips: str | None = d.const(d.up_to(3, 0))
    if d.chance.random() < 0.4:  # as often as the largest value says
        most = _scalar(d, x)
        near = most and d.node("Clip", [most, d.const(0, "float32"), d.const(3, "float32")])
        whole = near and d.node("Floor", near)
        cast = whole and d.node("Cast", whole, to=INT64)
        trips = cast[0] if cast else None
    if trips is None:
        return
    nodes = [
        helper.make_node("Identity", ["c"], ["c1"]),
        helper.make_node("Add", ["s", x], ["u"]),
        helper.make_node(d.one_of(MODEST), ["u"], ["s1"]),
    ]
    shape = d.of(x).shape if d.chance.random() < 0.5 else [None] * d.of(x).ndim
    inputs = [_open("i", INT64, ()), _open("c", BOOL, ()), _open("s", shape=shape)]
    outputs, count = [_open("c1", BOOL, ()), _open("s1", shape=shape)], 1
    if d.chance.random() < 0.5:
        nodes.append(helper.make_node("Mul", ["s1", "s"], ["o"]))
        outputs, count = [*outputs, _open("o", shape=shape)], 2
    body = helper.make_graph(nodes, "body", inputs, outputs)
    d.node("Loop", [trips, d.const(True, "bool"), x], count, body=body)


def _scan(d: Drawer) -> None:
    x = d.pick("f", range(2, 5))
    if x is None:
        return
    axis = d.up_to(d.of(x).ndim - 1, 0)
    rest = [n for k, n in enumerate(d.of(x).shape) if k != axis]
    nodes = [
        helper.make_node("Add", ["s", "e"], ["u"]),
        helper.make_node(d.one_of(MODEST), ["u"], ["s1"]),
        helper.make_node("Sub", ["s1", "e"], ["o"]),
    ]
    values = [_open(n, shape=rest) for n in ("s", "e", "s1", "o")]
    body = helper.make_graph(nodes, "body", values[:2], values[2:])
    attrs = {"scan_input_axes": [axis], "scan_output_axes": [d.up_to(len(rest), 0)]}
    attrs["scan_input_directions"] = [d.up_to(1, 0)]
    d.node("Scan", [d.weights(*rest), x], 2, body=body, num_scan_inputs=1, **attrs)


def _found(d: Drawer) -> None:
    """Values that decide a shape."""
    x = d.pick("f", range(1, 5))
    if x is None:
        return
    op = d.one_of(("NonZero", "Compress", "Unique", "Range"))
    truth = d.node("Greater", [x, d.const(d.up_to(4, -4) / 4, "float32")])
    if not truth:
        return
    if op == "NonZero":
        places = d.node(op, truth)
        turned = places and d.node("Transpose", places, perm=[1, 0])
        if turned and d.chance.random() < 0.6:
            d.node("GatherND", [x, turned[0]])
    elif op == "Compress":
        flat = d.node("Reshape", [truth[0], d.const([-1])])
        if flat:
            d.node(op, [x, flat[0]])
    elif op == "Unique":
        d.node(op, [x], d.one_of((1, 1, 2, 3, 4)), sorted=1)
    else:
        most = _scalar(d, x)
        near = most and d.node("Clip", [most, d.const(0, "float32"), d.const(6, "float32")])
        if near:
            d.node(op, [d.const(0, "float32"), near[0], d.const(0.75, "float32")])


def _shapes(d: Drawer) -> None:
    """Shapes that are computed from the shape of a value."""
    x = d.pick("f", range(1, 5))
    shape = x and d.node("Shape", [x])
    if not shape or x is None:
        return
    op = d.one_of(("Reshape", "Expand", "ConstantOfShape", "Resize", "Size"))
    if op == "Reshape":
        first = d.node("Slice", [shape[0], d.const([0]), d.const([1])])
        both = first and d.node("Concat", [first[0], d.const([-1])], axis=0)
        if both:
            d.node(op, [x, both[0]])
    elif op == "Expand":
        d.node(op, [d.weights(d.of(x).shape[-1]), shape[0]])
    elif op == "ConstantOfShape":
        value = helper.make_tensor("value", FLOAT, [1], [d.up_to(6, -6) / 4])
        made = d.node(op, shape, value=value)
        if made:
            d.node("Add", [x, made[0]])
    elif op == "Size":
        cast = d.node("Cast", d.node(op, [x]), to=FLOAT)
        if cast:
            d.node("Div", [x, cast[0]])
    elif d.of(x).ndim == 4:
        twice = d.node("Mul", [shape[0], d.const([1, 1, 2, 2])])
        if twice:
            d.node("Resize", [x, "", "", twice[0]], mode=d.one_of(("nearest", "linear")))


def _indices(d: Drawer) -> None:
    x = d.pick("f", range(1, 5))
    if x is None:
        return
    shape, rank = d.of(x).shape, d.of(x).ndim
    axis = d.up_to(rank - 1, 0)
    op = d.one_of(("GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot"))
    if op in ("GatherElements", "ScatterElements"):
        dims = [d.up_to(n) for n in shape]
        if op == "ScatterElements":  # each place once
            picks = np.argsort(d.chance.random(shape), axis)[tuple(slice(n) for n in dims)]
            d.node(op, [x, d.const(picks), d.weights(*dims)], axis=axis)
        else:
            d.node(op, [x, d.const(d.chance.integers(-shape[axis], shape[axis], dims))], axis=axis)
    elif op == "OneHot":
        whole = d.node("ArgMax", [x], axis=axis)
        if whole:
            d.node(op, [whole[0], d.const(shape[axis]), d.const([-1, 2], "float32")], axis=axis)
    else:
        depth, count = d.up_to(rank), d.up_to(4)
        places = np.unique(
            [[d.up_to(n - 1, 0) for n in shape[:depth]] for _ in range(count)], axis=0
        )
        more = [d.weights(len(places), *shape[depth:])] if op == "ScatterND" else []
        d.node(op, [x, d.const(places), *more])


def _padded(d: Drawer) -> None:
    """Padding as a node before the window that reads it."""
    x = d.pick("f", (3, 4))
    if x is None:
        return
    c, rank = d.of(x).shape[1], d.of(x).ndim
    pads = [0, 0, *(d.up_to(2, 0) for _ in range(rank - 2))] * 2
    padded = d.node("Pad", [x, d.const(pads)], mode=d.one_of(("constant", "constant", "reflect")))
    if not padded:
        return
    kernel = [d.one_of((2, 3)) for _ in range(rank - 2)]
    strides = [d.up_to(2) for _ in kernel]
    op = d.one_of(("Conv", "MaxPool", "AveragePool"))
    if any(n < k for n, k in zip(d.of(padded[0]).shape[2:], kernel, strict=True)):
        return  # of no window onnxruntime makes one
    if op == "Conv":
        out, group = d.one_of(((4, 1), (c, c)))
        d.node(op, [*padded, d.weights(out, c // group, *kernel)], group=group, strides=strides)
    else:
        d.node(
            op, padded, kernel_shape=kernel, strides=strides, pads=[d.up_to(1, 0)] * 2 * len(kernel)
        )


def _attention(d: Drawer) -> None:
    x = d.pick("f", (3, 4))
    if x is None:
        return
    shape = d.of(x).shape
    if d.net.opset >= 23 and d.chance.random() < 0.5:
        kv = [d.weights(*shape[:-2], d.up_to(6), shape[-1]) for _ in range(2)]
        attrs = {"q_num_heads": 1, "kv_num_heads": 1} if len(shape) == 3 else {}
        d.node("Attention", [x, *kv], is_causal=d.up_to(1, 0), **attrs)
        return
    turned = d.node("Transpose", [x], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
    score = turned and d.node("MatMul", [x, turned[0]])
    scaled = score and d.node("Mul", [score[0], d.const(0.25, "float32")])
    share = scaled and d.node("Softmax", scaled, axis=-1)
    if share:
        d.node("MatMul", [share[0], x])


def _others(d: Drawer) -> None:
    x = d.pick("f", range(1, 6))
    if x is None:
        return
    shape = d.of(x).shape
    op = d.one_of(
        (
            "Trilu",
            "Squeeze",
            "Dropout",
            "GlobalLpPool",
            "MeanVarianceNormalization",
            "EyeLike",
            "RMSNormalization",
            "Swish",
            "SpaceToDepth",
            "IsNaN",
            "Einsum",
            "ReduceLogSum",
            "CenterCropPad",
        )
    )
    if op == "Trilu":
        d.node(op, [x, d.const(d.up_to(2, -2))], upper=d.up_to(1, 0))
    elif op == "SpaceToDepth":
        d.node(op, [x], blocksize=d.one_of((1, 2, 3)))
    elif op == "RMSNormalization":
        d.node(op, [x, d.weights(shape[-1])])
    elif op == "Einsum":
        d.node(op, [x, d.weights(shape[-1], d.up_to(5))], equation="...ij,jk->...ik")
    elif op == "MeanVarianceNormalization":  # onnxruntime takes axes that are not there
        d.node(op, [x], axes=[axis for axis in (0, 2, 3) if axis < len(shape)])
    elif op == "CenterCropPad":
        d.node(op, [x, d.const([d.up_to(9) for _ in shape])])
    elif op == "IsNaN":
        found = d.node(op, [x])
        if found:
            d.node("Where", [found[0], d.const(1, "float32"), x])
    else:
        d.node(op, [x])


def _bits(d: Drawer) -> None:
    x = d.pick("iu")
    if x is None or d.of(x).dtype == np.bool_:
        return
    y = d.const(d.chance.integers(1, 7, d.of(x).shape[-1:]), str(d.of(x).dtype))
    d.node(d.one_of(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")), [x, y])


KINDS: tuple[Callable[[Drawer], None], ...] = (
    *(_recurrent, _branch, _loop, _scan, _found, _shapes, _shapes, _indices, _indices),
    *(_padded, _padded, _attention, _others, _others, _bits),
)
