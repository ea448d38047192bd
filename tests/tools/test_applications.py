"""The tool that runs applications: what counts as the same, and that programs know no engine."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from common import ROOT

FOLDER = ROOT / "tools" / "benchmarks"


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


TOOL = loaded(FOLDER / "applications.py")
PROGRAM = loaded(FOLDER / "applications" / "program.py")
QUOTES = chr(34) * 3
FOUND = {"a.png": [{"label": "cat", "box": [1.0, 2.0], "score": 0.5}], "b.wav": [{"begin": 1.0}]}


def changed(**values):
    one = {**FOUND["a.png"][0], **{k: v for k, v in values.items() if k != "begin"}}
    return {"a.png": [one], "b.wav": [{"begin": values.get("begin", 1.0)}]}


@pytest.mark.parametrize(
    "values,same",
    [
        ({}, True),
        ({"box": [1.9, 2.0]}, True),
        ({"box": [2.1, 2.0]}, False),
        ({"box": [1.0]}, False),
        ({"label": "dog"}, False),
        ({"score": 0.5009}, True),
        ({"score": 0.6}, False),
        ({"begin": 1.03}, True),
        ({"begin": 1.04}, False),
        ({"extra": 1}, False),
    ],
)
def test_what_counts_as_the_same(values, same):
    assert (not TOOL.differences(changed(**values), FOUND)) == same


def test_a_missing_input_differs():
    assert TOOL.differences({"a.png": FOUND["a.png"]}, FOUND)


def test_programs_know_no_engine():
    text = (FOLDER / "applications" / "program.py").read_text("utf-8")
    code = text.split(QUOTES, 2)[2]
    assert "clnn" not in code


def test_each_program_has_packages():
    assert set(PROGRAM.APPLICATIONS) == set(TOOL.PACKAGES)


def test_an_unknown_application_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["applications.py", "gone"])
    with pytest.raises(SystemExit):
        TOOL.main()
    assert "gone" in capsys.readouterr().err
