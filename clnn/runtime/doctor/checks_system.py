"""Doctor's checks of the machine: Python, container, device files, cache folder."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from clnn.cache import files, privacy
from clnn.cache.store import cache_dir
from clnn.errors import SettingError
from clnn.runtime.doctor.checks import FAIL, OK, WARN, Check
from clnn.runtime.drivers import icd
from clnn.settings import SETTINGS, setting, warn_unknown

GPU_FILES = ("/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/kfd", "/dev/dxg")
LOW_DISK_BYTES = 256 << 20
# os-release's ID (or a member of ID_LIKE) -> the command that installs PoCL.
POCL_BY_SYSTEM = {
    "debian": "apt-get install pocl-opencl-icd",
    "ubuntu": "apt-get install pocl-opencl-icd",
    "fedora": "dnf install pocl",
    "rhel": "dnf install epel-release && dnf install pocl",
    "arch": "pacman -S pocl",
    "suse": "zypper install pocl",
    "nixos": "nix-env -iA nixos.pocl",
}
INTEL_COMMAND = "pip install intel-opencl-rt intel-cmplr-lib-rt"


def environment() -> Check:
    """Python, architecture, C library, container, virtual environment."""
    bits = struct.calcsize("P") * 8
    libc = " ".join(platform.libc_ver()) or "C library not glibc"
    parts = [
        f"{platform.python_implementation()} {platform.python_version()} ({bits} bit)",
        f"{platform.system()} {platform.machine()}",
        libc.strip(),
        os_release().get("PRETTY_NAME", "unknown system"),
        *surroundings(),
    ]
    detail = ", ".join(part for part in parts if part)
    if bits != 64:
        return Check("python", WARN, detail, "Use a 64-bit Python: drivers and wheels are 64-bit.")
    return Check("python", OK, detail)


def surroundings() -> Iterator[str]:
    """Yield the kinds of enclosure that this process runs in."""
    if in_container():
        yield "container"
    if "microsoft" in _text("/proc/version").lower():
        yield "WSL"
    if icd.is_conda():
        yield "conda environment"
    elif sys.prefix != sys.base_prefix:
        yield "virtual environment"


def in_container() -> bool:
    """Tell whether this process runs in a container."""
    if any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv")):
        return True
    words = ("docker", "kubepods", "containerd", "/lxc/", "libpod")
    return bool(os.environ.get("container")) or any(w in _text("/proc/1/cgroup") for w in words)  # noqa: SIM112 - systemd's spelling


def os_release() -> dict[str, str]:
    """Return the fields of /etc/os-release; empty where there is none."""
    pairs = (line.partition("=") for line in _text("/etc/os-release").splitlines())
    return {name: value.strip("\"'") for name, mark, value in pairs if mark}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def device_files() -> Check:
    """GPU device files: there, and open to this user?"""
    nodes = sorted(path for pattern in GPU_FILES for path in glob.glob(pattern))
    if not nodes:
        hint = ""
        if in_container():
            hint = (
                " (a container sees a GPU when started with --gpus all and"
                " NVIDIA_DRIVER_CAPABILITIES=compute,utility, or with --device /dev/dri)"
            )
        return Check("GPU files", OK, f"none: this machine offers its CPU only{hint}")
    closed = [path for path in nodes if not os.access(path, os.R_OK | os.W_OK)]
    if not closed:
        return Check("GPU files", OK, f"{', '.join(nodes)}: open to this user")
    groups = sorted({owning_group(path) for path in closed} - {"root"})
    user = os.environ.get("USER") or "$USER"
    fix = f"sudo chmod a+rw {' '.join(closed)}"
    if in_container():
        fix = f"start the container with --device {' --device '.join(closed)}"
        fix += "".join(f" --group-add {group}" for group in groups)
    elif groups:
        fix = f"sudo usermod -aG {','.join(groups)} {user}, then log in again"
    return Check("GPU files", WARN, f"{', '.join(closed)}: closed to this user", fix)


def owning_group(path: str) -> str:
    """Return the name (else the number) of the group that owns a file."""
    import grp

    number = os.stat(path).st_gid
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def cache_folder() -> Check:
    """Cache folder: writable, private, enough space, no left-overs."""
    mode = setting("CLNN_CACHE")
    if mode == "off":
        return Check("cache", WARN, "switched off by CLNN_CACHE=off", "unset CLNN_CACHE")
    try:
        root = cache_dir()
        if why := privacy.why_not(root):
            detail = f"not used: {why}. Programs are built anew each time"
            return Check("cache", WARN, detail, privacy.advice(root), {"folder": str(root)})
        if mode == "rw":
            files.make_folder(root)
            with tempfile.TemporaryFile(dir=root):
                pass
    except OSError as err:
        return Check(
            "cache",
            WARN,
            f"cannot be written: {err}. Programs are built anew each time",
            "set CLNN_CACHE_DIR to a folder that you may write",
        )
    return _cache_content(root, mode)


def _cache_content(root: Path, mode: str) -> Check:
    free = shutil.disk_usage(root if root.exists() else "/").free
    stale = [p for p in root.rglob(f"{files.TEMP_PREFIX}*") if _is_stale(p)]
    detail = f"{root} (mode {mode}), {free / 2**30:.1f} GiB free"
    data = {"folder": str(root), "mode": mode, "free_bytes": free, "stale_files": len(stale)}
    if free < LOW_DISK_BYTES:
        return Check("cache", WARN, detail, "free some disk space or set CLNN_CACHE_DIR", data)
    if stale:
        command = f"find {root} -name '{files.TEMP_PREFIX}*' -mmin +60 -delete"
        return Check("cache", WARN, f"{detail}; {len(stale)} left-over files", command, data)
    return Check("cache", OK, detail, "", data)


def _is_stale(path: Path) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return files.is_stale(files.Found(path, info.st_size, info.st_mtime))


def settings_check() -> Check:
    """CLNN_* variables: known names and allowed values."""
    names = [name for name in SETTINGS if os.environ.get(name)]
    for name in names:
        try:
            setting(name)
        except SettingError as err:
            return Check("settings", FAIL, str(err), f"unset {name}")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        unknown = warn_unknown()
    if unknown:
        detail = "; ".join(str(warning.message) for warning in told)
        return Check("settings", WARN, detail, f"unset {' '.join(unknown)}")
    text = ", ".join(f"{name}={os.environ[name]}" for name in names)
    return Check("settings", OK, text or "no CLNN_ variable is set")


def suggestion() -> str:
    """Return how to get an OpenCL driver on this system, without and with root."""
    release = os_release()
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    ways = [POCL_BY_SYSTEM[name] for name in names if name in POCL_BY_SYSTEM][:1]
    if platform.system() == "Darwin":
        ways = ["conda install -c conda-forge pyopencl pocl"]
    if platform.machine().lower() in ("x86_64", "amd64") and platform.system() == "Linux":
        ways.append(f"{INTEL_COMMAND} (x86 CPUs, no root needed)")
    if glob.glob("/dev/nvidia[0-9]*") and not icd.find_library("libnvidia-opencl.so.1"):
        ways.insert(0, "in a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    return "; or: ".join(ways) or "install your vendor's OpenCL driver, or PoCL for the CPU"
