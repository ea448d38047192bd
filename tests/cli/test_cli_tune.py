"""`clnn tune`, and what other commands show of its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import pytest
from common import ROOT


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CLNN_BUILD_JOBS", "2")


@pytest.mark.parametrize("text,want", [("90", 90), ("60s", 60), ("5m", 300), ("1.5h", 5400)])
def test_times(text, want):
    from clnn.cli.tune import seconds

    assert seconds(text) == want


@pytest.mark.parametrize(
    "words",
    [
        ("--budget", "soon"),
        ("--quick", "--full"),
        ("--budget", "-3"),
    ],
)
def test_wrong_use(clnn, files, words):
    assert clnn("tune", files["network"], *words).code == 2


def test_tuned_once_it_is_known_everywhere(clnn, files, any_device, tmp_path):
    """The report, plain progress, resuming; inspect, cache info, export and import, defaults."""
    model, at = files["network"], ("-d", any_device)
    done = clnn("tune", model, *at, "--quick", "--budget", "5m")
    assert done.code == 0 and "problems" in done.out and "in turns" in done.out
    assert "measuring the network as ranked" in done.err and "left" in done.err
    again = clnn("tune", model, *at, "--quick", "--resume", "--json")
    states = [layer["state"] for layer in again.data["layers"]]
    assert again.code == 0 and "known" in states and again.data["finished"]
    known = states.count("known")

    rows = clnn("inspect", model, *at, "--plan", "--json").data["steps"]
    assert sum(row["why"] == "tuned" for row in rows) >= known > 0
    assert "tuned" in clnn("inspect", model, *at, "--plan").out
    ranked = clnn("inspect", model, *at, "--plan", "-o", "tune=off", "--json").data["steps"]
    assert {row["why"] for row in ranked} == {"ranked"}

    told = clnn("cache", "info", "--json").data["tuning"]
    (lines,) = told.values()
    assert lines["results"] >= known and lines["damaged"] == 0
    check_archive(clnn, tmp_path, lines)

    target = tmp_path / "made.jsonl"
    assert clnn("tune", *at, "--export-defaults", target).code == 0
    head, *lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert head["devices"]["type"] and all(x["variant"] and x["gain"] >= 1.02 for x in lines)


def check_archive(clnn, tmp_path, lines):
    archive = tmp_path / "all.zip"
    assert clnn("cache", "export", archive).code == 0
    with zipfile.ZipFile(archive) as opened:
        assert sum(name.startswith("tuning/") for name in opened.namelist()) == 1
    before = clnn("cache", "info", "--json").data["tuning"]
    assert clnn("cache", "clear", "--json").data["removed"]["tuning"] == 1
    assert clnn("cache", "info", "--json").data["tuning"] == {}
    assert clnn("cache", "import", archive).code == 0
    assert clnn("cache", "info", "--json").data["tuning"] == before
    assert clnn("cache", "import", archive).code == 0  # the same lines are not added twice
    assert clnn("cache", "info", "--json").data["tuning"] == before
    assert clnn("cache", "verify").code == 0


def test_export_without_results_says_what_to_do(clnn, any_device, tmp_path):
    done = clnn("tune", "-d", any_device, "--export-defaults", tmp_path / "x.jsonl")
    assert done.code == 2 and "Run `clnn tune MODEL` first" in done.err


@pytest.mark.parametrize(
    "name", ["tuning/../x.jsonl", "tuning/A.jsonl", "tuning/a.json", "tuning/a/b.jsonl"]
)
def test_an_archive_cannot_name_another_file(clnn, tmp_path, name):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"{}\n")
    done = clnn("cache", "import", path)
    assert done.code == 2 and "Nothing was imported" in done.err


def test_damaged_lines_of_an_archive_are_left_out(clnn, tmp_path):
    from clnn.cache.lines import encode

    path = tmp_path / "half.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tuning/dev.jsonl", encode({"kind": "failure"}) + b'{"kind": "result"}\n')
    done = clnn("cache", "import", path, "--json")
    assert done.code == 1 and done.data["bad"] == ["tuning/dev.jsonl"] and done.data["entries"] == 1
    assert clnn("cache", "info", "--json").data["tuning"]["dev"]["failures"] == 1


def test_interrupted_it_reports_and_keeps_what_it_has(files, any_device, tmp_path):
    words = [
        sys.executable,
        "-m",
        "clnn.cli.main",
        "tune",
        str(files["network"]),
        "-d",
        any_device,
        "--quick",
        "--budget",
        "500s",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    seen = ""
    for line in child.stderr:
        seen += line
        if line.startswith("1/"):
            break
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130 and "interrupted: what was measured is kept" in out, seen + err
    assert "Traceback" not in err
    folder = tmp_path / "cache" / "tuning"
    (lines,) = folder.glob("*.jsonl")
    assert '"kind":"result"' in lines.read_text() and not list(folder.glob("*.trying"))


def test_rich_shows_the_same(any_device):
    pytest.importorskip("rich")
    import io

    from rich.console import Console

    from clnn.cli._progress import RichProgress, line
    from clnn.tune.tuner import Progress

    where = Progress(2, 5, "conv2d a -> b", 3, 24, "one", "", 2e-3, 1e-3, 42.0)
    out = io.StringIO()
    Console(file=out, width=200).print(RichProgress()._page(where))
    text = out.getvalue()
    assert "problems 2/5" in text and "time left 42 s" in text and line(where) in text
    assert "3/24 candidates, best 1000.0 us, 2.00 x the ranked" in text


def test_verify_finds_damaged_lines(clnn, tmp_path):
    from clnn.cache.lines import LineFile

    lines = LineFile(tmp_path / "cache" / "tuning" / "dev.jsonl")
    lines.append([{"kind": "failure"}])
    assert clnn("cache", "verify").code == 0
    with lines.path.open("a") as out:
        out.write('{"kind": "failure"}\n')
    done = clnn("cache", "verify", "--json")
    assert done.code == 1 and done.data["bad"] == ["tuning/dev.jsonl"]
    assert clnn("cache", "info", "--json").data["tuning"]["dev"] == {
        "results": 0,
        "failures": 1,
        "damaged": 1,
    }
