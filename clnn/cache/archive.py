"""Cache entries as one zip file, to carry them to another machine.

A member is the file of one entry, named `<kind>/<key>.clbin`, or the lines of one device's tuning,
named `tuning/<device>.jsonl`. Names, sizes and checksums are tested before anything is stored, and
nothing is ever unpacked by name: an archive can harm no file. Tuning lines are added to those that
are there. But the programs in it will run: import only what comes from someone you trust.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from pathlib import Path

from clnn.cache import files, lines
from clnn.cache.envelope import MAX_ENTRY_BYTES, BadEntry, decode
from clnn.cache.store import Store, stored_kinds
from clnn.errors import CacheError
from clnn.records import dataclass
from clnn.settings import setting

MAX_MEMBERS = 100_000
TUNING = "tuning"  # folder of the tuning results of each device

_MEMBER = re.compile(r"([a-z][a-z0-9_-]{0,31})/([0-9a-f]{64})\.clbin")
_LINES = re.compile(r"tuning/([a-z0-9][a-z0-9-]{0,99}\.jsonl)")
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
    OverflowError,
)


@dataclass(frozen=True)
class Transfer:
    """Outcome of an export or import: entries carried over, their bytes, and members left out."""

    entries: int
    bytes: int
    left_out: tuple[str, ...]


def export_entries(root: Path, target: Path) -> Transfer:
    """Write all entries of the cache folder `root` that pass their checks to the zip file `target`.

    The same entries give the same file. Raises CacheError when an entry cannot be read or `target`
    cannot be written.
    """
    members = _members(root)
    done, size, bad = 0, 0, []
    try:
        with (
            files.replacing(target.absolute(), mode=0o666) as fd,
            os.fdopen(fd, "wb", closefd=False) as out,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            for name, path, key in members:
                try:
                    blob = _proven(path, key)
                except FileNotFoundError:
                    continue
                except BadEntry:
                    bad.append(name)
                    continue
                archive.writestr(zipfile.ZipInfo(name), blob, zipfile.ZIP_DEFLATED)
                done, size = done + 1, size + len(blob)
            for path in tuning_files(root):
                rows = lines.LineFile(path, "ro").read()
                blob = b"".join(lines.encode(row) for row in rows)
                name = f"{TUNING}/{path.name}"
                archive.writestr(zipfile.ZipInfo(name), blob, zipfile.ZIP_DEFLATED)
                done, size = done + len(rows), size + len(blob)
    except OSError as err:
        raise CacheError(f"{target} cannot be written: {err}. Name another file.") from err
    return Transfer(done, size, tuple(bad))


def _members(root: Path) -> list[tuple[str, Path, str]]:
    found = []
    for kind in stored_kinds(root):
        store = Store(root, "ro", kind)
        found += [(f"{kind}/{e.key}.clbin", store.path(e.key), e.key) for e in store.entries()]
    return sorted(found)


def tuning_files(root: Path) -> list[Path]:
    """Return the files of tuning results in the cache folder `root`."""
    return sorted(f.path for f in files.listing(root / TUNING) if f.path.suffix == lines.SUFFIX)


def _proven(path: Path, key: str) -> bytes:
    try:
        blob = files.read_file(path, MAX_ENTRY_BYTES)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise CacheError(f"{path} cannot be read: {err}. Check its owner and mode.") from err
    decode(blob, key)
    return blob


def import_entries(root: Path, source: Path) -> Transfer:
    """Store the entries of the zip file `source` in the cache folder `root`.

    Members whose content fails a check, or that cannot be stored, are left out and named. Raises
    CacheError, with nothing stored, when `source` is no zip file, holds a member that is not named
    as an entry or named twice, or asks for more than CLNN_CACHE_MAX_BYTES.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            return _import_members(root, archive, _checked(archive, source))
    except CacheError:
        raise
    except _ZIP_ERRORS as err:
        raise CacheError(
            f"{source} cannot be read as an archive of cache entries: {err}. "
            "Give a file that `clnn cache export` wrote."
        ) from err


def _checked(archive: zipfile.ZipFile, source: Path) -> list[zipfile.ZipInfo]:
    """Return the members of an archive whose names and sizes are all as they must be."""
    members, limit = archive.infolist(), int(setting("CLNN_CACHE_MAX_BYTES"))
    total = sum(m.file_size for m in members)
    if len(members) > MAX_MEMBERS or total > limit:
        raise CacheError(
            f"{source} holds {len(members)} entries of {total} bytes in all. The limits are "
            f"{MAX_MEMBERS} entries and {limit} bytes. Raise CLNN_CACHE_MAX_BYTES."
        )
    seen: set[str] = set()
    for member in members:
        known = _MEMBER.fullmatch(member.filename) or _LINES.fullmatch(member.filename)
        if not known or member.filename in seen:
            raise CacheError(
                f"{source} holds a member {member.filename!r}. Only <kind>/<key>.clbin and "
                "tuning/<device>.jsonl may be in it, each once. Nothing was imported: get the "
                "archive from a source you trust."
            )
        seen.add(member.filename)
    return members


def _import_members(
    root: Path, archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]
) -> Transfer:
    done, size, bad = 0, 0, []
    stores: dict[str, Store] = {}
    for member in members:
        tuned = _LINES.fullmatch(member.filename)
        if tuned:
            count, whole = _import_lines(root / TUNING / tuned.group(1), archive, member)
            done, size = done + count, size + (member.file_size if count else 0)
            bad += [] if whole else [member.filename]
            continue
        kind, _, name = member.filename.partition("/")
        store = stores.setdefault(kind, Store(root, "rw", kind))
        if _import_one(store, name.removesuffix(".clbin"), archive, member):
            done, size = done + 1, size + member.file_size
        else:
            bad.append(member.filename)
    return Transfer(done, size, tuple(bad))


def _import_lines(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> tuple[int, bool]:
    """Add the lines that a file lacks; return how many, and whether all were sound and are kept."""
    try:
        rows = _content(archive, member).splitlines()
    except (BadEntry, *_ZIP_ERRORS):
        return 0, False
    found = [record for row in rows if (record := lines.decode(row)) is not None]
    target = lines.LineFile(path)
    there = {lines.encode(record) for record in target.read()}
    new = [record for record in found if lines.encode(record) not in there]
    kept = not new or target.append(new)
    return len(new) if kept else 0, kept and len(found) == len(rows)


def _import_one(store: Store, key: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    try:
        entry = decode(_content(archive, member), key)
    except (BadEntry, *_ZIP_ERRORS):
        return False
    return store.put(key, entry.payload, entry.meta)


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the bytes of a member, never more than it declares nor than an entry may have."""
    if member.file_size > MAX_ENTRY_BYTES:
        raise BadEntry(f"has {member.file_size} bytes, more than any entry")
    with archive.open(member) as stream:
        return stream.read(member.file_size + 1)
