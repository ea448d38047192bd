"""clnn.quantize_onnx: corrected biases, excluded nodes, what is reported; files are run by two engines."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_networks import feeds, model_of, normal, scaled_badly, sqnr
from reference_engines import exact_session

import clnn
from clnn.bridges.qdq.sensitivity import picked
from clnn.errors import InputNameError, SettingError
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.switched import SWITCHES, Switched
from clnn.importers.onnx.qdq.write import quantised
from clnn.qdq.bench import Bench

onnxruntime = pytest.importorskip("onnxruntime")


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def run(model: onnx.ModelProto, samples, name="y"):
    session = exact_session(model.SerializeToString())
    return [session.run([name], feed)[0] for feed in samples]


def sessions_on(device):
    """What makes sessions of models for a bench."""
    return lambda model: clnn.compile_model(model, device)


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnxruntime computes it node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def rounded_one_way(bias: bool) -> onnx.ModelProto:
    """A convolution whose weights all lie 0.4 steps above bytes, and Relu."""
    steps = np.random.default_rng(3).integers(-60, 60, (4, 3, 3, 3)).astype(np.float32)
    steps += np.float32(0.4)
    steps[:, 0, 0, 0] = 127
    weights = {"w": steps / 127, "b": normal(4, seed=1)}
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    nodes = [
        helper.make_node("Conv", inputs, ["c"], "convolve", strides=[2, 1], pads=[1, 0, 1, 2]),
        helper.make_node("Relu", ["c"], ["y"], "rectify"),
    ]
    return model_of(nodes, {"x": [2, 3, 9, 8]}, {"y": [2, 4, 5, 8]}, weights)


def window_means(samples) -> np.ndarray:
    """What each weight of that convolution meets on the average, (3, 3, 3)."""
    total = np.zeros((3, 3, 3))
    for feed in samples:
        image = np.pad(feed["x"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (0, 2)))
        for i, j in np.ndindex(3, 3):
            total[:, i, j] += image[:, :, i : i + 9 : 2, j : j + 8].mean((0, 2, 3))
    return total / len(samples)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_bias_takes_the_mean_error(any_device, bias, per_channel):
    """Against sums in float64 of what rounding leaves; and the mean error of the file's sums is near none."""
    model, samples = rounded_one_way(bias), feeds(6, 2, 3, 9, 8, shift=2.0)
    made = {
        fix: clnn.quantize_onnx(
            model, samples, any_device, correct_bias=fix, per_channel=per_channel
        ).model
        for fix in (False, True)
    }
    consts = constants(made[True])
    scale = consts["c:weights:scale"].reshape(-1, *(1,) * 3).astype(np.float64)
    error = consts["c:weights:integers"] * scale - constants(model)["w"]
    expected = -np.tensordot(error, window_means(samples), 3)
    expected += constants(model)["b"] if bias else 0
    assert consts["c:bias:integers"].dtype == np.int32 and consts["c:bias:integers"].shape == (4,)
    steps = np.float32(consts["x:scale"]) * consts["c:weights:scale"]
    found = consts["c:bias:integers"] * consts["c:bias:scale"]
    np.testing.assert_array_equal(consts["c:bias:scale"], steps)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2 * steps.max())
    means = {}
    for fix, file in made.items():
        for node in file.graph.node:  # the sums before they are clipped and rounded
            if node.op_type == "Conv":
                file.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
        want = [reference(f["x"], model) for f in samples]
        got = [plain(file).run(["c"], f)[0] for f in samples]
        means[fix] = np.mean(np.array(got) - np.array(want), (0, 1, 3, 4))
    assert np.abs(means[False]).min() > 0.02
    assert np.abs(means[True]).max() < 0.05 * np.abs(means[False]).min()
    np.testing.assert_array_equal(
        clnn.compile_model(made[True], any_device)(samples[0])["y"],
        exact_session(made[True].SerializeToString()).run(["y"], samples[0])[0],
    )


def reference(image: np.ndarray, model: onnx.ModelProto) -> np.ndarray:
    """That convolution in float64."""
    consts = {n: a.astype(np.float64) for n, a in constants(model).items()}
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (0, 2)))
    total = np.zeros((2, 4, 5, 8))
    for i, j in np.ndindex(3, 3):
        part = padded[:, :, i : i + 9 : 2, j : j + 8]
        total += np.einsum("nchw,oc->nohw", part, consts["w"][:, :, i, j])
    has_bias = len(model.graph.node[0].input) > 2
    return total + (consts["b"].reshape(-1, 1, 1) if has_bias else 0)


