"""Real operators between dequantisation and quantisation as operators of integers.

    q -> dequantise -> operator -> quantise -> q        becomes        q -> operator of integers -> q

Sums of products are exact then, and one rounding gives the result, as ONNX Runtime's operators of bytes
have it. What cannot be fused stays as it is written. Dequantised constants that are left become float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import WRITTEN
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._quantised import (
    IntegerGraph,
    function_of,
    limits_of,
    without_repeats,
)
from clnn.graph.passes.dead import remove_dead
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import ADDEND, Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat
from clnn.ops.onnx_registry import Emit, Source
from clnn.ops.pool.spec import Pool, takes_all
from clnn.ops.quantised import build, real_sums
from clnn.ops.quantised.maps import of_bytes
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import rational
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.traced import is_open
from clnn.types import I8, I32, U8, Array, DType

BYTES = (I8, U8)
MOVING = (ViewSpec, Gather, Pad, Resize)
WHERE = 3  # operands
NEAR = 1e-4  # how far the scale of a bias may lie from that of the sums
Limits = tuple[float | None, float | None]
Made = tuple[Source, list[str]] | None


def fuse_quantised(graph: Graph) -> Graph:
    """Return `graph` with operators of integers, and no dequantised constants."""
    if not any(function_of(node) == "dequantise" for node in graph.nodes):
        return graph
    return _Fusing(remove_dead(without_repeats(graph))).run()


class _Fusing(IntegerGraph):
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

    def alike(self, node: Node, y: Quantisation) -> bool:
        """Whether ONNX Runtime on x86 has an operator of bytes here."""
        return self.computed_in(node, y) is not None

    def shifted(self, node: Node, y: Quantisation) -> bool:
        """Whether ONNX Runtime on x86 has an operator of uint8 where the model has int8 alone."""
        found = (self.bytes_of(name) for name in node.inputs)
        alone = {y.dtype, *(f[1].dtype for f in found if f is not None)} == {I8}
        return alone and self.computed_in(node, y) == U8

    def computed_in(self, node: Node, y: Quantisation) -> DType | None:
        """Return the type of ONNX Runtime's operator of bytes on x86, None where types are not one.

        It makes int8 that is read once uint8, so that types differ around constants and what is read twice.
        """
        is_product = isinstance(node.spec, (Conv2d, Gemm))
        whole = node.inputs[:1] if is_product else node.inputs
        found = [self.bytes_of(n) for n in whole]
        read = [f for f in found if f is not None]
        if len(read) < len(found):
            return None
        kinds = {self.kind_of(f[0], f[1]) for f in (*read, (self.quantised_by(node), y))}
        if len(kinds) > 1 or (is_product and kinds == {I8}):
            return None
        return kinds.pop()

    def kind_of(self, integers: str, given: Quantisation) -> DType:
        """Return the type that ONNX Runtime gives integers on x86: int8 that is read once becomes uint8."""
        return U8 if given.dtype == U8 or self.readers(integers) == 1 else I8

    def readers(self, integers: str) -> int:
        """Return how many operators read a value through dequantisation; it counts as read as output.

        Inputs, what operators of bytes make, and what they read count as read twice: only what lies between
        QuantizeLinear and DequantizeLinear changes its type.
        """
        readers, maker = self.consumers.get(integers, []), self.producers.get(integers)
        if integers in self.viewed:  # quantised anew there, unless it is of a constant
            return 2 if self.viewed[integers] in self.consts else 1
        if maker is None or function_of(maker) != "quantise":
            return 2
        count = sum(
            self.uses.get(r.outputs[0], 0) for r in readers if function_of(r) == "dequantise"
        )
        return (
            count
            + sum(
                1 if _moves_bytes(r.spec) else 2 for r in readers if function_of(r) != "dequantise"
            )
            + (2 * (integers in self.graph.outputs.values()))
        )

    def quantised_by(self, node: Node) -> str:
        """Return the integers that a node's result becomes."""
        (reader,) = self.consumers[node.outputs[0]]
        while function_of(reader) != "quantise":
            (reader,) = self.consumers[reader.outputs[0]]
        return reader.outputs[0]

    def weights_of(self, node: Node) -> tuple[Array, Quantisation] | None:
        """Return the constant integers of a product's weights.

        Float32 weights between bytes ONNX Runtime makes int8, unless they are a MatMul's, or the bias is computed.
        """
        known, bias = self.weights(node.inputs[1] or ""), (*node.inputs, None, None)[2]
        real = self.consts.get(node.inputs[1] or "")
        if known is not None or real is None or not node.origin.startswith(("Conv", "Gemm")):
            return known
        row = bias is None or (bias in self.consts and self.consts[bias].ndim == 1)
        fits = row and real.dtype == np.float32 and real.size and np.isfinite(real).all()
        return build.in_bytes(real) if fits else None

    def bytes_of(self, value: str | None) -> tuple[str, Quantisation] | None:
        """Return the bytes with one scale that a value is made of."""
        found = self.seen_as(value or "")
        fits = found is not None and found[1].per_tensor and found[1].dtype in BYTES
        return found if fits else None


