"""Claims: one process makes an entry, others wait for it; what hinders locks hinders no work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from common import ROOT

from clnn.cache import claims
from clnn.cache.claims import taken, waited_for
from clnn.cache.store import Store

KEYS = [f"{k:02x}" + "0" * 62 for k in range(4)]
HOLD = """
import sys
from pathlib import Path
from clnn.cache.claims import taken
from clnn.cache.store import Store
with taken(Store(Path(sys.argv[1]), "rw"), sys.argv[2:]) as mine:
    print(len(mine), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", "rw")


@pytest.fixture
def holder(store):
    """Return what starts a process that claims keys and holds them until it is told to end."""
    started = []

    def hold(*keys):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(store.root), *keys],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        started.append(child)
        assert child.stdout.readline() == f"{len(keys)}\n"
        return child

    yield hold
    for child in started:
        child.kill()
        child.communicate()


def test_each_key_has_one_holder(store, holder):
    child = holder(*KEYS[:2])
    with taken(store, KEYS) as mine:
        assert mine == {*KEYS[2:]}
    child.communicate("\n")
    with taken(store, KEYS) as mine, taken(store, KEYS[1:]) as others:
        assert mine == {*KEYS} and others == set()
    with taken(store, KEYS) as mine:
        assert mine == {*KEYS}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_lock_goes_with_its_process(store, holder):
    child, came = holder(KEYS[0]), []

    def wait():
        with waited_for(store, KEYS[0], time.monotonic() + 600):
            came.append(child.poll())

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.3)
    assert not came
    os.kill(child.pid, signal.SIGKILL)
    waiting.join(60.0)
    assert not waiting.is_alive() and len(came) == 1


def test_work_ahead_has_locks_of_its_own(store):
    with taken(store, KEYS, claims.AHEAD) as ahead, taken(store, KEYS) as now:
        assert ahead == now == {*KEYS}
        with taken(store, KEYS, claims.AHEAD) as others:
            assert others == set()


def test_waiting_ends_after_a_while_and_when_it_is_stopped(store, holder):
    holder(KEYS[0])
    with waited_for(store, KEYS[0], time.monotonic() + 0.1):
        pass
    stop = threading.Event()
    stop.set()
    with waited_for(store, KEYS[0], time.monotonic() + 600, stop):
        pass


@pytest.mark.parametrize("mode", ["off", "ro"])
def test_stores_that_keep_nothing_claim_nothing(tmp_path, mode):
    store = Store(tmp_path / "cache", mode)
    with taken(store, KEYS) as mine, taken(store, KEYS) as others:
        assert mine == others == {*KEYS}
    with waited_for(store, KEYS[0], time.monotonic() + 600):
        assert not store.folder.exists()


def test_file_systems_without_locks_hinder_nothing(store, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError("no locks available")

    monkeypatch.setattr(claims.files, "make_folder", refused)
    with taken(store, KEYS) as mine, waited_for(store, KEYS[0], time.monotonic() + 600):
        assert mine == {*KEYS}


BUILD = """
import sys
import numpy as np
import clnn
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType

build = GraphBuilder()
x = build.input("x", TensorType((1, 8, 6, 6), F32))
for k in (1, 3):
    window = Window((k, k), (1, 1), (1, 1), (k // 2, k // 2), (k // 2, k // 2))
    weights = build.const(np.full((8, 8, k, k), 0.1, np.float32))
    x = build.add(Conv2d(window), x, weights)
graph = build.graph({"y": x})
print("here", flush=True)
sys.stdin.readline()
with clnn.compile_model(graph, sys.argv[1], clnn.Options(merge=False)) as session:
    y = session({"x": np.ones((1, 8, 6, 6), np.float32)})["y"]
    print(*session.build_counts, float(y.sum()))
"""


def test_processes_that_build_the_same_share_the_work(any_device, tmp_path):
    env = os.environ | {"CLNN_CACHE_DIR": str(tmp_path), "CLNN_BUILD_JOBS": "1"}
    warm = subprocess.run(  # so that the probe's results are there
        [sys.executable, "-m", "clnn", "devices"], env=env, cwd=ROOT, capture_output=True
    )
    assert warm.returncode == 0, warm.stderr
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, any_device],
            env=env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "here\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    rows = [process.communicate(timeout=600)[0].split() for process in processes]
    cached, built, results = zip(*rows, strict=True)
    counts = [int(c) + int(b) for c, b in zip(cached, built, strict=True)]
    assert len({*counts}) == len({*results}) == 1
    assert sum(map(int, built)) == counts[0] > 2


def test_a_build_goes_on_when_its_builder_died(any_device, tmp_path, monkeypatch):
    """The holder of all locks ends without having stored anything."""
    from clnn.runtime.build import program
    from clnn.runtime.device.device import select

    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    source = "__kernel void one(__global int *x) { x[get_global_id(0)] = 1; }\n"
    device = program.Device.open(select(any_device))
    released = threading.Event()

    def hold():
        with taken(device.store, [device.key(source)]) as mine:
            assert mine
            held.set()
            released.wait(600.0)

    held = threading.Event()
    holding = threading.Thread(target=hold)
    holding.start()
    held.wait(600.0)
    threading.Timer(0.5, released.set).start()
    device.build({"one": source})
    assert released.is_set()
    holding.join()
    assert device.counts.pair == (0, 1)
