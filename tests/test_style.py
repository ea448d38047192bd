"""Style as a test: linters, types, sizes, docstrings, words that do not belong into a product."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import ROOT

CODE = sorted((ROOT / "clnn").rglob("*.py"))
KERNELS = sorted(p for p in (ROOT / "kernels_cl").rglob("*") if p.is_file())
TEXTS = sorted(
    p
    for folder in ("clnn", "kernels_cl", "tests", "tools", "docs")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in (".py", ".mako", ".cl", ".md", ".toml", ".txt", ".json")
    and ".cache" not in p.parts
) + [p for p in sorted(ROOT.glob("*.*")) if p.suffix in (".md", ".toml")]
FILE_LINES, FUNCTION_LINES, TEMPLATE_LINES = 450, 60, 300
FORMATTED = ("clnn", "tests", "tools")
# Folders that exist on one machine only, and marks of unfinished work.
MACHINE = re.compile(
    r"(?<![\w.$}])/(?:home/(?!someone|user|you)|Users/|root/|work/|mnt/|media/)[\w.-]+"
    r"|(?<![\w.$}])/tmp/\w+|shared/design"
)
# What the top level holds beside folders whose names begin with a dot; what may be built there.
TOP = {"clnn", "kernels_cl", "tests", "tools", "docs"} | {
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
}
BUILT = re.compile(r"(?:__pycache__|build|dist|out|fuzz-findings|[\w.]+\.egg-info)\Z")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tool(name: str, *arguments: str) -> None:
    """Run a tool over the checkout; fail with what it says, skip where it is not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (extra: dev)")
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_ruff_has_no_complaints():
    tool("ruff", "check", "--no-cache", *FORMATTED)


def test_everything_is_formatted():
    tool("ruff", "format", "--no-cache", "--check", *FORMATTED)


def test_types_are_right():
    tool("mypy", "--no-incremental", "--cache-dir", "/dev/null")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Yield (qualified name, function, whether it is public) of every function of a file."""

    def walk(node: ast.AST, prefix: str, public: bool) -> Iterator[tuple[str, Any, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                seen = (
                    public
                    and not child.name.startswith("_")
                    and not isinstance(node, ast.FunctionDef)
                )
                yield f"{prefix}{child.name}", child, seen
                yield from walk(child, f"{prefix}{child.name}.", False)
            elif isinstance(child, ast.ClassDef):
                yield from walk(
                    child, f"{prefix}{child.name}.", public and not child.name.startswith("_")
                )
            else:
                yield from walk(child, prefix, public)

    yield from walk(parsed(path), "", True)


def test_files_and_functions_are_small():
    large = [
        f"{named(p)}: {n} lines"
        for p in CODE
        if (n := len(p.read_text("utf-8").splitlines())) > FILE_LINES
    ]
    for path in CODE:
        for name, node, _ in functions(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                large.append(f"{named(path)}:{node.lineno} {name}: {lines} lines")
    for path in KERNELS:
        if (n := len(path.read_text("utf-8").splitlines())) > TEMPLATE_LINES:
            large.append(f"{named(path)}: {n} lines")
    assert not large, "\n".join(large)


def test_public_functions_are_documented_and_typed():
    wrong = []
    for path in CODE:
        for name, node, public in functions(path):
            if not public:
                continue
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [a for a in (arguments.vararg, arguments.kwarg) if a]
            untyped = [
                a.arg for a in every if a.annotation is None and a.arg not in ("self", "cls")
            ]
            decorated = {ast.unparse(d) for d in node.decorator_list}
            if untyped or node.returns is None:
                wrong.append(
                    f"{named(path)}:{node.lineno} {name}: no type for {', '.join(untyped) or 'the result'}"
                )
            if not ast.get_docstring(node) and not any(
                d == "overload" or d.endswith(".setter") for d in decorated
            ):
                wrong.append(f"{named(path)}:{node.lineno} {name}: no docstring")
    assert not wrong, "\n".join(wrong)


def test_every_module_and_public_class_is_documented():
    wrong = [named(p) for p in CODE if not ast.get_docstring(parsed(p))]
    for path in CODE:
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
            ):
                wrong.append(f"{named(path)}:{node.lineno} {node.name}")
    assert not wrong, "\n".join(wrong)


def test_every_template_says_what_it_is():
    """A template begins with its documentation, whose first line begins with its name."""
    wrong = []
    for path in KERNELS:
        if path.suffix != ".mako":
            continue
        lines = path.read_text("utf-8").splitlines()
        name = path.relative_to(ROOT / "kernels_cl").as_posix().removesuffix(".cl.mako")
        name = path.name.removesuffix(".cl.mako") if name.startswith("_") else name
        opened = lines[0] == "<%doc>" and "</%doc>" in lines
        if not opened or (path.parent.name != "_common" and not lines[1].startswith(f"{name}:")):
            wrong.append(named(path))
    assert not wrong, "\n".join(wrong)


def lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{named(path)}:{number} {line.strip()[:100]}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_marked_as_unfinished():
    assert not lines_with(UNFINISHED, [*CODE, *KERNELS])


def test_the_top_level_holds_what_it_should():
    names = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    strays = sorted(n for n in names - TOP if not BUILT.match(n))
    assert not strays and names >= TOP, strays


def test_no_path_of_one_machine():
    found = lines_with(MACHINE, [p for p in TEXTS if p != Path(__file__).resolve()])
    assert not found, "\n".join(found)


FOLDER = "/" + "work"  # at the root, where machines of some services have it


@pytest.mark.parametrize(
    "text,wrong",
    [
        ('open("/home/ann/x.onnx")', True),
        (f"see {FOLDER}/models/a", True),
        ("in /tmp/clnn-1", True),
        ("https://host/home/ann", False),
        (f"$ROOT{FOLDER}/x", False),
        ("/usr/lib/pocl", False),
    ],
)
def test_paths_of_one_machine_are_told_apart(text, wrong):
    assert bool(MACHINE.search(text)) == wrong
