"""Nodes of ESP-DL's model files, in the domain "espdl": see clnn/importers/onnx/from_espdl.py.

Attributes that an importer adds: e_in, the exponent of each input (of filters and biases, of all of
them: e_w, e_bias), e_out, rounding, lanes, and out_type, the type of the result. Images have channels
last; filters are (output, input, kernel...).
"""

from __future__ import annotations

import numpy as np

from clnn.arith import espdl_maps as maps
from clnn.arith.espdl import HALF_UP
from clnn.arith.mli_maps import Clip, FixedExtreme
from clnn.arith.mli_primitives import limits
from clnn.arith.quantised_maps import Dequantise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.espdl import build
from clnn.ops.espdl.build import Exponents, Way
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.window import Window, window_of
from clnn.types import F32, I8, I16, Array, normalise_axis

BITS = {I8: 8, I16: 16}
NAMES = {"int8": 8, "int16": 16}
APART = 64  # exponents of a sum of products farther apart than this make no sense


def _bits(node: OnnxNode, index: int = 0) -> int:
    kind = node.type(index).dtype
    if kind not in BITS:
        raise Unsupported(f"input {index} is {kind.name}; it must be int8 or int16")
    return BITS[kind]


def _way(node: OnnxNode) -> Way:
    return Way(str(node.attr("rounding", HALF_UP)), bool(node.attr("lanes", 0)))


def _given(node: OnnxNode, index: int = 0) -> int:
    return int(node.attrs["e_in"][index])


def _wanted(node: OnnxNode) -> int:
    return int(node.attrs["e_out"])


def _relu(node: OnnxNode) -> bool:
    activation = str(node.attr("activation", "Linear"))
    if activation not in ("Linear", "Relu", "ReLU"):
        raise Unsupported(f"activation {activation} inside of {node.op_type}; Relu is supported")
    return activation != "Linear"


def _sums(node: OnnxNode, weights: Array) -> Exponents:
    found = Exponents(
        _given(node),
        tuple(int(e) for e in node.attrs["e_w"]),
        _wanted(node),
        tuple(int(e) for e in node.attr("e_bias", ())) if node.has(2) else (),
    )
    every = (found.x, found.y, *found.w, *found.bias)
    if max(map(abs, every)) > APART:
        raise Unsupported(f"exponents {sorted(set(every))[:8]}; up to {APART} make sense")
    return found


@onnx_op("espdl::Conv")
def _convolution(node: OnnxNode) -> Source:
    x, weights = node.type(0), node.const(1, "the filter")
    if x.rank not in (3, 4):
        raise Unsupported(f"convolution of an input with {x.rank} axes; 3 and 4 are supported")
    bias = node.const(2, "the bias").reshape(-1) if node.has(2) else None
    way = _way(node)
    arith, given = build.products(
        _bits(node), _sums(node, weights), weights, bias, way, _relu(node)
    )
    window = window_of(node, weights.shape[2:], x.shape[1:-1])
    group = int(node.attr("group", 1))
    return build.convolution(0, x.rank, window, group, arith, weights, given)


@onnx_op("espdl::Gemm", "espdl::MatMul")
def _rows(node: OnnxNode) -> Source:
    for name in ("alpha", "beta"):
        if float(node.attr(name, 1.0)) != 1:
            raise Unsupported(f"{name} {node.attr(name)}; it must be 1")
    if node.attr("transA", 0):
        raise Unsupported("transA; rows of the first input are supported")
    weights = node.const(1, "the filter")
    bias = node.const(2, "the bias").reshape(-1) if node.has(2) else None
    arith, given = build.products(
        _bits(node), _sums(node, weights), weights, bias, _way(node), _relu(node)
    )
    return build.rows(0, node.type(0).shape, arith, weights, given)


