"""Every state that a power loss could leave on disk: sound entries only, and all that were stored.

The file operations of some writes are recorded. A model of a file system then gives, for each
prefix of them, every disk that a crash at that moment allows: data that was not synced may be
missing, cut, zero or there; names that were not synced may be there or not, in any combination.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cache_faults import forget, using

from clnn.cache import Entry, Store


@dataclass
class Recorder:
    """An `os` that notes what is written: ("create" | "data" | "sync" | "rename" | ...)."""

    ops: list[tuple] = field(default_factory=list)
    open_files: dict[int, object] = field(default_factory=dict)
    count: int = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags, mode=0o777):
        fd = os.open(path, flags, mode)
        if flags & os.O_CREAT:
            self.count += 1
            self.ops.append(("create", Path(path), self.count))
            self.open_files[fd] = self.count
        else:
            self.open_files[fd] = Path(path)
        return fd

    def write(self, fd, data):
        self.ops.append(("data", self.open_files[fd], bytes(data)))
        return os.write(fd, data)

    def fsync(self, fd):
        self.ops.append(("sync", self.open_files[fd]))
        os.fsync(fd)

    def replace(self, source, target):
        os.replace(source, target)
        self.ops.append(("rename", Path(source), Path(target)))

    def mkdir(self, path, mode):
        os.mkdir(path, mode)
        self.ops.append(("mkdir", Path(path)))

    def unlink(self, path):
        os.unlink(path)
        self.ops.append(("remove", Path(path)))


def _place(op):
    """The folder whose sync makes a name operation last."""
    return op[2 if op[0] == "rename" else 1].parent


def _disks(ops, base):
    """Yield every disk that a crash after `ops` allows: (folders, {path: content})."""
    names = [i for i, op in enumerate(ops) if op[0] in ("create", "rename", "mkdir", "remove")]
    synced = {i: any(op == ("sync", _place(ops[i])) for op in ops[i + 1 :]) for i in names}
    pending = [i for i in names if not synced[i]]
    for lost in itertools.chain.from_iterable(
        itertools.combinations(pending, n) for n in range(len(pending) + 1)
    ):
        yield from _with_data(*_names(ops, base, set(lost)), ops)


def _names(ops, base, lost):
    folders, now, lasting = {base}, {}, {}
    for i, op in enumerate(ops):
        keep = lasting if i not in lost else {}
        if op[0] == "mkdir" and i not in lost:
            folders.add(op[1])
        elif op[0] == "create":
            now[op[1]] = keep[op[1]] = op[2]
        elif op[0] == "remove":
            now.pop(op[1], None)
            keep.pop(op[1], None)
        elif op[0] == "rename":
            now[op[2]] = keep[op[2]] = now.pop(op[1])
            keep.pop(op[1], None)
    reached = {base}
    for folder in sorted(folders):
        reached |= {folder} if folder.parent in reached else set()
    return reached, {path: file for path, file in lasting.items() if path.parent in reached}


def _with_data(folders, files, ops):
    choices = []
    for file in files.values():
        writes = [i for i, op in enumerate(ops) if op[0] == "data" and op[1] == file]
        data = b"".join(ops[i][2] for i in writes)
        safe = ("sync", file) in ops[writes[-1] :] if writes else False
        choices.append({data} if safe else {data, b"", data[: len(data) // 2], b"\0" * len(data)})
    for contents in itertools.product(*choices):
        yield folders, dict(zip(files, contents, strict=True))


class BrokenPromiseError(Exception):
    """A crash state that breaks a promise of the store."""


def _check(root, base, disk, begun, stored):
    """Lay `disk` out below `root` and use it as a new process after the crash."""
    folders, contents = disk
    for folder in sorted(folders - {base}):
        (root / folder.relative_to(base)).mkdir(parents=True)
    root.mkdir(parents=True, exist_ok=True)
    for path, data in contents.items():
        (root / path.relative_to(base)).write_bytes(data)
    forget()
    store = Store(root / "cache", "rw")
    for name, allowed in begun.items():
        entry = store.get(name)
        if entry not in (*allowed, None):
            raise BrokenPromiseError(f"wrong entry of {name}: {entry}")
        if entry is None and name in stored:
            raise BrokenPromiseError(f"lost entry of {name}")
    if store.verify().bad or store.stats().quarantined:
        raise BrokenPromiseError("a file that is no sound entry")
    for name in begun:
        if not store.put(name, b"again", {}) or store.get(name) != Entry({}, b"again"):
            raise BrokenPromiseError(f"cannot store {name}")


def _crash_everywhere(tmp_path, record, writes):
    """Check all states of all prefixes; return how many distinct disks that were."""
    base = tmp_path / "recorded"
    base.mkdir()
    marks, recorder = [], record
    with using(recorder):
        store = Store(base / "cache", "rw")
        for name, payload in writes:
            marks.append((len(recorder.ops), name, Entry({}, payload), "begun"))
            assert store.put(name, payload, {})
            marks.append((len(recorder.ops), name, Entry({}, payload), "stored"))
    seen = set()
    for end in range(len(recorder.ops) + 1):
        begun, stored = _promises(marks, recorder.ops[:end])
        for disk in _disks(recorder.ops[:end], base):
            state = (frozenset(disk[0]), frozenset(disk[1].items()), end if stored else None)
            if state not in seen:
                seen.add(state)
                _check(tmp_path / f"disk{len(seen)}", base, disk, begun, stored)
    return len(seen)


def _promises(marks, ops):
    begun, stored = {}, {}
    for at, name, entry, what in marks:
        if at > len(ops) or (what == "begun" and at == len(ops)):
            break
        if what == "begun":
            begun.setdefault(name, []).append(entry)
        else:
            begun[name] = [entry]
            stored[name] = entry
    gone = {op[1].stem for op in ops if op[0] == "remove"}
    return begun, {name for name in stored if name not in gone}


@pytest.fixture
def writes(key):
    """New keys, one in the same fan-out folder as another, and one that is written twice."""
    one = key(1)
    beside = one[:2] + key(2)[2:]
    return [(one, b"first" * 9), (beside, b"second"), (one, b"third" * 5), (key(4), b"")]


def test_every_crash_leaves_sound_entries_and_all_that_were_stored(tmp_path, writes):
    assert _crash_everywhere(tmp_path, Recorder(), writes) > 40


@pytest.mark.exhaustive
def test_every_crash_of_a_longer_history(tmp_path, key, writes):
    more = [(key(n), bytes([n]) * 30) for n in (1, 5, 6, 5, 7)]
    assert _crash_everywhere(tmp_path, Recorder(), writes + more) > 100


def test_every_crash_with_evictions(tmp_path, key, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "700")
    record = Recorder()
    few = [(key(n), b"x" * 150) for n in (1, 2, 3, 4)]
    assert _crash_everywhere(tmp_path, record, few) > 60
    assert any(op[0] == "remove" for op in record.ops)


class NoFileSync(Recorder):
    """What the store would do if it forgot to sync the data."""

    def fsync(self, fd):
        if isinstance(self.open_files[fd], Path):
            super().fsync(fd)


class NoFolderSync(Recorder):
    """What the store would do if it forgot to sync the folder."""

    def fsync(self, fd):
        if not isinstance(self.open_files[fd], Path):
            super().fsync(fd)


class RenameFirst(Recorder):
    """What the store would do if it renamed before the data is synced."""

    def replace(self, source, target):
        super().replace(source, target)
        sync = next(i for i in reversed(range(len(self.ops))) if self.ops[i][0] == "sync")
        self.ops.append(self.ops.pop(sync))


@pytest.mark.parametrize(
    ("mutant", "finding"),
    [(NoFileSync, "no sound entry|lost"), (NoFolderSync, "lost"), (RenameFirst, "no sound entry")],
)
@pytest.mark.filterwarnings("ignore::clnn.cache.CacheWarning")
def test_this_check_finds_a_missing_sync(tmp_path, writes, mutant, finding):
    with pytest.raises(BrokenPromiseError, match=finding):
        _crash_everywhere(tmp_path, mutant(), writes)
        pytest.fail("not found")
