"""Which process makes an entry: one at a time, others wait for it and take what it has stored.

    <folder of the store>/claims/<first 2 digits of the key>.lock
    <folder of the store>/claims-ahead/...                        of work that nothing waits for

Keys that begin alike share a lock. Nobody waits who holds one, and no build that a caller waits for waits
for work ahead. A lock goes with its process, however that ends, and what hinders locks (a folder that cannot
be written, a file system without them) is no error: the work is done more than once then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from clnn.cache import files
from clnn.cache.store import Store

NOW, AHEAD, SUFFIX = "claims", "claims-ahead", ".lock"
POLL_S = 0.05


@contextmanager
def taken(store: Store, keys: Iterable[str], folder: str = NOW) -> Iterator[set[str]]:
    """Claim the keys that no other process or thread has claimed, for a block; yield these. folder: NOW or AHEAD."""
    keys = set(keys)
    with ExitStack() as held:
        places = {place for key in keys if (place := _place(store, key, folder))}
        busy = {place for place in places if not _acquired(held, place, 0.0)}
        yield {key for key in keys if _place(store, key, folder) not in busy}


@contextmanager
def waited_for(
    store: Store,
    key: str,
    end: float,
    stop: threading.Event | None = None,
    folder: str = NOW,
) -> Iterator[None]:
    """Claim a key for a block once nobody else has it, or at `end` of time.monotonic(), or when `stop` is set."""
    place = _place(store, key, folder)
    with ExitStack() as held:
        while place and not _acquired(held, place, POLL_S):
            if time.monotonic() > end or (stop and stop.is_set()):
                break
        yield


def _place(store: Store, key: str, folder: str) -> Path | None:
    return store.folder / folder / f"{key[:2]}{SUFFIX}" if store.mode == "rw" else None


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