def _takes_limits(spec: OpSpec) -> bool:
    """Whether an operator's integers may be clipped for what follows it."""
    return isinstance(spec, (Conv2d, ConvTranspose, Gemm)) or (
        isinstance(spec, Eltwise) and _is_binary(spec)
    )


def _is_binary(spec: Eltwise) -> bool:
    steps = spec.post_ops
    return len(steps) == 1 and steps[0].operand == 1 and steps[0].fn in WRITTEN


def _convolution(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Conv2d)
    weights = graph.weights_of(node)
    if spec.arith is not FLOAT or spec.post_ops or x is None or weights is None:
        return None
    raw, w = weights
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if w.axis not in (None, 0) or not (steps := _bias(graph, bias, x[1], w, len(raw)))[0]:
        return None
    zero = np.array(w.zero, np.int64).reshape(-1, *(1,) * (raw.ndim - 1))
    ends, integers = build.clipped(y, *limits), build.signed(raw, zero)
    arith, start = build.requantised(x[1], w, y, limits=ends), steps[1]
    if not graph.alike(node, y):
        real = None if bias is None else _stepped(graph, bias, x[1], weights, 0)
        extents = graph.types[x[0]].shape, graph.types[node.outputs[0]].shape
        made = real_sums.convolution(spec, extents, (integers, w), (x[1], y), real, ends)
        if made is not None:
            return made, [x[0]]
        arith, start = build.written_product(x[1], w, y, real, ends), None
    return build.convolution(0, spec.window, spec.group, integers, start, arith), [x[0]]


