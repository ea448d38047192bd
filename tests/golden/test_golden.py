"""Kernel sources are what they were when they were last looked at."""

from __future__ import annotations

import subprocess
import sys

from common import ROOT
from sources import digests, sources, stored

HOW = "If this is meant, look at `python tools/golden.py --diff`, then run `python tools/golden.py --update`."


def test_kernel_sources_are_as_kept():
    now, kept = digests(), stored()
    assert kept, f"there is nothing to compare with. {HOW}"
    changed = [n for n in now if n in kept and now[n] != kept[n]]
    added, gone = [n for n in now if n not in kept], [n for n in kept if n not in now]
    parts = {"changed": changed, "new": added, "gone": gone}
    told = "\n".join(f"  {what}: {name}" for what, names in parts.items() for name in names)
    assert not told, f"generated kernels differ from tests/golden/kernels.txt:\n{told}\n{HOW}"


def test_the_kernels_cover_the_templates():
    """Most families take part: at least two thirds of the templates are rendered by name."""
    names = {name.split()[3].rstrip("'").split("_")[0] for name in sources()}
    assert len(names) >= 12 and {"conv2d", "separable", "gemm", "pool", "border"} <= names


def test_equal_runs_make_equal_text():
    code = "from sources import digests; print(sorted(digests().items()))"
    paths = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'tests' / 'support'), str(ROOT / 'tests/golden')]}"
    seeds = [{"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    texts = {
        subprocess.run(
            [sys.executable, "-c", f"{paths}; {code}"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for env in seeds
    }
    assert len(texts) == 1


def test_the_tool_shows_what_a_changed_template_changes(tmp_path):
    """Two folders of sources as two revisions write them; the tool compares them."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, text in ((old, "a\nb\n"), (new, "a\nc\n")):
        folder.mkdir()
        (folder / "one.cl").write_text(text)
    (new / "two.cl").write_text("d\n")
    command = [sys.executable, ROOT / "tools" / "golden.py", "--compare", old, new]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 1
    assert "-b\n+c\n" in told.stdout and "2 kernels differ" in told.stdout and "+d" in told.stdout
    assert subprocess.run([*command[:3], old, old], capture_output=True).returncode == 0
