"""Kernels that are made while calls go on: taken where they are right and faster, and nothing waits."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from common import ROOT
from open_images import segmentation

import clnn
from clnn.errors import DeviceLostError, DTypeError, SettingError
from clnn.graph import evaluate as evaluation
from clnn.graph.evaluate import evaluate
from clnn.runtime.build.program import Device
from clnn.runtime.process.background import Jobs
from clnn.runtime.run import gears, kernel_set
from clnn.runtime.run.kept_sets import Kept, KeptSets
from clnn.runtime.run.open_session import OpenSession, wait_for_all

FIRST, OTHER, SMALL = (1, 3, 96, 96), (2, 3, 64, 128), (1, 3, 12, 8)
NARROW = (1, 3, 1280, 8)  # of more elements than the first
BACKGROUND = clnn.Options(specialise="background")


def fed(shape, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def close(got, want):
    return all(gears.alike(got[name], want[name], 1e-4) for name in want)


@pytest.fixture
def open_session(device):
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        yield session


def is_special(session, shape):
    return not session.at({"x": shape}).is_of_many


def test_kernels_of_its_own_are_taken_where_they_are_faster(open_session, monkeypatch):
    monkeypatch.setattr(gears, "FASTER", 1e9)
    want = [open_session(fed(shape)) for shape in (FIRST, OTHER)]
    assert open_session.ready(600)
    for shape, outs in zip((FIRST, OTHER), want, strict=True):
        assert is_special(open_session, shape)
        assert close(open_session(fed(shape)), outs)
    assert all(session.plan.scheduled for session in open_session._sessions.values())


def test_slower_and_wrong_ones_are_not(device, monkeypatch):
    for name, value in (("FASTER", 0.0), ("alike", lambda *values: False)):
        with (
            monkeypatch.context() as patch,
            clnn.compile_model(segmentation(), device, BACKGROUND) as session,
        ):
            patch.setattr(gears, name, value)
            want = session(fed(FIRST))
            assert session.ready(600) and not is_special(session, FIRST)
            assert all(np.array_equal(session(fed(FIRST))[n], want[n]) for n in want)


def test_a_shape_is_met_often_after_calls_and_time(open_session, monkeypatch):
    monkeypatch.setattr(gears, "OFTEN_CALLS", 3)
    monkeypatch.setattr(gears, "OFTEN_S", 0.0)
    monkeypatch.setattr(gears, "FASTER", 1e9)
    for _ in range(2):
        open_session(fed(FIRST))
    assert open_session._gears.wait(600) and not is_special(open_session, FIRST)
    open_session.run(None, fed(FIRST))
    assert open_session._gears.wait(600) and is_special(open_session, FIRST)


def test_few_shapes_have_kernels_of_their_own(open_session, monkeypatch):
    monkeypatch.setattr(gears, "FASTER", 1e9)
    monkeypatch.setattr(gears, "MOST_SPECIAL", 1)
    for shape in (FIRST, OTHER):
        open_session(fed(shape))
    assert open_session.ready(600)
    assert is_special(open_session, OTHER) and not is_special(open_session, FIRST)
    monkeypatch.setattr(gears, "OFTEN_S", 0.0)
    key = next(k for k in open_session._sessions if k != (OTHER,))
    open_session._gears._uses[key].calls = gears.OFTEN_CALLS - 1
    open_session(fed(FIRST))  # is due, and there is no room
    assert open_session._gears._uses[key].calls == 0


def test_small_images_find_their_kernels_made(open_session):
    open_session(fed(FIRST))
    assert open_session._gears.wait(600)
    built = open_session.build_counts[1]
    open_session(fed(SMALL))
    assert open_session.build_counts[1] == built
    assert len(open_session._compile_at._family._sets) == 2


def test_no_call_waits_for_what_is_being_built(device, monkeypatch):
    """Small and narrow images run on the host until then; `at`, which has to return kernels, waits."""
    begun, go, ahead = threading.Event(), threading.Event(), Device._build_in_children
    planned, compiled = [], OpenSession._compile

    def noted(self, key, patient):
        planned.append(key)
        return compiled(self, key, patient)

    def slow(self, sources, jobs, stop=None, nice=0):
        if stop is None:
            return ahead(self, sources, jobs)
        begun.set()
        go.wait(120)
        return ahead(self, sources, jobs, stop, nice)

    monkeypatch.setattr(Device, "_build_in_children", slow)
    monkeypatch.setattr(OpenSession, "_compile", noted)
    monkeypatch.setenv("CLNN_CACHE", "off")
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed(FIRST))
        assert begun.wait(120)
        session(fed(OTHER))
        built, got = session.build_counts[1], []
        early = [session(fed(shape)) for shape in (SMALL, (2, 3, 8, 8), SMALL, NARROW)]
        early += session.stream(map(fed, (OTHER, SMALL, SMALL, NARROW)))
        assert session.build_counts[1] == built and planned.count((SMALL,)) == 1
        assert not [shape for shape in (SMALL, NARROW) if {"x": shape} in session.shapes]
        with pytest.raises(DTypeError, match="'x' is float64"):
            session({"x": np.zeros(SMALL)})
        caller = threading.Thread(target=lambda: got.append(session.at({"x": SMALL})), daemon=True)
        caller.start()
        caller.join(0.5)
        assert caller.is_alive()
        go.set()
        caller.join(120)
        assert got and close(session(fed(SMALL)), early[0]) and close(early[2], early[0])
        assert close(session(fed((2, 3, 8, 8))), early[1]) and close(session(fed(NARROW)), early[3])
        assert close(early[4], session(fed(OTHER)))
        assert close(early[6], early[0]) and close(early[7], early[3])
        assert {"x": SMALL} in session.shapes and session.build_counts[1] == built


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_run_on_the_host_ends_where_its_kernels_are_made(device, monkeypatch, is_stream):
    begun, goes_on, small = threading.Event(), threading.Event(), gears.Gears._make_small

    def held(self):
        goes_on.wait(120)
        small(self)

    def on_host(graph, given, gives_up):
        begun.set()
        goes_on.set()
        while not gives_up():
            time.sleep(0.01)
        return evaluate(graph, given, gives_up)

    monkeypatch.setenv("CLNN_CACHE", "off")  # where it may be known which kernels small images take
    monkeypatch.setattr(gears.Gears, "_make_small", held)
    monkeypatch.setattr(evaluation, "evaluate", on_host)
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed(FIRST))
        got = [*session.stream([fed(SMALL)] * 2)] if is_stream else [session(fed(SMALL))]
        assert begun.is_set() and {"x": SMALL} in session.shapes
        assert all(close(one, session(fed(SMALL))) for one in got)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_builds_nothing_whatever_its_shape_lacks(device, monkeypatch, is_stream):
    """The host computes it, and the kernels are built meanwhile for those that come later."""
    builds, build, in_thread = [], Device.build_ahead, threading.current_thread()

    def here(self, missing, total):
        builds.append(threading.current_thread())
        return build_here(self, missing, total)

    build_here = Device._build_these
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed(FIRST))
        assert session._gears.wait(600)
        want = session(fed(OTHER))
        session._sessions.clear()
        lacking = session._compile_at._family.device
        lacking.programs.clear()
        monkeypatch.setattr(Device, "_build_these", here)
        monkeypatch.setattr(Device, "has", lambda self, source: source in self.programs)
        began = threading.Event()

        def slow(self, *arguments):
            began.wait(60)
            return build(self, *arguments)

        monkeypatch.setattr(Device, "build_ahead", slow)
        feeds = [fed(OTHER)] * 2
        outs = [*session.stream(feeds)] if is_stream else [session(one) for one in feeds]
        assert not session._sessions and all(close(out, want) for out in outs)
        began.set()
        assert session._gears.wait(600)
        assert close(session(fed(OTHER)), want)
        assert len(session._sessions) == 1 and in_thread not in builds


@pytest.mark.parametrize("calls", [400, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_calls_of_four_threads_go_on(device, monkeypatch, calls):
    """Every result is right, before, while and after kernels change."""
    monkeypatch.setattr(gears, "OFTEN_S", 0.0)
    monkeypatch.setattr(gears, "FASTER", 1e9)
    shapes, wrong, done = (FIRST, OTHER, SMALL, (1, 3, 32, 64)), [], [0]
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        wanted = {shape: session(fed(shape)) for shape in shapes}

        def work(k):
            for turn in range(calls // 4):
                shape = shapes[(k + turn) % len(shapes)]
                if not close(session(fed(shape)), wanted[shape]):
                    wrong.append((shape, turn))
                done[0] += 1
            session.ready(600)
            for shape in shapes:
                if not close(session(fed(shape)), wanted[shape]):
                    wrong.append((shape, "at the end"))

        threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(900)
        assert not wrong and not any(thread.is_alive() for thread in threads)
        assert sum(is_special(session, shape) for shape in shapes) >= 1


def test_closing_ends_what_is_being_made(device, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE", "off")
    session = clnn.compile_model(segmentation(), device, BACKGROUND)
    session(fed(FIRST))
    session.ready(0.0)
    making, shared = session._gears, weakref.ref(session._compile_at)
    session.close()
    assert making.wait(60)
    del making
    gc.collect()
    assert shared() is None
    with pytest.raises(DeviceLostError, match="closed"):
        session(fed(FIRST))


EXIT = """
import sys, numpy as np
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/support"]
from open_images import segmentation
import clnn
session = clnn.compile_model(segmentation(), sys.argv[2], clnn.Options(specialise="background"))
session({"x": np.zeros((1, 3, 96, 96), np.float32)})
print("done", session.ready(0.05))
"""


def test_the_end_of_the_process_waits_for_nothing(device, monkeypatch):
    """A build of some seconds is stopped, with its child, and nothing crashes."""
    monkeypatch.setenv("CLNN_CACHE", "off")
    began = time.monotonic()
    command = [sys.executable, "-c", EXIT, str(ROOT), device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.startswith("done"), done.stderr
    assert "Traceback" not in done.stderr and time.monotonic() - began < 290


def test_other_settings_make_nothing_ahead(device, monkeypatch):
    for choice in ("never", "always"):
        options = clnn.Options(specialise=choice)
        with clnn.compile_model(segmentation(), device, options) as session:
            want = session(fed(FIRST))
            assert session.ready() and is_special(session, FIRST) == (choice == "always")
            assert close(want, session(fed(FIRST)))
    monkeypatch.setenv("CLNN_SPECIALISE", "always")
    with clnn.compile_model(segmentation(), device) as session:
        session(fed(FIRST))
        assert is_special(session, FIRST)
    with pytest.raises(SettingError, match="specialise"):
        clnn.Options(specialise="sometimes")


def test_jobs_that_fail_are_told_and_forgotten(caplog):
    jobs, done = Jobs(), []

    def fails():
        raise ValueError("no such kernel")

    jobs.add(fails)
    jobs.add(lambda: done.append(1))
    assert jobs.wait(60) and done == [1] and "no such kernel" in caplog.text
    jobs.close()
    jobs.add(lambda: done.append(2))
    assert jobs.wait(60) and done == [1]


def test_every_kind_of_session_says_when_it_is_ready(device, monkeypatch):
    monkeypatch.setattr(gears, "FASTER", 1e9)
    with clnn.compile_model(segmentation(), device, shapes={"x": FIRST}) as session:
        assert session.ready(0.0)
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed(FIRST))
        assert wait_for_all([session, session], 600) and is_special(session, FIRST)
        assert not wait_for_all([Never(), session], 0.0)


class Never:
    def ready(self, timeout):
        return False


def test_other_shapes_do_not_wait_while_kernels_for_small_images_are_chosen(device, monkeypatch):
    begun, go, learn = threading.Event(), threading.Event(), kernel_set.KernelSet.learn

    def slow(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            go.wait(120)
        return learn(self, *arguments)

    monkeypatch.setattr(kernel_set.KernelSet, "learn", slow)
    monkeypatch.setattr(KeptSets, "load", lambda self: Kept())
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed(FIRST))
        assert begun.wait(120)
        session(fed(OTHER))
        go.set()
        assert session._gears.wait(600)
        session(fed(SMALL))


def test_what_a_job_held_is_gone_when_it_is_done():
    class Held:
        """Stands for memory of a device."""

    for _ in range(20):
        held, jobs = Held(), Jobs(needed=True)
        ref = weakref.ref(held)
        jobs.add(lambda held=held: None)
        del held
        assert jobs.wait(60) and ref() is None
