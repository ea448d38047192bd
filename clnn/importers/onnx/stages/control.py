"""If, Loop, Scan and SequenceMap as steps whose bodies are programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from clnn.errors import ModelError
from clnn.importers.onnx.dims import is_fixed
from clnn.importers.onnx.limits import show
from clnn.importers.onnx.order import reads
from clnn.importers.onnx.stages.parting import Parting, names_of
from clnn.importers.onnx.stages.program import (
    Choice,
    EachOf,
    Program,
    Repeat,
    StageInput,
    Step,
    Sweep,
)
from clnn.importers.onnx.stages.turns import Turns
from clnn.importers.onnx.stages.values import Constants, Known
from clnn.importers.onnx.tensors import numpy_dtype
from clnn.records import dataclass

HOST, FED = Known("host"), Known("fed")


@dataclass(frozen=True)
class Controls:
    """Makes the steps of nodes with graphs inside; `assemble` makes a program of a parted graph."""

    parting: Parting
    assemble: Callable[[Parting, str], Program]
    prefix: str

    def step(self, node: onnx.NodeProto) -> Step:
        """Return the step of a node. Raises ModelError where its graphs do not fit."""
        attrs = {a.name: a for a in node.attribute}
        common = {
            "name": node.name,
            "op_type": node.op_type,
            "outputs": tuple(node.output),
            "why": "its condition is a value"
            if node.op_type == "If"
            else "its body runs as often as values say",
        }
        captured = tuple(sorted(reads(node) - set(node.input)))
        common["inputs"] = (*node.input, *captured)
        if node.op_type == "If":
            branches = [
                self._program(node, attrs[which].g, (), which.removesuffix("_branch"))
                for which in ("then_branch", "else_branch")
            ]
            if any(len(b.outputs) != len(node.output) for b in branches):
                raise ModelError(
                    f"node {show(node.name)} (If) makes {len(node.output)} outputs, its branches "
                    f"{[len(b.outputs) for b in branches]}. The file is not valid."
                )
            return Choice(**common, then_branch=branches[0], else_branch=branches[1])
        body = attrs["body"].g
        if node.op_type == "Loop":
            return self._loop(node, body, common)
        if node.op_type == "Scan":
            return self._scan(node, body, attrs, common)
        return EachOf(
            **common,
            n_inputs=len(node.input),
            body=self._program(node, body, [FED] * len(node.input), "body"),
        )

    def _loop(self, node: onnx.NodeProto, body: onnx.GraphProto, common: Any) -> Step:
        carried = [self.parting.carried(n) if n else FED for n in node.input[2:]]
        count = len(carried)
        made = len(body.output) - 1
        if len(body.input) != count + 2 or made < count or len(node.output) > made:
            raise ModelError(
                f"node {show(node.name)} (Loop) carries {count} values and makes "
                f"{len(node.output)} outputs; its body takes {len(body.input)} inputs and makes "
                f"{len(body.output)} outputs. The file is not valid."
            )
        program = self._settled(node, body, [HOST, HOST], carried, 1)
        scans = tuple(_declared(v) for v in list(body.output)[1 + count :])
        turn, going = (len(v.type.tensor_type.shape.dim) for v in body.input[:2])
        return Repeat(**common, n_carried=count, ranks=(turn, going), body=program, empty=scans)

    def _scan(self, node: onnx.NodeProto, body: onnx.GraphProto, attrs: Any, common: Any) -> Step:
        batched = self.parting.opset == 8
        given = list(node.input)[1:] if batched else list(node.input)
        sequences = int(attrs["num_scan_inputs"].i)
        states = len(given) - sequences
        scans = len(body.output) - states
        if states < 0 or scans < 0 or len(body.input) != len(given):
            raise ModelError(
                f"node {show(node.name)} (Scan) has {len(given)} inputs, {sequences} of them swept;"
                f" its body takes {len(body.input)} and makes {len(body.output)}. The file is not "
                "valid."
            )
        carried = [FED if batched else self.parting.carried(n) for n in given[:states]]
        program = self._settled(node, body, [], carried, 0, [FED] * sequences)

        def listed(name: str, count: int) -> tuple[int, ...]:
            return tuple(attrs[name].ints) if name in attrs else (0,) * count

        backwards = "directions" if batched else "scan_input_directions"
        return Sweep(
            **common,
            body=program,
            n_inputs=len(node.input),
            n_sequences=sequences,
            in_axes=listed("scan_input_axes", sequences),
            in_backwards=tuple(map(bool, listed(backwards, sequences))),
            out_axes=listed("scan_output_axes", scans),
            out_backwards=tuple(map(bool, listed("scan_output_directions", scans))),
            batched=batched,
            empty=tuple(_declared(v) for v in list(body.output)[states:]),
        )

    def _settled(
        self,
        node: onnx.NodeProto,
        body: onnx.GraphProto,
        first: Sequence[Known],
        carried: Sequence[Known],
        skipped: int,
        last: Sequence[Known] = (),
    ) -> Program:
        """Return the body's program, with values carried on the host that it makes there.

        skipped: outputs before the carried ones.
        """
        states = list(carried)
        while True:
            parting = self._part(body, [*first, *states, *last], (len(first), skipped, len(states)))
            made = [parting.known(v.name) for v in list(body.output)[skipped:]]
            after = [
                FED if state.place == "host" and out.place in ("device", "fed") else state
                for state, out in zip(states, made, strict=False)
            ]
            if after == states:
                return self._named(node, parting, "body")
            states = after

    def _program(
        self, node: onnx.NodeProto, graph: onnx.GraphProto, inputs: Sequence[Known], what: str
    ) -> Program:
        return self._named(node, self._part(graph, inputs), what)

    def _named(self, node: onnx.NodeProto, parting: Parting, what: str) -> Program:
        return self.assemble(parting, f"{self.prefix}{node.name}.{what}/")

    def _part(
        self,
        graph: onnx.GraphProto,
        inputs: Sequence[Known],
        carried: tuple[int, int, int] | None = None,
    ) -> Parting:
        """Return a graph inside of this one, parted.

        carried: of a loop's body, the places of the first carried value among inputs and outputs, and how
        many there are.
        """
        outer = self.parting
        names = names_of(graph.input)
        if len(names) != len(inputs):
            raise ModelError(
                f"graph {show(graph.name)} takes {len(names)} inputs, its node gives "
                f"{len(inputs)}. The file is not valid."
            )
        known: Mapping[str, Known] = dict(zip(names, inputs, strict=True))
        own = {n for node in graph.node for n in node.output if n}
        tensors = {t.name: t for t in graph.initializer}
        consts = Constants(
            outer.consts.reader,
            tensors,
            {s.values.name: outer.consts.reader.dense(s) for s in graph.sparse_initializer},
            outer.consts,
            frozenset(own | set(names)),
        )
        turns = None if carried is None else _turns(graph, names, carried, consts)
        return Parting(graph, known, consts, outer.opset, outer, turns=turns)


def _turns(
    body: onnx.GraphProto, inputs: Sequence[str], carried: tuple[int, int, int], consts: Constants
) -> Turns:
    taken, made, count = carried
    before, after = inputs[taken : taken + count], names_of(body.output)[made : made + count]
    others = [*inputs[:taken], *inputs[taken + count :]]
    return Turns(before, after, others, consts.knows)


def _declared(value: onnx.ValueInfoProto) -> StageInput:
    """Return what a graph says of one of its outputs."""
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        return StageInput(value.name)
    dims = None
    if tensor.HasField("shape"):
        dims = tuple(d.dim_value if is_fixed(d) else "" for d in tensor.shape.dim)
    return StageInput(value.name, numpy_dtype(tensor.elem_type, show(value.name)), dims)
