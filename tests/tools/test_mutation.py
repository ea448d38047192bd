"""tools/mutation.py: mutants are small faults in code, and tests that fail on one kill it."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
from common import ROOT


@pytest.fixture(scope="module")
def tool():
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "tools" / "mutation.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutation"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutation"]


def test_every_file_has_tests_that_are_there(tool):
    assert len(tool.files()) > 25
    for file in tool.files():
        assert all((ROOT / test.split("::")[0]).exists() for test in tool.covering(file)), file


def test_what_is_no_code_is_left_alone(tool):
    text = '"""1 < 2."""\nfrom a import b\n\n\ndef f(x: int | None = 1) -> int:  # 3 + 4\n    if x < 2:\n'
    text += '        raise ValueError("5 - 6" + str(7))\n    return min(x, 8) + 1\n'
    made = [(m.old, m.new) for m in tool.mutants("a.py", text)]
    assert made == [
        ("1", "2"),
        ("<", "<="),
        ("2", "3"),
        ("min(", "max("),
        ("8", "9"),
        ("+", "-"),
        ("1", "2"),
    ]


def test_mutants_are_drawn_from_a_seed_and_can_be_planted(tool, tmp_path):
    drawn = tool.sample(40, 1)
    assert drawn == tool.sample(40, 1) != tool.sample(40, 2)
    for mutant in drawn:
        path = tmp_path / mutant.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / mutant.file).read_text("utf-8"), "utf-8")
        before = path.read_text("utf-8")
        mutant.plant(tmp_path)
        after = path.read_text("utf-8")
        assert before != after and mutant.place
        if path.suffix == ".py":
            ast.parse(after)


def test_a_failing_test_kills_and_a_hang_does_too(tool, tmp_path):
    for name, body in (
        ("good", "pass"),
        ("bad", "assert 0"),
        ("slow", "__import__('time').sleep(60)"),
    ):
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    lived = [tool.passes(tmp_path, [f"test_{name}.py"], 10) for name in ("good", "bad", "slow")]
    assert lived == [True, False, False]
