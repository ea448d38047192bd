"""Real operators between dequantisation and quantisation as operators of integers.

    q -> dequantise -> operator -> quantise -> q        becomes        q -> operator of integers -> q

Sums of products are exact then, and one rounding gives the result, as ONNX Runtime's operators of bytes
have it. What cannot be fused stays as it is written. Dequantised constants that are left become float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import WRITTEN
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._byte_functions import looked_up
from clnn.graph.passes._quantised import function_of, limits_of, without_repeats
from clnn.graph.passes._quantised_products import (
    convolution,
    matrix_product,
    transposed_convolution,
)
from clnn.graph.passes._quantised_types import BYTES, MOVING, ByteGraph, Limits, Made
from clnn.graph.passes.dead import remove_dead
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat
from clnn.ops.onnx_registry import Emit, Source
from clnn.ops.pool.spec import Pool, takes_all
from clnn.ops.quantised import build
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.spec import OpSpec
from clnn.traced import is_open

WHERE = 3  # operands


def fuse_quantised(graph: Graph) -> Graph:
    """Return `graph` with operators of integers, and no dequantised constants."""
    if not any(function_of(node) == "dequantise" for node in graph.nodes):
        return graph
    return _Fusing(remove_dead(without_repeats(graph))).run()


class _Fusing(ByteGraph):
    def run(self) -> Graph:
        for node in self.graph.nodes:
            made = self._fused(node) if function_of(node) == "quantise" else None
            if made is None:
                self.nodes.append(node)
            else:
                self.put(made[0], made[1], node)
        return self.folded(remove_dead(self.finished()))

    def _fused(self, node: Node) -> Made:
        """Return what makes the result of a quantisation of integers, and the values it reads."""
        value, y = node.inputs[0] or "", self.wanted(node)
        if y is None or y.dtype not in BYTES:
            return None
        given = self.integers(value)
        if given is not None:
            return self._requantised(given, y)
        return self._operator(value, y) or looked_up(self, value, y)

    def _operator(self, value: str, y: Quantisation) -> Made:
        """Return the operator of integers that makes a value, and its limits."""
        made = self._alone(value)
        limits: Limits = (None, None)
        if made is not None and (found := limits_of(made)) is not None:
            inner = self._alone(made.inputs[0] or "")
            if inner is not None and _takes_limits(inner.spec):
                made, limits = inner, found
        if made is None:
            return None
        for kinds, fuse in _RULES:
            if isinstance(made.spec, kinds):
                return fuse(self, made, y, limits)
        return None

    def _alone(self, value: str) -> Node | None:
        """Return the node that makes a value which nothing else reads."""
        node = self.producers.get(value)
        only = node is not None and len(node.outputs) == 1 and self.uses.get(value) == 1
        return node if only else None

    def _requantised(self, given: tuple[str, Quantisation], y: Quantisation) -> Made:
        name, x = given
        if not x.per_tensor or x.dtype not in BYTES:
            return None
        return build.moved(0, x, y), [name]


def _takes_limits(spec: OpSpec) -> bool:
    """Whether an operator's integers may be clipped for what follows it."""
    return isinstance(spec, (Conv2d, ConvTranspose, Gemm)) or (
        isinstance(spec, Eltwise) and _is_binary(spec)
    )


def _is_binary(spec: Eltwise) -> bool:
    steps = spec.post_ops
    return len(steps) == 1 and steps[0].operand == 1 and steps[0].fn in WRITTEN


