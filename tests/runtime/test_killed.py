"""kill -9 while kernels are compiled, kept and tuned: the next process is right, and cleans up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from common import ROOT

from clnn.cache import Store

SUPPORT = ROOT / "tests" / "support"
PATHS = os.pathsep.join(map(str, (ROOT, SUPPORT, ROOT / "tests" / "tune")))
# Kills of the short form; of the long one (0: before every step).
KILLS = {"lines": (12, 0), "compile": (3, 0), "first": (1, 0), "tune": (2, 0), "children": (2, 250)}


def worker(task: str, folder: Path, most: int) -> dict[str, object]:
    child = [sys.executable, str(SUPPORT / "kill_worker.py"), task, str(folder), str(most)]
    env = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(child, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def check(answer: dict[str, object], least: int) -> None:
    assert answer["wrong"] == []
    assert int(str(answer["kills"])) >= least


@pytest.mark.parametrize("task", KILLS)
def test_killed(any_device, tmp_path, task):
    most = KILLS[task][0]
    check(worker(task, tmp_path, most), 0 if task == "children" else most)


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", KILLS)
@pytest.mark.timeout(7200)
def test_killed_everywhere(any_device, tmp_path, task, capsys):
    answer = worker(task, tmp_path, KILLS[task][1])
    with capsys.disabled():
        print(
            f"\n{task}: {answer['steps']} steps, {answer['kills']} kills, {len(answer['wrong'])} wrong"
        )
    check(answer, 20)


SAME = """
import sys, clnn, numpy as np
from small_graphs import Builder
b = Builder(x=(1, 4, 6, 6))
graph = b.graph(b.post_ops("relu", b.conv("x", 4)))
sys.stdin.readline()
with clnn.compile_model(graph, options=clnn.Options(merge=False, fuse=False)) as session:
    print(session({"x": np.ones((1, 4, 6, 6), np.float32)})["out0"].tobytes().hex())
"""


def test_processes_that_build_the_same_at_once(any_device, tmp_path):
    """From an empty cache, devices not probed yet."""
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": PATHS,
        "CLNN_CACHE_DIR": str(cache),
        "TMPDIR": str(temporary),
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = [sys.executable, "-W", "always", "-c", SAME]
    started = [subprocess.Popen(child, env=env, text=True, **pipes) for _ in range(3)]
    with ThreadPoolExecutor(len(started)) as pool:
        ended = list(pool.map(lambda one: one.communicate("go\n"), started))
    assert [one.returncode for one in started] == [0] * len(started), ended
    assert len({out for out, _ in ended}) == 1 and all(out for out, _ in ended)
    assert not any("CacheWarning" in err for _, err in ended)
    for kind in ("programs", "probes"):
        store = Store(cache, "rw", kind)
        assert store.verify().bad == () and store.stats().quarantined == 0
    assert Store(cache, "rw").stats().entries > 1
    assert not list(cache.rglob(".new-*")) and not [*temporary.iterdir()]
