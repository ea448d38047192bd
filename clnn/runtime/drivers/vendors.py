"""The vendors folder that clnn hands to the OpenCL loader: links to .icd files, and new ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clnn.cache.files import STALE_SECONDS, make_folder
from clnn.cache.privacy import is_private
from clnn.cache.store import cache_dir
from clnn.records import dataclass
from clnn.runtime.drivers import icd
from clnn.runtime.process.temporary import own_folder
from clnn.settings import setting

ATTEMPTS = 8  # to install a folder that other processes install, too


@dataclass(frozen=True)
class Driver:
    """A driver for the vendors folder: the file's name there, the library, and its own .icd file.

    Without a `source` the folder gets a new .icd file that names the library.
    """

    file: str
    library: str
    source: Path | None = None


def list_drivers() -> tuple[list[Driver], list[Path]]:
    """Return (all drivers of this machine, libraries of those that the loader alone would miss)."""
    system = icd.icd_files(icd.SYSTEM_VENDORS)
    stems = {entry.stem for entry in system if entry.present}
    prefix = [
        entry
        for entry in icd.icd_files(icd.prefix_vendors())
        if entry.present and entry.stem not in stems
    ]
    forgotten = icd.unregistered([*system, *prefix])
    drivers = [Driver(e.path.name, e.library, e.path) for e in system if not e.error]
    drivers += [Driver(f"environment-{e.path.name}", e.library, e.path) for e in prefix]
    drivers += [Driver(name, str(library)) for name, library in forgotten.items()]
    missed = [] if icd.is_conda() else [Path(entry.library) for entry in prefix]
    return drivers, [*missed, *forgotten.values()]


def vendors_folder(drivers: Sequence[Driver]) -> Path:
    """Return a folder that registers exactly `drivers`; its name is a digest of them.

    It lies in the cache folder when that is private to the user and writable, else in a
    temporary folder of this process.
    """
    lines = sorted(f"{d.file}\0{d.source or d.library}" for d in drivers)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    if setting("CLNN_CACHE") == "rw":
        try:
            root = cache_dir()
            make_folder(root / "vendors")
            if is_private(root, root / "vendors"):
                return _install(root / "vendors", digest, drivers)
        except OSError:
            pass
    return _install(own_folder("clnn-vendors-"), digest, drivers)


def write_drivers(folder: Path, drivers: Sequence[Driver]) -> None:
    """Register `drivers` in `folder`, which exists and is empty."""
    for driver in sorted(drivers, key=lambda d: d.file):
        if driver.source is not None:
            (folder / driver.file).symlink_to(driver.source)
        else:
            (folder / driver.file).write_text(f"{driver.library}\n", encoding="utf-8")


def _install(parent: Path, name: str, drivers: Sequence[Driver]) -> Path:
    """Make `parent/name` hold exactly `drivers`, in one step, unless it does already."""
    make_folder(parent)
    target = parent / name
    for attempt in range(1, ATTEMPTS + 1):
        if _holds(target, drivers):
            break
        try:
            _replace(target, drivers)
        except OSError:  # others may be replacing it
            if attempt == ATTEMPTS and not _holds(target, drivers):
                raise
    return target


def _replace(target: Path, drivers: Sequence[Driver]) -> None:
    """Put a folder that holds `drivers` where `target` is, and remove what was there."""
    parent = target.parent
    temp = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
    try:
        write_drivers(temp, drivers)
        if target.exists() and not _holds(target, drivers):
            target.rename(Path(tempfile.mkdtemp(prefix=".old-", dir=parent)) / target.name)
        temp.rename(target)
    finally:
        shutil.rmtree(temp, ignore_errors=True)
        for old in parent.glob(".old-*"):
            shutil.rmtree(old, ignore_errors=True)
        for scrap in parent.glob(f".{target.name}-*"):  # of a process that was killed
            with suppress(OSError):
                if time.time() - scrap.lstat().st_mtime > STALE_SECONDS:
                    shutil.rmtree(scrap, ignore_errors=True)


def _holds(folder: Path, drivers: Sequence[Driver]) -> bool:
    try:
        if set(os.listdir(folder)) != {driver.file for driver in drivers}:
            return False
        return all(_same(folder / driver.file, driver) for driver in drivers)
    except OSError:
        return False


def _same(file: Path, driver: Driver) -> bool:
    if driver.source is not None:
        return file.is_symlink() and Path(os.readlink(file)) == driver.source
    return not file.is_symlink() and file.read_text(encoding="utf-8") == f"{driver.library}\n"
