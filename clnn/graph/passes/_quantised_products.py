"""Products between dequantisation and quantisation as products of integers: the rules of fuse_quantised."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import Quantisation
from clnn.graph.ir import Node
from clnn.graph.passes._quantised_types import ByteGraph, Limits, Made
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.gemm.spec import ADDEND, Gemm
from clnn.ops.onnx_registry import Emit
from clnn.ops.quantised import build, real_sums
from clnn.types import I32, Array

NEAR = 1e-4  # how far the scale of a bias may lie from that of the sums


def convolution(graph: ByteGraph, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Return the convolution of integers whose results become `y`, within real limits; None where none fits."""
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


def transposed_convolution(graph: ByteGraph, node: Node, y: Quantisation, limits: Limits) -> Made:
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
    graph: ByteGraph, name: str, x: Quantisation, w: tuple[Array, Quantisation] | None, axis: int
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
    graph: ByteGraph, name: str | None, x: Quantisation, w: Quantisation, count: int
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
    return near or not given[0].any(), _row(given[0], count)  # none is none in any steps


def _row(bias: Array, count: int) -> Array:
    """Return a bias as one number for each of `count` columns."""
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (count,)))


def matrix_product(graph: ByteGraph, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Return the product of matrices of integers whose results become `y`, within real limits; else None."""
    spec, a = node.spec, graph.bytes_of(node.inputs[0])
    assert isinstance(spec, Gemm)
    weights = graph.weights_of(node)
    addend = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
    if weights is None or weights[0].ndim != 2:
        return _product_of_any(graph, node, y, limits)
    if a is None or spec.post_ops or spec.trans_a:
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


def _product_of_any(graph: ByteGraph, node: Node, y: Quantisation, limits: Limits) -> Made:
    """Matrices of bytes that are computed, or constants of several: whole numbers in float32."""
    spec, sides = node.spec, [graph.bytes_of(name) for name in node.inputs[:2]]
    assert isinstance(spec, Gemm)
    found = [side for side in sides if side is not None]
    if len(found) < len(sides) or spec != Gemm() or any(node.inputs[ADDEND:]):
        return None
    if not graph.alike(node, y):
        return None
    names, (a, b) = [name for name, _ in found], (kind for _, kind in found)
    sums = build.real_sums_of((0, 1), (a, b), [graph.types[n].rank for n in names], spec)
    ends = build.clipped(y, *limits)
    return build.requantise_sums(sums, build.factors(a, b, y), y, ends), names
