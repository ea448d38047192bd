"""Children that answer requests: their ends are told, and others take their places."""

from __future__ import annotations

import os
import signal

import pytest

from clnn.errors import DeviceError
from clnn.runtime.device.device import select
from clnn.runtime.drivers.loader import child_environment
from clnn.runtime.process.worker import Worker, WorkerError


@pytest.fixture
def worker(any_device):
    info = select(any_device)
    argument = {"platform": info.platform_index, "device": info.device_index, "options": []}
    made = Worker("run.trial_child", argument, child_environment(info.driver))
    yield made
    made.close()


def source(folder, text):
    path = folder / "a.cl"
    path.write_text(text)
    return {"build": str(path), "binary": str(folder / "a.bin")}


def test_one_child_answers_until_it_dies_then_another_does(worker, tmp_path):
    good = source(tmp_path, "__kernel void k(__global int *x) { x[0] = 1; }")
    assert worker.pid is None
    assert worker.ask(good, 60) == {"fault": ""} and (tmp_path / "a.bin").exists()
    first = worker.pid
    bad = worker.ask(source(tmp_path, "nonsense"), 60)["fault"]
    assert "BUILD_PROGRAM_FAILURE" in bad and "\n" not in bad and worker.pid == first
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"crashed \(SIGKILL\)"):
        worker.ask(good, 60)
    assert worker.pid is None
    assert worker.ask(source(tmp_path, "__kernel void k(void) {}"), 60) == {"fault": ""}
    assert worker.pid not in (None, first)


def test_a_child_that_takes_too_long_is_killed(worker, tmp_path):
    worker.ask(source(tmp_path, "__kernel void k(void) {}"), 60)
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"did not answer within 0.2 s"):
        worker.ask({"build": "x", "binary": "y"}, 0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_error_of_the_child_itself_ends_it_with_its_last_words(worker):
    with pytest.raises(WorkerError, match=r"status 1 .*no_such_file"):
        worker.ask({"build": "no_such_file", "binary": "y"}, 60)


def test_a_child_that_does_not_start_is_a_device_error():
    absent = Worker(
        "run.trial_child", {"platform": 999, "device": 0, "options": []}, child_environment()
    )
    with pytest.raises(DeviceError, match=r"did not start: ended with status 1 .*IndexError"):
        absent.ask({}, 60)


def test_a_closed_worker_starts_nothing(worker):
    worker.close()
    with pytest.raises(WorkerError, match="was closed"):
        worker.ask({}, 60)
    assert worker.pid is None
