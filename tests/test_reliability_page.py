"""docs/reliability.md names tests that exist, and says something of each property."""

from __future__ import annotations

import re

from common import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
PROPERTIES = 34


def named(row: str) -> list[tuple[str, str]]:
    """Return (file, test) of each test that a row names; `::test` alone is of the file before."""
    found, file = [], ""
    for path, test in re.findall(r"`([\w/.]*)::(\w+)`", row):
        file = path or file
        found.append((file, test))
    return found


def test_every_property_has_a_row_with_tests_and_a_figure():
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, PROPERTIES + 1))
    for row in ROWS:
        _, _, what, _, figure, _ = row.split("|")
        assert what.strip() and named(row) and len(figure.strip()) > 10, row
        assert "not examined" not in row.lower()


def test_every_test_that_is_named_exists():
    missing = []
    for file, test in (pair for row in ROWS for pair in named(row)):
        path = ROOT / file
        if not path.is_file() or f"\ndef {test}(" not in path.read_text("utf-8"):
            missing.append(f"{file}::{test}")
    assert not missing


def test_what_is_called_long_is_so():
    for row in ROWS:
        for long, path, test in re.findall(r"(long )?`([\w/.]+)::(\w+)`", row):
            text = (ROOT / path).read_text("utf-8")
            head = text[: text.index(f"\ndef {test}(")].rsplit("\n\n\n", 1)[-1]
            assert bool(long) <= ("exhaustive" in head), f"{path}::{test}"
