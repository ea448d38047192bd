"""Which process makes an entry: one at a time, others wait for it and take what it has stored.

    <folder of the store>/claims/<first 2 digits of the key>.lock

Keys that begin alike share a lock. Nobody waits who holds one. A lock goes with its process, however that
ends, and what hinders locks (a folder that cannot be written, a file system without them) is no error: the
work is done more than once then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from clnn.cache import files
from clnn.cache.store import Store

FOLDER, SUFFIX = "claims", ".lock"
POLL_S = 0.05


@contextmanager
def taken(store: Store, keys: Iterable[str]) -> Iterator[set[str]]:
    """Claim the keys that no other process or thread has claimed, for a block; yield these."""
    keys = set(keys)
    with ExitStack() as held:
        places = {place for key in keys if (place := _place(store, key))}
        busy = {place for place in places if not _acquired(held, place, 0.0)}
        yield {key for key in keys if _place(store, key) not in busy}


@contextmanager
def waited_for(
    store: Store, key: str, seconds: float, stop: threading.Event | None = None
) -> Iterator[None]:
    """Claim a key for a block once nobody else has it, or after so many seconds, or when `stop` is set."""
    place, end = _place(store, key), time.monotonic() + seconds
    with ExitStack() as held:
        while place and not _acquired(held, place, POLL_S):
            if time.monotonic() > end or (stop and stop.is_set()):
                break
        yield


def _place(store: Store, key: str) -> Path | None:
    return store.folder / FOLDER / f"{key[:2]}{SUFFIX}" if store.mode == "rw" else None


def _acquired(held: ExitStack, place: Path, seconds: float) -> bool:
    """Whether a lock could be taken, or cannot exist."""
    from filelock import FileLock, Timeout

    with suppress(OSError, NotImplementedError):
        files.make_folder(place.parent)
        try:
            lock = FileLock(place, timeout=seconds, mode=0o600)
            held.callback(lock.release)
            lock.acquire(poll_interval=POLL_S)
        except Timeout:
            return False
    return True