def test_one_row_corrects_nothing(any_device):
    """It says nothing of how far other inputs differ."""
    model = rounded_one_way(False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    made = clnn.quantize_onnx(model, feeds(1, 1, 3, 9, 8, shift=2.0), any_device).model
    assert "c:bias:integers" not in constants(made)


def test_a_product_of_matrices_is_corrected_in_the_sum_behind_it(any_device):
    rng = np.random.default_rng(5)
    steps = rng.integers(-60, 60, (16, 4)).astype(np.float32) + np.float32(0.4)
    steps[0] = 127
    weights = {"w": steps / 127, "b": normal(4, seed=1) * 2, "v": normal(4, 3, seed=2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    model = model_of(nodes, {"x": [2, 5, 16]}, {"y": [2, 5, 3]}, weights)
    samples = feeds(6, 2, 5, 16, shift=3.0)
    made = clnn.quantize_onnx(model, samples, any_device)
    consts = constants(made.model)
    error = (
        consts["m:weights:integers"] * consts["m:weights:scale"].astype(np.float64) - weights["w"]
    )
    mean = np.mean([f["x"].astype(np.float64).mean((0, 1)) for f in samples], 0)
    step = consts["s:b:bytes:scale"]
    found = (consts["s:b:bytes:integers"].astype(int) - int(consts["s:b:bytes:zero"])) * step
    assert np.abs(mean @ error).max() > 2 * step
    np.testing.assert_allclose(found, weights["b"] - mean @ error, atol=0.51 * step)
    without = clnn.quantize_onnx(model, samples, any_device, correct_bias=False)
    want = run(model, samples)
    costs = [sqnr(np.array(want), np.array(run(m.model, samples))) for m in (made, without)]
    assert costs[0] > costs[1] + 3


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_badly_scaled_network_is_equalised(any_device, per_channel):
    model, samples = scaled_badly(), feeds(6, 1, 3, 8, 8)
    others = feeds(9, 1, 3, 8, 8)[6:]
    want, found = np.array(run(model, others)), {}
    for ask in (None, True, False):
        made = clnn.quantize_onnx(
            model, samples, any_device, equalise=ask, per_channel=per_channel, report=True
        )
        assert made.report is not None
        found[ask] = made.report.way, sqnr(want, np.array(run(made.model, others)))
        x = others[0]
        np.testing.assert_array_equal(
            clnn.compile_model(made.model, any_device)(x)["y"], run(made.model, [x])[0]
        )
    assert found[None] == found[True] and found[None][0] and found[False][0] == ""
    assert found[None][1] > found[False][1] + 3


def test_what_does_not_help_is_left_out(any_device):
    """Channels of one size already."""
    weights = {f"w{k}": np.sign(normal(6, 6, 1, 1, seed=k)) for k in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w1"], ["y"]),
    ]
    shape = [1, 6, 5, 5]
    model = model_of(nodes, {"x": shape}, {"y": shape}, weights)
    options = {"per_channel": False, "report": True}
    made = clnn.quantize_onnx(model, feeds(3, *shape), any_device, **options)
    assert made.report is not None and made.report.way == ""
    assert not any(n.equalised or n.corrected for n in made.report.nodes)
    assert made.report.plain == made.report.before == made.report.after


def deep() -> onnx.ModelProto:
    """Convolutions of which one, "bad", has weights that lose much, two outputs, and a residual sum."""
    bad = normal(8, 8, 1, 1, seed=2)
    bad[:, 0] *= 100
    weights = {"w0": normal(8, 3, 3, 3) / 5, "w1": bad, "w2": normal(8, 8, 3, 3, seed=3) / 8}
    weights |= {"w3": normal(4, 8, 1, 1, seed=4), "b0": normal(8, seed=5) / 5}
    weights["w0"][0], weights["b0"][0] = (
        -np.abs(weights["w0"][0]),
        -9,
    )  # a channel that is never positive
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], "first", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["ra"], "rectify"),
        node("Conv", ["ra", "w1"], ["b"], "bad"),
        node("Sigmoid", ["b"], ["t"], "squash"),
        node("Conv", ["t", "w2"], ["c"], "", pads=[1, 1, 1, 1]),
        node("Add", ["c", "ra"], ["s"], "skip"),
        node("Relu", ["s"], ["z"], "last"),
        node("Conv", ["z", "w3"], ["d"], "head"),
        node("Add", ["d", "other"], ["y"], "join"),
    ]
    shapes = {"x": [1, 3, 8, 8], "other": [1, 4, 8, 8]}
    return model_of(nodes, shapes, {"y": [1, 4, 8, 8], "z": [1, 8, 8, 8]}, weights)


