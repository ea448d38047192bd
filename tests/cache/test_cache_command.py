from __future__ import annotations

import argparse
import json

import pytest

from clnn.cache import Store
from clnn.cli import cache as command
from clnn.errors import CacheError


@pytest.fixture
def clnn(capsys, tmp_path, monkeypatch):
    """Run `clnn cache ...` on a folder of its own; return exit code and output."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))

    def run(*words):
        parser = argparse.ArgumentParser(prog="clnn")
        command.add_parser(parser.add_subparsers(dest="command"))
        code = command.run(parser.parse_args(["cache", *map(str, words)]))
        out, err = capsys.readouterr()
        assert err == ""
        return code, (json.loads(out) if "--json" in words else out)

    return run


@pytest.fixture
def filled(tmp_path, key):
    for seed in range(3):
        Store(tmp_path / "cache", "rw").put(key(seed), b"x" * 100, {})
    Store(tmp_path / "cache", "rw", "tuning").put(key("t"), b"", {})
    return Store(tmp_path / "cache", "rw")


def test_info(clnn, filled, tmp_path):
    code, report = clnn("info", "--json")
    assert code == 0
    assert report["folder"] == str(tmp_path / "cache")
    assert (report["mode"], report["max_bytes"], report["format"]) == ("rw", 1 << 30, 1)
    assert set(report["kinds"]) == {"programs", "tuning"}
    assert report["kinds"]["programs"] == {
        "entries": 3,
        "bytes": filled.stats().bytes,
        "quarantined": 0,
    }
    code, text = clnn("info")
    assert code == 0
    assert "entries 3" in text
    assert str(tmp_path / "cache") in text


def test_info_of_an_empty_cache_makes_no_folder(clnn, tmp_path):
    assert clnn("info", "--json")[1]["kinds"] == {}
    assert clnn("info")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_info_says_when_the_cache_is_off(clnn, filled, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE", "off")
    _, report = clnn("info", "--json")
    assert report["mode"] == "off"
    assert report["kinds"]["programs"]["entries"] == 3


def test_clear(clnn, filled):
    code, report = clnn("clear", "--json")
    assert (code, report["removed"]) == (0, {"programs": 3, "tuning": 1})
    assert filled.entries() == []
    assert clnn("clear")[0] == 0


def test_verify_fails_once_for_a_bad_entry(clnn, filled, key):
    assert clnn("verify")[0] == 0
    filled.path(key(1)).write_bytes(b"bad")
    code, report = clnn("verify", "--json")
    assert (code, report["checked"], report["bad"]) == (1, 4, [f"programs/{key(1)}"])
    assert clnn("verify", "--json")[0] == 0
    assert clnn("info", "--json")[1]["kinds"]["programs"]["quarantined"] == 1


def test_verify_lists_bad_entries_as_text(clnn, filled, key):
    filled.path(key(1)).write_bytes(b"bad")
    code, text = clnn("verify")
    assert code == 1
    assert f"programs/{key(1)}" in text


def test_export_and_import(clnn, filled, tmp_path, key, monkeypatch):
    code, report = clnn("export", tmp_path / "f.zip", "--json")
    assert (code, report["entries"], report["bad"]) == (0, 4, [])
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "other"))
    code, report = clnn("import", tmp_path / "f.zip", "--json")
    assert (code, report["entries"], report["bad"]) == (0, 4, [])
    assert Store(tmp_path / "other").get(key(1)).payload == b"x" * 100


def test_import_with_a_bad_member_is_a_failed_check(clnn, filled, tmp_path, key):
    import zipfile

    with zipfile.ZipFile(tmp_path / "f.zip", "w") as out:
        out.writestr(f"programs/{key(9)}.clbin", b"bad")
    code, report = clnn("import", tmp_path / "f.zip", "--json")
    assert (code, report["bad"]) == (1, [f"programs/{key(9)}.clbin"])


def test_what_cannot_be_done_is_an_error_of_clnn(clnn, tmp_path):
    with pytest.raises(CacheError):
        clnn("import", tmp_path / "none.zip")
    with pytest.raises(CacheError):
        clnn("export", tmp_path / "no" / "f.zip")


@pytest.mark.parametrize("words", [[], ["frobnicate"], ["export"], ["import"]])
def test_wrong_use_is_exit_code_2(clnn, words):
    with pytest.raises(SystemExit) as stop:
        clnn(*words)
    assert stop.value.code == 2
