"""Finds an OpenCL driver for the GPU, and registers one that is installed but not registered.

clnn registers such drivers by itself where they lie in usual places; this looks further: in the
folders of the other libraries of NVIDIA's driver, and wherever a search comes by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from clnn.runtime.drivers import icd

LIBRARY = "libnvidia-opencl.so"
COMPANIONS = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
SEARCHED = ("/usr/lib", "/usr/lib64", "/usr/local", "/opt", "/run", "/lib")
SEARCH_S = 10.0
LIST_S = 150.0
LIST = (
    "import json, pathlib, sys; from clnn.runtime.device.device import discover;"
    " listed = [dict(index=d.index, name=d.name, platform=d.platform, type=d.type,"
    " driver=d.driver_version, vendor=d.vendor, why_not=d.why_not) for d in discover()];"
    " pathlib.Path(sys.argv[1]).write_text(json.dumps(listed), 'utf-8')"
)


@dataclass
class Found:
    """The devices that OpenCL lists, what the environment must hold for that, and what was done."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def usable(self) -> list[dict[str, Any]]:
        return [d for d in self.devices if not d["why_not"]]


def find(env: Mapping[str, str], folder: Path) -> Found:
    """List the devices; where no GPU is usable, register what a search finds and list again.

    folder: for .icd files. Variables with which the user chose drivers are respected.
    """
    found = Found(devices_under(env, folder))
    if any(d["type"] == "gpu" for d in found.usable):
        return found
    chosen = icd.vendor_override(env)
    if chosen:
        found.notes.append(f"{chosen} is set, so that no other driver is looked for.")
        return found
    libraries = nvidia_libraries(env)
    if not libraries:
        found.notes.append(why_none(env))
        return found
    vendors = register(libraries, folder / "vendors")
    added = {"OCL_ICD_VENDORS": str(vendors)}
    now = Found(devices_under({**env, **added}, folder), added)
    listed = ", ".join(map(str, libraries))
    if found.usable and not now.usable:
        found.notes.append(f"{listed}: with it no device is usable, so it is left out.")
        return found
    now.notes.append(f"{listed}: registered in a folder of its own, OCL_ICD_VENDORS={vendors}.")
    return now


def devices_under(env: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """Return the devices that a new process lists; none where it fails."""
    answer = folder / "devices.json"
    answer.unlink(missing_ok=True)
    try:
        subprocess.run(
            [sys.executable, "-c", LIST, str(answer)],
            env=dict(env),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIST_S,
        )
    except subprocess.TimeoutExpired:
        return []
    return list(json.loads(answer.read_text("utf-8"))) if answer.exists() else []


def nvidia_libraries(env: Mapping[str, str], searched: Sequence[str] = SEARCHED) -> list[Path]:
    """Return NVIDIA's OpenCL library: from usual places, beside its companions, else by a search."""
    names = (f"{LIBRARY}.1", LIBRARY)
    listed = icd.ldconfig_libraries()
    folders = [Path(f) for f in env.get("LD_LIBRARY_PATH", "").split(":") if f]
    companions = [icd.find_library(name) or listed.get(name) for name in COMPANIONS]
    folders += [Path(os.path.realpath(c)).parent for c in companions if c]
    folders += [c.parent for c in companions if c]
    for path in [folder / name for folder in folders for name in names]:
        if path.exists():
            return [path]
    usual = next((p for name in names if (p := icd.find_library(name))), None)
    return [usual] if usual else _search(searched)


def _search(folders: Sequence[str]) -> list[Path]:
    end = monotonic() + SEARCH_S
    for top in folders:
        for folder, _, files in os.walk(top):
            hits = sorted(name for name in files if name.startswith(LIBRARY))
            if hits:
                return [Path(folder, hits[0])]
            if monotonic() > end:
                return []
    return []


def register(libraries: Sequence[Path], folder: Path) -> Path:
    """Write .icd files for `libraries`, beside links to the system's; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.icd"):
        old.unlink()
    for entry in icd.icd_files(icd.SYSTEM_VENDORS):
        if entry.present:
            (folder / entry.path.name).symlink_to(entry.path)
    for library in libraries:
        (folder / "report-nvidia.icd").write_text(f"{library}\n", encoding="utf-8")
    return folder


def why_none(env: Mapping[str, str]) -> str:
    """Return why there is no driver for a GPU, as far as that can be told, and what to do."""
    nodes = [n for n in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg") if os.path.exists(n)]
    if not nodes:
        return "No NVIDIA device node (/dev/nvidia*), and no other GPU that OpenCL lists."
    given = env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if given and not {"all", "compute"} & set(given.split(",")):
        return (
            f"{nodes[0]} is there, {LIBRARY}.1 is not: NVIDIA_DRIVER_CAPABILITIES is {given!r}."
            " Start the container with compute,utility."
        )
    return (
        f"{nodes[0]} is there, but {LIBRARY}.1, NVIDIA's OpenCL, was not found. It comes with the"
        " driver (Debian: nvidia-opencl-icd, Ubuntu: libnvidia-compute-VERSION); in a container it"
        " must be mounted from the host."
    )