@onnx_op("espdl::Add", "espdl::Sub")
def _sum(node: OnnxNode) -> Source:
    exponents = (_given(node, 0), _given(node, 1))
    function = maps.total(
        _bits(node), exponents, _wanted(node), node.op_type == "Sub", _way(node).rounding
    )
    return _then_relu(node, Emit(FixedMap(function), [0, 1]))


@onnx_op("espdl::Mul")
def _product(node: OnnxNode) -> Source:
    exponents = (_given(node, 0), _given(node, 1))
    function = maps.product(_bits(node), exponents, _wanted(node), _way(node).rounding)
    return _then_relu(node, Emit(FixedMap(function), [0, 1]))


def _then_relu(node: OnnxNode, source: Source) -> Source:
    return Emit(FixedMap(clip(_bits(node))), [source]) if _relu(node) else source


def clip(bits: int, low: int = 0, high: int | None = None) -> Clip:
    """Return the function that keeps integers of `bits` bits between two limits."""
    least, most = limits(bits)
    return Clip(bits, max(low, least), most if high is None else min(high, most))


@onnx_op("espdl::Max", "espdl::Min")
def _extreme(node: OnnxNode) -> Source:
    _same(node)
    function = FixedMap(FixedExtreme(_bits(node), 0, node.op_type == "Max", True))
    found: Source = 0
    for index in range(1, len(node.inputs)):
        found = Emit(function, [found, index])
    return found


def _same(node: OnnxNode) -> None:
    """Refuse operands and results of different exponents."""
    every = {*(int(e) for e in node.attrs["e_in"]), _wanted(node)}
    if len(every) > 1:
        raise Unsupported(f"exponents {sorted(every)}; they must be equal")


@onnx_op("espdl::Relu")
def _rectifier(node: OnnxNode) -> Source:
    return Emit(FixedMap(clip(_bits(node))), [_moved(node)])


def _moved(node: OnnxNode, source: Source = 0) -> Source:
    """Return a value in the exponent of the result."""
    shift, bits = _wanted(node) - _given(node), _bits(node)
    if not shift:
        return source
    return Emit(FixedMap(maps.EspRequantise((bits, bits), shift, _way(node).rounding)), [source])


@onnx_op("espdl::Clip")
def _clip(node: OnnxNode) -> Source:
    low, high = (
        float(node.const(k, "a limit").reshape(())) * 2.0 ** _given(node, k)
        if node.has(k)
        else None
        for k in (1, 2)
    )
    least, most = limits(_bits(node))
    steps = 2.0 ** -_wanted(node)
    first = least if low is None else int(np.clip(np.rint(low * steps), least, most))
    last = most if high is None else int(np.clip(np.rint(high * steps), least, most))
    return Emit(FixedMap(clip(_bits(node), first, last)), [_moved(node)])


@onnx_op("espdl::PRelu")
def _slopes(node: OnnxNode) -> Source:
    bits, x = _bits(node), node.type(0)
    slope = node.const(1, "the slopes")
    slope = slope.reshape(-1) if slope.size in (1, x.shape[-1]) else slope
    below = _wanted(node) - _given(node) - _given(node, 1)
    keep = _wanted(node) - _given(node)
    function = maps.EspSlope(bits, below, keep, _way(node).rounding)
    return Emit(FixedMap(function), [0, slope])


@onnx_op("espdl::LUT")
def _table(node: OnnxNode) -> Source:
    """Inputs x and the table; others that the function had before it became a table are left out."""
    entries = node.const(len(node.inputs) - 1, "the table").reshape(-1)
    if _bits(node) == 16:
        return Emit(FixedMap(maps.table_of(entries, _way(node).rounding)), [0])
    if entries.size != 256:
        raise Unsupported(f"a table of int8 with {entries.size} entries; it needs 256")
    return Emit(FixedMap(maps.lookup(entries)), [0])


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


