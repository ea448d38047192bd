"""Processes that are killed while they write, and what the next process finds.

    python kill_worker.py TASK FOLDER MOST

A forked process does TASK and dies, uncatchably, before a step: a call that changes a file or folder; a
write is torn in the middle first. Then another does it all and looks. That for MOST steps, spread over all
(0: each). The task "children", which builds in child processes, dies at MOST random moments instead.
Prints its answer as JSON.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from small_graphs import Builder
from tune_fakes import described

import clnn
from clnn.cache import Store
from clnn.cache.lines import LineFile
from clnn.cache.store import stored_kinds
from clnn.runtime.build import program
from clnn.tune.journal import Journal, left_over
from clnn.tune.store import TuningStore, in_force

CALLS = (
    "open",
    "write",
    "fsync",
    "ftruncate",
    "close",
    "replace",
    "rename",
    "mkdir",
    "unlink",
    "rmdir",
    "symlink",
    "utime",
)
SHAPE = (1, 4, 6, 6)
OLD_S = 7200.0  # what a process left behind, seen two hours later


class Steps:
    """Counts the calls of `os` that change files, from now on; kills this process before one."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        for name in CALLS:
            setattr(os, name, self._hooked(name, getattr(os, name)))
        self._open = io.open
        io.open = self._file  # type: ignore[assignment]

    def _hooked(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self._step(lambda: name == "write" and real(args[0], args[1][: len(args[1]) // 2]))
            return real(*args, **kwargs)

        return call

    def _file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file; one that is written is cut to nothing first, then nothing comes."""
        if not set(mode).isdisjoint("wax+"):
            self._step(lambda: self._open(file, mode, *args, **kwargs))
        return self._open(file, mode, *args, **kwargs)

    def _step(self, torn: Callable[[], Any]) -> None:
        self.count += 1
        if self.count == self.at:
            torn()
            os.kill(os.getpid(), signal.SIGKILL)


def net() -> Any:
    b = Builder(x=SHAPE)
    return b.graph(b.post_ops("relu", b.conv("x", 4)))


FEED = {"x": np.linspace(-1, 1, 144, dtype=np.float32).reshape(SHAPE)}


def compiled(folder: Path) -> Any:
    """Compile with the cache, and run; return the outputs."""
    with clnn.compile_model(net()) as session:
        return session(FEED)["out0"].tobytes().hex()


def tuned(folder: Path) -> Any:
    """Tune what is not tuned yet, compile and run; return how many results there are."""
    clnn.tune_model(net(), level="quick", budget=3.0, resume=True)
    with clnn.compile_model(net()) as session:
        session(FEED)
    return True


def lines(folder: Path) -> Any:
    """Note what is tried, keep failures, and compact the file; return what is kept."""
    store = TuningStore(described(), folder, "rw")
    left_over(store.lines.path)
    journal = Journal(store.lines.path)
    for number in range(2):
        with journal.trying(f"key{number}", "variant", "text"):
            store.put_failure(f"key{number}", "variant", "text", "was slow")
    store.lines.rewrite(in_force)
    journal.close()
    store.reload()
    return [sorted(map(str, store.failures(f"key{number}"))) for number in range(2)]


def in_children(folder: Path) -> Any:
    """Compile kernels apart from each other, in child processes, and run; return the outputs."""
    os.environ["CLNN_BUILD_JOBS"] = "2"
    program.CHILDREN_FROM = 2
    with clnn.compile_model(net(), options=clnn.Options(merge=False, fuse=False)) as session:
        return session(FEED)["out0"].tobytes().hex()


TASKS = {
    "compile": compiled,
    "first": compiled,
    "tune": tuned,
    "lines": lines,
    "children": in_children,
}


def forked(work: Callable[[], Any], after: float | None = None) -> tuple[int, Any]:
    """Do work in a forked process; return its wait status and what it returned.

    after: seconds until it is killed; its children are not.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            answer = json.dumps(work())
            os.write(theirs, answer.encode())
            sys.stderr.flush()
            atexit._run_exitfuncs()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(9)
    os.close(theirs)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(ours, "rb") as reply:
        text = reply.read()
    status = os.waitpid(pid, 0)[1]
    return status, json.loads(text) if text else None


class Killed:
    """One folder after another: a process that dies there, and the next one. wrong: what that found."""

    def __init__(self, task: str, root: Path) -> None:
        self.task, self.root, self.work = task, root, TASKS[task]
        self.wrong: list[str] = []
        self.kills, self.at = 0, ""
        self.base = root / "base"
        self._place(self.base)
        if task != "first":
            self._done("base", lambda: TASKS["compile"](self.base) if task != "lines" else 0)
            shutil.rmtree(self.base / "v1" / "programs", ignore_errors=True)
        self._copy("calm")
        began = time.monotonic()
        self.wanted, self.steps = self._done("calm", self._counted)
        self.seconds = time.monotonic() - began

    def _place(self, folder: Path) -> Path:
        """Have all that a process writes be in a folder."""
        self.folder, self.temporary = folder, folder / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        os.environ.update(CLNN_CACHE_DIR=str(folder / "cache"), TMPDIR=str(self.temporary))
        tempfile.tempdir = str(self.temporary)
        return folder

    def _copy(self, name: str) -> None:
        folder = self.root / name
        shutil.copytree(self.base, folder, symlinks=True)
        shutil.rmtree(folder / "cache" / "v1" / "programs", ignore_errors=True)
        self._place(folder)

    def _done(self, name: str, work: Callable[[], Any]) -> Any:
        status, answer = forked(work)
        assert status == 0, f"{name} ended with {status}"
        return answer

    def _counted(self) -> Any:
        steps = Steps(-1)
        answer = self.work(self.folder / "cache")
        return answer, steps.count

    def before_step(self, at: int) -> None:
        """Kill a process before step `at`, and look."""
        self._copy(f"step{at}")

        def dies() -> Any:
            Steps(at)
            return self.work(self.folder / "cache")

        self._killed(f"{self.task} step {at}", forked(dies)[0])

    def after_seconds(self, number: int, seconds: float) -> None:
        """Kill a process some seconds after its begin, and look."""
        self._copy(f"time{number}")
        status = forked(lambda: self.work(self.folder / "cache"), seconds)[0]
        self._killed(f"{self.task} after {seconds:.3f} s", status)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and (left := processes_of(self.folder)):
            time.sleep(0.05)
        if left:
            self.wrong.append(f"{self.at}: {len(left)} processes stay")

    def _killed(self, at: str, status: int) -> None:
        self.at = at
        self.kills += os.WIFSIGNALED(status)
        if not os.WIFSIGNALED(status) and status:
            self.wrong.append(f"{self.at}: ended with {status}")
        for path in self.folder.rglob("*"):
            if not path.is_symlink():
                os.utime(path, (time.time() - OLD_S,) * 2)
        status, answer = forked(lambda: self.work(self.folder / "cache"))
        if status or answer != self.wanted:
            self.wrong.append(f"{self.at}: the next process ended with {status}: {answer}")
        self._look()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _look(self) -> None:
        """Note what is torn, or left and never cleaned."""
        cache = self.folder / "cache"
        torn, told = self._done("look", lambda: sound(cache))
        self.wrong += [f"{self.at}: {text}" for text in (*torn, *told)]
        left = [str(p.relative_to(self.folder)) for p in self.temporary.iterdir()]
        left += [str(p.relative_to(self.folder)) for p in cache.rglob("*") if is_left(p)]
        if left:
            self.wrong.append(f"{self.at}: left {sorted(left)}")


def is_left(path: Path) -> bool:
    """Whether a file is of a process that is gone."""
    name = path.name
    notes = (".trying", ".alive", ".trying.lock", ".part")
    return name.startswith((".new-", ".old-")) or name.endswith(notes) or name[:1] == "."


def processes_of(folder: Path) -> list[str]:
    """Return the processes whose command names a folder."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if str(folder).encode() in Path("/proc", name, "cmdline").read_bytes():
                found += [name] * (int(name) != os.getpid())
        except OSError:
            continue
    return found


def sound(cache: Path) -> Any:
    """Return damaged entries and lines of a cache, and what clnn warned of when it was read."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torn = []
        for kind in stored_kinds(cache):
            store = Store(cache, "rw", kind)
            torn += [f"{kind} {key} is bad" for key in store.verify().bad]
            torn += [f"{store.stats().quarantined} {kind} in quarantine"] * bool(
                store.stats().quarantined
            )
        for path in (cache / "tuning").glob("*.jsonl"):
            file = LineFile(path, "ro")
            file.read()
            torn += [f"{file.bad} damaged lines in {path.name}"] * bool(file.bad)
    return torn, [str(one.message) for one in told]


def main() -> None:
    task, folder, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    killed = Killed(task, folder)
    if task == "children":
        chance = random.Random(most)
        for number in range(most):
            killed.after_seconds(number, chance.uniform(0.02, 0.8) * killed.seconds)
    else:
        most = min(most or killed.steps, killed.steps)
        for step in sorted({1 + k * killed.steps // most for k in range(most)}):
            killed.before_step(step)
    answer = {"steps": killed.steps, "kills": killed.kills, "wrong": killed.wrong}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
