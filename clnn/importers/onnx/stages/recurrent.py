"""RNN, GRU and LSTM as Scan: the products with inputs before it, those with states in its body."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.importers.onnx.stages.deciding import is_standard

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
USUAL = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
PLAIN = ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")  # activations without parameters
OLDEST_OPSET = 11
X, W, R, B, LENGTHS, STATE, CELL, PEEPHOLES = range(8)


def unrolled(graph: onnx.GraphProto, opset: int) -> None:
    """Replace the recurrent nodes of the main graph by Scan, forms that have none left out."""
    nodes = list(graph.node)
    if not any(_is_known(node, opset) for node in nodes):
        return
    del graph.node[:]
    for node in nodes:
        graph.node.extend(_Layer(node, opset).nodes() if _is_known(node, opset) else [node])


def _is_known(node: onnx.NodeProto, opset: int) -> bool:
    if node.op_type not in GATES or not is_standard(node) or opset < OLDEST_OPSET:
        return False
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    named = {a.decode() for a in attrs.get("activations", ())}
    backwards = attrs.get("direction", b"forward") != b"forward"
    lengths = len(node.input) > LENGTHS and node.input[LENGTHS] != ""
    return named <= set(PLAIN) and "hidden_size" in attrs and not (backwards and lengths)


@dataclass
class _Layer:
    """One recurrent node as others. made: these, so far."""

    node: onnx.NodeProto
    opset: int
    made: list[onnx.NodeProto] = field(default_factory=list)

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes that compute what the recurrent one does."""
        node = self.node
        self.attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.hidden, self.kind = int(self.attrs["hidden_size"]), node.op_type
        self.inputs = [*node.input, *[""] * (8 - len(node.input))]
        first = self.attrs.get("layout", 0) == 1
        self.x = self.add("Transpose", self.inputs[X], perm=[1, 0, 2]) if first else node.input[X]
        direction = self.attrs.get("direction", b"forward")
        turns = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}[direction]
        rows = [self.direction(k, bool(back)) for k, back in enumerate(turns)]
        for place, name in enumerate(node.output):
            if not name:
                continue
            columns = [self.unsqueeze(row[place], 0 if place else 1) for row in rows]
            perm = ([1, 0, 2] if place else [2, 0, 1, 3]) if first else None
            self.add("Concat", *columns, axis=0 if place else 1, to=None if perm else name)
            if perm:
                self.add("Transpose", self.made[-1].output[0], perm=perm, to=name)
        return self.made

    def add(self, op: str, *inputs: str, to: str | None = None, **attrs: Any) -> str:
        """Add a node and return its output."""
        name = to or f"{self.node.name}/{len(self.made)}"
        label = f"{self.node.name}/{op}_{len(self.made)}"
        self.made.append(helper.make_node(op, list(inputs), [name], label, **attrs))
        return name

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant."""
        return self.add("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def unsqueeze(self, name: str, axis: int) -> str:
        """Add an axis of extent 1."""
        if self.opset < 13:
            return self.add("Unsqueeze", name, axes=[axis])
        return self.add("Unsqueeze", name, self.const([axis]))

    def of(self, which: int, number: int, axis: int = 0) -> str:
        """Return a direction's part of an input."""
        return self.add("Gather", self.inputs[which], self.const(number), axis=axis)

    def part(self, name: str, begin: int, count: int, axis: int = -1) -> str:
        """Return `count` gates of an axis."""
        h = self.hidden
        bounds = [self.const([begin * h]), self.const([(begin + count) * h]), self.const([axis])]
        return self.add("Slice", name, *bounds)

    def direction(self, number: int, backwards: bool) -> list[str]:
        """Add one direction; return its outputs: all states, the last one, the last cell."""
        gates = GATES[self.kind]
        product = self.add("MatMul", self.x, self.add("Transpose", self.of(W, number)))
        reset_bias = ""
        if self.inputs[B]:
            bias = self.of(B, number)
            own, other = self.part(bias, 0, gates), self.part(bias, gates, gates)
            if self._late_reset:
                zero = self.const(np.zeros(self.hidden), np.float32)
                reset_bias = self.part(other, 2, 1)
                other = self.add("Concat", self.part(other, 0, 2), zero, axis=0)
            product = self.add("Add", product, self.add("Add", own, other))
        weights = self.add("Transpose", self.of(R, number))
        states = [self.start(STATE, number)]
        states += [self.start(CELL, number)] if self.kind == "LSTM" else []
        swept = [product, *([self._turns()] if self.inputs[LENGTHS] else [])]
        body = _Body(self, f"{self.node.name}/body{number}", weights, reset_bias, number)
        outs = [f"{self.node.name}/{number}/{what}" for what in ("last", "cell", "all")]
        outs = outs if self.kind == "LSTM" else [outs[0], outs[2]]
        self.made.append(
            helper.make_node(
                "Scan",
                [*states, *swept],
                outs,
                f"{self.node.name}/scan{number}",
                body=body.graph(len(swept) > 1),
                num_scan_inputs=len(swept),
                scan_input_directions=[int(backwards)] * len(swept),
                scan_output_directions=[int(backwards)],
            )
        )
        return [outs[-1], *outs[:-1]]

    @property
    def _late_reset(self) -> bool:
        return bool(self.kind == "GRU" and self.attrs.get("linear_before_reset", 0) == 1)

    def _turns(self) -> str:
        """Return the number of each step."""
        steps = self.add("Gather", self.add("Shape", self.x), self.const(0))
        return self.add("Range", self.const(0), steps, self.const(1))

    def start(self, which: int, number: int) -> str:
        """Return the state that a direction begins with."""
        if self.inputs[which]:
            return self.of(which, number, 1 if self.attrs.get("layout", 0) else 0)
        batch = self.add("Gather", self.add("Shape", self.x), self.const([1]))
        shape = self.add("Concat", batch, self.const([self.hidden]), axis=0)
        return self.add("ConstantOfShape", shape)


