"""Recurrent layers written as loops, a turn for each step, in the ways that exporters have: models for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"RNN": "i", "GRU": "zrh", "LATE": "zrh", "LSTM": "ifco"}
MASKS = ("", "where", "products", "difference")
SHOWN = ("states", "zeros", "held")


@dataclass(frozen=True)
class Way:
    """How a layer is written.

    kind: of GATES; LATE is a GRU whose reset gate is behind the product. mask: how steps that are not are left out.
    shown: what the outputs of these are: the state, zeros, or the output before. counted: how turns end: by
    the sequence's extent, a constant, or both. joined: inputs and states are multiplied as one. split: gates are
    cut from one product. lerp: a GRU adds a share of the difference. layers: cells of a turn. given: whether
    first states are inputs, zeros where not. one: whether one first state is for all sequences. turned: whether the
    sequence has the batch first. scan: it is a Scan, not a Loop; back: from the last step to the first. single: there
    is one sequence, and sums may lose the axis for it.
    """

    kind: str = "GRU"
    mask: str = ""
    shown: str = "states"
    counted: str = "extent"
    joined: bool = False
    split: bool = True
    lerp: bool = False
    layers: int = 1
    given: bool = True
    one: bool = False
    turned: bool = False
    scan: bool = False
    back: bool = False
    single: bool = False
    functions: tuple[str, str] = ("Sigmoid", "Tanh")
    hidden: int = 5
    width: int = 3
    steps: int = 6
    seed: int = 0


def drawn(seed: int) -> Way:
    """Return a way by chance."""
    rng = np.random.default_rng(seed)

    def one(*of: object) -> object:
        return of[rng.integers(len(of))]

    mask = str(one(*MASKS))
    return Way(
        kind=str(one(*GATES)),
        mask=mask,
        shown=str(one(*SHOWN)) if mask else "states",
        counted=str(one("extent", "constant", "both")),
        joined=bool(one(True, False, False)),
        split=bool(one(True, False)),
        lerp=bool(one(True, False)),
        layers=int(one(1, 1, 2)),  # type: ignore[call-overload]
        given=bool(one(True, False)),
        one=bool(one(True, False, False)),
        turned=bool(one(True, False, False)),
        scan=bool(one(True, False, False)),
        back=bool(one(True, False)),
        single=bool(one(True, False, False)),
        functions=one(
            ("Sigmoid", "Tanh"), ("Sigmoid", "Relu"), ("Clip", "Tanh"), ("Sigmoid", "Softsign")
        ),  # type: ignore[arg-type]
        hidden=int(rng.integers(2, 20)),
        width=int(rng.integers(1, 9)),
        steps=int(rng.integers(1, 9)),
        seed=seed,
    )


@dataclass
class Graph:
    """Nodes and constants of a graph under way."""

    prefix: str
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)

    def add(self, op: str, *names: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node, the inputs of a commutative one in an order by chance; return its first output."""
        given = list(names)
        if op in ("Add", "Mul") and self.rng.random() < 0.5:
            given.reverse()
        base = f"{self.prefix}{len(self.nodes)}_{op}"
        made = [f"{base}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, given, made, base, **attributes))
        return made[0]

    def parts(self, name: str, count: int, axis: int) -> list[str]:
        """Cut a value into parts of one size."""
        first = self.add("Split", name, outputs=count, axis=axis)
        return [f"{first[:-2]}.{k}" for k in range(count)]

    def constant(self, data: object, dtype: object = np.float32) -> str:
        """Add a constant."""
        name = f"{self.prefix}c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(data, dtype), name))
        return name

    def ints(self, *data: int) -> str:
        """Add a constant row of int64."""
        return self.constant(data, np.int64)

    def random(self, *shape: int) -> str:
        """Add random weights."""
        return self.constant(self.rng.normal(0, 0.6, shape))


class Layer:
    """The cell of one layer, in the body of a loop."""

    def __init__(self, way: Way, outer: Graph, body: Graph, place: int) -> None:
        self.way, self.outer, self.body, self.place = way, outer, body, place

    def step(self, row: str, width: int, h: str, c: str) -> tuple[str, str]:
        """Return the new state and cell."""
        way, gates = self.way, GATES[self.way.kind]
        late_state = h
        made: dict[str, str] = {}
        for name in gates[:-1] if way.kind == "GRU" else ():
            made[name] = self._function(0, self._sum(row, width, h, 1))
        if way.kind == "GRU":
            reset = self.body.add("Mul", made["r"], h)
            late_state = reset
            sum_ = self._sum(row, width, late_state, 1)
            return self._mixed(made["z"], self._function(1, sum_), h), c
        if way.kind == "LATE":
            return self._late(row, width, h), c
        sums = self._sums(row, width, h, len(gates))
        if way.kind == "RNN":
            return self._function(1, sums[0]), c
        take, forget, candidate, output = sums
        take, forget, output = (self._function(0, s) for s in (take, forget, output))
        new = self.body.add("Mul", take, self._function(1, candidate))
        new = self.body.add("Add", self.body.add("Mul", forget, c), new)
        return self.body.add("Mul", output, self._function(1, new)), new

    def _late(self, row: str, width: int, h: str) -> str:
        way, body = self.way, self.body
        inputs = self._cut(self._product(row, width, 3, bias=True), 3)
        states = self._cut(self._product(h, way.hidden, 3, bias=True), 3)
        z, r = (self._function(0, body.add("Add", inputs[k], states[k])) for k in (0, 1))
        sum_ = body.add("Add", inputs[2], body.add("Mul", r, states[2]))
        return self._mixed(z, self._function(1, sum_), h)

    def _mixed(self, z: str, candidate: str, h: str) -> str:
        body = self.body
        if self.way.lerp:
            change = body.add("Mul", z, body.add("Sub", h, candidate))
            return body.add("Add", candidate, change)
        rest = body.add("Sub", body.constant(1.0), z)
        return body.add("Add", body.add("Mul", z, h), body.add("Mul", rest, candidate))

    def _sums(self, row: str, width: int, h: str, count: int) -> list[str]:
        if self.way.split:
            return self._cut(self._sum(row, width, h, count), count)
        return [self._sum(row, width, h, 1) for _ in range(count)]

    def _sum(self, row: str, width: int, h: str, count: int) -> str:
        body, hidden = self.body, self.way.hidden
        if self.way.joined:
            both = body.add("Concat", row, h, axis=1)
            return self._product(both, width + hidden, count, bias=True)
        inputs = self._product(row, width, count, bias=True)
        if body.rng.random() < 0.3:
            return body.add("Gemm", h, self.outer.random(hidden, count * hidden), inputs)
        states = self._product(h, hidden, count)
        if self.way.single and body.rng.random() < 0.5:
            states = body.add("Squeeze", states, *[body.ints(0)][: body.rng.integers(2)])
        return body.add("Add", inputs, states)

    def _product(self, name: str, rows: int, count: int, bias: bool = False) -> str:
        """Return a value times weights, which stand outside or in the body, as MatMul or Gemm."""
        body, columns = self.body, count * self.way.hidden
        where = body if body.rng.random() < 0.5 else self.outer
        weights, kind = where.random(rows, columns), body.rng.integers(3)
        if bias and kind == 0:
            return body.add("Gemm", name, weights, where.random(columns))
        product = body.add("MatMul", name, weights)
        shape = (columns,) if kind == 1 else (1, columns)
        return body.add("Add", product, where.random(*shape)) if bias else product

    def _cut(self, name: str, count: int) -> list[str]:
        body, hidden = self.body, self.way.hidden
        if body.rng.random() < 0.5:
            return body.parts(name, count, -1)
        end = 2**31 - 1
        bounds = [(k * hidden, (k + 1) * hidden if k + 1 < count else end) for k in range(count)]
        return [
            body.add("Slice", name, body.ints(0, a), body.ints(end, b), body.ints(0, 1))
            for a, b in bounds
        ]

    def _function(self, which: int, name: str) -> str:
        function, body = self.way.functions[which], self.body
        if function != "Clip":
            return body.add(function, name)
        moved = body.add("Add", name, body.constant(3.0))
        cut = body.add("Clip", moved, body.constant(0.0), body.constant(6.0))
        return body.add("Mul", cut, body.constant(1 / 6))


def written(way: Way) -> onnx.ModelProto:
    """Return a model of a layer in a loop.

    It takes sound (steps, batch, width), ids (batch, steps) of which 0 are steps that are not, and first
    states; it gives all states and the last ones.
    """
    rng = np.random.default_rng(way.seed)
    outer, body = Graph("o", rng), Graph("b", rng)
    x = outer.add("Transpose", "sound", perm=[1, 0, 2])
    if way.turned:
        x = outer.add("Transpose", x, perm=[1, 0, 2])
    turns, limit = _turns(way, outer, "sound", way.turned)
    pairs = 2 if way.kind == "LSTM" else 1
    carried = [f"{n}{k}" for k in range(way.layers) for n in "hc"[:pairs]]
    rows = "row" if way.scan else body.add("Gather", x, "at", axis=1 if way.turned else 0)
    mask, steps = _mask(way, outer, body)
    state, width, after = rows, way.width, []
    for k in range(way.layers):
        made = Layer(way, outer, body, k).step(state, width, f"h{k}", f"c{k}")
        state, width = made[0], way.hidden
        states = (f"h{k}", f"c{k}")[:pairs]
        after += [_chosen(way, body, mask, a, b) for a, b in zip(made, states, strict=False)]
    shown, before = after[-pairs], []
    first = _first(way, outer, carried)
    if way.shown == "zeros":
        # As Keras writes it: zeros of a state's shape, handed on as they are.
        zeros = outer.add("ConstantOfShape", outer.add("Shape", first[0]))
        before, given, shown = ["zeros"], [zeros], _chosen(way, body, mask, made[0], "zeros")
        handed = ["zeros"]
    elif way.shown == "held":
        start = outer.constant(rng.normal(size=(1, way.hidden)))
        shape = outer.add("Shape", first[0])
        given, shown = (
            [outer.add("Expand", start, shape)],
            _chosen(way, body, mask, made[0], "prev"),
        )
        before, handed = ["prev"], [shown]
    else:
        given, handed = [], []
    if way.scan:
        return _swept(
            way, outer, body, (x, steps), (first, given), (carried, before), (after, handed, shown)
        )
    nxt = body.add("Add", "at", body.constant(1, np.int32))
    more = _more(way, body, nxt, limit)
    ints, floats = TensorProto.INT32, TensorProto.FLOAT
    state_values = [
        helper.make_tensor_value_info(n, floats, [None, way.hidden]) for n in (*carried, *before)
    ]
    graph = helper.make_graph(
        body.nodes,
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("at", ints, []),
            *state_values,
        ],
        [
            helper.make_tensor_value_info(more, TensorProto.BOOL, []),
            helper.make_tensor_value_info(nxt, ints, []),
            *(
                helper.make_tensor_value_info(n, floats, [None, None])
                for n in (*after, *handed, f"{shown}_row")
            ),
        ],
        body.tensors,
    )
    graph.node.append(helper.make_node("Identity", [shown], [f"{shown}_row"]))
    names = ["count", *(f"last_{n}" for n in carried), *(f"end_{n}" for n in before), "every"]
    begins = outer.constant(True, np.bool_)
    start = outer.constant(0, np.int32)
    outer.nodes.append(
        helper.make_node("Loop", [turns, begins, start, *first, *given], names, "walk", body=graph)
    )
    return _model(way, outer, carried, names)


