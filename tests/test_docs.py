from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

from clnn.errors import SettingError
from clnn.settings import SETTINGS, setting, warn_unknown

DOCS = ROOT / "docs"
# Not what Sphinx builds, nor reports of tools/gpu_report.sh, whose names end in their date.
WRITTEN = [p for p in DOCS.rglob("*.md") if "_build" not in p.parts and "_20" not in p.stem]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(WRITTEN)]
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
NAMED_PATH = re.compile(r"(?<![\w./-])(?:clnn|kernels_cl|tests|tools|docs)/[\w./-]*[\w/]")
# Paths that a page tells the reader to make.
EXAMPLES = {"kernels_cl/pool/pool_blocks.cl.mako"}


@pytest.mark.parametrize("tool", ["gen_environment.py", "benchmarks/speed_chart.py"])
def test_generated_pages_are_current(tool):
    command = [sys.executable, str(ROOT / "tools" / tool), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_default_is_allowed():
    assert all(setting(name, {}) is not None for name in SETTINGS)


def test_wrong_value_names_variable_value_and_meaning():
    with pytest.raises(SettingError, match="CLNN_CACHE is 'maybe': must be one of off, ro, rw"):
        setting("CLNN_CACHE", {"CLNN_CACHE": "maybe"})


def test_unknown_variable_is_warned_about():
    with pytest.warns(
        UserWarning, match="CLNN_DEVISE is not one of clnn's. Did you mean CLNN_DEVICE"
    ):
        assert warn_unknown({"CLNN_DEVISE": "0", "CLNN_DEVICE": "0"}) == ["CLNN_DEVISE"]


def test_every_page_is_in_the_table_of_contents():
    listed = (DOCS / "index.md").read_text("utf-8").splitlines()
    names = [p.relative_to(DOCS).with_suffix("").as_posix() for p in PAGES if DOCS in p.parents]
    assert not [name for name in names if name != "index" and name not in listed]


def anchors(page: Path) -> set[str]:
    """Return the names that links may give behind '#': headings as GitHub and MyST write them."""
    text = FENCED.sub("", page.read_text("utf-8"))
    heads = re.findall(r"^#+ +(.+)$", text, re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        there = "://" in link or (target.is_file() and (not anchor or anchor in anchors(target)))
        found += [] if there else [link]
    return found


def missing_paths(page: Path) -> list[str]:
    """Return the files and folders of the checkout that a page names and that are not there.

    A name in capitals stands for any.
    """
    named = set(NAMED_PATH.findall(page.read_text("utf-8"))) - EXAMPLES
    fixed = [path for path in named if not any(part.isupper() for part in re.split(r"\W|_", path))]
    return sorted(path for path in fixed if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_paths_lead_somewhere(page):
    assert broken_links(page) + missing_paths(page) == []


def test_broken_links_and_missing_paths_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A head\n[a](page.md#a-head) [b](page.md#b) [c](gone.md) [d](https://x.y/z)\n"
        "`clnn/layout.py`, `clnn/gone.py`, `clnn/ops/FAMILY/x.py`, tests/, `https://x.y/docs/z`\n"
    )
    assert broken_links(page) == ["page.md#b", "gone.md"]
    assert missing_paths(page) == ["clnn/gone.py"]
