#!/usr/bin/env python3
"""Generated kernels, now and before.

--update writes tests/golden/kernels.txt anew; --diff shows how kernel sources differ from those of
another git revision; --compare does so for two folders that tests/golden/sources.py wrote.
"""

from __future__ import annotations

import argparse
import difflib
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path("tests/golden/sources.py")
HEAD = "# SHA-256 of the sources of kernels; written by tools/golden.py --update.\n"


def update() -> int:
    """Write the digests of the present sources."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "golden")]
    import sources

    before, now = sources.stored(), sources.digests()
    sources.KERNELS.write_text(HEAD + "".join(f"{d}  {n}\n" for n, d in now.items()), "utf-8")
    changed = sum(before.get(name) != digest for name, digest in now.items())
    gone = len(before.keys() - now.keys())
    print(f"{len(now)} kernels: {changed} new or changed, {gone} gone.")
    return 0


def diff(revision: str, pattern: str) -> int:
    """Show how sources differ from those that `revision` generates."""
    with tempfile.TemporaryDirectory(prefix="clnn-golden-") as name:
        folder = Path(name)
        archive = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, capture_output=True, check=True
        )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder / "tree", filter="data")
        if not (folder / "tree" / SCRIPT).exists():
            print(
                f"revision {revision} has no {SCRIPT}: it is older than these tests.",
                file=sys.stderr,
            )
            return 2
        render(folder / "tree", folder / "old")
        render(ROOT, folder / "new")
        return compare(folder / "old", folder / "new", pattern)


def render(tree: Path, folder: Path) -> None:
    """Write the sources of a checkout to a folder, with that checkout's own code."""
    subprocess.run([sys.executable, str(tree / SCRIPT), str(folder)], cwd=tree, check=True)


def compare(old: Path, new: Path, pattern: str = "") -> int:
    """Print a diff of the sources in two folders; return 1 where they differ, else 0."""
    names = sorted({p.name for folder in (old, new) for p in folder.glob("*.cl")})
    changed = 0
    for name in names:
        if pattern not in name:
            continue
        texts = [(f / name).read_text("utf-8") if (f / name).exists() else "" for f in (old, new)]
        if texts[0] != texts[1]:
            changed += 1
            before, after = (text.splitlines(keepends=True) for text in texts)
            sys.stdout.writelines(difflib.unified_diff(before, after, f"old/{name}", f"new/{name}"))
    print(f"{changed} kernels differ of {len(names)}.")
    return int(changed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--update", action="store_true", help="write the digests anew")
    task.add_argument("--diff", nargs="?", const="HEAD", metavar="REVISION", help="default: HEAD")
    task.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="two folders")
    parser.add_argument("--only", default="", help="part of the names of kernels to show")
    asked = parser.parse_args()
    if asked.update:
        return update()
    if asked.compare:
        return compare(*asked.compare, asked.only)
    return diff(asked.diff, asked.only)


if __name__ == "__main__":
    sys.exit(main())