def _swept(
    way: Way,
    outer: Graph,
    body: Graph,
    sequences: tuple[str, str],
    given: tuple[list[str], list[str]],
    states: tuple[list[str], list[str]],
    made: tuple[list[str], list[str], str],
) -> onnx.ModelProto:
    """Return the model of a Scan."""
    floats, holds = TensorProto.FLOAT, TensorProto.BOOL
    (carried, before), (after, handed, shown) = states, made
    inputs = [
        helper.make_tensor_value_info(n, floats, [None, way.hidden]) for n in (*carried, *before)
    ]
    inputs.append(helper.make_tensor_value_info("row", floats, [None, way.width]))
    if way.mask:
        inputs.append(helper.make_tensor_value_info("holds", holds, None))
    body.nodes.append(helper.make_node("Identity", [shown], [f"{shown}_row"]))
    if (
        handed and handed == before
    ):  # onnxruntime's Scan loses what a body gives on under the same name
        handed = [body.add("Identity", before[0])]
    names = (*after, *handed, f"{shown}_row")
    outputs = [helper.make_tensor_value_info(n, floats, [None, None]) for n in names]
    graph = helper.make_graph(body.nodes, "turn", inputs, outputs, body.tensors)
    swept = [n for n in sequences if n]
    results = [*(f"last_{n}" for n in carried), *(f"end_{n}" for n in before), "every"]
    node = helper.make_node(
        "Scan",
        [*given[0], *given[1], *swept],
        results,
        "walk",
        body=graph,
        num_scan_inputs=len(swept),
        scan_input_axes=[int(way.turned), 0][: len(swept)],
        scan_input_directions=[int(way.back)] * len(swept),
        scan_output_directions=[int(way.back)],
    )
    outer.nodes.append(node)
    return _model(way, outer, carried, ["", *results])


