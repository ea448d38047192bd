"""Whole networks with their products on tensor cores, whose instructions are emulated."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from harness import check_memory, normal
from small_graphs import Builder

import clnn
from clnn.api import prepare
from clnn.graph.ir import Graph
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.plan.schedule import Chooser
from clnn.runtime.device.device import select
from clnn.runtime.device.target import INSTRUCTIONS, tensor_cores
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt  # kernels that are slow to build

# Each of some eight results on the way is rounded by half a unit, operands of TF32 too.
LIMITS = {"tf32": 8 * 2.0**-11, "f16": 8 * 2.0**-11, "bf16": 8 * 2.0**-8}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("CLNN_TENSOR_CORES", "emulated")


def images() -> Graph:
    """Odd channels, a stride, a residual, groups, a linear layer; two pictures."""
    b = Builder(x=(2, 3, 12, 11))
    stem = b.post_ops("relu", b.conv("x", 27, stride=2))
    body = b.post_ops("relu", b.post_ops("add", b.conv(stem, 27), stem))
    apart = b.conv(body, 54, 3, group=3)
    point = b.post_ops("sigmoid", b.conv(apart, 40, 1))
    mean = b.add(Reshape((2, 40)), b.add(Reduce("mean", (2, 3)), point))
    return b.graph(b.add(Gemm(), mean, b.const(40, 34), b.const(34)))


def attention() -> Graph:
    """Products of what other nodes compute: rows by rows, rows by columns."""
    b = Builder(x=(2, 24, 16))
    key = b.add(Gemm(), "x", b.const(16, 32))
    scores = b.add(Gemm(0.25), key, b.add(Transpose((0, 2, 1)), key))
    return b.graph(b.add(Gemm(), b.add(Softmax((2,)), scores), key))


def on_tensor_cores(names: list[str]) -> Chooser:
    """Return a Chooser that takes tensor cores where a node can, and lists what it took."""

    def pick(node, problem, variants):
        chosen = next((v for v in variants if "_mma_" in v.name), variants[0])
        names.append(chosen.name)
        return chosen

    return pick


def check(graph: Graph, session: Session, dtype: str) -> None:
    """Compare a session with the references of its ops, and look at its memory."""
    x = normal(graph.types["x"].shape, 3)
    want = reference_values(graph, {"x": x})
    first = {n: a.copy() for n, a in session({"x": x}).items()}
    for public, value in graph.outputs.items():
        worst = np.abs(first[public] - want[value]).max() / np.abs(want[value]).max()
        assert 1e-7 < worst <= LIMITS[dtype], f"{public}: {worst}"
    again = session({"x": x})
    assert all(again[n].tobytes() == a.tobytes() for n, a in first.items())
    check_memory(session, dtype)


def test_a_network_in_bytes(device):
    """Equal to the bit: an image in float32, a residual, a stride, groups, a linear layer."""
    b = Builder(x=(2, 3, 12, 11))
    stem = b.post_ops("relu", b.conv("x", 27, stride=2))
    body = b.post_ops("relu", b.post_ops("add", b.conv(stem, 27), stem))
    point = b.conv(b.conv(body, 54, 3, group=3), 40, 1)
    rows = b.add(Reshape((2, 40 * 36)), point)
    graph = b.graph(b.add(Gemm(), rows, b.const(40 * 36, 34), b.const(34)))
    x, names = normal(graph.types["x"].shape, 3), list[str]()
    options = clnn.Options(guard=128, arena="separate")
    ranges = clnn.calibrate(graph, [{"x": x}], device=device)
    made = prepare(graph, clnn.Options(dtype="int8"), ranges, device)
    with Session(made, select(device), options, on_tensor_cores(names)) as session:
        got = session({"x": x})
        check_memory(session, "int8")
    assert sum(n.startswith("conv2d_mma_u8") for n in names) == 4
    values = reference_values(made, {"x": x})
    for public, value in made.outputs.items():
        np.testing.assert_array_equal(got[public], values[value].astype(np.float32))


@pytest.mark.parametrize("dtype", ["f16", "tf32"])
def test_a_network_of_images(device, dtype):
    graph, names = images(), []
    options = clnn.Options(dtype=dtype, guard=128, arena="separate")
    with Session(
        prepare(graph, options), select(device), options, on_tensor_cores(names)
    ) as session:
        check(graph, session, dtype)
        assert session.placement.products == f"{dtype} on emulated tensor cores"
        assert session.placement.products in str(session.placement)
    convs = [f"_mma_{dtype}_" in name for name in names if "k3x3" in name or "k1x1" in name]
    # float32 pictures lie in planes, and groups run elsewhere
    assert convs == [dtype != "tf32", True, False, True], names
    assert names[-1 if dtype == "tf32" else -2].startswith(f"gemm_mma_{dtype}_nk")


def test_products_of_what_is_computed(device, monkeypatch):
    monkeypatch.setattr(
        "clnn.compile.target_of", lambda info: Target()
    )  # without an op for all of attention
    dtype, graph, names = "bf16", attention(), []
    options = clnn.Options(dtype=dtype, guard=128, arena="separate")
    with Session(
        prepare(graph, options), select(device), options, on_tensor_cores(names)
    ) as session:
        check(graph, session, dtype)
    marks = [n[-2:] for n in names if n.startswith(f"gemm_mma_{dtype}_")]
    assert sorted(marks) == ["mc", "mm", "mm"], names


def test_verify_measures_what_tf32_costs(device):
    """A layer that tensor cores take (no Winograd) is off by more than float32 is, and within what it declares."""
    b = Builder(x=(1, 32, 12, 12))
    graph = b.graph(b.conv("x", 64))
    found = {}
    for dtype in ("f32", "tf32"):
        options = clnn.Options(dtype=dtype, tune="off", winograd=False)
        report = clnn.verify(graph, "reference", device, True, options=options)
        assert report, report.text()
        found[dtype] = report.outputs[0].relative
    assert found["f32"] < 1e-5 < found["tf32"] < 2e-3


def test_float32_is_never_rounded(device):
    """Without dtype "tf32" nothing multiplies on tensor cores, whatever the device has."""
    with clnn.compile_model(images(), device, clnn.Options(tune="off")) as session:
        assert not any("_mma_" in s.variant.name for s in session.plan.scheduled)
        assert session.placement.products == "float32"


def test_a_device_without_tensor_cores_says_so(device, monkeypatch, caplog):
    monkeypatch.setenv("CLNN_TENSOR_CORES", "off")
    b = Builder(x=(1, 8))
    graph = b.graph(b.post_ops("relu", "x"))
    for dtype, said in (("tf32", "float32, for want of tensor cores"), ("f16", "float32")):
        with (
            caplog.at_level(logging.WARNING, "clnn"),
            clnn.compile_model(graph, device, clnn.Options(dtype=dtype)) as session,
        ):
            assert session.placement.products == said
        assert ("no tensor cores" in caplog.text) == (dtype == "tf32")
        caplog.clear()


def test_tensor_cores_want_every_instruction(monkeypatch):
    assert tensor_cores(frozenset()) == "emulated"
    monkeypatch.setenv("CLNN_TENSOR_CORES", "auto")
    assert tensor_cores(INSTRUCTIONS | {"fp64"}) == "ptx"
    for name in INSTRUCTIONS:
        assert tensor_cores(INSTRUCTIONS - {name}) == ""
    monkeypatch.setenv("CLNN_TENSOR_CORES", "off")
    assert tensor_cores(INSTRUCTIONS) == ""
