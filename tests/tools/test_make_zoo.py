"""The list of networks that are measured: one file each, and choices that must be there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "tools" / "benchmarks"))
    return importlib.import_module("make_zoo")


def test_files_have_names_of_their_own(zoo, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make_zoo.py", "out", "--list"])
    assert zoo.main() == 0
    names = capsys.readouterr().out.split()
    assert len(names) == len(set(names)) == sum(map(len, zoo.ZOO.values()))
    assert "grouped-resnext50_32x4d" in names and "transformer-deit_tiny_patch16_224" in names


def test_a_kind_or_a_name_is_chosen(zoo, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["make_zoo.py", "out", "video", "resnet18", "--list"])
    assert zoo.main() == 0
    assert capsys.readouterr().out.split() == [
        "plain-resnet18",
        "video-r3d_18",
        "video-mc3_18",
        "video-r2plus1d_18",
    ]


def test_a_name_that_is_not_there_is_said(zoo, capsys):
    with pytest.raises(SystemExit):
        zoo._arguments(["out", "resnet19"])
    assert "resnet19: no network or kind of this name" in capsys.readouterr().err
