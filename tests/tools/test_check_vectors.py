"""check_vectors.py: counts, reasons and exit statuses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import check_vectors
from vectors import Case, Outcome

OUTCOMES = {"fine": Outcome("exact"), "off": Outcome("failed", "3 of 9 differ"),
            "left": Outcome("skipped", "no such mode")}  # fmt: skip


def system(*names):
    def run(case, device):
        return OUTCOMES[case.name]

    cases = [Case("kernel_of_" + n, n) for n in names]
    return SimpleNamespace(cases=lambda folder: iter(cases), run=run)


def main(monkeypatch, tmp_path, *names, extra=()):
    monkeypatch.setattr(check_vectors.importlib, "import_module", lambda name: system(*names))
    return check_vectors.main(["mli", str(tmp_path), *extra])


def test_a_failure_is_told_and_counted(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "fine", "off", "left") == check_vectors.EXIT_FAILED
    told = capsys.readouterr().out
    assert "kernel_of_off off: failed 3 of 9 differ" in told
    assert "kernel_of_left left: skipped no such mode" in told
    assert told.splitlines()[-1].split() == ["total", "3", "1", "1", "1"]


def test_an_exception_is_a_failure(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "unheard") == check_vectors.EXIT_FAILED
    assert "failed KeyError: 'unheard'" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", ["kernel_of_f*", "kernel_of_fine/fine"])
def test_only_what_is_wanted_runs(monkeypatch, tmp_path, pattern):
    given = main(monkeypatch, tmp_path, "fine", "off", extra=("--only", pattern))
    assert given == check_vectors.EXIT_OK


def test_nothing_checked_is_wrong_use(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "fine", extra=("--only", "x")) == check_vectors.EXIT_USAGE
    assert "nothing was checked" in capsys.readouterr().err
    assert main(monkeypatch, tmp_path / "gone", "fine") == check_vectors.EXIT_USAGE
