"""The store: one checked file per key, written whole or not at all, read without locks.

    <cache dir>/v1/<kind>/<first 2 digits>/<key>.clbin      entries
    <cache dir>/v1/<kind>/quarantine/                       files that failed a check

A store never fails its caller: whatever is wrong with a file or a disk is a miss, told once per
process as a CacheWarning. Whoever may write to the folder decides what programs run, so its
folders are made for their owner only, and folders and files of others are not used (see
`clnn.cache.privacy`); nothing in them is ever unpickled.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from clnn.cache import files
from clnn.cache.envelope import (
    FORMAT_VERSION,
    JSON,
    MAX_ENTRY_BYTES,
    BadEntry,
    Entry,
    decode,
    parts_of,
    pieces_of,
)
from clnn.cache.keys import is_key
from clnn.cache.privacy import CacheWarning, is_private, tell
from clnn.errors import CacheError
from clnn.records import dataclass
from clnn.settings import setting

SUFFIX = ".clbin"
QUARANTINE = "quarantine"
QUARANTINE_KEEP = 16

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_NOWHERE = Path("/dev/null/clnn")
_WRITE_ATTEMPTS = 3

T = TypeVar("T")


@dataclass
class _Health:
    """What this process knows of one store folder; shared by all its stores."""

    readable: bool = True
    writable: bool = True
    told_bad: bool = False
    size: int | None = None
    unscanned: int = 0


_HEALTH: dict[Path, _Health] = {}


@dataclass(frozen=True)
class EntryInfo:
    """An entry as listed: key, bytes on disk, time of last use (seconds since the epoch)."""

    key: str
    bytes: int
    used: float


@dataclass(frozen=True)
class Stats:
    """State of a store: what the folder holds, and what this store object did with it."""

    folder: Path
    mode: str
    entries: int
    bytes: int
    max_bytes: int
    quarantined: int
    hits: int
    misses: int
    written: int
    evicted: int


@dataclass(frozen=True)
class Verification:
    """Outcome of a check of all entries: how many, and the keys of those that failed."""

    checked: int
    bad: tuple[str, ...]


def cache_dir() -> Path:
    """Return the cache folder: CLNN_CACHE_DIR, else clnn's place in the user's cache folder.

    The folder need not exist. Raises FileNotFoundError when the user has no home folder.
    """
    try:
        text = setting("CLNN_CACHE_DIR") or _own_place()
        return Path(text).expanduser().absolute()
    except RuntimeError as err:
        raise FileNotFoundError(f"the user has no home folder ({err})") from err


def _own_place() -> str:
    import platformdirs  # which processes that are told a folder have no use for

    return platformdirs.user_cache_dir("clnn", appauthor=False)


def stored_kinds(root: Path) -> list[str]:
    """Return the kinds of entries that the cache folder `root` holds, sorted."""
    names = (found.path.name for found in files.listing(root / f"v{FORMAT_VERSION}"))
    return sorted(name for name in names if _KIND.fullmatch(name))


class Store:
    """Entries of one kind in one cache folder. Safe to share by threads and by processes.

    `root` is the cache folder (default: cache_dir()), `mode` "off", "ro" or "rw" (default:
    CLNN_CACHE). Each kind has its own folder and its own CLNN_CACHE_MAX_BYTES. Raises SettingError
    when a CLNN_ variable has a value that is not allowed, ValueError for a bad mode or kind.
    """

    def __init__(
        self, root: Path | None = None, mode: str | None = None, kind: str = "programs"
    ) -> None:
        if mode not in (None, "off", "ro", "rw"):
            raise ValueError(f"mode is {mode!r}. A store is 'off', 'ro' or 'rw'.")
        if not _KIND.fullmatch(kind):
            raise ValueError(f"kind is {kind!r}. It must match {_KIND.pattern}.")
        self._mode: str = setting("CLNN_CACHE") if mode is None else mode
        self._max_bytes: int = setting("CLNN_CACHE_MAX_BYTES")
        self.kind = kind
        self.hits = self.misses = self.written = self.evicted = 0
        self.root = self._locate() if root is None else Path(root).absolute()
        self.folder = self.root / f"v{FORMAT_VERSION}" / kind
        self._health = _HEALTH.setdefault(self.folder, _Health())

    def _locate(self) -> Path:
        try:
            return cache_dir()
        except OSError as err:
            if self._mode != "off":
                text = f"no cache: {err}. Programs are built anew each time. Set CLNN_CACHE_DIR."
                tell(_NOWHERE, text)
            self._mode = "off"
            return _NOWHERE

    @property
    def mode(self) -> str:
        """What the store does now: "rw", "ro" (also once writing has failed) or "off"."""
        if self._mode == "off" or not self._health.readable:
            return "off"
        if not is_private(self.root, self.folder.parent, self.folder):
            return "off"
        return "ro" if not self._health.writable else self._mode

    def path(self, key: str) -> Path:
        """Return where the entry of `key` is, or would be. Raises ValueError for what is no key."""
        if not is_key(key):
            raise ValueError(f"{key!r} is no cache key. A key is 64 digits of 0-9a-f.")
        return self.folder / key[:2] / (key + SUFFIX)

    def get(self, key: str) -> Entry | None:
        """Return the entry of `key`, or None when there is none that passes every check."""
        return self._get(key, lambda path: decode(self._read(path), key))

    def mapped(self, key: str) -> memoryview | None:
        """Return the payload of `key` as memory that is mapped from its file, or None as `get` does.

        It is page-aligned where the entry was put with page_meta().
        """
        return self._get(key, lambda path: parts_of(self._map(path), key)[1])

    def _get(self, key: str, read: Callable[[Path], T]) -> T | None:
        path, entry = self.path(key), None
        if self.mode != "off":
            try:
                entry = read(path)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except BadEntry as err:
                self._set_aside(path, f"{err}")
            except OSError as err:
                self._stop_reading(err)
        self.hits += entry is not None
        self.misses += entry is None
        return entry

    def _map(self, path: Path) -> memoryview:
        return files.map_file(path, MAX_ENTRY_BYTES, touch=self.mode == "rw")

    def _read(self, path: Path) -> bytes:
        return files.read_file(path, MAX_ENTRY_BYTES, touch=self.mode == "rw")

    def put(
        self, key: str, payload: bytes | Sequence[bytes | memoryview], meta: Mapping[str, JSON]
    ) -> bool:
        """Store an entry in place of any older one; tell whether it is stored for good.

        payload: bytes, or pieces of them in order. Raises TypeError or ValueError when `meta` is not JSON or
        `key` is no key.
        """
        path = self.path(key)
        pieces = pieces_of(key, meta, [payload] if isinstance(payload, bytes) else payload)
        size = sum(map(len, pieces))
        if self.mode != "rw" or size > min(self._max_bytes, MAX_ENTRY_BYTES):
            return False
        try:
            stored = self._write(path, pieces)
        except OSError as err:
            self._stop_writing(err)
            return False
        if stored:
            self.written += 1
            self._limit(path, size)
        return stored

    def _write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> bool:
        """Write a file, clearing away what is in its place.

        Returns False when others keep removing its folder.
        """
        for _ in range(_WRITE_ATTEMPTS):
            try:
                with files.replacing(path) as fd:
                    for piece in pieces:
                        files.write_all(fd, piece)
                return True
            except FileNotFoundError:
                files.make_folder(path.parent)
                if self.mode != "rw":  # another user was faster
                    return False
            except IsADirectoryError:
                self._set_aside(path, "is a folder")
            except NotADirectoryError:
                if not path.parent.parent.is_dir():
                    raise
                self._set_aside(path.parent, "is not a folder")
        return False

    def _limit(self, newest: Path, added: int) -> None:
        """Keep the folder below its size: a full scan first, after much writing, and when full."""
        health = self._health
        health.unscanned += added
        if health.size is not None:
            health.size += added
            if health.size <= self._max_bytes and health.unscanned <= self._max_bytes // 8:
                return
        try:
            health.size = self._evict(newest)
            health.unscanned = 0
        except OSError as err:
            self._stop_writing(err)

    def _evict(self, newest: Path) -> int:
        """When less than 1/20 of the size is free, remove long unused files until 1/10 is.

        Returns the bytes that stay.
        """
        found = [f for f in self._scan() if not (files.is_stale(f) and files.remove(f.path))]
        size = sum(f.size for f in found)
        if size <= self._max_bytes - self._max_bytes // 20:
            return size
        for old in sorted(found, key=lambda f: f.used):
            if size <= self._max_bytes - self._max_bytes // 10:
                break
            if old.path != newest and old.path.suffix == SUFFIX and files.remove(old.path):
                size -= old.size
                self.evicted += 1
        return size

    def _scan(self) -> Iterator[files.Found]:
        """Yield all files of the fan-out folders: entries, and new files on their way."""
        for found in files.listing(self.folder):
            if _FAN_OUT.fullmatch(found.path.name):
                yield from files.listing(found.path)

    def entries(self) -> list[EntryInfo]:
        """Return what the folder holds, unchecked, most recently used first.

        Raises CacheError when the folder cannot be listed.
        """
        try:
            found = [f for f in self._scan() if _is_entry(f.path)]
        except OSError as err:
            raise _unreadable(self.folder, err) from err
        found.sort(key=lambda f: (-f.used, f.path.name))
        return [EntryInfo(f.path.stem, f.size, f.used) for f in found]

    def stats(self) -> Stats:
        """Return the state of the folder (by a full scan) and of this object."""
        listed = self.entries()
        return Stats(
            folder=self.folder,
            mode=self.mode,
            entries=len(listed),
            bytes=sum(e.bytes for e in listed),
            max_bytes=self._max_bytes,
            quarantined=len(files.listing(self.folder / QUARANTINE)),
            hits=self.hits,
            misses=self.misses,
            written=self.written,
            evicted=self.evicted,
        )

    def verify(self) -> Verification:
        """Check every entry; in mode "rw" the bad ones go to quarantine.

        Raises CacheError when the folder or an entry cannot be read at all.
        """
        checked, bad = 0, []
        for key in sorted(e.key for e in self.entries()):
            try:
                decode(files.read_file(self.path(key), MAX_ENTRY_BYTES), key)
            except FileNotFoundError:
                continue
            except BadEntry as err:
                bad.append(key)
                self._set_aside(self.path(key), f"{err}")
            except OSError as err:
                raise _unreadable(self.folder, err) from err
            checked += 1
        return Verification(checked, tuple(bad))

    def clear(self) -> int:
        """Remove all entries, left-over files and the quarantine; return how many entries went.

        Raises CacheError when entries cannot be removed.
        """
        self._health.size = None
        try:
            removed = sum(files.delete(self.path(e.key)) for e in self.entries())
        except OSError as err:
            raise CacheError(
                f"the cache in {self.folder} cannot be emptied: {err}. Check its owner and mode."
            ) from err
        for found in files.listing(self.folder):
            files.remove_tree(found.path)
        return removed

    def _set_aside(self, path: Path, what: str) -> None:
        """Put a bad file where it does no harm, and say so once."""
        if self.mode == "rw":
            try:
                files.set_aside(path, self.folder / QUARANTINE, QUARANTINE_KEEP)
            except OSError as err:
                self._stop_writing(err)
        if not self._health.told_bad:
            self._health.told_bad = True
            _warn(
                f"cache file {path} {what}. It is not used; what it held is built anew. "
                "Bad files are kept in the quarantine folder; `clnn cache verify` lists all."
            )

    def _stop_reading(self, err: OSError) -> None:
        self._health.readable = False
        self._tell(f"is off for this process: {err}")

    def _stop_writing(self, err: OSError) -> None:
        self._health.writable = False
        self._tell(f"is not written to any more by this process: {err}")

    def _tell(self, what: str) -> None:
        tell(
            self.root,
            f"the cache in {self.root} {what}. What is missing from it is built anew each time. "
            "Free or unlock the folder, or set CLNN_CACHE_DIR to one that can be written.",
        )


def _is_entry(path: Path) -> bool:
    return path.suffix == SUFFIX and is_key(path.stem)


def _unreadable(folder: Path, err: OSError) -> CacheError:
    return CacheError(f"the cache in {folder} cannot be read: {err}. Check its owner and mode.")


def _warn(text: str) -> None:
    warnings.warn(text, CacheWarning, stacklevel=4)
