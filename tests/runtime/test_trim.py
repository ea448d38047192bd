"""Pages of libraries are given back, and only those that are as their files have them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from clnn.runtime.drivers import trim as trimming
from clnn.runtime.drivers.trim import MappedLibrary, libraries, trim, trim_opened


def mapping(permissions: str, path: str, resident: int = 8, anonymous: int = 0) -> list[str]:
    return [
        f"1000-5000 {permissions} 00000000 fe:00 12{' ' * 20}{path}\n",
        "Size:  16 kB\n",
        f"Rss:   {resident} kB\n",
        f"Anonymous:  {anonymous} kB\n",
        "VmFlags: rd mr mw me\n",
    ]


@pytest.mark.parametrize(
    ("permissions", "path", "resident", "anonymous", "taken"),
    [
        ("r-xp", "/usr/lib/libLLVM.so.15", 8, 0, True),
        ("r--p", "/opt/my libs/a.so", 8, 0, True),
        ("r-xp", "/usr/lib/libLLVM.so.15", 0, 0, False),
        ("r--p", "/usr/lib/libLLVM.so.15", 8, 4, False),  # relocated: pages of the process's own
        ("rw-p", "/usr/lib/libLLVM.so.15", 8, 0, False),
        ("r-xs", "/usr/lib/libLLVM.so.15", 8, 0, False),
        ("r--p", "/usr/lib/locale/locale-archive", 8, 0, False),
        ("r--p", "/dev/thing.so", 8, 0, False),
        ("r-xp", "", 8, 0, False),
        ("r-xp", "[vdso]", 8, 0, False),
    ],
)
def test_which_mappings_are_taken(permissions, path, resident, anonymous, taken):
    lines = [*mapping("rw-p", "[heap]", 8, 8), *mapping(permissions, path, resident, anonymous)]
    assert list(libraries(lines)) == ([MappedLibrary(path, 0x1000, 0x5000, 8192)] if taken else [])


def test_memory_gets_less_and_all_still_works():
    if not Path("/proc/self/smaps").exists():
        assert trim() == 0
        return
    a = np.random.default_rng(0).standard_normal((64, 64))
    want = np.linalg.inv(a)
    before = file_bytes()
    assert trim() > 0
    assert file_bytes() < before
    np.testing.assert_array_equal(np.linalg.inv(a), want)


def test_once_for_each_driver_that_is_opened(monkeypatch):
    looks: list[int] = []
    monkeypatch.setattr(trimming, "_unchanged", lambda: looks.append(1) or [])
    monkeypatch.setattr(trimming, "_opened", set())
    for driver, times in (("a.so", 1), ("a.so", 1), ("b.so", 2), ("a.so", 2)):
        trim_opened(driver)
        assert len(looks) == times


def test_behind_the_start_of_a_stored_network(monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(trimming, "_opened", {"b.so"})
    monkeypatch.setattr(trimming, "BEHIND_S", 0.2)
    monkeypatch.setattr(trimming, "trim", lambda: done.set() or 0)
    trimming.trim_behind("b.so")
    assert not done.wait(0.5)
    trimming.trim_behind("a.so")
    assert not done.is_set() and done.wait(60)


def file_bytes() -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))
