"""Loads pyopencl, once, and arranges which OpenCL drivers of this machine it sees.

Drivers that are installed but not registered (see `icd`) get an .icd file in a folder of the
cache, beside links to the registered ones, and OCL_ICD_VENDORS points the loader there. Drivers
that crash when they are listed are left out of it. A user who chose drivers by such a variable is
left alone. Else a process loads no driver before it uses a device of it (see `driver_loading`).
Modules that need pyopencl write `from clnn.runtime.drivers.loader import cl`, or call `load()`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clnn.errors import NoDeviceError
from clnn.logs import log
from clnn.records import dataclass
from clnn.runtime.drivers import calling_thread, icd
from clnn.runtime.drivers.driver_listing import list_each
from clnn.runtime.drivers.vendors import Driver, list_drivers, vendors_folder
from clnn.runtime.process import collector
from clnn.runtime.process.temporary import own_folder
from clnn.settings import GIVEN, setting

if TYPE_CHECKING:
    import pyopencl as cl

__all__ = [
    "Setup",
    "child_environment",
    "cl",
    "load",
    "loader_library",
    "mapped_files",
    "prepare",
    "setup",
    "warn_if_hidden",
]


@dataclass(frozen=True)
class Setup:
    """What was arranged before pyopencl was loaded.

    `override` names the user's variable that was respected, `folder` the vendors folder in use
    (None: the loader's own), `drivers` what it registers, `added` the libraries that the loader
    alone would miss, `excluded` (library, reason) of drivers left out because they end the
    process that lists their devices, `late` whether pyopencl had been imported before.
    `on_demand`: all drivers where each is loaded when a device of it is used; empty where the loader
    loads what it finds.
    """

    override: str = ""
    folder: Path | None = None
    drivers: tuple[Driver, ...] = ()
    added: tuple[Path, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    late: bool = False
    on_demand: tuple[Driver, ...] = ()


def __getattr__(name: str) -> Any:
    if name == "cl":
        return load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def load() -> ModuleType:
    """Register forgotten drivers, import pyopencl and return it.

    pyopencl's own binary cache is switched off (clnn keeps its own) and its warnings about
    compiler output are silenced. Raises NoDeviceError when pyopencl cannot be imported.
    """
    prepare()
    try:
        with collector.paused:  # it would look through all of it several times
            import pyopencl
    except ImportError as err:
        raise NoDeviceError(
            f"pyopencl cannot be imported: {err}. clnn reaches OpenCL through it."
            f" Run: {sys.executable} -m pip install --force-reinstall pyopencl"
        ) from err
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    module: ModuleType = pyopencl
    return module


@functools.cache
def prepare() -> None:
    """Set what drivers read of the environment, before any is opened."""
    setup()
    for name, (value, _) in GIVEN.items():
        if value:
            os.environ.setdefault(name, value)
    _use_private_pocl_cache()


_POCL_CACHE = "POCL_CACHE_DIR"
_private: list[str] = []


def _use_private_pocl_cache() -> None:
    """Give PoCL a cache folder of this process alone, unless the user has named one.

    PoCL's own cache races between processes; clnn's holds the programs that are worth keeping.
    """
    if os.environ.get(_POCL_CACHE):
        return
    try:
        folder = str(own_folder("clnn-pocl-"))
    except OSError as err:
        log.warning("no temporary folder for PoCL, which uses its own: %s. Set TMPDIR.", err)
        return
    os.environ[_POCL_CACHE] = folder
    _private.append(folder)


def _begin_child() -> None:
    """Have a forked child, which may use drivers of its own, make its own folder for PoCL."""
    if os.environ.get(_POCL_CACHE) in _private:
        del os.environ[_POCL_CACHE]
        prepare.cache_clear()
        load.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


@functools.cache
def setup() -> Setup:
    """Make forgotten drivers visible to the OpenCL loader; done once per process."""
    late = "pyopencl" in sys.modules
    if "oclgrind" in os.environ.get("LD_PRELOAD", ""):  # it replaces loader and drivers
        return Setup(late=late)
    override = icd.vendor_override(os.environ)
    arranged = Setup(override, late=late) if override else _arranged(late)
    if not arranged.on_demand:
        preload_companions()
    return arranged


def _arranged(late: bool) -> Setup:
    drivers, missed = list_drivers()
    listings = list_each(drivers)
    excluded = {one.driver.library: one.end for one in listings if one.end}
    kept = tuple(driver for driver in drivers if driver.library not in excluded)
    can = all(one.loads_alone for one in listings if not one.end) and not late
    wanted = setting("CLNN_DRIVERS") == "needed"
    on_demand = kept if can and wanted and not _has_own_drivers() else ()
    if not missed and not excluded:
        return Setup(late=late, on_demand=on_demand)
    folder = vendors_folder(kept)
    os.environ["OCL_ICD_VENDORS"] = str(folder)
    added = tuple(path for path in missed if str(path) not in excluded)
    return Setup("", folder, kept, added, tuple(excluded.items()), late, on_demand)


def _has_own_drivers() -> bool:
    """Whether pyopencl's own loader brings drivers along, which no vendors folder leaves out."""
    spec = importlib.util.find_spec("pyopencl")
    origin = spec.origin if spec else None
    return origin is not None and any(Path(origin).parent.glob(".libs/*.icd"))


def child_environment(driver: str = "", in_caller: bool = False) -> dict[str, str]:
    """Return the environment for a child process that shall see the same drivers.

    driver: the library of one of Setup.on_demand, which the child then sees alone. in_caller: PoCL's device for
    the thread that calls takes the place of the one with threads. The vendors folder is written again if
    someone removed it; Oclgrind's own checks are left out.
    """
    arranged = setup()
    env = {name: text for name, text in os.environ.items() if not name.startswith("OCLGRIND_")}
    env["PYOPENCL_NO_CACHE"] = "1"
    if env.get(_POCL_CACHE) in _private:
        del env[_POCL_CACHE]
    if arranged.folder is not None and not arranged.folder.is_dir():
        env["OCL_ICD_VENDORS"] = str(vendors_folder(arranged.drivers))
    alone = [d for d in arranged.on_demand if driver and d.library == driver]
    if alone:
        env["OCL_ICD_VENDORS"] = str(vendors_folder(alone))
    return env | (calling_thread.ALONE if in_caller else {})


def warn_if_hidden() -> None:
    """Warn when drivers that clnn registered came too late because pyopencl was already in use."""
    arranged = setup()
    hidden = [path for path in arranged.added if not _is_mapped(path)]
    if not (arranged.late and hidden) or "oclgrind" in os.environ.get("LD_PRELOAD", ""):
        return
    warnings.warn(
        f"pyopencl was imported and listed its platforms before clnn was used, so these drivers"
        f" stay hidden: {', '.join(map(str, hidden))}. Use clnn first, or set"
        f" OCL_ICD_VENDORS={arranged.folder} before Python starts.",
        stacklevel=2,
    )


def loader_library() -> Path | None:
    """Return the path of the libOpenCL that this process has loaded, if it can be told."""
    mapped = (Path(path) for path in mapped_files())
    return next((path for path in mapped if path.name.startswith("libOpenCL")), None)


def mapped_files() -> list[str]:
    """Return the paths of all files mapped into this process; none where that cannot be told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    except OSError:
        return []
    return sorted(paths)


def _is_mapped(library: Path) -> bool:
    mapped = mapped_files()
    return not mapped or os.path.realpath(library) in mapped or str(library) in mapped


def preload_companions() -> None:
    """Load the libraries of Intel's runtime that lie in other folders than it does, before it.

    Its own search path covers its own folder only.
    """
    library = icd.intel_library()
    for path in icd.intel_companions(library)[0] if library else ():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:  # doctor reports what the driver then misses
            return
