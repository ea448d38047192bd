"""One archive with all that a report needs: the checkout and wheels of its packages."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from gpu.packages import OPTIONAL, REQUIRED

ROOT = Path(__file__).resolve().parents[3]
FOLDER, WHEELS = "clnn-gpu-report", "wheels"
MOST_BYTES = 60 * 10**6
# Pictures and other engines are larger than all the rest, and a machine with a GPU often has them.
LEFT_OUT = ("matplotlib", "onnxruntime", "torch")


def pack(target: Path, most: int = MOST_BYTES, python: str = "") -> int:
    """Write the archive for machines like this one; return its size in bytes.

    python: the version of the Python there, such as "3.12"; '': that of this one. Raises RuntimeError
    where a part cannot be had, or where the archive is larger than `most`.
    """
    wanted = [*REQUIRED.values(), *(p for p in OPTIONAL.values() if p not in LEFT_OUT), "pip"]
    listed = _said(["git", "-C", str(ROOT), "ls-files", "-z"])
    with tempfile.TemporaryDirectory(prefix="gpu-pack-") as folder:
        fetch = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--quiet"]
        fetch += ["--python-version", python] if python else []
        _said([*fetch, "--dest", folder, *wanted])
        part = target.with_name(f".{target.name}.part")
        try:
            with tarfile.open(part, "w:gz") as archive:
                for name in filter(None, listed.split("\0")):
                    archive.add(ROOT / name, f"{FOLDER}/{name}")
                archive.add(folder, f"{FOLDER}/{WHEELS}")
            size = part.stat().st_size
            if size > most:
                raise RuntimeError(f"the archive has {size} bytes, more than {most}")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return size


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as err:
        raise RuntimeError(f"{command[0]} does not start: {err}") from err
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{' '.join(command[:4])} failed: {last}")
    return done.stdout
