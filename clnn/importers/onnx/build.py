"""The graph that an import builds: constants, types and nodes, with checks on every value made."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from clnn.errors import DTypeError
from clnn.graph.ir import Node
from clnn.importers.onnx.limits import MAX_EXTENT, MAX_NODES, Budget, check_type, show
from clnn.importers.onnx.tensors import dtype_name
from clnn.layout import TensorLayout
from clnn.ops.movement.views import Reshape
from clnn.ops.onnx_registry import Emit, EmitOutput, Source, Unsupported
from clnn.ops.spec import OpSpec
from clnn.types import F16, Array, TensorType, dtype_of

_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Mark:
    """How much a builder had made at some moment."""

    nodes: int
    types: int
    consts: int


@dataclass
class GraphBuilder:
    """Values and nodes made so far. Values are known by names of the builder's own choice.

    consts: data of constants; those whose element type devices do not have are not in `types`
    (they may still fold away). unknown: values of nodes that were refused.
    """

    budget: Budget
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    taken: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """Return `name`, made printable, short and different from all that were given out."""
        text = "".join(c if c.isprintable() else "?" for c in name[:_MOST_CHARACTERS])
        while True:
            count = self.taken.get(text, 0)
            self.taken[text] = count + 1
            if not count:
                return text
            text = f"{text}#{count}"

    def value(self, name: str, kind: TensorType) -> str:
        """Add a graph input and return its value name."""
        check_type(f"input {show(name)}", kind)
        key = self.fresh(name)
        self.types[key] = kind
        return key

    def constant(self, name: str, array: Array) -> str:
        """Add a constant and return its value name."""
        key = self.fresh(name)
        self.consts[key] = array
        with contextlib.suppress(DTypeError):
            self.types[key] = TensorType(tuple(int(d) for d in array.shape), dtype_of(array.dtype))
        return key

    def refused(self, name: str) -> str:
        """Return the name of a value of unknown type, made by a node that was refused."""
        key = self.fresh(name)
        self.unknown.add(key)
        return key

    def mark(self) -> Mark:
        """Return what there is now, for `rollback`."""
        return Mark(len(self.nodes), len(self.types), len(self.consts))

    def rollback(self, mark: Mark) -> None:
        """Drop everything made since `mark`."""
        del self.nodes[mark.nodes :]
        for made, count in ((self.types, mark.types), (self.consts, mark.consts)):
            for name in list(made)[count:]:
                del made[name]

    def reshaped(self, value: str, shape: tuple[int, ...], name: str) -> str:
        """Return the value name of `value` with another shape."""
        if value in self.consts:
            return self.constant(name, self.consts[value].reshape(shape))
        return self.emit(Reshape(shape), (value,), name, f"Reshape {name}").outputs[0]

    def place(
        self, sources: Sequence[Source], inputs: Sequence[str | None], name: str, op_type: str
    ) -> list[str | None]:
        """Return the value that each source stands for: an input, a constant, an emitted node."""
        placer = _Placer(self, inputs, name, op_type)
        return [placer.value(source) for source in sources]

    def emit(self, spec: OpSpec, feeds: Sequence[str | None], name: str, origin: str) -> Node:
        """Add one node. Raises ShapeError or Unsupported for values that devices cannot hold."""
        kinds = [None if n is None else self._known(n) for n in feeds]
        made = spec.infer(kinds)
        refuse_half((*kinds, *made))
        for number, kind in enumerate(made):
            check_type(f"output {number}", kind)
        _check_borders(spec, kinds)
        if len(self.nodes) >= MAX_NODES:
            raise Unsupported(f"the network has more than {MAX_NODES} nodes")
        unique = self.fresh(name)
        outs = tuple(self.fresh(f"{unique}/{k}") for k in range(len(made)))
        self.types.update(zip(outs, made, strict=True))
        node = Node(unique, spec, tuple(feeds), outs, origin)
        self.nodes.append(node)
        return node

    def _known(self, value: str) -> TensorType:
        kind = self.types.get(value)
        if kind is None:
            name = dtype_name(self.consts[value].dtype)
            raise Unsupported(f"a constant is {name}; clnn has no such tensors")
        return kind

    def origins(self, value: str, inputs: Mapping[str, str]) -> set[str]:
        """Return which of `inputs` (value name -> name) the data of `value` comes from."""
        makers = {out: node for node in self.nodes for out in node.outputs}
        found, todo, seen = set(), [value], set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in inputs:
                found.add(inputs[name])
            elif name in makers:
                todo += [n for n in makers[name].inputs if n is not None]
        return found


@dataclass
class _Placer:
    """Turns the sources of one ONNX node into values; each emitted node is made once."""

    build: GraphBuilder
    inputs: Sequence[str | None]
    name: str
    op_type: str
    made: dict[int, Node] = field(default_factory=dict)

    def value(self, source: Source) -> str | None:
        if source is None:
            return None
        if isinstance(source, int):
            return self.inputs[source] if source < len(self.inputs) else None
        if isinstance(source, np.ndarray):
            self.build.budget.folded += source.nbytes
            return self.build.constant(f"{self.name}:const", source)
        emit = source.emit if isinstance(source, EmitOutput) else source
        index = source.index if isinstance(source, EmitOutput) else 0
        if id(emit) not in self.made:
            self.made[id(emit)] = self._emit(emit)
        return self.made[id(emit)].outputs[index]

    def _emit(self, emit: Emit) -> Node:
        feeds = [self.value(source) for source in emit.inputs]
        name = f"{self.name}.{len(self.made)}" if self.made else self.name
        return self.build.emit(emit.spec, feeds, name, f"{self.op_type} {self.name}")


def refuse_half(kinds: Sequence[TensorType | None]) -> None:
    """Raise Unsupported where one of the types is float16."""
    if any(kind is not None and kind.dtype == F16 for kind in kinds):
        raise Unsupported("float16 tensors do not run on clnn; convert the model to float32")


def _check_borders(spec: OpSpec, kinds: Sequence[TensorType | None]) -> None:
    """Refuse padding that would make a tensor too large to index."""
    for index, border in spec.padding_needs(kinds).items():
        kind = kinds[index]
        if kind is not None:
            padded = TensorLayout.make(kind.shape, None, border.before, border.after)
            if padded.size > MAX_EXTENT:
                raise Unsupported(
                    f"its window wants input {index} with padding {border.before}, {border.after}: "
                    f"{padded.size} elements, over the limit of {MAX_EXTENT}"
                )
