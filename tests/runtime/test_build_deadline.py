"""CLNN_BUILD_TIMEOUT: a compiler that hangs is left in time, and neither calls nor the process hang with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from common import ROOT
from harness import normal
from small_graphs import Builder

import clnn
from clnn.errors import DeviceLostError
from clnn.runtime.process.deadline import LateError, within

SHAPE = (1, 8, 16, 16)
TIMEOUT_S = 2
CALLS = ("build", "get_info")  # compile on drivers: from source, and for the binary


def graph():
    b = Builder(x=SHAPE)
    return b.graph(b.post_ops("relu", b.conv("x", 8)))


class Stuck:
    """While `armed`, a driver's function of programs does not return."""

    def __init__(self, real):
        self.real, self.armed, self.go = real, True, threading.Event()

    def __get__(self, program, kind=None):
        def call(*args, **kwargs):
            if self.armed:
                self.go.wait()
            return self.real(program, *args, **kwargs)

        return call


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setenv("CLNN_BUILD_TIMEOUT", str(TIMEOUT_S))
    monkeypatch.setenv("CLNN_CACHE", "off")


@pytest.fixture(params=CALLS)
def stuck(request, short, monkeypatch):
    import pyopencl as cl

    made = Stuck(getattr(cl.Program, request.param))
    monkeypatch.setattr(cl.Program, request.param, made)
    yield made
    made.go.set()


def test_a_compilation_says_so_and_the_next_one_is_right(any_device, stuck, monkeypatch):
    with pytest.raises(DeviceLostError, match=r"compiler did not end within 2 s .*\.cl") as caught:
        clnn.compile_model(graph(), any_device)
    path = str(caught.value).partition("source in ")[2].split(".cl")[0] + ".cl"
    with open(path) as saved:
        assert "kernel" in saved.read()
    os.unlink(path)
    stuck.armed = False
    monkeypatch.setenv("CLNN_BUILD_TIMEOUT", "300")
    data = {"x": normal(SHAPE, 1)}
    with clnn.compile_model(graph(), any_device) as session:
        got = session(data)["out0"]
    with clnn.compile_model(graph(), any_device) as session:
        assert np.array_equal(session(data)["out0"], got)


def test_what_waits_for_the_same_device_is_told_too(any_device, stuck):
    """A second program of an opened device, asked for while the first one hangs."""
    from clnn.runtime.build.program import Device
    from clnn.runtime.device.device import select

    device = Device.open(select(any_device))
    text = "__kernel void k(__global float *a) { a[0] = %d; }"
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(device.build, {"k": text % number}) for number in range(2)]
        errors = [end.exception(timeout=60) for end in ends]
    assert [type(err) for err in errors] == [DeviceLostError] * 2
    assert device.lost


def test_a_real_compiler_that_waits_for_ever_and_the_end_of_the_process(
    any_device, short, tmp_path
):
    """It opens a pipe that nobody writes to; the process goes on, and ends with its own status."""
    pipe = tmp_path / "pipe.h"
    os.mkfifo(pipe)
    code = f"""
import clnn, json
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
device = Device.open(select({any_device!r}))
try:
    device.build({{"k": '#include "{pipe}"'}})
except clnn.errors.DeviceLostError as err:
    print(json.dumps(str(err)), flush=True)
raise SystemExit(7)
"""
    began = time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "compiler did not end within 2 s" in json.loads(done.stdout)
    assert time.monotonic() - began < 90


def test_work_is_done_elsewhere_and_its_errors_come_back():
    assert within(60, threading.get_ident) != threading.get_ident()
    assert within(0, threading.get_ident) == threading.get_ident()
    with pytest.raises(KeyError, match="what"):
        within(60, {}.__getitem__, "what")
    go = threading.Event()
    with pytest.raises(LateError):
        within(0.05, go.wait)
    go.set()


def test_an_interrupt_waits_for_the_end_of_the_work():
    """The thread that works is not left behind, in a driver that the process then ends under."""
    ended = threading.Event()

    def work():
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        ended.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(3600, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