NODES = ["first", "bad", "squash", "Conv_4", "skip", "head", "join"]


def both_feeds(count: int):
    pairs = zip(feeds(count, 1, 3, 8, 8), feeds(count, 1, 4, 8, 8, name="other"), strict=True)
    return [one | two for one, two in pairs]


def products_in_float(model: onnx.ModelProto) -> set[str]:
    """The names of convolutions whose weights are float32."""
    real = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    return {n.name for n in model.graph.node if n.op_type == "Conv" and n.input[1] in real}


def test_excluded_nodes_stay_float32(any_device):
    samples = both_feeds(4)
    made = clnn.quantize_onnx(deep(), samples, any_device, exclude=["bad", "Conv_4"])
    onnx.checker.check_model(made.model, full_check=True)
    assert products_in_float(made.model) == {"bad", "Conv_4"}
    scales = {n for n in constants(made.model) if n.endswith(":scale")}
    assert {
        "ra:scale",
        "b:scale",
        "t:scale",
        "c:scale",
    } <= scales and "b:weights:scale" not in scales
    whole = clnn.quantize_onnx(deep(), samples, any_device)
    assert products_in_float(whole.model) == set()
    session = clnn.compile_model(made.model, any_device)
    for feed in both_feeds(6)[4:]:
        got = session(feed)
        for name in "yz":
            want = exact_session(made.model.SerializeToString()).run([name], feed)[0]
            step = constants(made.model)[f"{name}:scale"]
            # Products in float32 are summed in another order, which decides what is near a tie.
            assert np.abs(got[name] - want).max() <= 1.01 * step
            assert (got[name] == want).mean() > 0.98


def test_engines_that_round_unasked_leave_excluded_weights(any_device):
    """onnxruntime's fused run and clnn make float32 weights behind DequantizeLinear int8, but not behind a Clip."""
    made = clnn.quantize_onnx(deep(), both_feeds(4), any_device, exclude=["bad"]).model
    (clip,) = [n for n in made.graph.node if n.name.endswith(":apart")]
    (bad,) = [n for n in made.graph.node if n.name == "bad"]
    assert list(clip.output) == list(bad.input[:1])
    step, feed = constants(made)["z:scale"], both_feeds(5)[4]
    want = plain(made).run(["z"], feed)[0]

    def furthest() -> list[float]:
        engines = exact_session(made.SerializeToString()), clnn.compile_model(made, any_device)
        runs = engines[0].run(["z"], feed)[0], engines[1](feed)["z"]
        return [float(np.abs(got - want).max() / step) for got in runs]

    assert max(furthest()) < 3
    bad.input[0] = clip.input[0]
    assert min(furthest()) > 10


def test_names_of_no_node_are_told(any_device):
    with pytest.raises(SettingError, match=r"'skp' is no node .* Did you mean 'skip'"):
        clnn.quantize_onnx(deep(), both_feeds(1), any_device, exclude=["skp"])


def test_what_moves_between_float_nodes_stays_float32():
    """A pooling with excluded products alone around it would only be rounded for itself."""
    weights = {f"w{k}": normal(3, 3, 1, 1, seed=k) for k in range(3)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "one"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2]),
        helper.make_node("Transpose", ["p"], ["t"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("Conv", ["t", "w1"], ["b"], "two"),
        helper.make_node("Conv", ["b", "w2"], ["y"], "three"),
    ]
    model = QdqModel(model_of(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 3, 5, 5]}, weights))
    assert model.excluding(["a", "b"]).wanted() == ["b", "y"]
    assert model.excluding(["a"]).wanted() == ["a", "p", "t", "b", "y"]
    assert model.excluding([]).wanted() == model.wanted() == ["x", "a", "p", "t", "b", "y"]


def test_the_worst_is_excluded_and_reported(any_device):
    made = clnn.quantize_onnx(deep(), both_feeds(5), any_device, exclude_worst=1, equalise=False)
    report = made.report
    assert report is not None and report.excluded == ["bad"]
    assert products_in_float(made.model) == {"bad"}
    rows = {n.name: n for n in report.nodes}
    assert [n.name for n in report.nodes] == NODES
    assert rows["first"].op == "Conv+Relu" and rows["skip"].op == "Add+Relu"
    assert rows["bad"].alone == min(n.alone for n in report.nodes)
    assert rows["bad"].without == max(n.without for n in report.nodes)
    assert rows["bad"].state == "float32: one of 1 that cost most"
    assert report.after > report.before + 3 and set(report.outputs) == {"y", "z"}
    # Against numpy: rounding of the first weights, and of the values behind them.
    weights = constants(deep())["w0"].astype(np.float64)
    scale = np.abs(weights).max((1, 2, 3), keepdims=True) / 127
    near = np.rint(weights / scale) * scale
    assert rows["first"].weights == pytest.approx(sqnr(weights, near), abs=0.05)
    assert np.isnan(rows["skip"].weights)
    values = np.array(run(with_output(deep(), "ra"), both_feeds(5), "ra"), np.float64)
    step = values.max() / 255
    picked = values[[0, 1, 3, 4]]
    near = np.rint(picked / step) * step
    assert rows["first"].values == pytest.approx(sqnr(picked, near), abs=0.05)


