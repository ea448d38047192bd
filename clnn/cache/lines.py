"""Files of JSON lines that several processes append to, each line with a checksum.

A line is written whole, under a lock, and made durable before `append` returns. Whoever is killed
while writing leaves a last line without an end, which readers pass over and the next writer cuts
off; no earlier line is ever touched. Compaction replaces the whole file at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clnn.cache import files
from clnn.cache.envelope import BadEntry
from clnn.cache.privacy import is_private, tell

MAX_BYTES = 1 << 26
LOCK_S = 30.0
SUFFIX = ".jsonl"
_TAIL = 1 << 16
Record = dict[str, Any]


class LineFile:
    """One file of records, in a folder of the cache folder.

    mode: "off", "ro" or "rw"; a folder that is not the user's own is "off". Troubles are told once, as
    CacheWarning.
    """

    def __init__(self, path: Path, mode: str = "rw") -> None:
        self.path, self._mode = path, mode
        self.bad = 0

    @property
    def mode(self) -> str:
        """What is done with the file: "rw", "ro" or "off"."""
        folder = self.path.parent
        return self._mode if self._mode == "off" or is_private(folder.parent, folder) else "off"

    def read(self) -> list[Record]:
        """Return the records in the order of writing, without those that fail their check."""
        if self.mode == "off":
            return []
        try:
            text = files.read_file(self.path, MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (BadEntry, OSError) as err:
            self._tell(f"cannot be read ({err})")
            return []
        lines = text.split(b"\n")[:-1]
        found = [record for line in lines if (record := decode(line)) is not None]
        self.bad = len(lines) - len(found)
        if self.bad:
            self._tell(f"has {self.bad} damaged lines, which are passed over")
        return found

    def append(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Write records for good; tell whether they are. Raises TypeError for what is not JSON."""
        data = b"".join(encode(record) for record in records)
        if self.mode != "rw":
            return False
        try:
            files.make_folder(self.path.parent)
            if self.mode != "rw":  # another user was faster
                return False
            with locked(self.path):
                self._write(data)
        except OSError as err:
            self._tell(f"cannot be written ({err}); what was measured is lost when this ends")
            return False
        return True

    def _write(self, data: bytes) -> None:
        new = not self.path.exists()
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(self.path, flags, 0o600)
        try:
            os.lseek(fd, _cut(fd), os.SEEK_SET)
            files.write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        if new:
            files.sync_folder(self.path.parent)

    def rewrite(self, keep: Callable[[list[Record]], Sequence[Mapping[str, Any]]]) -> None:
        """Replace the file by what `keep` returns of its records, at once and under the lock."""
        if self.mode != "rw" or not self.path.exists():
            return
        try:
            with locked(self.path), files.replacing(self.path) as fd:
                files.write_all(fd, b"".join(encode(record) for record in keep(self.read())))
        except OSError as err:
            self._tell(f"cannot be written ({err})")

    def _tell(self, what: str) -> None:
        text = f"{self.path} {what}. Results stay right; kernels may be slower until tuned anew."
        tell(self.path.parent.parent if "written" in what else self.path, text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of `path`, which ends with its process. Raises OSError (after LOCK_S)."""
    from filelock import FileLock

    with FileLock(f"{path}.lock", timeout=LOCK_S):
        yield


def encode(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record."""
    body = {name: value for name, value in record.items() if name != "sum"}
    return _text({**body, "sum": _checksum(body)}) + b"\n"


def decode(line: bytes) -> Record | None:
    """Return the record of a line, None where it is damaged."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict) and record.pop("sum", None) == _checksum(record):
            return record
    return None


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(dict(sorted(record.items())))).hexdigest()[:16]


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii")


def _cut(fd: int) -> int:
    """Cut off a last line without an end; return where the file then ends."""
    size = end = os.fstat(fd).st_size
    while end > 0:
        begin = max(0, end - _TAIL)
        os.lseek(fd, begin, os.SEEK_SET)
        at = os.read(fd, end - begin).rfind(b"\n")
        end = begin + at + 1 if at >= 0 else begin
        if at >= 0:
            break
    if end != size:
        os.ftruncate(fd, end)
    return end
