"""The same call again and again: equal bits in any process, and nothing that grows."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
from common import ROOT
from open_images import segmentation

import clnn

CALLS, SESSIONS = 100, 20
SHAPE = (1, 3, 64, 48)
CODE = """
import sys, numpy as np
sys.path.insert(0, sys.argv[2])
import test_repetition as this
print("digest", this.digest(this.outputs_of(sys.argv[1])))
"""


def outputs_of(device):
    x = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
    with clnn.compile_model(segmentation(), device, shapes={"x": SHAPE}) as session:
        return session({"x": x})


def digest(outputs):
    found = hashlib.sha256()
    for name in sorted(outputs):
        found.update(outputs[name].tobytes())
    return found.hexdigest()


def test_a_hundred_calls_give_one_result(any_device):
    x = np.random.default_rng(5).standard_normal(SHAPE).astype(np.float32)
    with clnn.compile_model(segmentation(), any_device, shapes={"x": SHAPE}) as session:
        assert len({digest(session({"x": x})) for _ in range(CALLS)}) == 1


def test_another_process_gives_the_same_bits(any_device):
    folders = [str(ROOT), str(ROOT / "tests" / "support"), os.path.dirname(__file__)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, any_device, folders[2]],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    assert f"digest {digest(outputs_of(any_device))}" in done.stdout, done.stderr[-2000:]


def resident():
    """Return the process's bytes in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_calls_take_no_memory(any_device):
    x = np.zeros(SHAPE, np.float32)
    with clnn.compile_model(segmentation(), any_device, shapes={"x": SHAPE}) as session:
        for _ in range(CALLS):
            session({"x": x})
        before = resident()
        for _ in range(5 * CALLS):
            session({"x": x})
        assert resident() - before < 8 * 2**20  # inputs of these calls alone are 18 MB


def test_sessions_that_were_closed_leave_nothing(any_device):
    """An arena of each is some megabytes; files and threads are counted."""

    def once():
        shape = (1, 3, 256, 256)
        with clnn.compile_model(segmentation(), any_device, shapes={"x": shape}) as session:
            session({"x": np.zeros(shape, np.float32)})
            return session.plan.memory.total

    arena = max(once() for _ in range(3))
    before = resident(), len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(SESSIONS):
        once()
    grown = resident() - before[0]
    assert arena > 2**20
    assert grown < SESSIONS * arena / 2, f"{grown} bytes after {SESSIONS} arenas of {arena}"
    assert len(os.listdir("/proc/self/fd")) <= before[1] + 1
    assert threading.active_count() <= before[2] + 1
