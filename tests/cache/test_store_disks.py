"""Real read-only and full disks, users without rights or home: clnn works on, without a cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from cache_children import run_worker
from cache_faults import forget
from cache_worker import put

from clnn.cache import Store


def _can_mount():
    script = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(script, capture_output=True).returncode == 0
    except OSError:
        return False


needs_mount = pytest.mark.skipif(not _can_mount(), reason="this system lets tests mount nothing")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_folder():
    """A folder that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def _filled(root):
    assert put(Store(root, "rw"), "there")
    forget()
    return root


def _let_read(root):
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_folder_that_may_only_be_read_still_serves(open_folder):
    root = _filled(open_folder / "cache")
    _let_read(root)
    answer = run_worker("read-only", root)
    assert answer["got"] == [True, False, True, False]
    assert answer["stored"] == [False] * 4
    assert answer["mode"] == "ro"
    assert len(answer["told"]) == 1


def test_empty_folder_that_may_only_be_read(open_folder):
    root = open_folder / "cache"
    root.mkdir(mode=0o555)
    answer = run_worker("read-only", root)
    assert answer["got"] == [None, False, None, False]
    assert answer["stored"] == [False] * 4
    assert len(answer["told"]) == 1


def test_folder_that_may_not_be_read(open_folder):
    root = _filled(open_folder / "cache")
    root.chmod(0o000)
    answer = run_worker("read-only", root)
    assert answer["got"] == [None, False, None, False]
    assert answer["stored"] == [False] * 4
    assert answer["mode"] == "off"
    assert len(answer["told"]) == 1


@needs_mount
def test_read_only_file_system(tmp_path):
    root = _filled(tmp_path / "cache")
    bind = (f"mount --bind {root} {root}", f"mount -o remount,bind,ro {root}")
    answer = run_worker("unwritable", root, before=bind)
    assert answer["got"] == [True, False, True, False]
    assert answer["stored"] == [False] * 4
    assert answer["mode"] == "ro"
    assert len(answer["told"]) == 1
    assert "Read-only" in answer["told"][0]


@needs_mount
def test_full_file_system(tmp_path):
    answer = run_worker(
        "full", tmp_path, 0, before=(f"mount -t tmpfs -o size=128k,mode=700 none {tmp_path}",)
    )
    assert 0 < answer["stored"] == answer["read"] == answer["right"] < 200
    assert answer["left_over"] == 0
    assert answer["mode"] == "ro"
    assert len(answer["told"]) == 1
    assert "No space" in answer["told"][0]


def test_limited_file_size(tmp_path):
    """The kernel itself cuts a write short and then refuses the rest."""
    answer = run_worker("full", tmp_path, 3000)
    assert 0 < answer["stored"] == answer["read"] == answer["right"] < 200
    assert answer["left_over"] == 0
    assert answer["mode"] == "ro"
    assert len(answer["told"]) == 1


@needs_root
def test_user_without_home(tmp_path):
    answer = run_worker("homeless", tmp_path)
    assert answer["stored"] == [False, False]
    assert answer["got"] == [None, None]
    assert answer["mode"] == "off"
    assert len(answer["told"]) == 1