def _turns(way: Way, outer: Graph, x: str, turned: bool) -> tuple[str, str]:
    """Return the most turns and what a turn compares itself with, "" where it does not."""
    if way.counted == "constant":
        return outer.constant(way.steps, np.int64), ""
    extent = outer.add("Slice", outer.add("Shape", x), outer.ints(1), outer.ints(2), outer.ints(0))
    extent = outer.add("Squeeze", extent, outer.ints(0))
    if way.counted == "both":
        return extent, extent
    return outer.constant(2**31 - 1, np.int64), extent


def _mask(way: Way, outer: Graph, body: Graph) -> tuple[str, str]:
    """Return which sequences have the step, and which steps are, outside; "" where all are."""
    if not way.mask:
        return "", ""
    steps = outer.add("Not", outer.add("Equal", "ids", outer.constant(0, np.int64)))
    if body.rng.random() < 0.5:
        steps = outer.add("Transpose", steps, perm=[1, 0])
        row = "holds" if way.scan else body.add("Gather", steps, "at", axis=0)
        return body.add("Unsqueeze", row, body.ints(-1)), steps
    steps = outer.add("Unsqueeze", steps, outer.ints(-1))
    steps = outer.add("Transpose", steps, perm=[1, 0, 2])
    return "holds" if way.scan else body.add("Gather", steps, "at", axis=0), steps


