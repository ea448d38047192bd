"""Shapes of open models in the cache: a second start plans nothing, and gives the same."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn import compile as compiling
from clnn.cache.store import Store
from clnn.errors import ModelError
from clnn.runtime.process import background
from clnn.runtime.run import kept_shapes
from clnn.runtime.run.kept_shapes import MODELS, PIECES, SHAPES
from clnn.runtime.run.open_ports import KnownPorts

RNG = np.random.default_rng(5)
GEARS = clnn.Options(specialise="background")


def model(scale: float = 1.0) -> bytes:
    """relu(conv(x)), resized: with weights, and a table that depends on the shape."""
    weights = scale * np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Resize", ["r", "", "s"], ["y"], mode="linear"),
        helper.make_node("Softmax", ["r"], ["z"], axis=1),
    ]
    scales = np.array([1, 1, 1.5, 1.5], np.float32)
    graph = helper.make_graph(
        nodes,
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3, "h", "w"))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(scales, "s")],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


FEEDS = [
    {"x": RNG.standard_normal((n, 3, h, w)).astype(np.float32)}
    for n, h, w in ((1, 16, 20), (2, 9, 12), (1, 30, 7))
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The entries of a kind in a cache of its own, to which shapes are written at once.

    What a test leaves to be written is written before the next one, whose cache would get it.
    """
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_shapes, "BEHIND_S", 0.0)
    yield lambda kind: Store(kind=kind).entries()
    for jobs in [jobs for jobs in background._all if jobs._needed]:
        jobs.wait()


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.onnx").write_bytes(model())
    return tmp_path / "net.onnx"


@pytest.fixture
def models(monkeypatch):
    """The models that were made to plan a shape."""
    made: list[object] = []
    whole = compiling.open_model
    monkeypatch.setattr(compiling, "open_model", lambda *a, **k: made.append(a) or whole(*a, **k))
    return made


def run(source, device, feeds=FEEDS, options=None):
    """Return the outputs for feeds, and programs built, once all is kept."""
    with clnn.compile_model(source, device, options) as session:
        outs = [session(fed) for fed in feeds]
        counts = session.build_counts
        if session._kept is not None:
            session._kept._jobs.wait()
    return outs, counts[1]


def same(got, want):
    return all((a[n] == b[n]).all() for a, b in zip(got, want, strict=True) for n in b)


def test_a_second_start_plans_and_builds_nothing(cache, models, device, net):
    source = str(net)
    first, _ = run(source, device)
    assert len(models) == 1 and len(cache(SHAPES)) == len(FEEDS) and len(cache(MODELS)) == 1
    again, built = run(source, device)
    assert same(again, first) and not built and len(models) == 1
    assert len(cache(SHAPES)) == len(FEEDS)
    with clnn.compile_model(source, device) as session:
        assert [(i.name, i.shape, i.dtype) for i in session.inputs] == [
            ("x", ("n", 3, "h", "w"), np.float32)
        ]
        assert same([session(FEEDS[1])], first[1:2])
        assert session.shapes == [{"x": (2, 3, 9, 12)}] and session.placement.nodes
        with session.at({"x": (2, 3, 9, 12)}).profile() as profile:
            assert same([session.at({"x": (2, 3, 9, 12)})(FEEDS[1])], first[1:2])
        assert profile.runs


def test_shapes_alike_are_written_once(cache, device, net):
    run(net, device)
    assert len(cache(SHAPES)) == 3
    # Constants of all shapes, and texts: kernels are the same for shapes that one set serves.
    assert len(cache(PIECES)) <= 6
    assert sum(e.bytes for e in cache(SHAPES)) < 3 * 200_000


def test_a_new_shape_takes_the_kernels_that_there_are(cache, models, device, net):
    first, _ = run(net, device)
    other = {"x": RNG.standard_normal((1, 3, 18, 24)).astype(np.float32)}
    with clnn.compile_model(net, device, shapes={"x": other["x"].shape}) as alone:
        want = alone(other)
    outs, built = run(net, device, [FEEDS[0], other, FEEDS[1]])
    assert len(models) == 2 and not built
    assert same([outs[0], outs[2]], first[:2])
    for name, array in want.items():
        np.testing.assert_allclose(outs[1][name], array, rtol=1e-5, atol=1e-5)
    again, built = run(net, device, [other])
    assert same(again, outs[1:2]) and not built and len(models) == 2