@onnx_op("espdl::Sigmoid", "espdl::Tanh")
def _activation(node: OnnxNode) -> Source:
    function = sigmoid if node.op_type == "Sigmoid" else np.tanh
    return Emit(
        FixedMap(
            maps.tabulated(_bits(node), _given(node), _wanted(node), function, _way(node).rounding)
        ),
        [0],
    )


@onnx_op("espdl::LeakyRelu")
def _leaky(node: OnnxNode) -> Source:
    alpha = float(node.attr("alpha", 0.01))

    def leaky(x: Array) -> Array:
        return np.where(x < 0, x * alpha, x)

    return Emit(
        FixedMap(
            maps.tabulated(_bits(node), _given(node), _wanted(node), leaky, _way(node).rounding)
        ),
        [0],
    )


@onnx_op("espdl::MaxPool", "espdl::AveragePool")
def _pool(node: OnnxNode) -> Source:
    x = node.type(0)
    if node.n_outputs > 1:
        raise Unsupported("indices of maxima")
    window = window_of(
        node, node.attrs["kernel_shape"], x.shape[1:-1], bool(node.attr("ceil_mode", 0))
    )
    if node.op_type == "MaxPool":
        return _moved(node, build.of_image(Pool(window, "max"), x.rank, 0))
    padded = bool(node.attr("count_include_pad", 0))
    return build.of_image(Pool(window, "average", padded, rule=_average(node)), x.rank, 0)


def _average(node: OnnxNode) -> maps.EspAverage:
    shift = _wanted(node) - _given(node)
    if abs(shift) > maps.MOST_APART:
        raise Unsupported(f"averages whose exponent differs by {shift} from the input's")
    return maps.EspAverage(_bits(node), shift, _way(node).rounding)


@onnx_op("espdl::GlobalAveragePool", "espdl::GlobalMaxPool")
def _global(node: OnnxNode) -> Source:
    x = node.type(0)
    spatial = x.shape[1:-1]
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    window = Window(spatial, ones, ones, zeros, zeros)
    if node.op_type == "GlobalMaxPool":
        return _moved(node, build.of_image(Pool(window, "max"), x.rank, 0))
    return build.of_image(Pool(window, "average", rule=_average(node)), x.rank, 0)


@onnx_op("espdl::DequantizeLinear")
def _real(node: OnnxNode) -> Source:
    return _as_real(node)


def _as_real(node: OnnxNode) -> Emit:
    _bits(node)
    scale = np.array(maps.power(_given(node)), np.float32)
    return Emit(FixedMap(Dequantise()), [0, scale])


@onnx_op("espdl::QuantizeLinear")
def _integers(node: OnnxNode) -> Source:
    return _as_integers(node, 0)


def _as_integers(node: OnnxNode, source: Source) -> Emit:
    bits = NAMES.get(str(node.attr("out_type", "int8")))
    if bits is None:
        raise Unsupported(f"quantisation to {node.attr('out_type')}; int8 and int16 are supported")
    function = maps.EspQuantise(bits, _wanted(node), _way(node).rounding)
    return Emit(FixedMap(function), [source])


@onnx_op("espdl::RequantizeLinear")
def _again(node: OnnxNode) -> Source:
    bits = NAMES.get(str(node.attr("out_type", "int8")))
    if bits is None:
        raise Unsupported(f"requantisation to {node.attr('out_type')}")
    shift = _wanted(node) - _given(node)
    function = maps.EspRequantise((_bits(node), bits), shift, _way(node).rounding)
    return Emit(FixedMap(function), [0])


@onnx_op("espdl::Softmax")
def _softmax(node: OnnxNode) -> Source:
    """Of real numbers; results are float32, or integers of the result's exponent."""
    x = node.type(0)
    axis = normalise_axis(int(node.attr("axis", -1)), x.rank)
    real: Source = 0 if x.dtype == F32 else _as_real(node)
    made = Emit(Softmax((axis,)), [real])
    return made if node.attr("out_type") == "float32" else _as_integers(node, made)