def _chosen(way: Way, body: Graph, mask: str, new: str, old: str) -> str:
    """Return a new value where a step is, the old one elsewhere."""
    if not mask:
        return new
    if way.mask == "where":
        if body.rng.random() < 0.5:
            return body.add("Where", body.add("Not", mask), old, new)
        return body.add("Where", mask, new, old)
    holds = body.add("Cast", mask, to=TensorProto.FLOAT)
    if way.mask == "products":
        rest = body.add("Cast", body.add("Not", mask), to=TensorProto.FLOAT)
    else:
        rest = body.add("Sub", body.constant(1.0), holds)
    return body.add("Add", body.add("Mul", holds, new), body.add("Mul", rest, old))


def _first(way: Way, outer: Graph, carried: list[str]) -> list[str]:
    if way.given:
        return [f"first_{n}" for n in carried]
    batch = outer.add(
        "Slice", outer.add("Shape", "sound"), outer.ints(0), outer.ints(1), outer.ints(0)
    )
    shape = outer.add("Concat", batch, outer.ints(way.hidden), axis=0)
    return [outer.add("Expand", outer.constant(0.0), shape) for _ in carried]


def _more(way: Way, body: Graph, nxt: str, limit: str) -> str:
    if not limit:
        return body.add("Identity", "going")
    counted = body.add("Cast", nxt, to=TensorProto.FLOAT)
    most = body.add("Cast", limit, to=TensorProto.FLOAT)
    less = body.add("Less", counted, most)
    if way.counted == "both":
        return body.add(
            "And", body.add("Less", body.add("Cast", "turn", to=TensorProto.FLOAT), most), less
        )
    return less


def _model(way: Way, outer: Graph, carried: list[str], names: list[str]) -> onnx.ModelProto:
    floats = TensorProto.FLOAT
    batch = 1 if way.one else "B"
    steps = way.steps if way.counted == "constant" else "T"
    count = 1 if way.single else "B"
    inputs = [helper.make_tensor_value_info("sound", floats, [count, steps, way.width])]
    if way.mask:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [count, steps]))
    if way.given:
        inputs += [
            helper.make_tensor_value_info(f"first_{n}", floats, [batch, way.hidden])
            for n in carried
        ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.INT32, []) for n in names[:1] if n]
    ranks = [2] * (len(names) - 2) + [3]
    outputs += [
        helper.make_tensor_value_info(n, floats, [None] * rank)
        for n, rank in zip(names[1:], ranks, strict=True)
    ]
    graph = helper.make_graph(outer.nodes, "written", inputs, outputs, outer.tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


FUNCTIONS = ("Sigmoid", "Tanh", "Relu", "Neg", "Identity", "Softsign")
ARITHMETIC = ("Add", "Sub", "Mul", "Min")


def mutated(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a model whose loop computes something else: one operator or one input of it is another."""
    rng = np.random.default_rng(seed)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    loop = next(n for n in made.graph.node if n.op_type in ("Loop", "Scan"))
    body = next(a.g for a in loop.attribute if a.name == "body")
    place = int(rng.integers(len(body.node)))
    node = body.node[place]
    kinds = next((k for k in (FUNCTIONS, ARITHMETIC) if node.op_type in k), ())
    if kinds and rng.random() < 0.5:
        node.op_type = str(rng.choice([k for k in kinds if k != node.op_type]))
        return made
    before = [v.name for v in body.input] + [t.name for t in body.initializer]
    before += [name for n in list(body.node)[:place] for name in n.output]
    node.input[int(rng.integers(len(node.input)))] = str(rng.choice(before))
    return made


def feeds(way: Way, batch: int, steps: int) -> dict[str, np.ndarray]:
    """Return inputs: ids with gaps, one of the sequences without any steps."""
    batch = 1 if way.single else batch
    rng = np.random.default_rng(way.seed + batch)
    ids = rng.integers(0, 3, (batch, steps))
    ids[-1] = ids[-1] if batch == 1 else 0
    found = {"sound": rng.normal(size=(batch, steps, way.width)).astype(np.float32)}
    if way.mask:
        found["ids"] = ids
    rows = 1 if way.one else batch
    for k in range(way.layers if way.given else 0):
        for n in "hc"[: 2 if way.kind == "LSTM" else 1]:
            found[f"first_{n}{k}"] = rng.normal(size=(rows, way.hidden)).astype(np.float32)
    return found
