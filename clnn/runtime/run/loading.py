"""`clnn.load`: what it needs is imported while the driver is opened."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from clnn.errors import ClnnError
from clnn.runtime.build.progress import Listener, heard
from clnn.runtime.device.device import open_ahead
from clnn.runtime.drivers.loader import load as load_opencl
from clnn.runtime.process.beside import Beside
from clnn.runtime.process.forked import refuse
from clnn.timeline import mark

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session


def load(
    path: str | os.PathLike[str],
    device: str | int | None = None,
    *,
    states: int = 1,
    timeout: float | None = None,
    progress: Listener | None = None,
) -> Session:
    """Return the session of a network that was compiled and saved (`Session.save`, `clnn compile`).

    Neither its model nor what reads models is needed. device, progress: as in compile_model. states, timeout:
    as in Options. Programs are taken from the file where they were built for this device and driver, else
    from the cache, else they are built. The file runs programs: load only what comes from someone you
    trust. It stays mapped while the session lives: replace it by renaming, do not write into it.
    Raises ModelFileError where the file is damaged, DeviceError where the network does not fit the
    device, and what compile_model raises of devices.
    """
    refuse()
    with suppress(ClnnError):  # what is wrong with the file is said first
        open_ahead(device)
    from clnn.options import Options
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.run.loaded import require_fit, session_of
    from clnn.runtime.run.saved import read_network

    reading = Beside(read_network, path)
    with suppress(ClnnError):
        load_opencl()
    network = reading.result()
    mark("file")
    info = select_device(device)
    mark("device")
    require_fit(os.fspath(path), network, info)
    with heard(progress):
        return session_of(network, info, Options(states=states, timeout=timeout))
