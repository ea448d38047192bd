"""Temporary folders: those of killed processes are removed, those in use never."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clnn.runtime.process import temporary
from clnn.runtime.process.temporary import LOCK, folder_for_a_while, own_folder, remove_abandoned

PREFIX = "clnn-trial-"
OWNER = (
    "import os, sys; sys.path[:0] = {path!r}; from clnn.runtime.process.temporary import own_folder\n"
    "folder = own_folder({prefix!r}); (folder / 'data').mkdir(); print(folder, flush=True)\n"
    "{then}\n"
)
WAIT = "sys.stdin.read()"
FORK = "os.fork() or (print('forked', flush=True), sys.stdin.read())\nos._exit(0)"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Let temporary folders lie in a folder of the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def owner(then: str = WAIT, code: str = OWNER) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that makes a folder and then waits for its input to end."""
    code = code.format(path=sys.path, prefix=PREFIX, then=then)
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def killed(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_folder_goes_with_its_process_and_at_the_latest_with_the_next():
    child, ended = owner()
    child.communicate("")
    assert child.returncode == 0 and not ended.exists()
    first, left = owner()
    second, used = owner()
    assert left.is_dir() and used.is_dir()
    killed(first)
    assert left.is_dir()
    mine = own_folder(PREFIX)
    assert not left.exists() and (used / "data").is_dir() and mine.is_dir()
    remove_abandoned(PREFIX)
    assert (used / "data").is_dir() and mine.is_dir()
    second.communicate("")
    shutil.rmtree(mine)


def test_a_folder_for_a_while_goes_when_it_is_done_or_killed(places):
    open_files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(ZeroDivisionError), folder_for_a_while(PREFIX) as folder:
        (folder / "data").write_text("x")
        remove_abandoned(PREFIX)
        assert (folder / "data").exists()
        raise ZeroDivisionError
    assert not list(places.iterdir())
    if open_files:
        assert len(os.listdir("/proc/self/fd")) == open_files
    code = OWNER.replace("own_folder", "folder_for_a_while").replace(
        "folder = folder_for_a_while({prefix!r})",
        "made = folder_for_a_while({prefix!r}); folder = made.__enter__()",
    )
    child, left = owner(code=code)
    killed(child)
    assert left.is_dir()
    with folder_for_a_while(PREFIX):
        assert not left.exists()


def test_a_forked_process_keeps_the_folder():
    """A process ends at once, while one that it forked still uses the folder."""
    child, used = owner(FORK)
    given, told = child.stdin, child.stdout
    assert given is not None and told is not None
    assert told.readline() == "forked\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    remove_abandoned(PREFIX)
    assert used.is_dir()
    given.close()
    told.read()  # ends when the forked process has
    told.close()
    remove_abandoned(PREFIX)
    assert not used.exists()


def test_what_is_not_known_to_be_abandoned_stays(places, monkeypatch):
    (places / f"{PREFIX}without").mkdir()
    other = places / "other-folder"
    other.mkdir()
    (other / LOCK).write_text("")
    (places / f"{PREFIX}link").symlink_to(other)
    pipe = places / f"{PREFIX}pipe"
    pipe.mkdir()
    os.mkfifo(pipe / LOCK)
    (places / f"{PREFIX}file").write_text("")
    remove_abandoned(PREFIX)
    assert len(list(places.iterdir())) == 5 and (other / LOCK).exists()
    strange = places / f"{PREFIX}strange"
    strange.mkdir()
    (strange / LOCK).write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(temporary.os, "geteuid", lambda: os.getuid() + 1)
        remove_abandoned(PREFIX)
    assert strange.exists()
    remove_abandoned(PREFIX)
    assert not strange.exists()


def test_a_system_without_locks_keeps_all(monkeypatch):
    monkeypatch.setattr(temporary, "_locks", lambda _: False)
    mine = own_folder(PREFIX)
    assert not (mine / LOCK).exists()
    remove_abandoned(PREFIX)
    assert mine.is_dir()


def test_many_at_once_remove_nothing_in_use():
    """Folders that are made while others look for abandoned ones."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: own_folder(PREFIX), range(40)))
    assert len(set(made)) == 40 and all((folder / LOCK).exists() for folder in made)


def test_pocls_folder_of_a_killed_process_is_removed(places):
    code = (
        f"import os, sys; sys.path[:0] = {sys.path!r}\nfrom clnn.runtime.drivers.loader import load; load()\n"
        "print(os.environ['POCL_CACHE_DIR'], flush=True); sys.stdin.read()"
    )
    env = {name: text for name, text in os.environ.items() if name != "POCL_CACHE_DIR"}
    left = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        left.append(Path(child.stdout.readline().strip()))
        killed(child)
    assert not left[0].exists() and left[1].parent == places and left[1].is_dir()


def test_a_folder_whose_maker_died_before_it_was_locked_goes_when_it_is_old(places):
    begun, locking, full = (places / f"{PREFIX}{n}" for n in ("begun", "locking", "full"))
    for folder in (begun, locking, full):
        folder.mkdir()
    (locking / f"{LOCK}.new").touch()
    (full / "data").touch()  # nobody knows whose it is
    remove_abandoned(PREFIX)
    assert begun.is_dir() and locking.is_dir()
    for folder in (begun, locking, full):
        os.utime(folder, (1.0, 1.0))
    remove_abandoned(PREFIX)
    assert [p.name for p in places.iterdir()] == [full.name]


def test_who_is_killed_while_a_folder_goes_leaves_what_another_can_remove(places, monkeypatch):
    child, left = owner()
    killed(child)
    for name in "abc":
        (left / name).touch()
    real, gone = os.unlink, []

    def dies(path, **more):
        gone.append(Path(path).name)
        if len(gone) == 3:
            raise KeyboardInterrupt
        real(path, **more)

    monkeypatch.setattr(os, "unlink", dies)
    with pytest.raises(KeyboardInterrupt):
        remove_abandoned(PREFIX)
    monkeypatch.undo()
    assert LOCK not in gone and (left / LOCK).exists()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    remove_abandoned(PREFIX)
    assert not left.exists()
