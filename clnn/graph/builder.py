"""A graph as it grows: values and nodes are added one by one and known by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clnn.errors import ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.spec import OpSpec
from clnn.types import Array, TensorType


class GraphBuilder:
    """Collects inputs, constants and nodes; what adds a value returns the value's name."""

    def __init__(self) -> None:
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self._uses: dict[str, int] = {}  # how often each name was asked for

    def fresh(self, name: str) -> str:
        """Return `name`, with a number behind it where it was given out before."""
        while True:
            count = self._uses.get(name, 0)
            self._uses[name] = count + 1
            if not count:
                return name
            name = f"{name}#{count}"

    def type(self, value: str) -> TensorType:
        """Return the type of a value."""
        return self.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value, outermost axis first."""
        return self.type(value).shape

    def input(self, name: str, kind: TensorType) -> str:
        """Add a value that the caller feeds."""
        value = self.fresh(name)
        self.types[value] = kind
        self.inputs.append(value)
        return value

    def const(self, array: Array, name: str = "const") -> str:
        """Add a constant. Raises DTypeError for an element type that clnn does not have."""
        kind = TensorType.of(array)
        value = self.fresh(name)
        self.types[value], self.consts[value] = kind, array
        return value

    def node(self, spec: OpSpec, inputs: Sequence[str | None], name: str, origin: str) -> Node:
        """Add a node with all outputs of its op. Raises ShapeError, or as `admit` does."""
        sources = [None if n is None else self.type(n) for n in inputs]
        results = spec.infer(sources)
        _check_operands(spec, sources, results)
        self.admit(spec, sources, results)
        unique = self.fresh(name)
        outputs = tuple(self.fresh(f"{unique}/{k}") for k in range(len(results)))
        self.types.update(zip(outputs, results, strict=True))
        self.nodes.append(Node(unique, spec, tuple(inputs), outputs, origin))
        return self.nodes[-1]

    def admit(
        self,
        spec: OpSpec,
        sources: Sequence[TensorType | None],
        results: Sequence[TensorType],
    ) -> None:
        """Raise an error where a node of these input and output types may not be added."""

    def add(self, spec: OpSpec, *inputs: str | None) -> str:
        """Add a node named by its op; return its first output."""
        return self.node(spec, inputs, spec.kind, spec.kind).outputs[0]

    def reshape(self, value: str, shape: Sequence[int], name: str = "reshape") -> str:
        """Return a value under another shape; a constant stays one."""
        wanted, array = tuple(shape), self.consts.get(value)
        if array is not None:
            return value if array.shape == wanted else self.const(array.reshape(wanted), name)
        if self.shape(value) == wanted:
            return value
        return self.node(Reshape(wanted), (value,), name, f"Reshape {name}").outputs[0]

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Return a value with its axes in another order."""
        return self.add(Transpose(tuple(order)), value)

    def graph(self, outputs: Mapping[str, str], name: str = "") -> Graph:
        """Return the checked graph. outputs: public name -> value."""
        made = tuple(self.nodes)  # by `node`, which inferred their types
        return check(
            Graph(made, self.types, self.consts, tuple(self.inputs), dict(outputs), name), made
        )


def _check_operands(
    spec: OpSpec, sources: Sequence[TensorType | None], results: Sequence[TensorType]
) -> None:
    """Raise ShapeError where an operand of the op's post-ops does not broadcast to its result."""
    for post_op in getattr(spec, "post_ops", ()):
        source = None if post_op.operand is None else sources[post_op.operand]
        if source is None:
            continue
        shape, wanted = source.shape, results[0].shape
        lead = len(wanted) - len(shape)
        if lead < 0 or any(n not in (1, wanted[lead + a]) for a, n in enumerate(shape)):
            raise ShapeError(
                f"{spec.kind}: input {post_op.operand} is {shape}, which does not broadcast to the"
                f" result {wanted}: from the last axis on, its extents must be equal to those, or 1."
            )
