"""Compiled networks in the cache, so that a model that was compiled before starts without its plan being made.

An entry is a network as in a .clnn file (clnn.runtime.run.saved), but for the programs, which the cache has
anyway. Its key says what the plan follows from: the model's bytes, options, shapes, the device, what was
measured on it, and the files of clnn. An entry that is damaged counts as none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from clnn.cache.envelope import page_meta
from clnn.cache.files import listing
from clnn.cache.keys import fields_key
from clnn.cache.sections import BadSectionsError, decoded, encoded
from clnn.cache.store import Store
from clnn.codegen.render import template_folders
from clnn.errors import ClnnError
from clnn.logs import log
from clnn.options import Options
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.info import row_of
from clnn.runtime.process.background import Jobs
from clnn.runtime.run.held_model import HeldModel
from clnn.runtime.run.loaded import session_of
from clnn.runtime.run.parts import Build, Parts
from clnn.runtime.run.plan_rows import BadPlanError
from clnn.runtime.run.saved import network_of, network_sections
from clnn.runtime.run.session import Session
from clnn.runtime.run.small import may_call
from clnn.runtime.run.universal import asks_for_set, begins_on_set
from clnn.settings import SETTINGS, setting

KIND = "networks"
LARGEST = 1 << 27  # bytes of constants of a network that is kept
BEHIND_S = 1.0  # that a first call has for itself before its network is written
# Settings on which no plan depends.
APART = {
    *("CLNN_DEVICE", "CLNN_DRIVERS", "CLNN_CACHE_DIR", "CLNN_CACHE", "CLNN_CACHE_MAX_BYTES"),
    *(
        "CLNN_BUILD_JOBS",
        "CLNN_PIN_THREADS",
        "CLNN_TIMEOUT",
        "CLNN_BUILD_TIMEOUT",
        "CLNN_MAX_BYTES",
    ),
    "CLNN_ORT_FALLBACK",
}


def key_of(
    held: HeldModel,
    info: DeviceInfo,
    options: Options,
    shapes: Mapping[str, Any] | None,
) -> str | None:
    """Return the key of a model, None where its networks are not kept or it cannot be read."""
    if options.tune not in ("off", "cached") or options.calibration or options.guard:
        return None
    if not held.is_whole:
        return None
    on_set = "never" if asks_for_set(options) else ""
    settled = replace(options, states=1, timeout=None, specialise=on_set)
    names = sorted(SETTINGS.keys() - APART)
    what = (
        held.name,
        sorted((name, repr(shape)) for name, shape in (shapes or {}).items()),
        astuple(settled),
        [(name, setting(name)) for name in names],
        sorted(row_of(info).items()),
        asdict(info.caps),
        (info.subgroup_size, info.usable_local_mem),
        options.specialise != "background" and may_call(info, options),
        _measured() if options.tune == "cached" else (),
        own_files(str(setting("CLNN_KERNEL_PATH"))),
    )
    return fields_key("clnn network", [repr(what), held.digest])


def _measured() -> tuple[Any, ...]:
    """Return what tells the files of tuning results from what they were."""
    folder = Store(kind=KIND).root / "tuning"
    return tuple(sorted((found.path.name, found.size, found.used) for found in listing(folder)))


@cache
def own_files(extra: str) -> str:
    """Return what tells clnn's own files, and its templates, from others: names, sizes and times."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in dict.fromkeys((str(package), *template_folders(extra))):
        for row in _files(folder):
            digest.update(repr(row).encode())
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as items:
        for item in sorted(items, key=lambda item: item.name):
            if item.is_dir():
                yield from _files(item.path) if item.name != "__pycache__" else ()
            else:
                status = item.stat()
                yield item.path, status.st_size, status.st_mtime_ns


def find(
    key: str, info: DeviceInfo, options: Options, build: Build | None = None
) -> Session | None:
    """Return the session of a network that is kept, None where there is none, or `build` raises MissingError.

    None, too, where a program would be built first and a model is to begin without that.
    """
    if build is None and begins_on_set(options, info):
        build = programs_kept
    entry = Store(kind=KIND).mapped(key)
    if entry is None:
        return None
    try:
        network = network_of(decoded(np.frombuffer(entry, np.uint8), proven=True))
    except (BadSectionsError, BadPlanError, KeyError) as err:
        log.info("a compiled network in the cache was passed over: it %s", err)
        return None
    try:
        return session_of(network, info, options, build)
    except MissingError:
        return None


class MissingError(Exception):
    """A program, or what else is wanted, is not in the cache."""


def programs_kept(device: Device, sources: Mapping[str, str]) -> None:
    """Load programs from the cache. Raises MissingError where one is not there."""
    if not all(map(device.has, sources.values())):
        raise MissingError
    device.build(sources)


def keep(key: str, session: Session) -> None:
    """Keep the network of a session that was just compiled, where it can be."""
    keep_parts(key, session.parts)


def keep_parts(key: str, parts: Parts) -> None:
    """Keep a network by what a session of it is made of."""
    _keep(Store(kind=KIND), key, parts)


def _keep(store: Store, key: str, parts: Parts) -> None:
    if parts.constants.nbytes > LARGEST or store.mode != "rw":
        return
    try:
        sections = network_sections(parts, programs=False)
    except ClnnError as err:
        log.info("the compiled network is not kept: %s", err)
        return
    store.put(key, encoded(sections), page_meta())


def keep_behind(key: str, session: Session) -> None:
    """Do what keep does while calls go on, at the latest at the end of the process.

    Writing takes longer than planning does on the universal set: a first answer is not to wait for it.
    """
    Jobs(needed=True).add(partial(_keep, Store(kind=KIND), key, session.parts), BEHIND_S)
