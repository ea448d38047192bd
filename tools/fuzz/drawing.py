"""Random valid ONNX networks: each node is drawn, evaluated by onnxruntime, and kept if that succeeds.

Numbers stay moderate: a node whose result is infinite, NaN or huge is dropped, so that what differs
between engines is a fault and not the fate of such numbers, which tests/ops/test_special_values.py checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

OPSET = 21
MOST_ELEMENTS, LARGEST = 20_000, 1e4
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


@dataclass
class Network:
    """Nodes with their constants, and the value of everything that onnxruntime made of them."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    consts: list[str] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model that makes `outputs`."""

        def info(name: str) -> onnx.ValueInfoProto:
            array = self.values[name]
            return helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )

        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [info(n) for n in self.inputs],
            [info(n) for n in outputs],
            [numpy_helper.from_array(self.values[n], n) for n in self.consts],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs' values."""
        return {name: self.values[name] for name in self.inputs}

    @property
    def made(self) -> list[str]:
        """Every value that a node makes."""
        return [name for node in self.nodes for name in node.output]


def evaluate(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return onnxruntime's outputs, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


class Drawer:
    """Draws one network from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.net = Network()

    def draw(self, nodes: int) -> Network:
        """Return a network of about `nodes` nodes, of one to three inputs."""
        for _ in range(self.up_to(3)):
            self.net.inputs.append(self.array(self.shape()))
        tries = 0
        while len(self.net.nodes) < nodes and tries < 6 * nodes:
            tries += 1
            KINDS[self.chance.integers(len(KINDS))](self)
        return self.net

    def up_to(self, most: int, least: int = 1) -> int:
        return int(self.chance.integers(least, most + 1))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.chance.integers(len(choices)))]

    def shape(self) -> tuple[int, ...]:
        """Return a shape, most often of an image."""
        if self.chance.random() < 0.7:
            return (self.up_to(2), self.one_of((1, 2, 3, 4, 8, 17)), self.up_to(9), self.up_to(11))
        return tuple(self.up_to(9) for _ in range(self.up_to(5, 0)))

    def array(self, shape: Sequence[int], dtype: str = "float32", low: int = -16) -> str:
        """Add numbers that are multiples of 1/8, or small integers; return their name."""
        drawn = self.chance.integers(low, 17, tuple(shape))
        name = f"v{len(self.net.values)}"
        self.net.values[name] = np.asarray(drawn / 8 if dtype == "float32" else drawn, dtype)
        return name

    def const(self, array: Any, dtype: str = "int64") -> str:
        name = f"v{len(self.net.values)}"
        self.net.values[name] = np.asarray(array, dtype)
        self.net.consts.append(name)
        return name

    def weights(self, *shape: int) -> str:
        """Return a constant of numbers, at times an input."""
        name = self.array(shape)
        (self.net.inputs if self.chance.random() < 0.1 else self.net.consts).append(name)
        return name

    def pick(self, kind: str = "f", ranks: Sequence[int] = range(9)) -> str | None:
        """Return a value of a kind and rank, more often a late one; None where there is none."""
        names = [*self.net.inputs, *self.net.made]
        fits = [n for n in names if self.of(n).dtype.kind in kind and self.of(n).ndim in ranks]
        fits = [n for n in fits if self.of(n).size]
        return fits[-1 - int(len(fits) * self.chance.random() ** 2)] if fits else None

    def of(self, name: str) -> np.ndarray:
        return self.net.values[name]

    def node(self, op: str, inputs: Sequence[str], count: int = 1, **attrs: Any) -> list[str]:
        """Add a node where onnxruntime takes it and its numbers are moderate; return its outputs."""
        names = [f"v{len(self.net.values) + k}" for k in range(count)]
        made = helper.make_node(op, list(inputs), names, name=f"{op}_{names[0]}", **attrs)
        alone = Network(dict(self.net.values), [n for n in dict.fromkeys(inputs) if n], [], [made])
        shapeless = [onnx.ValueInfoProto(name=n) for n in names]
        model = alone.model([])
        model.graph.output.extend(shapeless)
        try:
            found = evaluate(model, {n: self.of(n) for n in alone.inputs})
        except Exception:  # whatever onnxruntime says of a node that it does not take
            return []
        if any(a.size > MOST_ELEMENTS or not _moderate(a) for a in found.values()):
            return []
        self.net.values.update(found)
        self.net.nodes.append(made)
        return names


def _moderate(array: np.ndarray) -> bool:
    if array.dtype.kind != "f" or not array.size:
        return True
    return bool(np.isfinite(array).all() and np.abs(array).max() < LARGEST)


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


def _norm(d: Drawer) -> None:
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


def _conv(d: Drawer) -> None:
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


def _pool(d: Drawer) -> None:
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


def _image(d: Drawer) -> None:
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


KINDS: tuple[Callable[[Drawer], None], ...] = (
    *(_unary, _unary, _binary, _binary, _variadic, _logic, _integers, _fold, _rows, _norm),
    *(_conv, _conv, _pool, _product, _move, _move, _move, _image),
)
