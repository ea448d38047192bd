from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test tunes into a folder of its own; binaries of its few kernels stay there too."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CLNN_CACHE", raising=False)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for a disk in this process."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def info():
    """A device that is only described, never opened."""
    from tune_fakes import described

    return described()
