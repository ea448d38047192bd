"""What is stored in 16 bits, where conversions stand, and that a whole network stays accurate."""

from __future__ import annotations

import numpy as np
import pytest
from common import ROOT
from harness import normal
from small_graphs import GRAPHS, Builder

import clnn
from clnn.api import prepare
from clnn.errors import SettingError
from clnn.graph.passes.store import store_as
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Reshape
from clnn.ops.rows.lrn import Lrn
from clnn.ops.shared.functions import PostOp
from clnn.plan.schedule import make_plan
from clnn.runtime.run.work import work_of
from clnn.target import Target
from clnn.types import STORAGE, STORED_BF16, STORED_F16
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt  # kernels that are slow to build

F16, BF16 = clnn.Options(dtype="f16"), clnn.Options(dtype="bf16")
MODELS = ROOT.parent / "shared" / "models"


def kinds(graph) -> list[str]:
    return [node.spec.kind for node in graph.nodes]


def test_float32_leaves_the_graph_as_it_is():
    graph = GRAPHS["classifier"]()
    assert store_as(graph, STORAGE["f32"]) is graph


def test_inputs_and_outputs_stay_float32_and_convert_once():
    b = Builder(x=(2, 8))
    one, two = b.post_ops("relu", "x"), b.post_ops("neg", "x")
    graph = store_as(b.graph(b.post_ops("add", one, two), one), STORED_F16)
    assert kinds(graph) == ["convert", "eltwise", "eltwise", "eltwise", "convert", "convert"]
    assert "x" not in graph.stored and not set(graph.outputs.values()) & set(graph.stored)
    assert set(graph.stored.values()) == {STORED_F16}


def test_profiles_count_bytes_as_they_lie_in_memory():
    b = Builder(x=(2, 8))
    graph = store_as(b.graph(b.post_ops("neg", b.post_ops("relu", "x"))), STORED_F16)
    works = work_of(make_plan(graph, Target("cpu")))
    assert [works[n.name].nbytes for n in graph.nodes] == [96, 64, 64, 96]
    plain = work_of(make_plan(b.graph(b.nodes[-1].outputs[0]), Target("cpu")))
    assert [work.nbytes for work in plain.values()] == [128, 128]


def test_ops_without_16_bit_storage_stand_between_conversions():
    b = Builder(x=(1, 4, 5, 5))
    first = b.post_ops("relu", "x")
    middle = b.add(Lrn(3), first)
    view = b.add(Reshape((1, 4, 25)), middle)
    graph = store_as(b.graph(b.post_ops("exp", view)), STORED_BF16)
    assert kinds(graph) == [
        "convert",
        "eltwise",
        "convert",
        "lrn",
        "reshape",
        "convert",
        "eltwise",
        "convert",
    ]
    assert middle not in graph.stored and view not in graph.stored


def test_a_constant_beyond_half_keeps_its_node_in_float32(caplog):
    b = Builder(x=(4,))
    mask = b.fixed(np.array([0, -3e38, 1, 2], np.float32))
    large = b.post_ops("add", "x", mask)
    b.post_ops("mul", large, b.fixed(np.array([np.inf, 65504, -65504, 1e-9], np.float32)))
    made = b.graph(b.nodes[-1].outputs[0])
    graph = store_as(made, STORED_F16)
    assert large not in graph.stored and len(graph.stored) == 3
    assert "n0 stays in float32: a constant of it does not fit f16" in caplog.text
    assert large in store_as(made, STORED_BF16).stored


def test_a_constant_of_both_kinds_of_ops_is_there_twice():
    b = Builder(x=(1, 4, 5, 5))
    shared = b.const(1, 4, 5, 5)
    both = b.post_ops("add", b.post_ops("mul", "x", shared), b.add(Lrn(3), shared))
    graph = store_as(b.graph(both), STORED_F16)
    assert shared in graph.consts and f"{shared}:f16" in graph.consts
    assert graph.stored[f"{shared}:f16"] == STORED_F16 and shared not in graph.stored


@pytest.mark.parametrize("options,limit", [(F16, 4e-3), (BF16, 3e-2)])
@pytest.mark.parametrize("name", GRAPHS)
def test_small_networks(device, name, options, limit):
    graph = GRAPHS[name]()
    x = normal(graph.types["x"].shape, 3)
    right = reference_values(graph, {"x": x})
    with clnn.compile_model(graph, device, options) as session:
        got = session({"x": x})
        placed = session.placement
        for public, value in graph.outputs.items():
            assert got[public].dtype == graph.types[value].dtype.numpy
            if got[public].dtype.kind == "f":
                worst = np.abs(got[public] - right[value]).max() / np.abs(right[value]).max()
                assert worst <= limit, f"{name}: {worst}"
    assert f"] as {options.dtype}" in str(placed) and " convert " in str(placed)


@pytest.mark.parametrize("name", GRAPHS)
def test_fused_kernels_give_the_same_bits(device, name):
    graph = GRAPHS[name]()
    x = normal(graph.types["x"].shape, 3)
    found, fused = [], []
    for merge in (True, False):
        with clnn.compile_model(graph, device, clnn.Options(dtype="bf16", merge=merge)) as session:
            found.append([a.tobytes() for a in session({"x": x}).values()])
            fused.append(session._fused is not None)
            on_cpu = session.device.type == "cpu"
    assert fused == [on_cpu, False] and found[0] == found[1]


def test_the_arena_is_about_half(device):
    sizes = {}
    for dtype in ("f32", "f16"):
        b = Builder(x=(1, 16))
        at = b.add(Reshape((1, 1, 4, 4)), "x")
        for channels in (64, 64, 64):
            at = b.conv(at, channels)
        graph = b.graph(b.add(Eltwise((PostOp("abs"),)), at))
        with clnn.compile_model(graph, device, clnn.Options(dtype=dtype)) as session:
            sizes[dtype] = session.placement.arena_bytes
            weights = session.plan.scheduled
    assert sizes["f16"] < 0.62 * sizes["f32"] and weights


def test_an_unknown_dtype_is_named():
    with pytest.raises(SettingError, match="Use one of f32, tf32, f16, bf16"):
        clnn.Options(dtype="fp16")


def test_tuning_measures_16_bit_problems():
    from clnn.plan.schedule import make_plan
    from clnn.target import Target
    from clnn.tune.task import tasks_of

    graph = GRAPHS["classifier"]()
    wide = tasks_of(make_plan(prepare(graph, clnn.Options()), Target()))
    narrow = tasks_of(make_plan(prepare(graph, F16), Target()))
    convs = [t for t in narrow if t.step.node.spec.kind == "conv2d"]
    assert convs and all(t.step.problem.outputs[0].stored for t in convs)
    assert {t.sig.key for t in wide}.isdisjoint(t.sig.key for t in convs)


@pytest.mark.parametrize("options,limit", [(F16, 5e-3), (BF16, 4e-2)])
def test_a_trained_network(device, options, limit):
    """MLPerf Tiny's ResNet-8 in full: probabilities as the source's own engine gives them."""
    folder = MODELS / "mlperf_resnet8_float"
    if not folder.exists():
        pytest.skip("the model is not here")
    expected = np.load(folder / "expected.npz")
    with clnn.compile_model(folder / "model.onnx", device, options) as session:
        got = session({"input": expected["in:input"]})["output"]
        kept = [
            r for r in session.placement.nodes if not r["output"].endswith(f"as {options.dtype}")
        ]
    want = expected["out:output"]
    assert [r["op"] for r in kept] == ["convert"], "only the output is float32"
    assert np.abs(got - want).max() <= limit and got.argmax() == want.argmax()
