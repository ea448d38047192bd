"""Where OpenCL drivers register themselves (.icd files) and which ones forgot to.

An .icd file holds one line: the driver's library. The loader (libOpenCL) reads all .icd files of
its vendors folder. Two drivers are often present without a valid one: Intel's CPU runtime from
PyPI, whose wheel ships a placeholder path, and NVIDIA's in containers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from clnn.records import dataclass

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
# Variables that choose the drivers. ocl-icd reads both, the Khronos loader the first.
VENDOR_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
# Libraries of drivers besides those, for the Khronos loader alone; some images for GPUs name NVIDIA's there only.
MORE_DRIVERS = "OCL_ICD_FILENAMES"
# Libraries that Intel's CPU runtime needs, in loading order, and the packages that hold them.
INTEL_COMPANIONS = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so", "libtbb.so.12")
INTEL_PACKAGES = ("intel-cmplr-lib-rt", "tbb")

_LIBRARY_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/run/opengl-driver/lib",
)


@dataclass(frozen=True)
class IcdFile:
    """One .icd file: where it lies, the library that it names, or why it cannot be read."""

    path: Path
    library: str
    error: str = ""

    @property
    def present(self) -> bool:
        """Whether the library exists; a bare name counts as present, the loader searches it."""
        if self.error or not self.library:
            return False
        return not os.path.isabs(self.library) or os.path.exists(self.library)

    @property
    def stem(self) -> str:
        """The library's name up to `.so`."""
        return os.path.basename(self.library).split(".so")[0]


def read_icd(path: Path) -> IcdFile:
    """Read one .icd file; an unreadable or empty one comes back with its `error`."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as err:
        return IcdFile(path, "", err.strerror or str(err))
    library = lines[0].strip()
    return IcdFile(path, library, "" if library else "the file is empty")


def icd_files(folder: Path) -> list[IcdFile]:
    """Return every .icd file of `folder` in the order of names; none when there is no folder."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".icd"))
    except OSError:
        return []
    return [read_icd(folder / name) for name in names]


def vendor_override(env: Mapping[str, str]) -> str:
    """Return the name of the variable that already chooses the drivers, or ''."""
    return next((name for name in VENDOR_VARIABLES if env.get(name)), "")


def named_besides(env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the libraries that MORE_DRIVERS names, by path or for the system to search, where they exist."""
    for text in filter(None, env.get(MORE_DRIVERS, "").split(os.pathsep)):
        path = Path(text) if os.path.isabs(text) else find_library(text)
        if path is not None and path.exists():
            yield path


def files_in_use(env: Mapping[str, str], bundled: Path | None = None) -> list[IcdFile]:
    """Return the .icd files that the loader reads under `env`; `bundled` is its own folder."""
    chosen = env.get("OCL_ICD_VENDORS") or env.get("OPENCL_VENDOR_PATH")
    if not chosen:
        files = icd_files(SYSTEM_VENDORS)
        if is_conda():
            files += icd_files(prefix_vendors())
    elif chosen.endswith(".icd"):
        files = [read_icd(Path(chosen))]
    elif os.path.isdir(chosen):
        files = icd_files(Path(chosen))
    else:
        files = [IcdFile(Path(chosen), chosen if ".so" in chosen else "", "no such folder")]
    return files + (icd_files(bundled) if bundled else [])


def prefix_vendors() -> Path:
    """Return the vendors folder of this Python environment (it need not exist)."""
    return Path(sys.prefix) / "etc" / "OpenCL" / "vendors"


def is_conda() -> bool:
    """Tell whether this Python is a conda environment."""
    return (Path(sys.prefix) / "conda-meta").is_dir()


def intel_library() -> Path | None:
    """Return `libintelocl.so` of the PyPI package `intel-opencl-rt` in this environment, if any."""
    beside = Path(sys.prefix) / "lib" / "libintelocl.so"
    if beside.exists():
        return beside
    return next(iter(_package_files("intel-opencl-rt", ("libintelocl.so",))), None)


def intel_companions(library: Path) -> tuple[list[Path], list[str]]:
    """Find the libraries that Intel's runtime needs and that do not lie beside it.

    Returns (those found in other packages, in loading order; names of those not found at all).
    """
    absent = [name for name in INTEL_COMPANIONS if not (library.parent / name).exists()]
    elsewhere: dict[str, Path] = {}
    for package in INTEL_PACKAGES if absent else ():
        elsewhere |= {path.name: path for path in _package_files(package, tuple(absent))}
    lacking = [name for name in absent if name not in elsewhere]
    return [elsewhere[name] for name in absent if name in elsewhere], lacking


def _package_files(package: str, names: tuple[str, ...]) -> list[Path]:
    """Return those of an installed package's files that have one of `names` and exist."""
    if not _is_installed(package):  # mostly so, and found out sooner than by the import
        return []
    import importlib.metadata

    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    paths = [Path(os.path.abspath(str(file.locate()))) for file in files if file.name in names]
    return [path for path in paths if path.exists()]


def _is_installed(package: str) -> bool:
    """Whether a folder of modules has a note of a package of that name."""
    begin = package.replace("-", "_")
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        notes = (n for n in names if n.endswith((".dist-info", ".egg-info")))
        if any(n.lower().replace("-", "_").startswith(begin) for n in notes):
            return True
    return False


def nvidia_library() -> Path | None:
    """Return NVIDIA's OpenCL driver library where an NVIDIA device node exists, if any."""
    if not any(os.path.exists(node) for node in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")):
        return None
    return find_library("libnvidia-opencl.so.1")


def find_library(name: str) -> Path | None:
    """Find a shared library by file name in LD_LIBRARY_PATH, usual folders and ldconfig's list."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for folder in (*folders, *_LIBRARY_FOLDERS):
        if os.path.exists(os.path.join(folder, name)):
            return Path(folder) / name
    return ldconfig_libraries().get(name)


def ldconfig_libraries() -> dict[str, Path]:
    """Return file name -> path of every library that `ldconfig -p` lists."""
    tool = next((t for t in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.path.exists(t)), "")
    if not tool:
        return {}
    try:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.split(" => ") for line in done.stdout.splitlines() if " => " in line)
    libraries: dict[str, Path] = {}
    for left, right in pairs:
        libraries.setdefault(left.split()[0], Path(right.strip()))
    return libraries


def unregistered(known: Iterable[IcdFile]) -> dict[str, Path]:
    """Return file name -> library of drivers that are present but named by none of `known`."""
    stems = {icd.stem for icd in known if icd.present}
    libraries = {"clnn-intel-cpu.icd": intel_library(), "clnn-nvidia.icd": nvidia_library()}
    libraries |= {f"clnn-named-{k}.icd": p for k, p in enumerate(named_besides(os.environ))}
    found: dict[str, Path] = {}
    for name, path in libraries.items():
        if path is not None and (stem := path.name.split(".so")[0]) not in stems:
            stems.add(stem)
            found[name] = path
    return found
