from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cache_faults

from clnn.cache import CacheWarning, Store


@pytest.fixture(autouse=True)
def _as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("CLNN_CACHE", "CLNN_CACHE_DIR", "CLNN_CACHE_MAX_BYTES"):
        monkeypatch.delenv(name, raising=False)
    # Power loss is tested on recorded calls; in this process no test needs to wait for a disk.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    cache_faults.forget()
    yield
    cache_faults.forget()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", "rw")


@pytest.fixture
def key() -> Callable[[object], str]:
    return lambda seed: hashlib.sha256(repr(seed).encode()).hexdigest()


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The texts of all cache warnings, however often Python's own filter would show them."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *rest: object) -> None:
            if issubclass(category, CacheWarning):
                texts.append(str(message))
            else:
                show(message, category, *rest)  # type: ignore[arg-type]

        warnings.showwarning = note
        yield texts