def test_whatever_differs_makes_it_anew(cache, models, any_device, net):
    run(net, any_device, FEEDS[:1])
    run(net, any_device, FEEDS[:1], clnn.Options(fuse=False))
    net.write_bytes(model(2.0))
    run(net, any_device, FEEDS[:1])
    assert len(models) == 3
    net.write_bytes(model())
    run(net, any_device, FEEDS[:1])
    assert len(models) == 3


@pytest.mark.parametrize("kind", [PIECES, SHAPES, MODELS])
def test_what_is_damaged_is_made_anew(cache, models, any_device, kind, recwarn, net):
    first, _ = run(net, any_device, FEEDS[:2])
    for entry in cache(kind):
        path = Store(kind=kind).path(entry.key)
        path.write_bytes(path.read_bytes()[:-40])
    assert same(run(net, any_device, FEEDS[:2])[0], first) and len(models) == 2
    assert same(run(net, any_device, FEEDS[:2])[0], first) and len(models) == 2


def test_kernels_of_a_shape_of_its_own_are_kept_too(cache, models, any_device, monkeypatch, net):
    monkeypatch.setattr("clnn.runtime.run.gears.FASTER", 1e9)
    with clnn.compile_model(net, any_device, GEARS) as session:
        session(FEEDS[0])
        assert session.ready()
        special = session(FEEDS[0])
        assert not session.at({"x": FEEDS[0]["x"].shape}).is_of_many
        session._kept._jobs.wait()
    with clnn.compile_model(net, any_device, GEARS) as session:
        assert same([session(FEEDS[0])], [special])
        assert not session.at({"x": FEEDS[0]["x"].shape}).is_of_many and len(models) == 1


def test_kept_shapes_may_get_kernels_of_their_own(cache, models, any_device, monkeypatch, net):
    first, _ = run(net, any_device, FEEDS[:1], GEARS)
    monkeypatch.setattr("clnn.runtime.run.gears.FASTER", 1e9)
    with clnn.compile_model(net, any_device, GEARS) as session:
        assert same([session(FEEDS[0])], first) and len(models) == 1
        assert session.ready() and len(models) == 2
        for name, array in session(FEEDS[0]).items():
            np.testing.assert_allclose(array, first[0][name], rtol=1e-4, atol=1e-4)
        assert not session.at({"x": FEEDS[0]["x"].shape}).is_of_many


def test_calls_and_streams_share_memory_between_kept_shapes(cache, any_device, net):
    want, _ = run(net, any_device)
    with clnn.compile_model(net, any_device) as session:
        for _ in range(2):
            assert same(list(session.stream([*FEEDS, FEEDS[0]])), [*want, want[0]])
            assert same([session(fed) for fed in FEEDS], want)
        if session.at({"x": FEEDS[0]["x"].shape}).is_lent:
            assert len(session._kept._arenas.idle) == 1


@pytest.mark.parametrize("how", ["gone", "another", "overwritten"])
def test_a_file_may_go_once_there_is_a_session(cache, any_device, tmp_path, how):
    path = tmp_path / "net.onnx"
    path.write_bytes(model())
    run(path, any_device, FEEDS[:1])
    want, _ = run(model(), any_device, FEEDS[:2])
    with clnn.compile_model(path, any_device) as session:
        if how != "overwritten":
            path.unlink()
        if how != "gone":
            path.write_bytes(model(2.0))
        session(FEEDS[0])
        if how == "overwritten":
            with pytest.raises(ModelError, match="has changed"):
                session(FEEDS[1])
        else:
            assert same([session(FEEDS[1])], want[1:])


def test_ports_that_are_none():
    for data in (b"", b"[]", b"[1, 2, 3]", b'[[["x", 1, 2]], [], {}]', b'[[], [], {"x": "a"}]'):
        assert KnownPorts.read(data) is None


SECOND = """
import sys
import numpy as np
import clnn.onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
got = session.run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})
print(*(float(np.abs(a).sum()) for a in got), *(o.shape for o in session.get_outputs()))
print([m for m in ("onnx", "clnn.compile", "clnn.plan.schedule", "clnn.codegen.fused_kernel") if m in sys.modules])
"""


def test_a_program_for_onnxruntime_reads_no_model_in_its_second_start(cache, any_device, tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(onnx.load_from_string(model()), path)
    rows = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SECOND, str(path)], capture_output=True, text=True, check=True
        )
        rows.append(done.stdout.splitlines())
    assert rows[0][0] == rows[1][0]
    assert rows[1][1] == "[]"
