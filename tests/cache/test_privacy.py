"""Cache folders that others may write to: not used, one warning. Those that clnn makes: its user's."""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import stat
from pathlib import Path

import pytest
from cache_faults import failing, forget, using

from clnn.cache import Store
from clnn.cache.lines import LineFile
from clnn.runtime.drivers.vendors import Driver, vendors_folder

KEY = hashlib.sha256(b"").hexdigest()
OTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def root(tmp_path) -> Path:
    """A cache folder with an entry of two kinds and a file of lines."""
    folder = tmp_path / "cache"
    for kind in ("programs", "probes"):
        assert Store(folder, "rw", kind).put(KEY, b"sound", {})
    assert LineFile(folder / "tuning" / "a.jsonl").append([{"n": 1}])
    forget()
    return folder


def used(folder: Path) -> bool:
    """Whether a new process uses a cache folder: all of it or nothing."""
    forget()
    stores = [Store(folder, "rw", kind) for kind in ("programs", "probes")]
    lines = LineFile(folder / "tuning" / "a.jsonl")
    got = [s.get(KEY) is not None for s in stores] + [bool(lines.read())]
    put = [s.put(KEY, b"sound", {}) for s in stores] + [lines.append([{"n": 2}])]
    modes = [s.mode == "rw" for s in stores] + [lines.mode == "rw"]
    assert len({*got, *put, *modes}) == 1
    return got[0]


def refused(folder: Path, told: list[str], words: str) -> bool:
    """Whether it is not used, and that is told once, with the reason and what to do."""
    del told[:]
    before = sorted(p.stat().st_mtime_ns for p in folder.rglob("*"))
    gone = not used(folder) and sorted(p.stat().st_mtime_ns for p in folder.rglob("*")) == before
    assert len(told) == 1, told
    assert words in told[0] and "CLNN_CACHE_DIR" in told[0] and "chmod 700" in told[0]
    return gone


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o707, 0o702])
@pytest.mark.parametrize("inner", [".", "v1"])
def test_writable_for_all(root, told, mode, inner):
    (root / inner).chmod(mode)
    if inner == "v1":  # the tuning folder is not below
        forget()
        assert Store(root, "rw").get(KEY) is None and len(told) == 1
    else:
        assert refused(root, told, f"can be written by all users (mode {mode:04o})")


@needs_root
@pytest.mark.parametrize("mode", [0o775, 0o770])
def test_writable_for_a_group_of_others(root, told, mode):
    os.chown(root, -1, OTHER)
    root.chmod(mode)
    assert refused(root, told, f"can be written by its group {OTHER}")


def test_writable_for_the_group_of_the_user_alone(root, told):
    """As folders are where the umask is 0002 and each user has a group."""
    user = pwd.getpwuid(os.geteuid())
    group = grp.getgrgid(user.pw_gid)
    if group.gr_name != user.pw_name or {*group.gr_mem} - {user.pw_name}:
        pytest.skip("this user has no group of its own")
    os.chown(root, -1, user.pw_gid)
    root.chmod(0o775)
    assert used(root) and not told


def test_the_group_of_the_user_with_another_member(root, told, monkeypatch):
    group = grp.struct_group((pwd.getpwuid(os.geteuid()).pw_name, "x", 0, ["somebody"]))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    root.chmod(0o775)
    assert refused(root, told, "can be written by its group")


@needs_root
def test_folder_of_another_user(root, told):
    os.chown(root, OTHER, -1)
    assert refused(root, told, f"belongs to another user ({OTHER}, this one is 0)")


def test_symbolic_link_in_its_place(root, told, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    assert refused(link, told, "is a symbolic link")


def test_symbolic_link_above(root, told, tmp_path):
    (tmp_path / "home").symlink_to(tmp_path)
    assert used(tmp_path / "home" / root.name) and not told


@pytest.mark.parametrize("mode,fine", [(0o777, False), (0o1777, True), (0o775, True)])
def test_folder_above(root, told, mode, fine):
    root.parent.chmod(mode)
    if fine:
        assert used(root) and not told
    else:
        assert refused(root, told, "can be replaced by all users")


@needs_root
def test_entry_of_another_user(root, told):
    """It was put there while the folder was open."""
    store = Store(root, "rw")
    os.chown(store.path(KEY), OTHER, -1)
    assert store.get(KEY) is None
    assert len(told) == 1 and "belongs to another user" in told[0]


def test_entry_that_others_may_write(root, told):
    store = Store(root, "rw")
    store.path(KEY).chmod(0o666)
    assert store.get(KEY) is None and len(told) == 1


def test_another_user_is_faster(tmp_path, told, monkeypatch):
    """The folder appears, open for all, between the look for it and its making."""
    store = Store(tmp_path / "cache", "rw")
    mkdir = os.mkdir

    def open_for_all(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        os.chmod(path, 0o777)

    assert store.mode == "rw"
    monkeypatch.setattr(os, "mkdir", open_for_all)
    assert not store.put(KEY, b"sound", {}) and len(told) == 1


def test_what_clnn_makes_is_for_its_user_only(tmp_path, monkeypatch):
    root = tmp_path / "home" / "cache"
    monkeypatch.setenv("CLNN_CACHE_DIR", str(root))
    monkeypatch.setenv("CLNN_CACHE", "rw")
    before = os.umask(0)
    try:
        folder = vendors_folder([Driver("a.icd", "liba.so")])
        assert Store(root, "rw").put(KEY, b"sound", {})
        assert LineFile(root / "tuning" / "a.jsonl").append([{"n": 1}])
    finally:
        os.umask(before)
    assert folder.is_relative_to(root)
    made = [root, *(p for p in root.rglob("*") if p.is_dir())]
    assert len(made) > 5 and {stat.S_IMODE(p.stat().st_mode) for p in made} == {0o700}


def test_drivers_are_not_registered_in_a_folder_of_others(root, told, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(root))
    monkeypatch.setenv("CLNN_CACHE", "rw")
    root.chmod(0o777)
    assert not vendors_folder([Driver("a.icd", "liba.so")]).is_relative_to(root)
    assert len(told) == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_one_warning_for_a_folder_that_cannot_be_written(root, told, number):
    """However many kinds of entries it holds."""
    stores = [Store(root, "rw", kind) for kind in ("programs", "probes", "peaks")]
    with using(failing(lambda _: True, number)):
        for store in stores:
            assert not store.put(KEY, b"x", {})
        assert not LineFile(root / "tuning" / "a.jsonl").append([{"n": 2}])
    assert len(told) == 1