def with_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return model


def test_alone_is_what_a_file_with_that_node_alone_costs(any_device):
    samples = both_feeds(4)
    made = clnn.quantize_onnx(
        deep(), samples, any_device, report=True, equalise=False, correct_bias=False
    )
    assert made.report is not None
    names = [n.name for n in made.report.nodes]
    for row in made.report.nodes:
        others = [n for n in names if n != row.name]
        alone = clnn.quantize_onnx(
            deep(), samples, any_device, exclude=others, equalise=False, correct_bias=False
        ).model
        noise = []
        for name in "yz":
            want, got = (np.array(run(m, samples, name), np.float64) for m in (deep(), alone))
            noise.append(((got - want) ** 2).sum() / (want**2).sum())
        assert row.alone == pytest.approx(-10 * np.log10(np.mean(noise)), abs=0.1), row.name


def test_as_many_are_excluded_as_it_takes(any_device):
    samples, options = both_feeds(4), {"equalise": False, "report": True}
    base = clnn.quantize_onnx(deep(), samples, any_device, **options).report
    assert base is not None
    least = base.after + 3
    made = clnn.quantize_onnx(deep(), samples, any_device, least_sqnr=least, **options)
    assert made.report is not None
    assert made.report.after >= least and 0 < len(made.report.excluded) < 7
    enough = clnn.quantize_onnx(deep(), samples, any_device, least_sqnr=base.after - 1, **options)
    assert enough.report is not None and enough.report.excluded == []
    with pytest.raises(SettingError, match="200 dB are not reached"):
        clnn.quantize_onnx(deep(), samples, any_device, least_sqnr=200.0, **options)


def noises(noise):
    """What is asked of a network whose nodes add these noises, and "b" 4 that to leave it out does not end."""

    def ask(units):
        return -(4.0 + sum(v for k, v in noise.items() if k not in units))

    return {key: ask([key]) for key in noise}, ask


def test_nodes_are_picked_one_after_another():
    gains, ask = noises({"a": 1.0, "b": 0.0, "c": 2.0, "d": 0.5})
    assert picked(gains, [], ask, count=2) == ["c", "a"]
    assert picked(gains, ["c"], ask, count=2) == ["a", "d"]
    assert picked(gains, [], ask, count=0) == []
    assert picked(gains, [], ask, least=-5.5) == ["c"]
    assert picked(gains, [], ask, least=-5.4) == ["c", "a"]
    assert picked(gains, ["c"], ask, least=-5.4) == ["a"]
    assert picked(gains, [], ask, least=-8.0) == []
    assert picked(gains, [], ask, least=-3.0) == ["c", "a", "d"]  # all but one


def test_what_is_not_needed_is_put_back():
    """ "a" gains most alone, "b" and "c" most together; then "a" is not needed."""
    kept = {"": 0, "a": 3, "b": 2, "c": 2, "ab": 4, "ac": 4, "bc": 9, "abc": 10}

    def ask(units):
        return kept["".join(sorted(units))]

    gains = {key: float(kept[key]) for key in "abc"} | {"d": 0.0}
    kept |= {k + "d": v for k, v in kept.items()}
    assert picked(gains, [], ask, least=8.5) == ["b", "c"]
    assert picked(gains, [], ask, least=9.5) == ["a", "b", "c"]


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_switches_give_the_float_model_and_the_file(any_device, opset):
    """Computed by onnxruntime, node by node: all off is the model, all on the quantised file."""
    model = deep()
    model.opset_import[0].version, model.ir_version = opset, 8 if opset < 21 else 10
    samples = both_feeds(3)
    bench, source = Bench(samples, sessions_on(any_device)), QdqModel(model)
    measured = bench.measure(source, "minmax", errors=True)
    switched = Switched(source, measured.ranges)
    both = plain(switched.proto)
    on, off = switched.of(source), switched.of(source.excluding([u.key for u in source.units()]))
    assert on.all() and not off.any()
    file = plain(quantised(source, measured.ranges))
    for feed in samples:
        for k, name in enumerate("yz"):
            want = plain(model).run([name], feed)[0]
            np.testing.assert_array_equal(both.run(None, {**feed, SWITCHES: off})[k], want)
            made = both.run(None, {**feed, SWITCHES: on})[k]
            assert np.abs(made - want).max() > 0
            np.testing.assert_allclose(made, file.run([name], feed)[0], atol=1e-5)


