"""ONNX -> Graph: every node becomes op specs, or folds away when all its inputs are constant.

A node is tried as, in this order: a call of one of the model's own functions (inlined), If with a
known condition (the branch is inlined), a constant, an op of clnn's, an op that ONNX defines by
others (its definition is inlined).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import cast

import onnx

from clnn.budget import counted_tables, host_memory
from clnn.errors import DTypeError, ModelError, ShapeError
from clnn.graph.ir import Graph
from clnn.importers.onnx import fold as onnx_fold
from clnn.importers.onnx.build import OnnxBuilder
from clnn.importers.onnx.elements import DECIDING, element_of
from clnn.importers.onnx.functions import (
    Body,
    has_definition,
    model_body,
    model_functions,
    standard_body,
)
from clnn.importers.onnx.legacy import OLDEST_OPSET, modernise
from clnn.importers.onnx.limits import MAX_DEPTH, Budget, check_type, default_domain, show
from clnn.importers.onnx.load import Loaded, load_parts
from clnn.importers.onnx.nodes import Consts, blamed, check_node, complete, find_importer
from clnn.importers.onnx.order import ordered
from clnn.importers.onnx.report import Problem, missing_reason, refuse
from clnn.importers.onnx.scope import Call, Scope, read_call, read_inputs
from clnn.importers.onnx.shape_arithmetic import Room, fold_call
from clnn.importers.onnx.shapes import Shapes, has_open_image, input_shapes
from clnn.importers.onnx.tensors import TensorReader, dtype_name, numpy_dtype
from clnn.ops.onnx_registry import OnnxImporter, OnnxNode, Source, Unsupported
from clnn.records import changed, dataclass
from clnn.types import Array, TensorType, dtype_of


@host_memory("the import of the model")
@counted_tables()
def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Loaded,
    shapes: Shapes | None = None,
    values: Mapping[str, Array] | None = None,
    *,
    mapped: bool = False,
    is_open: bool = False,
) -> Graph:
    """Return the Graph of an ONNX model.

    shapes: input name -> shape, or name of a symbolic dimension -> extent. values: data of inputs
    that may be taken as constants where an op needs one (a shape, axes, pads); inputs that are so
    taken are no inputs of the Graph. At least one input stays one. mapped: large constants are
    mapped from the model's files, which must stay as they are while the Graph is used. is_open: there are
    graphs at other shapes, too, and nodes stay that do nothing at these alone.
    Raises ModelError for a file that is not a safe and valid model, ShapeError for dimensions that
    stay open, UnsupportedOpError with every node that clnn cannot run, HostMemoryError where the
    model wants more of the host than clnn.budget allows, or than is there.
    """
    loaded = load_parts(model, mapped)
    fixed: dict[str, Array] = {}
    while True:
        tensors = TensorReader(loaded.folder, Budget(), loaded.mapped)
        run = _Import(loaded, tensors, dict(shapes or {}), fixed, values or {}, is_open)
        run.walk_all()
        more = run.wanted - set(fixed)
        if not more or len(run.inputs) <= len(more):
            return run.graph()
        fixed = {**fixed, **{name: run.values[name] for name in more}}


@dataclass(frozen=True)
class Survey:
    """What an import finds before it refuses a model: of the main graph's values, by ONNX name.

    consts: data of those that do not depend on inputs, or on their shapes only. types: of the others
    that a plan can make. problems: nodes that no plan has, as it is, those behind them left out.
    """

    consts: Mapping[str, Array]
    types: Mapping[str, TensorType]
    problems: Sequence[Problem]


def survey_onnx(proto: onnx.ModelProto, folder: Path | None, shapes: Shapes | None) -> Survey:
    """Return what an import of a checked model finds. Raises as import_onnx does, but for problems."""
    tensors = TensorReader(folder, Budget())
    run = _Import(Loaded(proto, folder), tensors, dict(shapes or {}), {}, {})
    run.walk_all()
    build, found = run.build, {n: v for n, v in run.scope.names.items() if v is not None}
    return Survey(
        {n: build.model_array(v) for n, v in found.items() if v in build.consts},
        {n: build.model_type(v) for n, v in found.items() if v in build.types},
        run.problems,
    )


@dataclass
class _Import:
    """One import: the model, what came with it, and what became of it so far.

    fixed: data of inputs that are constants. wanted: inputs that must be constants for some node.
    inputs: value name -> name in the model. stated: constants that no extent can change.
    """

    loaded: Loaded
    tensors: TensorReader
    shapes: Shapes
    fixed: Mapping[str, Array]
    values: Mapping[str, Array]
    is_open: bool = False
    stated: set[str | None] = field(default_factory=lambda: {None})
    problems: list[Problem] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    inputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proto = self.loaded.proto
        self.build = OnnxBuilder(self.tensors.budget)
        self.functions, self.room = model_functions(self.proto), Room()
        self.open_images = self.is_open and any(map(has_open_image, self.proto.graph.input))

    def walk_all(self) -> None:
        """Read initializers and inputs, then every node."""
        graph = self.proto.graph
        opsets = {default_domain(o.domain): int(o.version) for o in self.proto.opset_import}
        self.scope = Scope({}, opsets)
        self._initializers(graph, self.scope, self.loaded)
        inputs = [v for v in graph.input if v.name not in self.scope.names]
        shapes = input_shapes([v for v in inputs if v.type.HasField("tensor_type")], self.shapes)
        for value in inputs:
            self.scope.names[value.name] = self._input(value, shapes.get(value.name, ()))
        self._walk(graph.node, self.scope)

    def graph(self) -> Graph:
        """Return the finished graph. Raises UnsupportedOpError or ModelError."""
        refuse([p for p in self.problems if p.op_type == "input" or not self._is_complete()])
        build, outputs = self.build, {}
        for output in self.proto.graph.output:
            value = self.scope.find(output.name)
            if value is None or value not in build.types:
                const = build.consts.get(value or "")
                kind = "left out" if const is None else dtype_name(const.dtype)
                raise ModelError(f"output {show(output.name)} is {kind}; clnn has no such tensors.")
            outputs[output.name] = build.narrowed(value, f"output {output.name}")
        for name in set(build.consts) - set(build.types):
            del build.consts[name]
        return build.graph(outputs, self.proto.graph.name)

    def _is_complete(self) -> bool:
        """Whether all outputs are known: nothing reads what refused nodes make."""
        names = self.scope.names
        return not any(names.get(o.name) in self.build.unknown for o in self.proto.graph.output)

    def _initializers(
        self, graph: onnx.GraphProto, scope: Scope, loaded: Loaded | None = None
    ) -> None:
        large = {} if loaded is None else loaded.large
        known: dict[int, Array] = {} if loaded is None else loaded.arrays
        for place, tensor in enumerate(graph.initializer):
            if place not in known:
                known[place] = self.tensors.array(tensor, large.get(place))
            array = known[place]
            scope.names[tensor.name] = self.build.const(array, tensor.name)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            scope.names[name] = self.build.const(self.tensors.dense(sparse), name)
        tensors = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
        self.stated |= {scope.names[tensor.name] for tensor in tensors}

    def _input(self, value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> str:
        """Add one graph input; one that is no tensor of a known type is a problem."""
        tensor, what = value.type.tensor_type, f"input {show(value.name)}"
        if not value.type.HasField("tensor_type"):
            reason = f"it is {value.type.WhichOneof('value')}; clnn runs tensors only"
        else:
            dtype = numpy_dtype(tensor.elem_type, what)
            try:
                kind = TensorType(shape, dtype_of(dtype))
            except DTypeError:
                reason = f"it is {dtype_name(dtype)}; clnn has no such tensors"
            else:
                check_type(what, kind)
                if value.name in self.fixed:
                    return self._fixed(value.name, kind)
                key = self.build.input(value.name, kind)
                self.inputs[key] = value.name
                return self.build.widened(key, kind.dtype, value.name)
        self.problems.append(Problem(value.name, "model", "input", None, "", reason))
        return self.build.refused(value.name)

    def _fixed(self, name: str, kind: TensorType) -> str:
        """Add a constant in place of the graph input `name`. Raises where it does not fit."""
        array = self.fixed[name]
        if array.dtype != kind.dtype.numpy:
            raise DTypeError(f"value of input {name!r} is {array.dtype}, model wants {kind.dtype}.")
        if array.shape != kind.shape:
            raise ShapeError(f"value of input {name!r} is {array.shape}, model wants {kind.shape}.")
        return self.build.const(array, name)

    def _walk(self, nodes: Sequence[onnx.NodeProto], scope: Scope) -> None:
        """Convert nodes in an order in which each comes after what it reads."""
        if scope.depth > MAX_DEPTH:
            raise ModelError(
                f"functions and branches are nested deeper than {MAX_DEPTH}, or a function calls "
                "itself. Such files are refused."
            )
        for number, node in enumerate(ordered(nodes, scope.knows)):
            self.tensors.budget.take_node()
            self._node(node, number, scope)

    def _node(self, node: onnx.NodeProto, number: int, scope: Scope) -> None:
        call = self._read(node, number, scope)
        outputs: Sequence[str | None] | None = None
        if not any(n in self.build.unknown for n in call.inputs):
            try:
                with blamed(call, self._kinds(call)):
                    outputs = self._convert(call)
                    if len(outputs) < len(node.output):
                        raise Unsupported(f"output {len(outputs)} is not supported")
                    self._note_elements(call, outputs)
            except Unsupported as err:
                self._problem(call, str(err))
        elif self._is_lacking(call):  # told as well, though a refused node stands before it
            self._problem(call, missing_reason(call.domain, call.op_type, call.opset))
        for place, name in enumerate(node.output):
            if name:
                value = self.build.refused(name) if outputs is None else outputs[place]
                scope.names[name] = value

    def _read(self, node: onnx.NodeProto, number: int, scope: Scope) -> Call:
        """Return what a node says; of the main graph's nodes, what an earlier import read."""
        if scope is not self.scope:
            return read_call(node, number, scope, self.tensors)
        call: Call | None = self.loaded.calls.get(number)
        if call is None:
            call = read_call(node, number, scope, self.tensors)
            self.loaded.calls[number] = changed(call, inputs=(), scope=Scope({}, scope.opsets))
            return call
        return changed(call, inputs=read_inputs(node, scope), scope=scope)

    def _check(self, call: Call) -> None:
        """Have onnx's checker look at a node, once where it is one of the main graph."""
        checked = self.loaded.checked if call.scope is self.scope else set[int]()
        if call.number not in checked:
            check_node(call, self.proto.ir_version)
            checked.add(call.number)

    def _note_elements(self, call: Call, outputs: Sequence[str | None]) -> None:
        """Note which outputs the model has in a narrower element type than they are computed in."""
        build = self.build
        given = [build.narrow.get(n or "") for n in call.inputs]
        for place, value in enumerate(outputs):
            kind = build.types.get(value or "")
            if value is None or kind is None or value in build.narrow:
                continue
            types = self._kinds(call), kind.dtype
            if element := element_of(call.op_type, call.attrs, given, *types, place):
                build.narrow[value] = element

    def _kinds(self, call: Call) -> tuple[TensorType | None, ...]:
        return tuple(None if n is None else self.build.types.get(n) for n in call.inputs)

    def _is_lacking(self, call: Call) -> bool:
        """Whether clnn has nothing for a node, whatever its inputs are."""
        if (call.domain, call.op_type, call.node.overload) in self.functions:
            return False
        if call.is_standard and (call.op_type == "If" or onnx_fold.foldable(call.op_type)):
            return False
        return find_importer(call) is None and not has_definition(call)

    def _problem(self, call: Call, reason: str) -> None:
        kinds = ", ".join(
            "-"
            if n is None
            else repr(k)
            if k
            else "?"
            if n in self.build.unknown
            else dtype_name(self.build.consts[n].dtype)
            for n, k in zip(call.inputs, self._kinds(call), strict=True)
        )
        self.problems.append(
            Problem(call.name, call.domain, call.op_type, call.opset, kinds, reason.rstrip("."))
        )

    def _convert(self, call: Call) -> Sequence[str | None]:
        """Return the value of each output of a node. Raises Unsupported."""
        function = self.functions.get((call.domain, call.op_type, call.node.overload))
        if function is not None:
            return self._inline(model_body(function, call), call)
        if call.is_standard:
            self._check(call)
            if call.op_type == "If":
                return self._branch(call)
        folded = self._folded(call)
        if folded is not None:
            return folded
        importer = find_importer(call)
        try:
            if importer is None:
                self._want_all(call)
                raise Unsupported(missing_reason(call.domain, call.op_type, call.opset))
            return self._import(importer, call)
        except (Unsupported, DTypeError) as err:
            return self._defined(call, str(err))

    def _folded(self, call: Call) -> Sequence[str | None] | None:
        """Return constants where a node's outputs are known at import, else None."""
        if not call.is_standard or call.opset is None:
            return None
        if call.op_type == "Constant":
            value = self.build.const(onnx_fold.constant(call.attrs), call.name)
            self.stated.add(value)
            return [value]
        kinds = self._kinds(call)
        if kinds and kinds[0] is not None:
            array = onnx_fold.fold_shape(call.op_type, kinds[0], call.attrs, self.tensors.budget)
            if array is not None:
                return [self.build.const(array, call.name)]
        known = all(n is None or n in self.build.consts for n in call.inputs)
        if not (known and call.inputs and onnx_fold.foldable(call.op_type)):
            return None
        if call.op_type == "DequantizeLinear" and kinds[0] is not None and kinds[0].rank:
            return None  # products want the integers
        if call.op_type in DECIDING and any(n in self.build.narrow for n in call.inputs):
            return None
        values = [None if n is None else self.build.consts[n] for n in call.inputs]
        try:
            arrays = fold_call(call, values, kinds, self.tensors.budget, self.room)
        except (Unsupported, onnx_fold.NotEvaluated):
            if find_importer(call) is None:
                raise
            return None
        made = [self.build.const(array, f"{call.name}/{k}") for k, array in enumerate(arrays)]
        self.stated.update(made if self.stated.issuperset(call.inputs) else ())
        return made

    def _import(self, importer: OnnxImporter, call: Call) -> Sequence[str | None]:
        """Run an op file's importer function and add what it asks for."""
        inputs, attrs, opset = list(call.inputs), call.attrs, call.opset or 0
        if call.domain == "ai.onnx" and opset < OLDEST_OPSET:
            attrs, shape = modernise(call.op_type, opset, attrs, self._kinds(call))
            opset = OLDEST_OPSET
            if shape is not None and inputs[1] is not None:
                inputs[1] = self.build.reshape(inputs[1], shape, f"{call.name}:input1")
        consts = Consts(self.build.known(inputs))
        kinds = tuple(self._kind(n, k) for k, n in enumerate(inputs))
        narrow = {k: self.build.narrow[n] for k, n in enumerate(inputs) if n in self.build.narrow}
        varying = frozenset(k for k in consts if self.is_open and inputs[k] not in self.stated)
        count = len(call.node.output)
        told = varying, self.open_images, *self.build.asked_of(inputs)
        node = OnnxNode(call.op_type, opset, attrs, kinds, consts, count, narrow, *told)
        mark = self.build.mark()
        try:
            sources = importer(node)
            if not isinstance(sources, (list, tuple)):
                sources = [cast("Source", sources)]
            made = complete(self.build.place(sources, inputs, call.name, call.op_type), call)
            if call.op_type == "QuantizeLinear":
                made = self.build.rounded(made)
                self.stated.update(made if self.stated.issuperset(inputs) else ())
            return made
        except (Unsupported, DTypeError):
            self.build.rollback(mark)
            self._want(inputs, consts)
            raise

    def _kind(self, value: str | None, index: int) -> TensorType | None:
        if value is None or value in self.build.types:
            return None if value is None else self.build.types[value]
        name = dtype_name(self.build.consts[value].dtype)
        raise Unsupported(f"input {index} is {name}; clnn has no such tensors")

    def _want(self, inputs: Sequence[str | None], consts: Consts) -> None:
        """Note which graph inputs must be constants for a node that asked for one in vain."""
        self._want_values(inputs[k] for k in consts.missed - {0} if k < len(inputs))

    def _want_all(self, call: Call) -> None:
        """Note which graph inputs must be constants for a node that makes a tensor of a shape."""
        if call.is_standard and call.op_type in ("ConstantOfShape", "Range"):
            self._want_values(call.inputs)

    def _want_values(self, wanted: Iterable[str | None]) -> None:
        for value in wanted:
            origins = set() if value is None else self.build.origins(value, self.inputs)
            if origins <= set(self.values):
                self.wanted |= origins

    def _defined(self, call: Call, why: str) -> Sequence[str | None]:
        """Inline ONNX's own definition of an operator. Raises Unsupported with `why`."""
        if any(n is not None and n not in self.build.types for n in call.inputs):
            raise Unsupported(why)
        body = standard_body(call, self._kinds(call))
        if body is None:
            raise Unsupported(why)
        mark, outer = self.build.mark(), self.problems
        self.problems = []
        try:
            outputs = self._inline(body, call)
            inner = self.problems
        finally:
            self.problems = outer
        if inner:
            self.build.rollback(mark)
            raise Unsupported(
                f"{why}, and ONNX's definition of it needs {inner[0].op_type}: {inner[0].reason}"
            )
        return outputs

    def _inline(self, body: Body, call: Call) -> Sequence[str | None]:
        """Convert a function's nodes in a scope of their own; return its outputs."""
        inputs = [*call.inputs, *[None] * (len(body.function.input) - len(call.inputs))]
        names = dict(zip(body.function.input, inputs, strict=True))
        scope = Scope(
            names, body.opsets, body.bindings, f"{call.name}/", depth=call.scope.depth + 1
        )
        self._walk(body.function.node, scope)
        wanted = body.function.output[: len(call.node.output)]
        return [
            scope.find(n) if used else None
            for n, used in zip(wanted, call.node.output, strict=True)
        ]

    def _branch(self, call: Call) -> Sequence[str | None]:
        """Convert the branch of an If that its constant condition takes."""
        condition = self.build.consts.get(call.inputs[0] or "")
        if condition is None or condition.size != 1:
            self._want_values([call.inputs[0]])
            raise Unsupported(
                "its condition is not constant; clnn plans every launch before the run"
            )
        branch = call.attrs["then_branch" if condition.item() else "else_branch"]
        outer = call.scope
        scope = Scope({}, outer.opsets, outer.bindings, f"{call.name}/", outer, outer.depth + 1)
        self._initializers(branch, scope)
        self._walk(branch.node, scope)
        if len(branch.output) != len(call.node.output):
            raise ModelError(
                f"the branch makes {len(branch.output)} outputs, the If {len(call.node.output)}."
            )
        return [scope.find(v.name) for v in branch.output]