def _transposed(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Transposed convolution, of which ONNX Runtime has real numbers only."""
    spec, x = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, ConvTranspose)
    weights, bias = graph.real_constant(node.inputs[1] or ""), None
    whole = graph.weights_of(node)
    if spec.arith is not FLOAT or spec.post_ops or x is None or weights is None:
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _stepped(graph, node.inputs[2], x[1], whole, 1)
        if bias is None:
            return None
    point = math.prod(graph.types[x[0]].shape[2:]) == 1
    steps = tuple[float, ...]()
    if whole is not None and whole[1].axis in (None, 1):
        steps = whole[1].scale * (spec.group if whole[1].axis else 1)
    if whole is not None and whole[1].per_tensor:
        weights = whole[1].dequantise(whole[0])
    arith = build.real_taps(x[1], y, bias, build.clipped(y, *limits), point, steps)
    return Emit(replace(spec, arith=arith), [0, weights.astype(np.float32), None]), [x[0]]


def _stepped(
    graph: _Fusing, name: str, x: Quantisation, w: tuple[Array, Quantisation] | None, axis: int
) -> Array | None:
    """Return a bias as real numbers, None where it is computed.

    ONNX Runtime rounds a real one of products of integers to steps of the sums. axis: of weights, that of
    output channels.
    """
    real = graph.real_constant(name)
    if real is None or w is None or name not in graph.consts or w[1].axis not in (None, axis):
        return real
    steps = np.asarray(x.step * np.array(w[1].scale, np.float32), np.float32)
    if steps.size not in (1, real.size):
        return real
    return np.asarray(np.rint(real / steps).astype(np.float32) * steps, np.float32)


def _bias(
    graph: _Fusing, name: str | None, x: Quantisation, w: Quantisation, count: int
) -> tuple[bool, Array | None]:
    """Return whether a bias can be counted in steps of the sums, and how many of them it is."""
    if name is None:
        return True, None
    steps = x.step * np.array(w.scale, np.float32)
    shape = graph.types[name].shape
    if shape[-1:] not in ((), (1,), (count,)) or math.prod(shape[:-1]) != 1:  # not one row
        return False, None
    if name in graph.consts:
        whole = np.rint(graph.consts[name].reshape(-1).astype(np.float64) / steps)
        if not (np.abs(whole) < 2**31).all():
            return False, None
        return True, _row(whole.astype(np.int32), count)
    given = graph.weights(name)
    if given is None or given[1].dtype != I32 or any(given[1].zero):
        return False, None
    scale = np.array(given[1].scale, np.float32)
    near = bool(np.allclose(scale, np.broadcast_to(steps, (count,)), rtol=NEAR, atol=0))
    return near, _row(given[0], count)


def _row(bias: Array, count: int) -> Array:
    """Return a bias as one number for each of `count` columns."""
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (count,)))


def _product(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec, a = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Gemm)
    weights = graph.weights_of(node)
    addend = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
    if a is None or weights is None or spec.post_ops or spec.trans_a or weights[0].ndim != 2:
        return None
    raw, w = weights
    shape = graph.types[a[0]].shape
    if w.axis not in (None, 0 if spec.trans_b else 1) or len(shape) < 2:
        return None
    raw = raw.T if spec.trans_b else raw
    if addend is not None and (spec.beta != 1 or spec.alpha != 1):
        return None
    known, bias = _bias(graph, addend, a[1], w, raw.shape[1])
    if not known:
        return None
    ends = build.clipped(y, *limits)
    arith = build.requantised(a[1], w, y, spec.alpha, ends)
    if not graph.alike(node, y) and spec.alpha == 1:
        axis = 0 if spec.trans_b else 1
        real = None if addend is None else _stepped(graph, addend, a[1], weights, axis)
        arith, bias = build.written_product(a[1], w, y, real, ends), None
    columns = build.signed(raw, np.array(w.zero, np.int64))
    return build.rows_product(0, shape, columns, bias, arith), [a[0]]


def _elementwise(graph: _Fusing, node: Node, y: Quantisation, limits: Limits) -> Made:
    spec = node.spec
    assert isinstance(spec, Eltwise)
    if len(node.inputs) == 1:
        x = graph.bytes_of(node.inputs[0])
        exact = replace(spec, post_ops=rational(spec.post_ops))
        return None if x is None else (of_bytes(x[1], y, lambda v: exact.reference(v)[0]), [x[0]])
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


def _moves_bytes(spec: OpSpec) -> bool:
    """Whether an operator of bytes gives some of those that it reads: DequantizeLinear may change places with it."""
    return isinstance(spec, MOVING) or (isinstance(spec, Pool) and spec.mode == "max")


def _only_moves(spec: OpSpec) -> bool:
    if isinstance(spec, Resize):
        return spec.sampling.mode == "nearest" and not spec.post_ops
    return True


_Rule = Callable[[_Fusing, Node, Quantisation, Limits], Made]
_RULES: Sequence[tuple[tuple[type[OpSpec], ...], _Rule]] = (
    ((Conv2d,), _convolution),
    ((ConvTranspose,), _transposed),
    ((Gemm,), _product),
    ((Eltwise,), _elementwise),
    ((Reduce,), _average),
    ((Pool,), _pool),
    ((Concat,), _joined),
    ((Logic,), _chosen),
    ((Softmax,), _softmax),
    (MOVING, _moving),
)