def test_reports_are_written_as_text_pages_and_data(any_device):
    made = clnn.quantize_onnx(deep(), both_feeds(3), any_device, report=True, exclude=["skip"])
    report = made.report
    assert report is not None
    text, page, data = report.markdown(), report.html(), report.data()
    assert "| skip | Add+Relu |" in text and "float32: by name" in text
    assert text.count("\n| ") == len(report.nodes) + 2
    assert page.count("<tr>") == len(report.nodes) + 1 and "<td>Conv+Relu</td>" in page
    assert [n["name"] for n in data["nodes"]] == [n.name for n in report.nodes]
    assert data["after"] == report.after and data["samples"] == 3


def test_progress_is_told(any_device):
    told = []
    clnn.quantize_onnx(
        deep(), both_feeds(3), any_device, report=True, on_progress=lambda *step: told.append(step)
    )
    stages = list(dict.fromkeys(what for what, _, _ in told))
    assert stages[0] == "measuring values" and "measuring nodes" in stages
    for what in stages:
        ends = [(done, total) for name, done, total in told if name == what]
        assert ends[0][0] == 0 and ends[-1][0] == ends[-1][1]


def test_settings_that_are_none(any_device):
    model, samples = deep(), both_feeds(1)
    for options, said in (
        ({"method": "best"}, "method is 'best'"),
        ({"exclude_worst": -1}, "exclude_worst is -1"),
        ({"least_sqnr": float("nan")}, "least_sqnr is nan"),
        ({"exclude_worst": 7}, "nothing is quantised"),
        ({"exclude": NODES}, "with 7 nodes in float32 nothing is quantised"),
    ):
        with pytest.raises(SettingError, match=said):
            clnn.quantize_onnx(model, samples, any_device, **options)
    with pytest.raises(SettingError, match="no samples"):
        clnn.quantize_onnx(model, [], any_device)
    with pytest.raises(InputNameError, match="a sample has inputs x, the model x, other"):
        clnn.quantize_onnx(model, feeds(1, 1, 3, 8, 8), any_device)


def test_data_beside_the_model_goes_into_the_file(any_device, tmp_path):
    model, samples = deep(), both_feeds(2)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.bin", size_threshold=64)
    assert (tmp_path / "net.bin").stat().st_size > 1000
    made = clnn.quantize_onnx(path, samples, any_device, exclude=["bad"])
    want = clnn.quantize_onnx(deep(), samples, any_device, exclude=["bad"])
    made.save(tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == want.model.SerializeToString()


def test_outputs_that_cannot_be_compared_are_noise():
    from clnn.qdq.signals import Signals, powers

    found = Signals(["a", "b", "c"])
    ones = np.ones(4, np.float32)
    odd = np.array([1, np.inf, np.nan, 1], np.float32)
    found.see({"a": ones, "b": odd, "c": ones}, {"a": ones * 2, "b": odd, "c": ones[:3]})
    assert found.each == {"a": 0.0, "b": float("inf"), "c": 0.0}
    assert found.whole == pytest.approx(-10 * np.log10(2 / 3))
    assert powers(np.array(["x"], object), np.array(["y"], object)) == (0.0, 0.0)
    lost = Signals(["a"])
    lost.see({"a": ones}, {"a": odd})
    assert lost.each == {"a": -float("inf")} and lost.whole == -float("inf")


def test_many_samples_are_compared_in_part(any_device, monkeypatch):
    """As many outputs as are compared are kept; samples may be one object."""
    from clnn.qdq import bench

    monkeypatch.setattr(bench, "COMPARED", 3)
    samples = both_feeds(5)
    runs = bench.Bench([*samples, samples[0], samples[0]], sessions_on(any_device))
    assert [id(f) for f in runs.compared] == [id(samples[k]) for k in (0, 3, 0)]
    measured = runs.measure(QdqModel(deep()), "minmax")
    want = run(deep(), runs.compared)
    for got, right in zip(measured.outputs, want, strict=True):
        np.testing.assert_allclose(got["y"], right, atol=1e-4)
