"""PoCL's threads stay on a processor each, where there are as many as the process may use."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from common import usable_devices

from clnn.runtime.drivers import pinning
from clnn.runtime.drivers.pinning import PINNED, pin

CODE = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[2])
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy  # has threads of its own
before = set(os.listdir("/proc/self/task"))
from clnn.runtime.device.device import open_context, select
open_context(select("Portable"))
started = sorted(map(int, set(os.listdir("/proc/self/task")) - before))
print(json.dumps([sorted(os.sched_getaffinity(t)) for t in started]))
"""

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="no affinity of threads on this system"
)


def processors_of_threads(use: str = "all", **env: str) -> list[list[int]]:
    """Return where each thread may run that a process of its own has once PoCL is open."""
    if not any("portable" in name.lower() for name in usable_devices()):
        pytest.skip("no PoCL")
    inherited = {k: v for k, v in os.environ.items() if k != "POCL_AFFINITY"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, use, json.dumps(sys.path)],
        env=inherited | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_thread_has_a_processor_of_its_own():
    mine = sorted(os.sched_getaffinity(0))
    found = processors_of_threads()
    if len(mine) < 2 or len(found) != len(mine):
        pytest.skip(f"PoCL has {len(found)} threads for {len(mine)} processors")
    assert sorted(found) == [[cpu] for cpu in mine]


@pytest.mark.parametrize(
    "env", [{"CLNN_PIN_THREADS": "off"}, {"POCL_AFFINITY": "0"}, {"POCL_MAX_PTHREAD_COUNT": "1"}]
)
def test_threads_stay_where_they_are_put(env):
    found = processors_of_threads(**env)
    assert found
    assert all(where == sorted(os.sched_getaffinity(0)) for where in found)


def test_a_process_with_fewer_processors_than_threads():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    cpu = min(os.sched_getaffinity(0))
    assert set(map(tuple, processors_of_threads("one"))) == {(cpu,)}


@pytest.fixture
def started():
    """Ids of as many idle threads as there are processors."""
    end, before = threading.Event(), pinning.threads()
    made = [threading.Thread(target=end.wait, daemon=True) for _ in os.sched_getaffinity(0)]
    for one in made:
        one.start()
    yield pinning.threads() - before
    end.set()
    for one in made:
        one.join()


@pytest.mark.parametrize("platforms", [["Intel(R) OpenCL", PINNED], ["Intel(R) OpenCL"]])
def test_only_threads_of_pocl_are_pinned(started, platforms):
    mine = sorted(os.sched_getaffinity(0))
    pin(started, platforms)
    alone = PINNED in platforms and len(mine) > 1
    found = sorted(sorted(os.sched_getaffinity(t)) for t in started)
    assert found == ([[cpu] for cpu in mine] if alone else [mine] * len(started))


def test_threads_of_others_between_them_stay(started):
    extra = threading.Event()
    more = threading.Thread(target=extra.wait, daemon=True)
    more.start()
    mine = sorted(os.sched_getaffinity(0))
    pin([*started, more.native_id], [PINNED])
    assert all(sorted(os.sched_getaffinity(t)) == mine for t in started)
    extra.set()
    more.join()


def test_a_system_that_refuses_is_only_told_of(started, monkeypatch, caplog):
    if len(started) < 2:
        pytest.skip("needs two processors")

    def refuse(thread: int, where: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with caplog.at_level(logging.INFO, "clnn"):
        pin(started, [PINNED])
    assert "stay where the system puts them: [Errno 22] Invalid argument" in caplog.text


def test_a_system_that_does_not_tell_its_threads(monkeypatch):
    monkeypatch.setattr(pinning, "TASKS", "/nowhere")
    assert pinning.threads() == set()
