"""The graph that an import builds, with limits on every value and node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from typing import cast

import numpy as np

from clnn.arith.quantised_maps import Dequantise
from clnn.budget import MAX_NODES
from clnn.errors import DTypeError
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Node
from clnn.importers.onnx.limits import MAX_EXTENT, Budget, check_type
from clnn.importers.onnx.tensors import dtype_name
from clnn.layout import TensorLayout
from clnn.ops.elementwise.cast import Cast, narrow_spec, widen_spec
from clnn.ops.elementwise.eltwise import Eltwise, links
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.movement.views import Reshape
from clnn.ops.onnx_registry import Emit, EmitOutput, Source, Unsupported
from clnn.ops.shared.functions import MOST_STEPS
from clnn.ops.spec import OpSpec
from clnn.recorded_arrays import is_made
from clnn.records import dataclass
from clnn.types import CARRIERS, Array, DType, TensorType, dtype_of

_QUANTISING = (FixedMap, Eltwise, Cast, Reshape)  # what quantisation and its inverse are made of
_MOST_CHARACTERS = 200  # of a name


@dataclass(frozen=True)
class Mark:
    """How much a builder held at some moment."""

    nodes: int
    types: int
    consts: int


class OnnxBuilder(GraphBuilder):
    """A builder that refuses what devices cannot hold.

    consts: those whose element type devices do not have are not in `types` (they may still fold
    away). unknown: values of nodes that were refused. narrow: values that the model has in another
    element type than they are computed in (clnn.types.CARRIERS).
    """

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget
        self.unknown: set[str] = set()
        self.narrow: dict[str, DType] = {}

    def fresh(self, name: str) -> str:
        """Return `name`, made printable, short and different from all that were given out."""
        short = name[:_MOST_CHARACTERS]
        if not short.isprintable():
            short = "".join(c if c.isprintable() else "?" for c in short)
        return super().fresh(short)

    def type(self, value: str) -> TensorType:
        """Return the type of a value. Raises Unsupported for a constant that devices cannot hold."""
        if value not in self.types:
            name = dtype_name(self.consts[value].dtype)
            raise Unsupported(f"a constant is {name}; clnn has no such tensors")
        return self.types[value]

    def const(self, array: Array, name: str = "const") -> str:
        """Add a constant of any element type; one that follows from noted extents stays so."""
        if is_made(array):
            value = self.fresh(name)
            self.types[value] = TensorType(array.shape, dtype_of(array.dtype))
            self.consts[value] = array
            return value
        try:
            kind = dtype_of(array.dtype)
            if kind not in CARRIERS:
                return super().const(array, name)
            value = super().const(array.astype(CARRIERS[kind].numpy), name)
            self.narrow[value] = kind
            return value
        except DTypeError:
            value = self.fresh(name)
            self.consts[value] = array
            return value

    def widened(self, value: str, kind: DType, name: str) -> str:
        """Return a value of an element type in the type that carries it."""
        if kind not in CARRIERS:
            return value
        made = self.node(widen_spec(kind), [value], name, f"{name} widened").outputs[0]
        self.narrow[made] = kind
        return made

    def model_type(self, value: str) -> TensorType:
        """Return the type that the model has a value in."""
        kind = self.types[value]
        return replace(kind, dtype=self.narrow.get(value, kind.dtype))

    def model_array(self, value: str) -> Array:
        """Return a constant in the element type that the model has it in."""
        kind, array = self.narrow.get(value), self.consts[value]
        return array if kind is None else array.astype(kind.numpy)

    def known(self, inputs: Sequence[str | None]) -> dict[int, Array]:
        """Return place -> data of the inputs of a node that are constants."""
        return {
            k: self.consts[n] for k, n in enumerate(inputs) if n is not None and n in self.consts
        }

    def asked_of(
        self, inputs: Sequence[str | None]
    ) -> tuple[Callable[[int], Array | None], Callable[[int], bool]]:
        """Return what an importer function may ask of a node's inputs.

        The data of one that quantisation, or its inverse, makes of constants (None for others), and whether
        DequantizeLinear makes one.
        """

        def value(index: int) -> str | None:
            return inputs[index] if index < len(inputs) else None

        return lambda k: self._computed(value(k)), lambda k: self._is_dequantised(value(k))

    def _is_dequantised(self, value: str | None) -> bool:
        maker = self._maker(value)
        return maker is not None and isinstance(getattr(maker.spec, "function", None), Dequantise)

    def _maker(self, value: str | None) -> Node | None:
        return next((n for n in reversed(self.nodes) if value in n.outputs), None)

    def rounded(self, values: Sequence[str | None]) -> list[str | None]:
        """Return quantised values, constants in place of those that constants make."""
        found = [(value, self._computed(value)) for value in values]
        return [v if a is None else self.const(a, f"{v}:constant") for v, a in found]

    def _computed(self, value: str | None) -> Array | None:
        if value is None or value in self.consts:
            return self.consts.get(value or "")
        maker = self._maker(value)
        if maker is None or not isinstance(maker.spec, _QUANTISING):
            return None
        given = {n: self._computed(n) for n in maker.inputs}
        nbytes = self.types[value].size * self.types[value].dtype.numpy.itemsize
        if any(v is None for n, v in given.items() if n) or nbytes > self.budget.fold_room:
            return None
        self.budget.folded += nbytes
        return maker.spec.reference(*(given[n] for n in maker.inputs))[0]

    def narrowed(self, value: str, name: str) -> str:
        """Return a value in the element type that the model has it in."""
        kind = self.narrow.get(value)
        if kind is None:
            return value
        return self.node(narrow_spec(kind, False), [value], name, f"{name} as {kind.name}").outputs[
            0
        ]

    def refused(self, name: str) -> str:
        """Return the name of a value of unknown type, made by a node that was refused."""
        value = self.fresh(name)
        self.unknown.add(value)
        return value

    def mark(self) -> Mark:
        """Return what there is now, for `rollback`."""
        return Mark(len(self.nodes), len(self.types), len(self.consts))

    def rollback(self, mark: Mark) -> None:
        """Drop everything added since `mark`."""
        del self.nodes[mark.nodes :]
        for values, count in ((self.types, mark.types), (self.consts, mark.consts)):
            for name in list(values)[count:]:
                del values[name]

    def admit(
        self,
        spec: OpSpec,
        sources: Sequence[TensorType | None],
        results: Sequence[TensorType],
    ) -> None:
        """Raise ShapeError or Unsupported for a node that no device can run."""
        for number, kind in enumerate(results):
            check_type(f"output {number}", kind)
        _check_borders(spec, sources)
        if len(self.nodes) >= MAX_NODES:
            raise Unsupported(f"the network has more than {MAX_NODES} nodes")

    def place(
        self, sources: Sequence[Source], inputs: Sequence[str | None], name: str, op_type: str
    ) -> list[str | None]:
        """Return the value that each source stands for: an input, a constant, an emitted node."""
        placer = _Placer(self, inputs, name, op_type)
        return [placer.value(source) for source in sources]

    def origins(self, value: str, inputs: Mapping[str, str]) -> set[str]:
        """Return which of `inputs` (value name -> name) the data of `value` comes from."""
        makers = {out: node for node in self.nodes for out in node.outputs}
        names, todo, seen = set(), [value], set()
        while todo:
            source = todo.pop()
            if source in seen:
                continue
            seen.add(source)
            if source in inputs:
                names.add(inputs[source])
            elif source in makers:
                todo += [n for n in makers[source].inputs if n is not None]
        return names


@dataclass
class _Placer:
    """Turns the sources of one ONNX node into values; each emitted node is added once."""

    build: OnnxBuilder
    inputs: Sequence[str | None]
    name: str
    op_type: str
    nodes: dict[Emit, Node] = field(default_factory=dict)

    def value(self, source: Source) -> str | None:
        if source is None:
            return None
        if isinstance(source, int):
            return self.inputs[source] if source < len(self.inputs) else None
        if is_made(source):
            return self.build.const(cast("Array", source), f"{self.name}:const")
        if isinstance(source, np.ndarray):
            self.build.budget.folded += source.nbytes
            return self.build.const(source, f"{self.name}:const")
        emit = source.emit if isinstance(source, EmitOutput) else source
        index = source.index if isinstance(source, EmitOutput) else 0
        if emit not in self.nodes:
            self.nodes[emit] = self._emit(emit)
        return self.nodes[emit].outputs[index]

    def _emit(self, emit: Emit) -> Node:
        inputs = [self.value(source) for source in emit.inputs]
        name = f"{self.name}.{len(self.nodes)}" if self.nodes else self.name
        origin = f"{self.op_type} {self.name}"
        if not isinstance(emit.spec, Eltwise) or len(emit.spec.post_ops) <= MOST_STEPS:
            return self.build.node(emit.spec, inputs, name, origin)
        value = inputs[0]
        for spec, taken in links(emit.spec):
            node = self.build.node(spec, [value, *(inputs[k] for k in taken)], name, origin)
            value = node.outputs[0]
        return node


def _check_borders(spec: OpSpec, kinds: Sequence[TensorType | None]) -> None:
    """Refuse padding that would make a tensor too large to index."""
    for index, border in spec.padding_needs(kinds).items():
        kind = kinds[index]
        if kind is None:
            continue
        sides = (*border.before, *border.after)
        if any(side < 0 for side in sides) or len(sides) != 2 * kind.rank:
            TensorLayout.make(kind.shape, None, border.before, border.after)  # says what is wrong
        size = prod(map(sum, zip(kind.shape, border.before, border.after, strict=True)))
        if size > MAX_EXTENT:
            raise Unsupported(
                f"its window wants input {index} with padding {border.before}, {border.after}: "
                f"{size} elements, over the limit of {MAX_EXTENT}"
            )
