"""Options(dtype="int8") computes what the file computes that `clnn quantize` writes of the same samples."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_networks import feeds, model_of, normal, scaled_badly

import clnn
from clnn.api import prepare, settled
from clnn.errors import InputNameError, ModelError, SettingError

INT8 = clnn.Options(dtype="int8")
node = helper.make_node


def mobile() -> onnx.ModelProto:
    """A stem, a depthwise layer, a residual sum, a concatenation, the average of the image, a linear layer."""
    weights = {
        "w0": normal(8, 3, 3, 3) / 5,
        "b0": normal(8) / 5,
        "w1": normal(8, 1, 3, 3, seed=1) / 3,
        "w2": normal(8, 8, 1, 1, seed=2) / 3,
        "w3": normal(12, 8, 1, 1, seed=3) / 3,
        "w4": normal(20, 10, seed=4) / 5,
        "b4": normal(10, seed=4),
        "least": np.array(0, np.float32),
        "most": np.array(6, np.float32),
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], "depthwise", pads=[1, 1, 1, 1], group=8),
        node("Clip", ["c1", "least", "most"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], "narrow"),
        node("Add", ["c2", "r0"], ["sum"], "skip"),
        node("Conv", ["sum", "w3"], ["c3"], "wide"),
        node("Concat", ["c3", "sum"], ["both"], axis=1),
        node("MaxPool", ["both"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["pooled"], ["mean"]),
        node("Flatten", ["mean"], ["row"]),
        node("Gemm", ["row", "w4", "b4"], ["y"], "classes"),
    ]
    return model_of(nodes, {"x": [2, 3, 16, 16]}, {"y": [2, 10]}, weights)


def attention() -> onnx.ModelProto:
    """Rows through products of constant matrices, of each other, and a sum with what they were."""
    names = ("query", "key", "value", "out")
    weights = {n: normal(16, 16, seed=k) / 4 for k, n in enumerate(names)}
    weights |= {"bias": normal(16), "scale": np.array(0.25, np.float32)}
    nodes = [
        node("MatMul", ["x", "query"], ["q0"]),
        node("Add", ["q0", "bias"], ["q"]),
        node("MatMul", ["x", "key"], ["k"]),
        node("MatMul", ["x", "value"], ["v"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v"], ["mixed"]),
        node("MatMul", ["mixed", "out"], ["made"]),
        node("Add", ["made", "x"], ["y"]),
    ]
    return model_of(nodes, {"x": [2, 9, 16]}, {"y": [2, 9, 16]}, weights)


def sound() -> onnx.ModelProto:
    """Convolutions along one axis, one of which spreads, and a sigmoid."""
    weights = {"w0": normal(8, 4, 5) / 4, "w1": normal(6, 8, 3, seed=1) / 4, "w2": normal(6, 4, 2)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "front", pads=[2, 2]),
        node("LeakyRelu", ["a"], ["b"], alpha=0.2),
        node("Conv", ["b", "w1"], ["c"], "far", dilations=[2], pads=[2, 2], strides=[2]),
        node("Sigmoid", ["c"], ["d"]),
        node("ConvTranspose", ["d", "w2"], ["y"], "up", strides=[2]),
    ]
    return model_of(nodes, {"x": [1, 4, 30]}, {"y": [1, 4, 30]}, weights)


def unlike() -> onnx.ModelProto:
    return scaled_badly()


NETWORKS = (mobile, attention, sound, unlike)
SHAPES = {mobile: (2, 3, 16, 16), attention: (2, 9, 16), sound: (1, 4, 30), unlike: (1, 3, 8, 8)}


def shown(session) -> list[tuple[str, ...]]:
    """Return what runs: each layer and its kernel."""
    return [(row["node"], row["variant"]) for row in session.placement.nodes]


@pytest.mark.parametrize("network", NETWORKS)
def test_the_option_is_the_file_to_the_bit(any_device, network):
    samples = feeds(3, *SHAPES[network])
    file = clnn.quantize_onnx(network(), samples, any_device).model
    data = network().SerializeToString()
    with (
        clnn.compile_model(file, any_device) as want,
        clnn.compile_model(data, any_device, INT8, calibration=iter(samples)) as got,
    ):
        assert shown(got) == shown(want)
        assert any("_s8" in kernel or "_u8" in kernel or "q_" in kernel for _, kernel in shown(got))
        for feed in (*samples, *feeds(2, *SHAPES[network], shift=0.5)):
            assert got(feed)["y"].tobytes() == want(feed)["y"].tobytes()


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
def test_ranges_are_the_file_without_corrections(any_device, method, tmp_path):
    samples, plain = feeds(3, *SHAPES[mobile]), {"equalise": False, "correct_bias": False}
    file = clnn.quantize_onnx(mobile(), samples, any_device, method=method, **plain)
    ranges = clnn.calibrate(mobile(), iter(samples), any_device, method=method)
    assert ranges == file.ranges
    (tmp_path / "r.json").write_text(json.dumps(ranges))
    in_file = clnn.Options(dtype="int8", calibration=str(tmp_path / "r.json"))
    for options, given in ((INT8, ranges), (INT8, tmp_path / "r.json"), (in_file, None)):
        made, rest = settled(mobile(), any_device, options, calibration=given)
        assert made == file.model and rest == clnn.Options()


def test_a_path_and_its_ranges(any_device, tmp_path):
    onnx.save(mobile(), tmp_path / "net.onnx")
    samples = feeds(2, *SHAPES[mobile])
    ranges = clnn.calibrate(tmp_path / "net.onnx", samples, any_device)
    (tmp_path / "r.json").write_text(json.dumps(ranges))
    options = clnn.Options(dtype="int8", calibration=str(tmp_path / "r.json"))
    got = []
    for model in (tmp_path / "net.onnx", mobile()):
        with clnn.compile_model(model, any_device, options) as session:
            got.append(session(samples[0])["y"].tobytes())
            session.save(tmp_path / "net.clnn")
        with clnn.compile_model(tmp_path / "net.clnn", any_device) as saved:
            got.append(saved(samples[0])["y"].tobytes())
    assert len(set(got)) == 1


def test_open_shapes_are_quantised_once(any_device):
    model = mobile()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    samples = feeds(2, *SHAPES[mobile])
    file = clnn.quantize_onnx(model, samples, any_device).model
    with (
        clnn.compile_model(file, any_device) as want,
        clnn.compile_model(model, any_device, INT8, calibration=samples) as got,
    ):
        for batch in (1, 5, 3):
            (feed,) = feeds(1, batch, 3, 16, 16)
            assert got(feed)["y"].tobytes() == want(feed)["y"].tobytes()


def test_what_values_decide_runs_too(any_device):
    """A network that is compiled in stages, for its last shape follows from numbers that it computes."""
    weights = {"w": normal(8, 4, 3, 3) / 4}
    nodes = [
        node("Conv", ["x", "w"], ["a"], "front", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("NonZero", ["b"], ["places"]),
        node("Cast", ["places"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": [1, 4, 5, 5]}, {"y": [4, "count"]}, weights)
    samples = feeds(2, 1, 4, 5, 5)
    file = clnn.quantize_onnx(model, samples, any_device).model
    with (
        clnn.compile_model(file, any_device) as want,
        clnn.compile_model(model, any_device, INT8, calibration=samples) as got,
    ):
        np.testing.assert_array_equal(got(samples[0])["y"], want(samples[0])["y"])


def test_old_operator_sets_are_converted(any_device):
    """Scales of channels came with operator set 13."""
    model, samples = unlike(), feeds(2, *SHAPES[unlike])
    model.opset_import[0].version, model.ir_version = 11, 3
    for tensor in model.graph.initializer:  # inputs, too, in models of that age
        kind = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        model.graph.input.append(kind)
    with clnn.compile_model(model, any_device, INT8, calibration=samples) as session:
        got = session(samples[0])["y"]
    file = clnn.quantize_onnx(model, samples, any_device)
    assert file.model.opset_import[0].version >= 13
    with clnn.compile_model(file.model, any_device) as session:
        assert session(samples[0])["y"].tobytes() == got.tobytes()


def test_what_cannot_be_converted_is_told(any_device):
    model = unlike()
    model.opset_import[0].version = 11
    model.graph.node.append(node("Upsample", ["b"], ["unused"], scales=[1.0, 1.0, 2.0, 2.0]))
    with pytest.raises(ModelError, match="operator set is 11"):
        settled(model, any_device, INT8, calibration=feeds(1, *SHAPES[unlike]))


def test_a_network_without_products_stays_as_it_is(any_device):
    model = model_of([node("Exp", ["x"], ["y"])], {"x": [3]}, {"y": [3]}, {})
    made, options = settled(model, any_device, INT8, calibration=feeds(1, 3))
    assert made is model and options == clnn.Options()
    assert clnn.calibrate(model, feeds(1, 3), any_device) == {}


def test_wrong_calibration_is_told(any_device, tmp_path):
    shape = SHAPES[unlike]
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("{")
    nan = {"x": np.full(shape, np.nan, np.float32)}
    for given, words in (
        (None, "needs to know the ranges of values"),
        ({}, "calibration says nothing of value 'x'"),
        ({"z": (0.0, 1.0)}, "Calibrate this one"),
        ({"x": 1.0}, "range of 'x' is 1.0, must be two numbers"),
        ({"x": (1.0, -1.0)}, "must be two numbers, the least and the"),
        ({"x": (0.0, float("inf"))}, "must be two numbers"),
        ({"x": np.ones(shape)}, "an array of shape"),
        ([], "calibration got no samples"),
        ([nan], "has NaN or infinity with sample 1"),
        (tmp_path / "none.json", "no calibration file"),
        (tmp_path / "list.json", "no JSON object"),
        (tmp_path / "text.json", "no JSON file of ranges"),
    ):
        with pytest.raises(SettingError, match=words):
            settled(unlike(), any_device, INT8, calibration=given)
    with pytest.raises(InputNameError, match="a sample has inputs z, the model x"):
        settled(unlike(), any_device, INT8, calibration=feeds(1, *shape, name="z"))
    with pytest.raises(SettingError, match="of no use with"):
        clnn.compile_model(unlike(), any_device, calibration={"x": (0.0, 1.0)})
    with pytest.raises(SettingError, match="of no use with"):
        clnn.Options(calibration="ranges.json")
    with pytest.raises(SettingError, match="method is 'max'"):
        clnn.calibrate(unlike(), [], any_device, method="max")
    with pytest.raises(SettingError, match=r"give \[feed\]"):
        clnn.calibrate(unlike(), {"x": normal(*shape)}, any_device)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_graph_takes_the_same_operators(any_device, network):
    """A Graph that was read of the model, with the file's ranges: the file without equalisation and corrections."""
    samples, plain = feeds(3, *SHAPES[network]), {"equalise": False, "correct_bias": False}
    file = clnn.quantize_onnx(network(), samples, any_device, **plain)
    graph = clnn.api.load_graph(network())
    ranges = clnn.calibrate(graph, samples, any_device)
    assert sorted(ranges.values()) == sorted(file.ranges.values())
    small = prepare(graph, INT8, ranges, any_device)
    want = prepare(clnn.api.load_graph(file.model), clnn.Options(), device=any_device)
    assert [n.spec for n in small.nodes] == [n.spec for n in want.nodes]
    with (
        clnn.compile_model(file.model, any_device) as right,
        clnn.compile_model(graph, any_device, INT8, calibration=ranges) as session,
    ):
        for feed in samples:
            assert session(feed)["y"].tobytes() == right(feed)["y"].tobytes()
