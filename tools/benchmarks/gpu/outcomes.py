"""A pytest plugin that writes outcomes to a file as they come, and ends the run when time is up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

EVERY = 20  # reports between two writes
STRIDE = 61  # tests that lie between two that run one behind the other
LINES, LETTERS = 3, 300  # of what a failure says
MOST_FAILURES = 200


class Outcomes:
    """Counts of outcomes, and the tests that failed with the first lines of what they say."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.end = path, monotonic() + seconds
        self.counts = {"passed": 0, "failed": 0, "skipped": 0, "errors": 0}
        self.failures: list[list[str]] = []
        self.collected, self.ended, self.seen = 0, "", 0

    def add(self, report: Any) -> None:
        """Take the report of a phase of a test."""
        if report.when == "call" or report.outcome != "passed":
            name = report.outcome if report.when == "call" or report.skipped else "errors"
            self.counts[name] += 1
            if report.failed and len(self.failures) < MOST_FAILURES:
                self.failures.append([report.nodeid, _said(report)])
        self.seen += 1
        if self.seen % EVERY == 0:
            self.write()

    def write(self) -> None:
        """Write the file in one step."""
        data = {
            **self.counts,
            "collected": self.collected,
            "failures": self.failures,
            "ended": self.ended,
        }
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def _said(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:LINES])[:LETTERS]


_active: list[Outcomes] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="file for the outcomes of tests")
    parser.addoption("--outcome-seconds", type=float, default=float("inf"), help="end after these")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):  # workers report to the process that counts
        _active[:] = [Outcomes(Path(path), config.getoption("--outcome-seconds"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests from everywhere run first, as the time may not suffice for all."""
    items[:] = [item for first in range(STRIDE) for item in items[first::STRIDE]]


def pytest_collection_finish(session: pytest.Session) -> None:
    for outcomes in _active:
        outcomes.collected = max(outcomes.collected, len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    for outcomes in _active:
        outcomes.collected = max(outcomes.collected, len(ids))


def pytest_collectreport(report: Any) -> None:
    for outcomes in _active:
        if report.failed:
            outcomes.counts["errors"] += 1
            outcomes.failures.append([report.nodeid, _said(report)])


def pytest_runtest_logreport(report: Any) -> None:
    for outcomes in _active:
        outcomes.add(report)
        if monotonic() > outcomes.end:
            outcomes.ended = "the time was up"
            outcomes.write()
            pytest.exit("the time for tests was up", returncode=int(bool(outcomes.failures)))


def pytest_sessionfinish() -> None:
    for outcomes in _active:
        outcomes.write()