class _Body(_Layer):
    """The body of one direction's Scan."""

    def __init__(
        self, layer: _Layer, name: str, weights: str, reset_bias: str, number: int
    ) -> None:
        super().__init__(onnx.NodeProto(name=name), layer.opset)
        self.attrs, self.kind, self.hidden = layer.attrs, layer.kind, layer.hidden
        self.inputs, self.weights, self.reset_bias = layer.inputs, weights, reset_bias
        usual = USUAL[self.kind]
        named = [a.decode() for a in self.attrs.get("activations", ())] or list(usual) * 2
        self.functions = named[number * len(usual) : (number + 1) * len(usual)]
        self.number, self.late = number, layer._late_reset

    def graph(self, masked: bool) -> onnx.GraphProto:
        """Return the body: states and a step's products to states and what is put out."""
        state, cell, step, turn = (f"{self.node.name}/{n}" for n in ("h", "c", "x", "turn"))
        before = [state, cell] if self.kind == "LSTM" else [state]
        after = getattr(self, self.kind.lower())(step, *before)
        given = [*before, step, *([turn] if masked else [])]
        if masked:
            lengths = self.add("Cast", self.inputs[LENGTHS], to_type=onnx.TensorProto.INT64)
            alive = self.unsqueeze(self.add("Less", turn, lengths), 1)
            put_out = self.add("Where", alive, after[0], self.const(0, np.float32))
            after = [
                self.add("Where", alive, new, old) for new, old in zip(after, before, strict=True)
            ]
        else:
            put_out = self.add("Identity", after[0])
        kinds = [onnx.TensorProto.FLOAT] * len(given)
        kinds[len(before) + 1 :] = [onnx.TensorProto.INT64] * masked
        outs = [*after, put_out]
        return helper.make_graph(
            self.made,
            self.node.name,
            [helper.make_tensor_value_info(n, k, None) for n, k in zip(given, kinds, strict=True)],
            [
                helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["", self.hidden])
                for n in outs
            ],
        )

    def add(self, op: str, *inputs: str, to: str | None = None, **attrs: Any) -> str:
        """Add a node and return its output."""
        if "to_type" in attrs:
            attrs["to"] = attrs.pop("to_type")
        name = to or f"{self.node.name}/{len(self.made)}"
        label = f"{self.node.name}/{op}_{len(self.made)}"
        node = helper.make_node(op, list(inputs), [name], label)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attrs.items())
        self.made.append(node)
        return name

    def apply(self, which: int, name: str) -> str:
        """Return an activation of a value, which is clipped where the node says so."""
        clip = self.attrs.get("clip")
        if clip:
            limits = [self.const(limit, np.float32) for limit in (-clip, clip)]
            name = self.add("Clip", name, *limits)
        return self.add(self.functions[which], name)

    def rnn(self, step: str, state: str) -> list[str]:
        """Return the state after a step."""
        total = self.add("Add", step, self.add("MatMul", state, self.weights))
        return [self.apply(0, total)]

    def gru(self, step: str, state: str) -> list[str]:
        """Return the state after a step; gates are update, reset, hidden."""
        gates = self.add("MatMul", state, self.part(self.weights, 0, 2))
        both = self.apply(0, self.add("Add", self.part(step, 0, 2), gates))
        update, reset = self.part(both, 0, 1), self.part(both, 1, 1)
        own = self.part(self.weights, 2, 1)
        if self.late:
            made = self.add("MatMul", state, own)
            made = self.add("Add", made, self.reset_bias) if self.reset_bias else made
            made = self.add("Mul", reset, made)
        else:
            made = self.add("MatMul", self.add("Mul", reset, state), own)
        hidden = self.apply(1, self.add("Add", self.part(step, 2, 1), made))
        rest = self.add("Sub", self.const(1, np.float32), update)
        return [
            self.add("Add", self.add("Mul", rest, hidden), self.add("Mul", update, state)),
        ]

    def lstm(self, step: str, state: str, cell: str) -> list[str]:
        """Return state and cell after a step; gates are input, output, forget, cell."""
        total = self.add("Add", step, self.add("MatMul", state, self.weights))
        parts = [self.part(total, k, 1) for k in range(4)]
        peep = self._peepholes()
        taken = self.apply(0, self._peeped(parts[0], peep, 0, cell))
        if self.attrs.get("input_forget", 0):
            kept = self.add("Sub", self.const(1, np.float32), taken)
        else:
            kept = self.apply(0, self._peeped(parts[2], peep, 2, cell))
        new = self.apply(1, parts[3])
        after = self.add("Add", self.add("Mul", kept, cell), self.add("Mul", taken, new))
        out = self.apply(0, self._peeped(parts[1], peep, 1, after))
        return [self.add("Mul", out, self.add(self.functions[2], after)), after]

    def _peepholes(self) -> str:
        return self.of(PEEPHOLES, self.number) if self.inputs[PEEPHOLES] else ""

    def _peeped(self, gate: str, peep: str, which: int, cell: str) -> str:
        if not peep:
            return gate
        return self.add("Add", gate, self.add("Mul", self.part(peep, which, 1), cell))
