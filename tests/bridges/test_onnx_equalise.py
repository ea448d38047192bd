"""Equalisation of ONNX models: the float32 function stays, channels come to one size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_networks import feeds, model_of, normal, scaled_badly

from clnn.importers.onnx.qdq.equalise import WAYS, equalised, factors, pairs
from clnn.importers.onnx.qdq.model import QdqModel

onnxruntime = pytest.importorskip("onnxruntime")
BOTH = [(per_channel, way) for per_channel, ways in WAYS.items() for way in ways]


def outputs(model: onnx.ModelProto, samples, names=()):
    made = onnx.ModelProto()
    made.CopyFrom(model)
    have = {v.name for v in made.graph.output}
    made.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    have = [v.name for v in session.get_outputs()]
    return [dict(zip(have, session.run(have, feed), strict=True)) for feed in samples]


def peaks_of(model: QdqModel, samples, names):
    runs = outputs(model.model, samples, names)
    return {
        n: np.max([np.abs(r[n]).max((0, *range(2, r[n].ndim))) for r in runs], axis=0)
        for n in names
    }


def many_kinds():
    """Products of all kinds in a row; what lies between passes factors."""
    weights = {
        "w0": normal(6, 3, 3, 3, seed=1),
        "b0": normal(6, seed=2),
        "slope": np.abs(normal(6, 1, 1, seed=3)),
        "w1": normal(6, 2, 2, 2, seed=4),
        "b1": normal(4, seed=5),
        "w2": normal(8, 2, 1, 1, seed=6),
        "w3": normal(8, 5, seed=7),
        "b3": normal(5, seed=8),
        "w4": normal(3, 5, seed=9),
        "w5": normal(3, 2, seed=10),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1]),
        node("PRelu", ["a", "slope"], ["ra"]),
        node("ConvTranspose", ["ra", "w1", "b1"], ["b"], strides=[2, 2], group=2),
        node("MaxPool", ["b"], ["pb"], kernel_shape=[2, 2]),
        node("Conv", ["pb", "w2"], ["c"], group=2),
        node("LeakyRelu", ["c"], ["rc"], alpha=0.2),
        node("GlobalAveragePool", ["rc"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["d"]),
        node("Relu", ["d"], ["rd"]),
        node("Gemm", ["rd", "w4"], ["e"], transB=1),
        node("MatMul", ["e", "w5"], ["y"]),
    ]
    return model_of(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 2]}, weights)


@pytest.mark.parametrize("per_channel,way", BOTH)
@pytest.mark.parametrize("make", [many_kinds, scaled_badly])
def test_the_float_function_stays(make, per_channel, way):
    model = QdqModel(make(), per_channel)
    samples, others = feeds(3, *dims(model)), feeds(3, *dims(model), shift=2.0)
    found = pairs(model)
    assert len(found) == (5 if make is many_kinds else 2)
    by = factors(model, found, peaks_of(model, samples, [p.value for p in found]), way)
    changed = [p for p in found if by[p.value].max() > 1.5 * by[p.value].min()]
    if (make, way) != (many_kinds, "depthwise"):
        assert changed
    made = equalised(model, found, by)
    onnx.checker.check_model(made, full_check=True)
    for want, got in zip(outputs(model.model, others), outputs(made, others), strict=True):
        np.testing.assert_allclose(got["y"], want["y"], rtol=2e-5, atol=2e-5)


def dims(model: QdqModel):
    return [d.dim_value for d in model.model.graph.input[0].type.tensor_type.shape.dim]


def largest(model: onnx.ModelProto, key: str, axes) -> np.ndarray:
    """The largest weight of each channel of a product."""
    node = next(n for n in model.graph.node if n.output[0] == key)
    array = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == node.input[1])  # fmt: skip
    return np.abs(array).max(axes)


def test_weights_in_front_and_behind_come_to_one_size():
    """With one scale: a channel's largest weights in front are those behind, both by the largest of all."""
    model = QdqModel(scaled_badly(), per_channel=False)
    found = pairs(model)
    peaks = peaks_of(model, feeds(2, 1, 3, 8, 8), [p.value for p in found])
    made = equalised(model, found, factors(model, found, peaks, "weights"))

    def shares(model, key, axes):
        top = largest(model, key, axes)
        return top / top.max()

    for front, back, axes in (("a", "b", (1, 2, 3)), ("b", "y", (0, 2, 3))):
        before = shares(model.model, front, (1, 2, 3)) / shares(model.model, back, axes)
        after = shares(made, front, (1, 2, 3)) / shares(made, back, axes)
        assert before.max() / before.min() > 50
        assert after.max() / after.min() < 1.1


