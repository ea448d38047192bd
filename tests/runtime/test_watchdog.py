"""Options.timeout: a device that hangs is lost in time, and neither calls nor the process hang with it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from common import ROOT
from hanging import Hanging
from harness import normal
from onnx_models import make, model, value
from small_graphs import Builder

import clnn
from clnn.errors import DeviceLostError, SettingError
from clnn.runtime.run.watch import Watch, WatchedState, timeout_of

TIMEOUT_S = 2.0
SOON_S = 8.0  # besides the timeout, on a machine that has other things to do
SHAPE = (1, 8, 16, 16)
OPTIONS = clnn.Options(timeout=TIMEOUT_S)


def graph():
    b = Builder(x=SHAPE)
    return b.graph(b.post_ops("relu", b.conv(b.conv("x", 8), 8)))


def feed(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": normal(SHAPE, seed)}


@pytest.fixture
def hanging():
    with Hanging() as made:
        yield made


@contextmanager
def is_lost(within: float = TIMEOUT_S + SOON_S):
    """The device is lost inside, in time; the message says what to do."""
    began = time.monotonic()
    with pytest.raises(DeviceLostError, match=r"is lost: .* Compile the model again") as caught:
        yield caught
    assert time.monotonic() - began < within


def stays_lost(call) -> None:
    """Each later call says so at once."""
    for _ in range(3):
        with is_lost(within=1.0) as caught:
            call()
    assert f"{TIMEOUT_S:g} s" in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"merge": False}, {"arena": "separate"}])
def test_a_run(any_device, hanging, options):
    session = clnn.compile_model(graph(), any_device, clnn.Options(timeout=TIMEOUT_S, **options))
    want = session(feed())["out0"]
    hanging.armed = True
    with is_lost():
        session(feed())
    stays_lost(lambda: session(feed()))
    stays_lost(lambda: list(session.stream([feed()])))
    stays_lost(lambda: session.bind_input("x"))
    stays_lost(lambda: session.profile().__enter__())
    assert "lost" in session.lost
    session.close()
    hanging.armed = False
    with clnn.compile_model(graph(), any_device) as other:  # while the kernel hangs
        assert np.array_equal(other(feed())["out0"], want)


def test_compilation(any_device, hanging):
    hanging.armed = True
    with is_lost():  # memory is poisoned where there are guards
        clnn.compile_model(graph(), any_device, clnn.Options(timeout=TIMEOUT_S, guard=64))
    assert hanging.hung > 0


def test_a_stream(any_device, hanging):
    session = clnn.compile_model(graph(), any_device, OPTIONS)
    want = session(feed())["out0"]

    def source():
        for k in range(4):
            hanging.armed = k == 2
            yield feed()

    stream = session.stream(source())
    assert np.array_equal(next(stream)["out0"], want)
    with is_lost(within=2 * TIMEOUT_S + SOON_S):
        for item in stream:
            assert np.array_equal(item["out0"], want)
    stays_lost(lambda: session(feed()))
    session.close()


def test_a_stream_that_is_left(any_device, hanging):
    session = clnn.compile_model(graph(), any_device, OPTIONS)
    stream = session.stream(feed() for _ in range(9))
    next(stream)
    hanging.armed = True
    began = time.monotonic()
    with pytest.raises(DeviceLostError):
        next(stream)
        next(stream)
    stream.close()
    del stream, session
    gc.collect()
    assert time.monotonic() - began < 2 * TIMEOUT_S + SOON_S


def test_bound_inputs(any_device, hanging):
    session = clnn.compile_model(graph(), any_device, OPTIONS)
    binding = session.bind_input("x")
    binding.copy_from(feed()["x"])
    want = session({})["out0"]
    assert np.array_equal(want, session({})["out0"])
    hanging(binding._queue)
    with is_lost():
        binding.copy_from(feed(1)["x"])
    stays_lost(lambda: binding.copy_from(feed(1)["x"]))
    stays_lost(lambda: session({}))
    session.close()


def test_a_profile(any_device, hanging):
    session = clnn.compile_model(graph(), any_device, OPTIONS)
    with session.profile() as profile:
        session(feed())
        hanging.armed = True
        with is_lost():
            session(feed())
        stays_lost(lambda: session(feed()))
    assert len(profile.runs) == 1
    session.close()


def open_model():
    return model([make.make_node("Softmax", ["x"], ["y"], name="s")], [value("x", (1, 3, None, 5))])


def test_all_shapes_of_an_open_session(any_device, hanging):
    session = clnn.compile_model(open_model(), any_device, OPTIONS)
    rows = {n: {"x": normal((1, 3, n, 5), n)} for n in (4, 6, 9)}
    session(rows[4])
    session(rows[6])
    hanging.armed = True
    with is_lost():
        session(rows[4])
    stays_lost(lambda: session(rows[6]))
    stays_lost(lambda: session(rows[9]))  # whose kernels would be those of the others
    stays_lost(lambda: list(session.stream([rows[4]])))
    assert session.lost
    session.close()


def staged_model():
    nodes = [
        make.make_node("Relu", ["x"], ["r"], name="relu"),
        make.make_node("NonZero", ["r"], ["where"], name="where"),
        make.make_node("Cast", ["where"], ["f"], name="cast", to=1),
        make.make_node("Exp", ["f"], ["y"], name="exp"),
    ]
    return model(nodes, [value("x", (4, 5))])


def test_a_staged_session(any_device, hanging):
    session = clnn.compile_model(staged_model(), any_device, OPTIONS)
    assert type(session).__name__ == "StagedSession"
    data = {"x": normal((4, 5), 1)}
    session(data)
    hanging.armed = True
    with is_lost():
        session(data)
    launched = hanging.hung
    stays_lost(lambda: session(data))
    assert hanging.hung == launched  # not even the stages before
    session.close()


def test_other_callers_are_told(any_device, hanging):
    """Those that run on another state, and those that wait for one."""
    session = clnn.compile_model(graph(), any_device, clnn.Options(timeout=TIMEOUT_S, states=2))
    session(feed())
    hanging.armed = True
    told: list[str] = []

    def call() -> None:
        try:
            session(feed())
        except DeviceLostError as err:
            told.append(str(err))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT_S + SOON_S)
    assert len(told) == len(threads)


def test_what_a_lost_device_may_write_to_is_kept(any_device, hanging):
    session = clnn.compile_model(graph(), any_device, OPTIONS)
    session(feed())
    arenas = [host for state in session._call_states for _, host in state._host_buffers]
    before = [host[: 1 << 12].copy() for host in arenas]
    hanging.armed = True
    with is_lost():
        session(feed())
    counts = [sys.getrefcount(host) for host in arenas]
    session.close()
    del session
    gc.collect()
    assert [sys.getrefcount(host) for host in arenas] == counts
    assert len(before) == len(arenas)


def test_a_slow_device_is_not_lost(any_device, hanging):
    """A kernel takes a while, and ends before the timeout."""
    session = clnn.compile_model(graph(), any_device, clnn.Options(timeout=60.0))
    want = session(feed())["out0"]
    hanging.armed = True
    timer = threading.Timer(0.5, lambda: hanging.go.fill(1))
    timer.start()
    assert np.array_equal(session(feed())["out0"], want)
    hanging.armed = False
    assert not session.lost and np.array_equal(session(feed())["out0"], want)
    session.close()


def test_results_and_errors_are_those_without_a_timeout(any_device):
    plain, watched = (
        clnn.compile_model(graph(), any_device, clnn.Options(timeout=t)) for t in (None, 60.0)
    )
    assert not any(isinstance(s, WatchedState) for s in plain._call_states)
    assert all(isinstance(s, WatchedState) for s in watched._call_states)
    for k in range(3):
        assert np.array_equal(plain(feed(k))["out0"], watched(feed(k))["out0"])
    with pytest.raises(clnn.errors.ShapeError):
        watched({"x": np.zeros((1, 2, 3, 4), np.float32)})
    before = threading.active_count()
    watched.close()
    del watched, plain
    gc.collect()
    deadline = time.monotonic() + SOON_S
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before - 1  # the state's thread has ended


def test_a_watch_returns_raises_and_lets_go(any_device):
    from launch import opened

    class Thing:
        pass

    watch, thing = Watch(opened(any_device), 60.0), Thing()
    held = sys.getrefcount(thing)
    assert watch(lambda given: given is thing, thing)
    with pytest.raises(ZeroDivisionError):
        watch(lambda given: 1 // 0, thing)
    assert watch(lambda: watch(lambda: threading.current_thread().name)) == "clnn-watched"
    gc.collect()
    assert sys.getrefcount(thing) == held


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5"])
def test_what_is_no_timeout(seconds):
    with pytest.raises(SettingError, match="timeout="):
        clnn.Options(timeout=seconds)


def test_the_variable(monkeypatch):
    assert timeout_of(clnn.Options()) is None
    monkeypatch.setenv("CLNN_TIMEOUT", "30")
    assert timeout_of(clnn.Options()) == 30
    assert timeout_of(clnn.Options(timeout=0.5)) == 0.5


def test_the_process_goes_on_and_ends(device):
    """The kernel hangs to the end: close() returns, another session is right, the process ends."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])}
    child = [sys.executable, str(ROOT / "tests/support/hang_child.py"), device]
    began = time.monotonic()
    done = subprocess.run(child, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 7, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "is lost: it did not answer within 3 s" in said["first"]
    assert said["second"] == said["first"]
    assert said["first s"] < 3 + SOON_S and said["second s"] < 1 and said["close s"] < 1
    assert said["other is right"]
    assert time.monotonic() - began < 60
