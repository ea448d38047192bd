"""Models of known shapes that begin on the universal set: nothing is built in a call, and no result is wrong."""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from common import ROOT
from harness import normal
from onnx import TensorProto, helper
from set_networks import network, quantised_network

import clnn
from clnn import geared
from clnn.errors import BuildError, DeviceLostError
from clnn.ops.universal.functions import is_universal
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.run import gears
from clnn.runtime.run.geared_session import GearedSession
from clnn.runtime.run.universal import build_set

BACKGROUND = clnn.Options(specialise="background")
MODEL = network(20, 33)
FEEDS = {"x0": normal((1, 3, 33, 33))}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What returns a cache folder in which the set of a device is, and nothing else is built."""
    made = {}

    def folder(device):
        if device not in made:
            made[device] = tmp_path_factory.mktemp("set")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("CLNN_CACHE_DIR", str(made[device]))
                build_set(select(device))
        return made[device]

    return folder


@pytest.fixture
def cold(prepared, device, tmp_path, monkeypatch):
    """A cache folder of this test's own, with the set alone."""
    folder = tmp_path / "cache"
    shutil.copytree(prepared(device), folder)
    monkeypatch.setenv("CLNN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def gate(monkeypatch):
    """Holds builds ahead of calls until it is set; begun: set when one waits."""
    go, begun, ahead = threading.Event(), threading.Event(), Device.build_ahead

    def slow(self, sources, stop, nice, share):
        assert share == 1  # a child for each processor
        begun.set()
        while not go.wait(0.05) and not stop.is_set():
            pass
        return ahead(self, sources, stop, nice, share)

    monkeypatch.setattr(Device, "build_ahead", slow)
    go.begun = begun
    yield go
    go.set()


def is_on_set(session):
    return all(is_universal(one.launch) for one in session.plan.launches)


def same(got, want):
    return gears.alike(got["y"], want["y"], 1e-4)


def own_result(device):
    with clnn.compile_model(MODEL, device) as session:
        return session(FEEDS)


def test_the_first_answer_builds_nothing_and_the_last_is_the_models_own(cold, device, gate):
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:
        first = session(FEEDS)
        assert session.build_counts == (1, 0) and is_on_set(session)
        assert not session.ready(0.01)
        assert gate.begun.wait(120) and is_on_set(session)
        assert np.array_equal(session(FEEDS)["y"], first["y"])
        gate.set()
        assert session.ready(600) and not is_on_set(session)
        last = session(FEEDS)
        assert session.build_counts[1] == 0 and session.build_counts[0] > 1
    want = own_result(device)
    assert same(first, want) and np.array_equal(last["y"], want["y"])


def test_a_set_that_is_not_there_is_built_once_and_told_of(device, gate, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    steps = []
    with clnn.compile_model(MODEL, device, BACKGROUND, progress=steps.append) as session:
        assert session.build_counts == (0, 1) and is_on_set(session)
        assert [(step.done, step.total) for step in steps] == [(0, 1), (1, 1)]
        assert steps[-1].title == "universal set, floats"
        session(FEEDS)
    with clnn.compile_model(network(9, 20), device, BACKGROUND, progress=steps.append) as session:
        assert session.build_counts == (1, 0) and len(steps) == 2


def test_a_quantised_network_begins_on_the_set(cold, device, gate):
    """And all its answers are those of its own kernels, to the bit."""
    model = quantised_network(20, 33)
    with clnn.compile_model(model, device) as own:
        want = own(FEEDS)["y"]
    with clnn.compile_model(model, device, BACKGROUND) as session:
        first = session(FEEDS)["y"]
        assert session.build_counts[1] == 0 and is_on_set(session)
        gate.set()
        assert session.ready(600) and not is_on_set(session)
        assert np.array_equal(first, want) and np.array_equal(session(FEEDS)["y"], want)


def test_calls_of_four_threads_while_kernels_change(device):
    wrong, want = [], own_result(device)
    done, stop = [0] * 4, threading.Event()
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:

        def work(k):
            while not stop.is_set() or not done[k]:
                if not same(session(FEEDS), want):
                    wrong.append(k)
                done[k] += 1

        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
        for thread in threads:
            thread.start()
        assert session.ready(600) and not is_on_set(session)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert not wrong and all(done) and not any(thread.is_alive() for thread in threads)


def test_closing_ends_what_is_being_made(device, gate):
    session = clnn.compile_model(MODEL, device, BACKGROUND)
    session(FEEDS)
    assert not session.ready(0.0) and gate.begun.wait(120)
    jobs, first = session._jobs, weakref.ref(session._now)
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        session(FEEDS)
    assert jobs.wait(120)
    del session
    gc.collect()
    assert first() is None


def test_a_session_that_nobody_has_ends_what_is_being_made(device, gate):
    session = clnn.compile_model(MODEL, device, BACKGROUND)
    session.ready(0.0)
    assert gate.begun.wait(120)
    jobs = session._jobs
    del session
    gc.collect()
    assert jobs.stop.is_set() and jobs.wait(120)


def test_wrong_kernels_are_not_taken(device, monkeypatch, caplog):
    monkeypatch.setattr(gears, "alike", lambda *values: False)
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:
        first = session(FEEDS)
        assert session.ready(600) and is_on_set(session)
        assert "gave another y" in caplog.text
        assert np.array_equal(session(FEEDS)["y"], first["y"])


def test_builds_that_fail_leave_the_set_in_use(device, monkeypatch, caplog):
    def fails(self, sources, stop, nice, share):
        raise BuildError("no compiler today")

    monkeypatch.setattr(Device, "build_ahead", fails)
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:
        first = session(FEEDS)
        assert session.ready(600) and is_on_set(session)
        assert "no compiler today" in caplog.text
        assert np.array_equal(session(FEEDS)["y"], first["y"])


def test_what_began_on_the_set_ends_on_it(device, gate):
    """A stream has results of one gear; a profile and a bound input put the change off."""
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:
        first = session(FEEDS)["y"]
        stream = session.stream([FEEDS] * 4)
        assert np.array_equal(next(stream)["y"], first)
        with session.profile() as profile:
            binding = session.bind_input("x0")
            gate.set()
            assert session.ready(600) and is_on_set(session)
            binding.copy_from(FEEDS["x0"])
            assert np.array_equal(session({})["y"], first)
        assert len(profile.rows()) > 5
        assert is_on_set(session) and np.array_equal(session({})["y"], first)
        session.unbind_input("x0")
        assert not is_on_set(session) and same(session(FEEDS), {"y": first})
        assert all(np.array_equal(one["y"], first) for one in stream)
        assert len(list(session.stream([FEEDS] * 2))) == 2


def test_a_file_whose_kernels_are_there_begins_on_them(cold, device, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(MODEL)
    with clnn.compile_model(path, device, BACKGROUND) as session:
        first = session(FEEDS)
        path.write_bytes(b"another file")  # compile_model has returned: nobody reads it any more
        assert session.ready(600) and not is_on_set(session)
    path.write_bytes(MODEL)
    with clnn.compile_model(path, device, BACKGROUND) as session:
        assert session.ready(600)
    with clnn.compile_model(path, device, BACKGROUND) as session:
        assert not isinstance(session, GearedSession) and not is_on_set(session)
        last = session(FEEDS)
        assert session.build_counts[1] == 0 and same(last, first)
    for program in own_programs(device):
        program.unlink()
    with clnn.compile_model(path, device, BACKGROUND) as session:
        assert isinstance(session, GearedSession) and session.build_counts[1] == 0
        assert same(session(FEEDS), last)


def own_programs(device):
    """The cache's files of the programs that the model's own kernels are."""
    with clnn.compile_model(MODEL, device) as session:
        opened = session._device
        return [opened.store.path(opened.key(source)) for source in opened.programs]


def test_models_that_the_set_lacks_run_on_their_own_at_once(device, monkeypatch):
    monkeypatch.setattr(geared, "MOST_TEXT", 100)
    node = helper.make_node("Sin", ["x"], ["y"])
    value = helper.make_tensor_value_info
    ports = [value(name, TensorProto.FLOAT, (3, 5, 7, 11)) for name in "xy"]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setenv("CLNN_CACHE", "off")
    with clnn.compile_model(model, device, BACKGROUND) as session:
        assert not isinstance(session, GearedSession) and session.ready(0.0)


@pytest.mark.parametrize("options", (clnn.Options(), clnn.Options(specialise="always")))
def test_other_options_build_first(device, options):
    with clnn.compile_model(MODEL, device, options) as session:
        assert not isinstance(session, GearedSession) and session.ready(0.0)


CHILD = """
import sys, numpy as np
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/support"]
from set_networks import network, quantised_network
import clnn
session = clnn.compile_model(network(20, 33), sys.argv[2], clnn.Options(specialise="background"))
session({"x0": np.zeros((1, 3, 33, 33), np.float32)})
print("done", flush=True)
session.ready(float(sys.argv[3]))
"""


def child(device, seconds):
    command = [sys.executable, "-c", CHILD, str(ROOT), device, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("after", (0.0, 0.5, 1.5))
def test_a_process_killed_while_it_builds_leaves_nothing_wrong(cold, device, after):
    process = child(device, 600)
    assert process.stdout.readline() == "done\n", process.stderr.read()
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with clnn.compile_model(MODEL, device, BACKGROUND) as session:
        first = session(FEEDS)
        assert session.build_counts[1] == 0
        assert session.ready(600) and not is_on_set(session)
        assert same(session(FEEDS), first)
    assert same(first, own_result(device))


def test_the_end_of_the_process_waits_for_nothing(cold, device):
    process = child(device, 0.05)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and out == "done\n" and "Traceback" not in err, err
