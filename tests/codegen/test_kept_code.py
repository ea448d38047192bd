"""Code of templates, kept from process to process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clnn.cache.store import Store
from clnn.cache.templates import KIND, use_cache
from clnn.codegen import render as render_module
from clnn.codegen.render import keep_code, render
from clnn.codegen.templates import KeptLookup
from clnn.errors import TemplateError


class Kept(dict):
    """A store of one process, which counts what was found."""

    found = 0

    def get(self, key: str) -> bytes | None:
        code = super().get(key)
        self.found += code is not None
        return code

    put = dict.__setitem__


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of templates before clnn's own; the code in use goes back to what it was."""
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path))
    before = render_module._code
    yield tmp_path
    keep_code(before)


def write(path: Path, text: str, age: int = 0) -> None:
    path.write_text(text)
    os.utime(path, ns=(10**18 + age, 10**18 + age))


def test_code_that_is_kept_makes_the_same_text(folder):
    (folder / "_common").mkdir()
    write(folder / "_common" / "part.mako", '<%def name="one(x)">int a = ${x};</%def>')
    write(
        folder / "k.mako", '<%namespace name="p" file="/_common/part.mako"/>${p.one(n)}\n${n + 1}'
    )
    kept = Kept()
    for found in (0, 2):
        keep_code(kept)
        assert render("k.mako", {"n": 3}) == "int a = 3;\n4\n"
        assert (kept.found, len(kept)) == (found, 2)


def test_a_template_that_changes_is_read_again(folder):
    kept = Kept()
    keep_code(kept)
    for age, text in enumerate(("int a;", "int b;", "int a;")):
        write(folder / "k.mako", text, age)
        assert render("k.mako", {}) == text + "\n"
    assert kept.found == 1 and len(kept) == 2


def test_errors_name_the_line_of_the_template(folder):
    write(folder / "k.mako", "int a;\n\n${4 // n}\n")
    kept = Kept()
    for _ in range(2):
        keep_code(kept)
        with pytest.raises(TemplateError, match=r"k\.mako:3 .*by zero"):
            render("k.mako", {"n": 0})
    with pytest.raises(TemplateError, match=r"other\.mako"):
        render("other.mako", {})


def test_a_template_that_goes_away_is_refused(folder):
    write(folder / "k.mako", "int a;")
    keep_code(Kept())
    assert render("k.mako", {}) == "int a;\n"
    (folder / "k.mako").unlink()
    with pytest.raises(TemplateError, match=r"k\.mako"):
        render("k.mako", {})


def test_the_cache_folder_keeps_code(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    write(folder / "k.mako", "int a = ${n};")
    for _ in range(2):
        use_cache()
        assert render("k.mako", {"n": 2}) == "int a = 2;\n"
    (entry,) = Store(kind=KIND).entries()
    path = Store(kind=KIND).path(entry.key)
    path.write_bytes(path.read_bytes()[:-9])  # what is cut short is not run
    use_cache()
    with pytest.warns(Warning, match="cache"):
        assert render("k.mako", {"n": 2}) == "int a = 2;\n"


def test_a_lookup_finds_the_first_folder(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "k.mako", name)
    lookup = KeptLookup((str(tmp_path / "a"), str(tmp_path / "b")), Kept())
    assert lookup.get_template("k.mako").render() == "a"
    assert lookup.get_template("/k.mako").render() == "a"
