"""Forked processes: those of a process that used a device are told so at once, others compute."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from common import ROOT
from small_graphs import Builder
from test_staged_session import picked_rows

import clnn
from clnn.errors import ForkError, PickleError
from clnn.runtime.process import forked
from clnn.runtime.run.open_session import OpenSession

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
TOLD = "ForkError with advice"


def seen(case: str, device: str) -> Any:
    """Return what the processes of a case saw. One that hangs is killed with all its children."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "fork_cases.py"), case]
    env = {**os.environ, "CLNN_DEVICE": device}
    env.pop("POCL_CACHE_DIR", None)  # this process's own
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
    ) as child:
        try:
            out, err = child.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            pytest.fail(f"{case} hangs")
    assert child.returncode == 0, err.decode()[-3000:]
    assert b"leaked" not in err, err.decode()[-3000:]
    return json.loads(out)


def test_every_use_in_a_child_of_a_process_that_used_a_device_is_refused(any_device):
    told = seen("calls_of_a_used_session", any_device)
    assert told.pop("close") == "None" and told.pop("parent") is True
    assert set(told.values()) == {TOLD} and len(told) == 9


def test_locks_that_other_threads_held_do_not_matter(any_device):
    assert seen("held_by_another_thread", any_device) == [TOLD, TOLD]


def test_sessions_of_the_parent_go_without_a_hang(any_device):
    assert seen("ends_of_children", any_device) == ["gone True", 0]


def test_a_process_that_used_no_device_may_fork(any_device):
    told = seen("only_imported", any_device)
    assert told == {"equal": True, "own folders": True, "then": TOLD}


def test_a_pool_of_forked_processes_is_told(any_device):
    assert seen("pool_of_a_used_session", any_device) == [TOLD] * 4


def test_a_server_may_compile_in_its_workers_not_before_them(any_device):
    told = seen("preloading_server", any_device)
    assert told == {"late": [True] * 3, "early": [TOLD] * 3}


def test_workers_of_a_data_loader_are_told(any_device):
    told = seen("loader_of_a_dataset", any_device)
    assert told["fork"] == TOLD
    assert told["spawn"].startswith("PickleError: a session cannot be pickled or copied")


def test_other_sessions_are_told_before_they_take_a_lock(any_device, monkeypatch):
    """In a child, the locks of these may be held by a thread that is not there."""
    staged = clnn.compile_model(picked_rows(), any_device)
    opened = OpenSession([], [], lambda shapes: pytest.fail("compiled"))
    monkeypatch.setattr(forked.process, "refusal", "forked")
    for one in (staged, opened):
        with one._lock, one._making:
            for name in ("__call__", "placement", "build_counts"):
                with pytest.raises(ForkError):
                    getattr(one, name)({})
            one.close()
    monkeypatch.undo()
    staged.close()


def test_sessions_are_not_pickled_or_copied(any_device):
    b = Builder(x=(1, 4))
    staged = clnn.compile_model(picked_rows(), any_device)
    with clnn.compile_model(b.graph(b.post_ops("relu", "x")), any_device) as session, staged:
        for one in (session, staged, OpenSession([], [], lambda shapes: session)):
            for work in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(PickleError, match="path and compile there") as caught:
                    work(one)
                assert isinstance(caught.value, TypeError)
        assert session({"x": np.ones((1, 4), np.float32)})["out0"].sum() == 4
