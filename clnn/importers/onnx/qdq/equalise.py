"""Equalisation across layers: channels of a product and of the one behind it share their sizes.

A channel's weights and bias in front are divided by a factor, and the weights that read it are multiplied
by it. Where nothing but rectifiers and pooling lies between, the float32 network computes the same, up to
rounding. A Clip between 0 and a bound limits a factor to what keeps the channel below the bound over the
samples, and a channel that reaches it keeps its size: inputs beyond the samples may clip otherwise there.

There are ways (WAYS): "weights" makes a channel's largest weights in front and behind alike, "values" its
largest value over the samples and the weights behind. Where each output channel has a scale of its own,
weights in front are free of choice; so are those behind in a depthwise convolution, where "values" and
"depthwise" make values alike alone. "depthwise" leaves all others as they are. Sources: Nagel and others,
Data-Free Quantization Through Weight Equalization and Bias Correction, 2019; Xiao and others, SmoothQuant,
2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.weights import attributes, channels_of, groups_of, output_axis
from clnn.records import dataclass
from clnn.types import Array

BEFORE, AFTER = ("Conv", "ConvTranspose", "Gemm"), ("Conv", "ConvTranspose", "Gemm", "MatMul")
POOLING = ("MaxPool", "AveragePool", "GlobalAveragePool", "Identity")
FLAT = ("Flatten", "Reshape", "Squeeze")
SWEEPS = 20
MOST = 256.0  # a factor is at most this, and at least its reciprocal
WAYS = {True: ("depthwise", "values"), False: ("weights", "values")}  # by scales per channel
TINY = float(np.finfo(np.float32).tiny)
ENOUGH = 1.01  # a change by less ends the sweeps


@dataclass(frozen=True)
class Pair:
    """Two products, the second alone reads the first. value: behind the clipping between them, if any.

    bound: where that clips; infinity where it does not.
    """

    first: onnx.NodeProto
    second: onnx.NodeProto
    value: str
    bound: float


def pairs(model: QdqModel) -> list[Pair]:
    """Return the pairs of a model whose channels can be equalised, in order."""
    found = []
    for node in model.products():
        if node.op_type in BEFORE:
            made = _pair(model, node)
            found += [made] if made is not None else []
    return found


def _pair(model: QdqModel, node: onnx.NodeProto) -> Pair | None:
    """Return the pair that a product begins."""
    value, behind, bound = node.output[0], node.output[0], np.inf
    channels = channels_of(node, model.weights(node))
    while value not in model.outputs and len(model.readers.get(value, [])) == 1:
        user = model.readers[value][0]
        if user.op_type in AFTER and model.takes(user) and user.input[0] == value:
            fits = _channels_read(model, user) == channels
            return Pair(node, user, behind, float(bound)) if fits else None
        limit = _limit(model, user)
        if limit is None or (np.isfinite(limit) and value != node.output[0]):
            return None
        bound = min(bound, limit)
        value = user.output[0]
        behind = value if user.op_type in ("Relu", "Clip", "PRelu", "LeakyRelu") else behind
    return None


def _limit(model: QdqModel, node: onnx.NodeProto) -> float | None:
    """Return where a node between products clips, infinity where nowhere; None: factors do not pass it."""
    if node.op_type in ("Relu", "LeakyRelu", *POOLING):
        return np.inf
    if node.op_type == "PRelu":
        return np.inf if node.input[1] in model.consts else None
    if node.op_type == "Clip":
        return _clipped_at(model, node)
    return np.inf if node.op_type in FLAT and _is_vector(model, node) else None


def _clipped_at(model: QdqModel, node: onnx.NodeProto) -> float | None:
    """Return the upper end of a Clip whose lower one is 0; None for others, and where ends are computed."""
    ends = [-np.inf, np.inf]
    for place, name in enumerate(node.input[1:3]):
        if name and (name not in model.consts or model.array(name).size != 1):
            return None
        ends[place] = float(model.array(name).reshape(-1)[0]) if name else ends[place]
    return ends[1] if ends[0] == 0 < ends[1] else None


def _is_vector(model: QdqModel, node: onnx.NodeProto) -> bool:
    """Whether a node turns one pixel of channels, (n, c, 1, 1), into a row (n, c)."""
    dims = [
        [d.dim_value for d in model.types[n].shape.dim] if n in model.types else []
        for n in (node.input[0], node.output[0])
    ]
    given, made = dims
    return (
        len(given) > 2
        and len(made) == 2
        and given[1] > 0
        and set(given[2:]) == {1}
        and (made[1] == given[1])
    )


def _made(weights: Array, node: onnx.NodeProto) -> Array:
    """Return a product's weights as (output channels, all others)."""
    if node.op_type != "ConvTranspose":
        weights = np.moveaxis(weights, output_axis(node), 0)
        return weights.reshape(len(weights), -1)
    groups, columns = groups_of(node), weights.shape[1]
    parts = weights.reshape(groups, len(weights) // groups, columns, -1)
    return parts.transpose(0, 2, 1, 3).reshape(groups * columns, -1)


def _read(weights: Array, node: onnx.NodeProto) -> Array:
    """Return a product's weights as (input channels, output channels of the group, all others)."""
    if node.op_type == "Conv":
        groups, columns = attributes(node).get("group", 1) or 1, weights.shape[1]
        parts = weights.reshape(groups, len(weights) // groups, columns, -1)
        parts = parts.transpose(0, 2, 1, 3)
        return parts.reshape(groups * columns, *parts.shape[2:])
    rows = (
        weights
        if node.op_type == "ConvTranspose"
        else np.moveaxis(weights, 1 - output_axis(node), 0)
    )
    return rows.reshape(*rows.shape[:2], -1)


def _channels_read(model: QdqModel, node: onnx.NodeProto) -> int:
    return len(_read(model.weights(node), node))


def _scaled(weights: Array, node: onnx.NodeProto, made: Array | None, read: Array | None) -> Array:
    """Return weights whose output channels are divided by `made`, and input channels multiplied by `read`."""
    groups = attributes(node).get("group", 1) or 1 if node.op_type.startswith("Conv") else 1
    axis = output_axis(node)
    shape = list(weights.shape)
    split = 0 if node.op_type.startswith("Conv") else None
    for factor, along in ((None if made is None else 1 / made, axis), (read, 1 - axis)):
        if factor is None:
            continue
        if split is None:
            wide = [1] * len(shape)
            wide[along] = -1
            weights = weights * factor.reshape(wide)
            continue
        # Axis 0 of a convolution's weights counts the channels of all groups, axis 1 those of one.
        parts = weights.reshape(groups, shape[0] // groups, *shape[1:])
        wide = [groups, 1, 1, *(1,) * (len(shape) - 2)]
        wide[1 + along] = -1
        weights = (parts * factor.reshape(wide)).reshape(shape)
    return weights


def factors(
    model: QdqModel, found: Sequence[Pair], peaks: Mapping[str, Array], way: str
) -> dict[str, Array]:
    """Return what each pair's channels are divided by, by its value; way: one of WAYS.

    peaks: the largest magnitude of each channel of a pair's value over the samples.
    """
    total = {p.value: np.ones(len(peaks[p.value])) for p in found}
    if model.per_channel:
        for pair in found:
            wanted = _by_channel(peaks[pair.value], pair.second, model.weights(pair.second), way)
            total[pair.value] = _allowed(wanted, peaks[pair.value], pair.bound)
        return total
    by_first = {p.first.output[0]: p.value for p in found}
    by_second = {p.second.output[0]: p.value for p in found}

    def now(node: onnx.NodeProto) -> Array:
        made, read = (total.get(by.get(node.output[0], "")) for by in (by_first, by_second))
        return np.abs(_scaled(model.weights(node).astype(np.float64), node, made, read))

    for _ in range(SWEEPS):
        most = 1.0
        for pair in found:
            old, peak = total[pair.value], peaks[pair.value]
            front = peak / old if way == "values" else _made(now(pair.first), pair.first).max(1)
            back = _read(now(pair.second), pair.second).max((1, 2))
            total[pair.value] = _allowed(old * _balanced(front, back), peak, pair.bound)
            change = total[pair.value] / old
            most = max(most, float(change.max()), float(1 / change.min()))
        if most < ENOUGH:
            break
    return total


def _balanced(front: Array, back: Array) -> Array:
    """Return what `front` is to be divided by, and `back` multiplied, to be alike beside the largest of each."""
    if not (front.max() > 0 and back.max() > 0):
        return np.ones(len(front))
    tops = [np.maximum(v / v.max(), MOST**-2) for v in (front, back)]
    return np.where((front > 0) & (back > 0), np.sqrt(tops[0] / tops[1]), 1.0)


def _by_channel(peaks: Array, node: onnx.NodeProto, weights: Array, way: str) -> Array:
    """Return what channels are divided by that a node reads whose output channels have a scale each."""
    if node.op_type == "Conv" and weights.shape[1] == 1:
        return np.where(peaks > 0, peaks / max(float(peaks.max()), TINY), 1.0)
    if way == "depthwise":
        return np.ones(len(peaks))
    weights = np.abs(weights.astype(np.float64))
    tops = _made(weights, node).max(1)
    share = _read(_scaled(weights, node, np.where(tops > 0, tops, 1.0), None), node)
    return _balanced(peaks, share.max((1, 2)))


def _allowed(wanted: Array, peaks: Array, bound: float) -> Array:
    """Return factors within the limits, and those that keep channels below where they are clipped."""
    wanted = np.clip(wanted, 1 / MOST, MOST)
    if not np.isfinite(bound):
        return wanted
    return np.where(peaks >= bound, 1.0, np.maximum(wanted, peaks / bound))


def equalised(model: QdqModel, found: Sequence[Pair], by: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the float32 model with channels divided; by: what each pair's are divided by."""
    made = onnx.ModelProto()
    made.CopyFrom(model.model)
    nodes = {n.output[0]: n for n in made.graph.node if n.output}
    front = {p.first.output[0]: by[p.value] for p in found}
    back = {p.second.output[0]: by[p.value] for p in found}
    for key in dict.fromkeys([*front, *back]):
        node = nodes[key]
        weights = model.weights(node).astype(np.float64)
        arrays = {1: _scaled(weights, node, front.get(key), back.get(key))}
        bias = model.bias(node)
        if bias is not None and key in front:
            arrays[2] = np.broadcast_to(bias, front[key].shape) / front[key]
        for place, array in arrays.items():
            name = f"{key}:equalised_{'weights' if place == 1 else 'bias'}"
            made.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
            node.input[place] = name
    read = {n for node in made.graph.node for n in node.input}
    kept = [t for t in made.graph.initializer if t.name in read or t.name in model.outputs]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made
