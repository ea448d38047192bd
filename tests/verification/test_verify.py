"""clnn.verify must find what is wrong: defects are put into kernels, layouts and memory plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import clnn
from clnn.errors import InputNameError, MissingPackageError, SettingError
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.elementwise import eltwise
from clnn.ops.shared.functions import PostOp
from clnn.plan import schedule
from clnn.verification import onnxruntime as other
from clnn.verification.bisect import alone, prefix
from clnn.verification.compare import difference
from clnn.verification.feeds import random_feeds
from clnn.verification.reference import reference_values

ENGINES = ("onnxruntime", "reference")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """x -> Conv "first" -> Relu -> Conv "second" -> HardSwish -> + skip -> y, with borders."""
    from onnx import TensorProto, helper, numpy_helper, save

    def weights(*shape):
        return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) / 4

    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"], "rectify"),
            node("Conv", ["r1", "w2"], ["c2"], "second", pads=[1, 1, 1, 1]),
            node("HardSwish", ["c2"], ["h2"], "bend"),
            node("Conv", ["h2", "w3"], ["c3"], "third", pads=[1, 1, 1, 1]),
            node("Add", ["c3", "x"], ["y"], "skip"),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 7])],
        [
            numpy_helper.from_array(a, n)
            for n, a in {
                "w1": weights(8, 4, 3, 3),
                "b1": weights(8),
                "w2": weights(8, 8, 3, 3),
                "w3": weights(4, 8, 3, 3),
            }.items()
        ],
    )
    path = tmp_path_factory.mktemp("verify") / "network.onnx"
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def spoil(patch):
    """Let kernels compute |x| for relu; references stay right."""
    launch, params = eltwise.walk_launch, ConvProblem.params.func

    def wrong(post_ops):
        return tuple(PostOp("abs") if p.fn == "relu" else p for p in post_ops)

    def wrong_launch(name, sources, result, target, post_ops, operands):
        return launch(name, sources, result, target, wrong(post_ops), operands)

    def wrong_params(problem):
        return params(problem) | {"post_ops": wrong(problem.post_ops)}

    patch.setattr(eltwise, "walk_launch", wrong_launch)
    patch.setattr(ConvProblem, "params", property(wrong_params))


@pytest.fixture(scope="module")
def wrong_report(network, any_device):
    """The report, by layer and with a bisection, of a network with a wrong relu."""
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch)
        return clnn.verify(network, "reference", any_device, per_layer=True, bisect=True)


@pytest.mark.parametrize("against", ENGINES)
def test_a_right_network_passes_whole_and_by_layer(network, device, against):
    report = clnn.verify(network, against, device, per_layer=True, bisect=True)
    assert report
    assert report.bisection is None
    assert report.first_diverging is None
    assert [d.name for d in report.outputs] == ["y"]
    assert 0 < report.outputs[0].relative < 1e-5
    assert 0 < report.outputs[0].ulp < 1e5
    names = {layer.node.split(" ")[0] for layer in report.layers}
    assert names == {"first", "rectify", "second", "bend", "third", "skip"}
    assert report.text().endswith("PASSED")


@pytest.mark.parametrize("against", ENGINES)
def test_a_wrong_kernel_is_found(network, any_device, monkeypatch, against):
    spoil(monkeypatch)
    report = clnn.verify(network, against, any_device, per_layer=True)
    assert not report
    assert not report.outputs[0].passed
    assert report.first_diverging.node.split(" ")[0] == "rectify"
    worst = report.first_diverging.total
    assert worst.want == 0
    assert worst.got > 0
    text = report.text()
    assert "first diverging: rectify" in text
    assert "reproduce: clnn verify" in text


def test_only_the_guilty_layer_is_wrong_by_itself(wrong_report):
    layers = wrong_report.layers
    assert [layer.node for layer in layers if not layer.passed] == ["rectify"]
    late = next(layer for layer in layers if layer.node == "third")
    assert not late.total.passed
    assert late.own.passed


def test_bisection_finds_a_wrong_kernel_by_few_networks(wrong_report):
    found = wrong_report.bisection
    assert found.node == "first"
    assert "rectify" in found.origin
    assert not found.alone.passed
    assert "its kernel is wrong" in found.verdict
    assert found.compiled <= 7


def test_bisection_tells_a_wrong_memory_plan_from_a_wrong_kernel(network, any_device, monkeypatch):
    """Everything at offset 0: what a step reads is overwritten while it runs."""
    right = schedule.plan_memory

    def everything_at_zero(blocks, **options):
        plan = right(blocks, **options)
        return replace(plan, offsets=dict.fromkeys(plan.offsets, 0))

    monkeypatch.setattr(schedule, "plan_memory", everything_at_zero)
    found = clnn.verify(network, "reference", any_device, bisect=True).bisection
    assert found is not None
    assert found.unshared
    assert "memory is shared wrongly" in found.verdict


def test_report_as_data(wrong_report):
    import json

    data = json.loads(json.dumps(wrong_report.to_dict()))
    assert data["passed"] is False
    assert data["first_diverging"] == "rectify"
    assert data["bisection"]["verdict"] == wrong_report.bisection.verdict


def test_the_command_repeats_the_comparison(network, any_device):
    report = clnn.verify(
        network,
        "reference",
        any_device,
        True,
        seed=7,
        tolerance=1e-3,
        bisect=True,
        options=clnn.Options(arena="separate"),
        shapes={"x": (1, 4, 6, 7)},
    )
    assert report.command == (
        f"clnn verify {network} --against reference --device '{any_device}' --shape x:1,4,6,7"
        " --seed 7 --tolerance 0.001 --option arena=separate --per-layer --bisect"
    )


def test_given_input_is_used(network, any_device):
    zeros = np.zeros((1, 4, 6, 7), np.float32)
    bias_only = clnn.verify(network, "reference", any_device, feeds={"x": zeros})
    assert bias_only
    assert (
        bias_only.outputs[0].want != clnn.verify(network, "reference", any_device).outputs[0].want
    )
    with pytest.raises(InputNameError, match="no input is named 'z'"):
        clnn.verify(network, "reference", any_device, feeds={"z": zeros})


def test_wrong_arguments(network, any_device):
    with pytest.raises(SettingError, match="against is 'tensorflow'"):
        clnn.verify(network, "tensorflow")
    with pytest.raises(SettingError, match="tolerance is -1"):
        clnn.verify(network, "reference", tolerance=-1)
    from clnn.api import load_graph

    graph = load_graph(network)
    with pytest.raises(SettingError, match="Graph cannot be given to onnxruntime"):
        clnn.verify(graph, "onnxruntime")
    assert clnn.verify(graph, "reference", any_device)


def test_without_onnxruntime_it_says_what_to_do(network, any_device, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingPackageError, match=r"pip install onnxruntime.*'reference'"):
        clnn.verify(network, "onnxruntime", any_device)
    assert other.OnnxRuntime.__doc__


def test_differences_of_floats():
    want = np.array([1.0, -2.0, 0.0, 4.0])
    got = want.astype(np.float32)
    assert difference("x", got, want, 1e-6).passed
    off = got.copy()
    off[1] += 0.25
    found = difference("x", off, want, 1e-2)
    assert (found.max_abs, found.relative, found.at) == (0.25, 0.0625, (1,))
    assert (found.got, found.want, found.passed) == (-1.75, -2.0, False)
    assert found.ulp == 0.25 / np.spacing(np.float32(2))
    assert difference("x", off, want, 0.1).passed


def test_ulp_does_not_count_what_is_next_to_nothing():
    want = np.array([1.0, 1e-9])
    got = np.array([1.0, 3e-9], np.float32)
    assert difference("x", got, want, 1e-6).ulp == 0


@pytest.mark.parametrize(
    "got, want, passed",
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.inf, 1], [np.inf, 1], True),
        ([np.nan, 1], [1, 1], False),
        ([1, 1], [np.nan, 1], False),
        ([np.inf, 1], [-np.inf, 1], False),
        ([1e30, 1], [np.inf, 1], False),
        ([0, 0], [0, 0], True),
        ([1e-30, 0], [0, 0], False),
        ([], [], True),
    ],
)
def test_nan_infinity_and_zero(got, want, passed):
    found = difference("x", np.array(got, np.float32), np.array(want, np.float64), 1e-3)
    assert found.passed is passed


def test_integers_must_be_equal():
    want = np.array([100, 200], np.uint8)
    assert difference("x", want, want, 0.5).passed
    assert not difference("x", want, want + np.uint8(1), 0.5).passed


def test_shapes_must_be_equal():
    assert not difference("x", np.zeros((2, 3), np.float32), np.zeros((3, 2)), 1).passed


def test_random_inputs_depend_on_seed_and_place_only():
    from clnn.layout import TensorLayout
    from clnn.runtime.run.tensor_info import TensorInfo

    ports = [
        TensorInfo(name, (50,), np.dtype(kind), TensorLayout.make((50,)))
        for name, kind in (
            ("a", "float32"),
            ("b", "float32"),
            ("c", "int8"),
            ("d", "int64"),
            ("e", "bool"),
        )
    ]
    one, two, other_seed = random_feeds(ports), random_feeds(ports), random_feeds(ports, 1)
    for name, array in one.items():
        assert array.tobytes() == two[name].tobytes()
        assert array.tobytes() != other_seed[name].tobytes()
        assert array.dtype == next(p.dtype for p in ports if p.name == name)
    assert one["a"].tobytes() != one["b"].tobytes()
    assert one["a"].min() < 0 < one["a"].max()
    assert one["c"].min() < -50 < 50 < one["c"].max()
    assert set(one["d"].tolist()) == {0, 1}
    given = {"a": np.ones(50, np.float32), "extra": np.ones(1)}
    assert random_feeds(ports, 0, given)["a"] is given["a"]
    assert "extra" in random_feeds(ports, 0, given)


def test_cut_networks_compute_the_same_values(network):
    from clnn.api import load_graph
    from clnn.graph.ir import check
    from clnn.graph.passes import optimise

    graph = optimise(load_graph(network))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 7)).astype(np.float32)}
    whole = reference_values(graph, feeds)
    for count in range(1, len(graph.nodes) + 1):
        cut = check(prefix(graph, count))
        assert len(cut.nodes) <= count
        values = reference_values(cut, feeds)
        for name in cut.outputs:
            np.testing.assert_array_equal(values[name], whole[name])
    for node in graph.nodes:
        single = check(alone(graph, node))
        values = reference_values(single, {n: whole[n] for n in single.inputs})
        np.testing.assert_array_equal(values[node.outputs[0]], whole[node.outputs[0]])