def _elementwise(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec = node.spec
    assert isinstance(spec, Eltwise)
    a, b = (graph.bytes_of(n) for n in (*node.inputs, None)[:2])
    if len(node.inputs) != 2 or not _is_binary(spec) or a is None or b is None:
        return None
    step, ends = spec.post_ops[0], build.clipped(y, *limits)
    (first, p), (second, q) = (b, a) if step.swapped else (a, b)
    function = _FUSED.get(step.fn)
    if function is None or ends != y.limits or not graph.alike(node, y):
        return Emit(build.written(step.fn, p, q, y, ends), [0, 1]), [first, second]
    fused = partial(function, shifted=graph.shifted(node, y))
    made = build.in_one_type(lambda k, m, *kinds: Emit(fused(*kinds), [k, m]), [p, q], y)
    return made, [first, second]


_FUSED = {"add": build.total, "mul": build.product}


def _average(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Reduce)
    pools = node.origin.startswith("GlobalAveragePool")
    if not pools or x is None or spec.post_ops:
        return None
    average = build.image_average if graph.alike(node, y) else build.real_average
    images = graph.types[x[0]].shape[2:]
    return build.in_one_type(lambda k, *kinds: average(k, images, *kinds), [x[1]], y), [x[0]]


def _pool(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Pool)
    if x is None or spec.post_ops or spec.indices or spec.rule:
        return None
    if spec.mode == "max":
        return build.moved(Emit(spec, [0]), x[1], y), [x[0]]
    if spec.mode != "average" or not graph.alike(node, y):
        return None
    images = graph.types[x[0]].shape[2:]
    is_fixed = not any(is_open(extent) for extent in images)
    if is_fixed and takes_all(spec.window, images):
        whole = build.image_average
        return build.in_one_type(lambda k, *kinds: whole(k, images, *kinds), [x[1]], y), [x[0]]
    average = partial(build.average, pool=spec, shifted=graph.shifted(node, y))
    return build.in_one_type(lambda k, a, b: average(k, a=a, y=b), [x[1]], y), [x[0]]


def _joined(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, members = node.spec, [graph.bytes_of(n) for n in node.inputs]
    assert isinstance(spec, Concat)
    known = [m for m in members if m is not None]
    if len(known) != len(members) or not build.are_bytes(y, *(m[1] for m in known)):
        return None
    parts = [build.moved(k, m[1], y) for k, m in enumerate(known)]
    return Emit(spec, parts), [m[0] for m in known]


def _chosen(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Where, of bytes or of numbers that are known."""
    spec, sources = node.spec, [node.inputs[0] or ""]
    assert isinstance(spec, Logic)
    if spec.fn != "where" or len(node.inputs) != WHERE:
        return None
    sides: list[Source] = [0]
    for name in node.inputs[1:]:
        real, found = graph.real_constant(name or ""), graph.bytes_of(name)
        if real is not None:
            sides.append(y.quantise(real))
        elif found is not None:
            sides.append(build.moved(len(sources), found[1], y))
            sources.append(found[0])
        else:
            return None
    return Emit(spec, sides), sources


def _softmax(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Softmax)
    if x is None or spec.log or spec.post_ops or not build.are_bytes(x[1], y):
        return None
    if not graph.alike(node, y):
        return None
    return build.softmax(0, graph.types[x[0]].shape, spec.axes, x[1], y), [x[0]]


def _moving(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Operators that only place elements of their first input elsewhere."""
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    if x is None or not _only_moves(spec):
        return None
    if isinstance(spec, Pad) and spec.mode == "constant":
        value = float(y.quantise(np.array(spec.value, np.float32)))
        return Emit(replace(spec, value=value), [build.moved(0, x[1], y)]), [x[0]]
    others = [n for n in node.inputs[1:] if n is not None]
    made = Emit(spec, list(range(1 + len(others))))
    return build.moved(made, x[1], y), [x[0], *others]


def _only_moves(spec: OpSpec) -> bool:
    if isinstance(spec, Resize):
        return spec.sampling.mode == "nearest" and not spec.post_ops
    return True


_Rule = Callable[[_Fusing, Node, Quantisation, Limits], Made]
_RULES: Sequence[tuple[tuple[type[OpSpec], ...], _Rule]] = (
    ((Conv2d,), convolution),
    ((ConvTranspose,), transposed_convolution),
    ((Gemm,), matrix_product),
    ((Eltwise,), _elementwise),
    ((Reduce,), _average),
    ((Pool,), _pool),
    ((Concat,), _joined),
    ((Logic,), _chosen),
    ((Softmax,), _softmax),
    (MOVING, _moving),
)