def test_values_that_a_depthwise_convolution_reads_come_to_one_size():
    model = QdqModel(scaled_badly(), per_channel=True)
    found, samples = pairs(model), feeds(2, 1, 3, 8, 8)
    peaks = peaks_of(model, samples, [p.value for p in found])
    made = QdqModel(equalised(model, found, factors(model, found, peaks, "depthwise")))
    now = peaks_of(made, samples, ["ra", "rb"])
    assert peaks["ra"].max() > 10 * peaks["ra"].min()
    np.testing.assert_allclose(now["ra"], peaks["ra"].max(), rtol=1e-4)
    np.testing.assert_allclose(now["rb"], peaks["rb"], rtol=1e-4)


@pytest.mark.parametrize("per_channel,way", BOTH)
def test_a_clip_is_not_reached_by_what_did_not_reach_it(per_channel, way):
    weights = {
        "w0": normal(8, 3, 3, 3, seed=1) * np.exp2(np.arange(-4, 4)).reshape(-1, 1, 1, 1),
        "w1": normal(8, 1, 3, 3, seed=2),
        "zero": np.array(0, np.float32),
        "six": np.array(6, np.float32),
    }
    weights["w0"] = weights["w0"].astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Clip", ["a", "zero", "six"], ["c"]),
        helper.make_node("Conv", ["c", "w1"], ["y"], group=8),
    ]
    model = QdqModel(
        model_of(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 4, 4]}, weights), per_channel
    )
    (pair,), samples = pairs(model), feeds(3, 1, 3, 8, 8)
    peaks = peaks_of(model, samples, [pair.value])
    assert pair.bound == 6 and (peaks["c"] == 6).any() and (peaks["c"] < 2).any()
    by = factors(model, [pair], peaks, way)["c"]
    assert (by[peaks["c"] == 6] == 1).all() and (by != 1).any()
    assert (peaks["c"] / by <= 6 * (1 + 1e-6)).all()
    made = equalised(model, [pair], {"c": by})
    for want, got in zip(outputs(model.model, samples), outputs(made, samples), strict=True):
        np.testing.assert_allclose(got["y"], want["y"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "kind", ["output", "two readers", "computed weights", "sum", "Tanh", "pixels"]
)
def test_what_is_no_pair(kind):
    """Other readers would see the factors, and other operators do not pass them."""
    weights = {"w0": normal(4, 3, 1, 1), "w1": normal(2, 4, 1, 1), "one": np.ones(1, np.float32)}
    node, out = helper.make_node, {"y": [1, 2, 3, 3]}
    nodes = [node("Conv", ["x", "w0"], ["a"])]
    last = node("Conv", ["b", "w1"], ["y"])
    if kind == "output":
        nodes, out = [*nodes, node("Relu", ["a"], ["b"])], {**out, "b": [1, 4, 3, 3]}
    elif kind == "two readers":
        nodes += [node("Relu", ["a"], ["b"]), node("Exp", ["a"], ["z"])]
        out["z"] = [1, 4, 3, 3]
    elif kind == "computed weights":
        nodes += [node("Relu", ["a"], ["b"]), node("Exp", ["w1"], ["v"])]
        last.input[1] = "v"
    elif kind == "pixels":
        weights["w1"] = normal(36, 2, seed=3)
        nodes += [node("Flatten", ["a"], ["b"])]
        last, out = node("Gemm", ["b", "w1"], ["y"]), {"y": [1, 2]}
    else:
        inputs = ["a", "one"] if kind == "sum" else ["a"]
        nodes += [node("Add" if kind == "sum" else kind, inputs, ["b"])]
    model = model_of([*nodes, last], {"x": [1, 3, 3, 3]}, out, weights)
    assert pairs(QdqModel(model)) == []
