"""The Python packages of a report, from a folder of wheels where there is no network."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Name to import -> name to install.
REQUIRED = {
    "numpy": "numpy",
    "pyopencl": "pyopencl",
    "mako": "mako",
    "onnx": "onnx",
    "platformdirs": "platformdirs",
    "filelock": "filelock",
}
OPTIONAL = {
    "pytest": "pytest",
    "xdist": "pytest-xdist",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
    "matplotlib": "matplotlib",
    "onnxruntime": "onnxruntime",
    "torch": "torch",
}


def missing(names: dict[str, str]) -> list[str]:
    """Return what to install for those of `names` that cannot be imported."""
    importlib.invalidate_caches()
    return [package for name, package in names.items() if not importlib.util.find_spec(name)]


def advice(lacking: Sequence[str]) -> str:
    """Return what to do about packages that are missing."""
    return (
        f"these packages are missing in {sys.executable}: {', '.join(lacking)}. With a network:"
        f" {sys.executable} -m pip install {' '.join(lacking)}. Without one: on a machine with a"
        f" network and the same Python run `pip download -d wheels {' '.join(lacking)}`, bring the"
        " folder here, and add --wheels wheels."
    )


def environment(folder: Path) -> Path:
    """Return a Python of an environment that may be installed into, made at `folder` if need be.

    What the present Python has stays visible in it.
    """
    if sys.prefix != sys.base_prefix:
        return Path(sys.executable)
    python = folder / "bin" / "python"
    if not python.exists():
        command = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip"]
        subprocess.run([*command, str(folder)], check=True)
    return python


def installer(python: Path, wheels: Path) -> list[str]:
    """Return the command of pip: the Python's own, else the wheel among `wheels`, which runs as it is."""
    own = [str(python), "-m", "pip"]
    wheel = next(iter(sorted(wheels.glob("pip-*.whl"))), None)
    if wheel is None or not subprocess.run([*own, "--version"], capture_output=True).returncode:
        return own
    return [str(python), str(wheel / "pip")]


def install(python: Path, wheels: Path, packages: Sequence[str]) -> str:
    """Install packages from a folder alone; return '' or the last line of what pip says."""
    command = [
        *installer(python, wheels),
        "install",
        "--no-index",
        "--no-input",
        "--isolated",
        "--disable-pip-version-check",
        "--find-links",
        str(wheels),
        *packages,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PIP_USER": "0"}
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else (lines or ["pip failed"])[-1]


def bring(wheels: Path, folder: Path) -> tuple[Path, list[str]]:
    """Install all that is missing from `wheels`; return (the Python to go on with, notes).

    Raises RuntimeError where a required package cannot be installed.
    """
    python, notes = environment(folder), []
    lacking = missing(REQUIRED)
    if lacking and (fault := install(python, wheels, lacking)):
        raise RuntimeError(f"{', '.join(lacking)} cannot be installed from {wheels}: {fault}")
    for package in missing(OPTIONAL):
        if fault := install(python, wheels, [package]):
            notes.append(f"{package} is not installed: {fault}")
    return python, notes
