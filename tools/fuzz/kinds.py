"""Kinds of nodes that random networks are drawn from: those of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from drawing import Drawer

UNARY = [
    "Relu",
    "Abs",
    "Neg",
    "Sign",
    "Floor",
    "Ceil",
    "Round",
    "Exp",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Softplus",
    "Softsign",
    "Elu",
    "Selu",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "ThresholdedRelu",
    "Celu",
    "Mish",
    "Gelu",
    "Shrink",
    "Sin",
    "Cos",
    "Atan",
    "Identity",
    "Clip",
    "Sqrt",
    "Log",
    "Reciprocal",
]
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow"]
COMPARED = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]
INTEGER_BINARY = ["Add", "Sub", "Mul", "Max", "Min", "Div", "Mod"]
FOLDS = [
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "ReduceMean",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
]


def _unary(d: Drawer) -> None:
    x, op = d.pick(), d.one_of(UNARY)
    if x is None:
        return
    more = [d.const(-0.75, "float32"), d.const(1.25, "float32")] if op == "Clip" else []
    d.node(op, [x, *more])


def _binary(d: Drawer) -> None:
    x = d.pick()
    if x is None:
        return
    shape = d.of(x).shape
    others = [n for n in d.net.made if d.of(n).shape == shape and d.of(n).dtype.kind == "f"]
    if others and d.chance.random() < 0.5:
        y = d.one_of(others)
    else:
        begin = d.up_to(len(shape), 0)
        y = d.weights(*(s if d.chance.random() < 0.6 else 1 for s in shape[begin:]))
    op = d.one_of([*BINARY, "Add", "Mul"])
    d.node(op, [x, y] if op == "PRelu" or d.chance.random() < 0.7 else [y, x])


def _variadic(d: Drawer) -> None:
    x = d.pick()
    if x is not None:
        others = [d.weights(*d.of(x).shape[d.up_to(d.of(x).ndim, 0) :]) for _ in range(d.up_to(3))]
        d.node(d.one_of(("Sum", "Mean", "Max", "Min")), [x, *others])


def _logic(d: Drawer) -> None:
    x = d.pick()
    if x is None:
        return
    truth = d.node(d.one_of(COMPARED), [x, d.const(d.up_to(8, -8) / 8, "float32")])
    if truth and d.chance.random() < 0.3:
        truth = d.node("Not", truth)
    if truth:
        d.node("Where", [truth[0], x, d.const(d.up_to(3, -3), "float32")])


def _integers(d: Drawer) -> None:
    x = d.pick("iu")
    if x is None:
        source = d.pick()
        number = d.one_of((2, 3, 6, 7)) if source is not None else 0
        if source is not None and (number != 2 or d.of(source).min() >= 0):
            d.node("Cast", [source], to=number)
        return
    if d.chance.random() < 0.3:
        d.node("Cast", [x], to=1)
        return
    y = d.const(d.chance.integers(1, 7, d.of(x).shape[-1:]), str(d.of(x).dtype))
    d.node(d.one_of(INTEGER_BINARY), [x, y])


def _fold(d: Drawer) -> None:
    x = d.pick("f", range(1, 6))
    if x is None:
        return
    rank = d.of(x).ndim
    axes = sorted({d.up_to(rank - 1, -rank) % rank for _ in range(d.up_to(rank))})
    d.node(d.one_of(FOLDS), [x, d.const(axes)], keepdims=d.up_to(1, 0))


def _rows(d: Drawer) -> None:
    x = d.pick("f", range(1, 6))
    if x is None:
        return
    axis = d.up_to(d.of(x).ndim - 1, 0)
    op = d.one_of(
        (
            "Softmax",
            "LogSoftmax",
            "Hardmax",
            "ArgMax",
            "ArgMin",
            "TopK",
            "CumSum",
            "LpNormalization",
        )
    )
    if op == "TopK":
        k = d.const([d.up_to(d.of(x).shape[axis])])
        d.node(op, [x, k], 2, axis=axis, largest=d.up_to(1, 0))
    elif op == "CumSum":
        d.node(op, [x, d.const(axis)], exclusive=d.up_to(1, 0), reverse=d.up_to(1, 0))
    elif op.startswith("Arg"):
        d.node(op, [x], axis=axis, keepdims=d.up_to(1, 0), select_last_index=d.up_to(1, 0))
    else:
        d.node(op, [x], axis=axis)


def norm(d: Drawer) -> None:
    x = d.pick("f", range(3, 5))
    if x is None:
        return
    c = d.of(x).shape[1]
    op = d.one_of(
        (
            "BatchNormalization",
            "InstanceNormalization",
            "LayerNormalization",
            "LRN",
            "GroupNormalization",
        )
    )
    if op == "BatchNormalization":
        spread = d.const(d.chance.integers(1, 9, c) / 4, "float32")
        d.node(op, [x, *(d.weights(c) for _ in range(3)), spread])
    elif op == "LayerNormalization":
        axis = d.up_to(d.of(x).ndim - 1)
        d.node(op, [x, *(d.weights(*d.of(x).shape[axis:]) for _ in range(2))], axis=axis)
    elif op == "LRN":
        d.node(op, [x], size=d.up_to(5))
    else:
        attrs = {"num_groups": d.one_of([g for g in (1, 2, 3, 4, 17) if c % g == 0])}
        d.node(op, [x, d.weights(c), d.weights(c)], **(attrs if op[0] == "G" else {}))


def _window(d: Drawer, x: str, kernel: Sequence[int], dilations: bool = True) -> dict[str, Any]:
    rank = d.of(x).ndim - 2
    attrs: dict[str, Any] = {"strides": [d.up_to(3) for _ in range(rank)]}
    if dilations and d.chance.random() < 0.3:
        attrs["dilations"] = [d.up_to(2) for _ in range(rank)]
    if d.chance.random() < 0.6:
        attrs["pads"] = [d.up_to(max(k - 1, 0), 0) for k in kernel] * 2
    return attrs


def conv(d: Drawer) -> None:
    x = d.pick("f", (3, 4))
    if x is None:
        return
    c = d.of(x).shape[1]
    group = d.one_of([g for g in (1, 1, 2, c) if c % g == 0])
    kernel = [d.one_of((1, 2, 3, 3, 5)) for _ in range(d.of(x).ndim - 2)]
    out = group * d.one_of((1, 2, 4, 8))
    bias = [d.weights(out)] * d.up_to(1, 0)
    if d.chance.random() < 0.25:
        weights = d.weights(c, out // group, *kernel)
        attrs = _window(d, x, kernel)
        d.node("ConvTranspose", [x, weights, *bias], group=group, **attrs)
    else:
        weights = d.weights(out, c // group, *kernel)
        d.node("Conv", [x, weights, *bias], group=group, **_window(d, x, kernel))


def pool(d: Drawer) -> None:
    x = d.pick("f", (3, 4))
    if x is None:
        return
    op = d.one_of(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        d.node(op, [x])
        return
    kernel = [d.up_to(min(4, extent)) for extent in d.of(x).shape[2:]]
    attrs = _window(d, x, kernel, False)
    if op == "AveragePool":
        attrs["count_include_pad"] = d.up_to(1, 0)
    d.node(op, [x], kernel_shape=kernel, **attrs)


def _product(d: Drawer) -> None:
    x = d.pick("f", range(1, 5))
    if x is None:
        return
    if d.of(x).ndim == 2 and d.chance.random() < 0.5:
        turned = d.up_to(1, 0)
        k, n = d.of(x).shape[1], d.up_to(9)
        more = [d.weights(*((n,), (1, n), (1,))[d.up_to(2, 0)])] * d.up_to(1, 0)
        attrs = {"transB": turned, "alpha": d.one_of((1.0, 0.5)), "beta": d.one_of((1.0, 2.0))}
        d.node("Gemm", [x, d.weights(*((n, k) if turned else (k, n))), *more], **attrs)
    else:
        d.node("MatMul", [x, d.weights(d.of(x).shape[-1], d.up_to(9))])


def _move(d: Drawer) -> None:
    x = d.pick("fiu", range(1, 6))
    if x is None:
        return
    shape, rank = d.of(x).shape, d.of(x).ndim
    axis = d.up_to(rank - 1, 0)
    op = d.one_of(
        (
            "Transpose",
            "Reshape",
            "Flatten",
            "Slice",
            "Concat",
            "Split",
            "Pad",
            "Expand",
            "Tile",
            "Gather",
            "Unsqueeze",
        )
    )
    if op == "Transpose":
        d.node(op, [x], perm=d.chance.permutation(rank).tolist())
    elif op == "Reshape":
        sizes = [s for s in (2, 3, 4) if d.of(x).size % s == 0] or [1]
        d.node(op, [x, d.const([d.one_of(sizes), -1])])
    elif op == "Slice":
        step, begin = d.one_of((1, 2, -1)), d.up_to(shape[axis] - 1, 0)
        ends = [shape[axis] + 1] if step > 0 else [-shape[axis] - 1]
        d.node(op, [x, d.const([begin]), d.const(ends), d.const([axis]), d.const([step])])
    elif op == "Concat":
        alike = [n for n in (*d.net.inputs, *d.net.made) if d.of(n).shape == shape]
        alike = [n for n in alike if d.of(n).dtype == d.of(x).dtype]
        d.node(op, [d.one_of(alike) for _ in range(d.up_to(3))] + [x], axis=axis)
    elif op == "Split" and shape[axis] > 1:
        at = d.up_to(shape[axis] - 1)
        d.node(op, [x, d.const([at, shape[axis] - at])], 2, axis=axis)
    elif op == "Pad":
        pads = [d.up_to(2, 0) for _ in range(2 * rank)]
        modes = ["constant", "edge", "reflect"] if d.of(x).dtype.kind == "f" else ["constant"]
        d.node(op, [x, d.const(pads)], mode=d.one_of(modes))
    elif op == "Expand":
        d.node(op, [x, d.const([d.up_to(3), *shape])])
    elif op == "Tile":
        d.node(op, [x, d.const([d.up_to(2) for _ in shape])])
    elif op == "Gather":
        picks = d.chance.integers(-shape[axis], shape[axis], d.shape()[:2])
        d.node(op, [x, d.const(picks)], axis=axis)
    elif op in ("Flatten", "Unsqueeze"):
        more = [d.const([axis])] if op == "Unsqueeze" else []
        d.node(op, [x, *more], **({} if more else {"axis": axis}))


def image(d: Drawer) -> None:
    x = d.pick("f", (4,))
    if x is None:
        return
    if d.of(x).shape[1] % 4 == 0 and d.chance.random() < 0.4:
        d.node("DepthToSpace", [x], blocksize=2, mode=d.one_of(("DCR", "CRD")))
        return
    scales = d.const([1, 1, d.one_of((0.5, 1, 2)), d.one_of((1, 1.5, 2, 3))], "float32")
    how = d.one_of(("asymmetric", "half_pixel", "align_corners"))
    d.node(
        "Resize",
        [x, "", scales],
        mode=d.one_of(("nearest", "linear", "cubic")),
        coordinate_transformation_mode=how,
    )


def _samples(d: Drawer) -> None:
    x = d.pick("f", (4,))
    if x is None:
        return
    shape = d.of(x).shape[0], d.up_to(6), d.up_to(6), 2
    at = d.const(d.chance.integers(-12, 13, shape) / 8 + 0.03, "float32")
    d.node(
        "GridSample",
        [x, at],
        mode=d.one_of(("nearest", "linear", "cubic")),
        padding_mode=d.one_of(("zeros", "border", "reflection")),
        align_corners=d.up_to(1, 0),
    )


KINDS: tuple[Callable[[Drawer], None], ...] = (
    *(_unary, _unary, _binary, _binary, _variadic, _logic, _integers, _fold, _rows, norm),
    *(conv, conv, pool, _product, _move, _move, _move, image, _samples),
)
