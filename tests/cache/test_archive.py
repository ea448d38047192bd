from __future__ import annotations

import os
import struct
import tracemalloc
import zipfile

import pytest
from cache_faults import HookedOs, forget, using

from clnn.cache import Entry, Store
from clnn.cache import archive as archive_module
from clnn.cache.archive import Transfer, export_entries, import_entries
from clnn.cache.envelope import encode
from clnn.errors import CacheError


@pytest.fixture
def root(tmp_path, key):
    """A cache folder with three programs and a tuning result."""
    for seed in range(3):
        Store(tmp_path / "from", "rw").put(key(seed), bytes([seed]) * 100, {"n": seed})
    Store(tmp_path / "from", "rw", "tuning").put(key("t"), b"best", {})
    return tmp_path / "from"


@pytest.fixture
def file(root, tmp_path):
    assert export_entries(root, tmp_path / "all.zip").entries == 4
    return tmp_path / "all.zip"


def test_export_and_import_carry_everything(root, file, tmp_path, key):
    into = tmp_path / "into"
    done = import_entries(into, file)
    assert (done.entries, done.left_out) == (4, ())
    assert done.bytes == sum(p.stat().st_size for p in root.rglob("*.clbin"))
    for seed in range(3):
        assert Store(into).get(key(seed)) == Entry({"n": seed}, bytes([seed]) * 100)
    assert Store(into, kind="tuning").get(key("t")) == Entry({}, b"best")
    again = export_entries(into, tmp_path / "again.zip")
    assert again.entries == 4
    assert (tmp_path / "again.zip").read_bytes() == file.read_bytes()


def test_export_leaves_bad_entries_out(root, tmp_path, key):
    Store(root).path(key(1)).write_bytes(b"bad")
    done = export_entries(root, tmp_path / "some.zip")
    assert (done.entries, done.left_out) == (3, (f"programs/{key(1)}.clbin",))
    assert import_entries(tmp_path / "into", tmp_path / "some.zip").entries == 3


def test_export_of_nothing(tmp_path):
    assert export_entries(tmp_path / "none", tmp_path / "e.zip") == Transfer(0, 0, ())
    assert import_entries(tmp_path / "into", tmp_path / "e.zip") == Transfer(0, 0, ())


def _full(name, *_):
    if name == "fsync":
        raise OSError(28, "No space left on device")


def test_export_replaces_its_target_whole_or_not_at_all(root, file, tmp_path):
    before = file.read_bytes()
    with using(HookedOs(_full)), pytest.raises(CacheError, match="No space"):
        export_entries(root, file)
    assert file.read_bytes() == before
    with pytest.raises(CacheError, match="Name another file"):
        export_entries(root, tmp_path / "no" / "folder.zip")
    with pytest.raises(CacheError, match="Name another file"):
        export_entries(root, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"from", "all.zip"}


def test_export_follows_the_umask(file):
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask


def _zip(path, members):
    with zipfile.ZipFile(path, "w") as out:
        for name, data in members:
            out.writestr(zipfile.ZipInfo(name), data)
    return path


HOSTILE = (
    "../evil.clbin",
    "/etc/evil",
    "programs/../../{key}.clbin",
    "programs//{key}.clbin",
    "programs\\{key}.clbin",
    "programs/{key}.clbin/",
    "programs/{key}.clbin\n",
    "programs/sub/{key}.clbin",
    "../programs/{key}.clbin",
    "Programs/{key}.clbin",
    "{key}.clbin",
    "programs/{key}.CLBIN",
    "programs/{key}",
    "programs/short.clbin",
    "c:/{key}.clbin",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_one_hostile_name_refuses_the_whole_archive(tmp_path, key, name):
    good = (f"programs/{key(1)}.clbin", encode(key(1), {}, b"good"))
    bad = (name.format(key=key(2)), encode(key(2), {}, b"bad"))
    path = _zip(tmp_path / "h.zip", [good, bad])
    with pytest.raises(CacheError, match="Nothing was imported"):
        import_entries(tmp_path / "into", path)
    assert [p.name for p in tmp_path.iterdir()] == ["h.zip"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_given_twice_refuses_the_archive(tmp_path, key):
    member = (f"programs/{key(1)}.clbin", encode(key(1), {}, b"good"))
    with pytest.raises(CacheError, match="each once"):
        import_entries(tmp_path / "into", _zip(tmp_path / "t.zip", [member, member]))


def test_members_with_wrong_content_are_left_out(tmp_path, key):
    blobs = {
        1: encode(key(1), {}, b"good"),
        2: encode(key(1), {}, b"of another key"),
        3: encode(key(3), {}, b"cut")[:-1],
        4: b"",
        5: b"\x80\x04K\x01.",
    }
    members = [(f"programs/{key(n)}.clbin", blob) for n, blob in blobs.items()]
    done = import_entries(tmp_path / "into", _zip(tmp_path / "w.zip", members))
    assert done.entries == 1
    assert set(done.left_out) == {name for name, _ in members[1:]}
    store = Store(tmp_path / "into")
    assert [store.get(key(n)) for n in blobs] == [Entry({}, b"good"), None, None, None, None]


def test_an_archive_larger_than_the_cache_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "500")
    with pytest.raises(CacheError, match="CLNN_CACHE_MAX_BYTES"):
        import_entries(tmp_path / "into", file)
    assert not (tmp_path / "into").exists()


def test_too_many_members(file, tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 3)
    with pytest.raises(CacheError, match="4 entries"):
        import_entries(tmp_path / "into", file)


@pytest.mark.parametrize("honest", [True, False])
def test_a_bomb_is_not_unpacked(tmp_path, key, monkeypatch, honest):
    """A member that unpacks to more than an entry may have, or than it says, takes no memory."""
    monkeypatch.setattr(archive_module, "MAX_ENTRY_BYTES", 1 << 16)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(f"programs/{key(1)}.clbin", bytes(1 << 25))
    if not honest:
        raw = bytearray(path.read_bytes())
        for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
            struct.pack_into("<I", raw, raw.index(signature) + offset, 100)
        path.write_bytes(raw)
    tracemalloc.start()
    done = import_entries(tmp_path / "into", path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (done.entries, len(done.left_out)) == (0, 1)
    assert peak < 1 << 22


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip" * 100, b"PK\x05\x06" + b"\0" * 17])
def test_what_is_no_archive(tmp_path, content):
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    with pytest.raises(CacheError, match="clnn cache export"):
        import_entries(tmp_path / "into", path)


def test_what_is_not_there_or_is_a_folder(tmp_path):
    for path in (tmp_path / "none.zip", tmp_path):
        with pytest.raises(CacheError, match="cannot be read"):
            import_entries(tmp_path / "into", path)


def _flips(data, step):
    for at in range(0, len(data), step):
        for flip in (0x01, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    for length in range(0, len(data), step):
        yield data[:length]


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_archives_never_import_a_wrong_entry(file, tmp_path, key, step):
    """Each byte changed and each length: an error with words, or only sound entries."""
    sound = {key(n): Entry({"n": n}, bytes([n]) * 100) for n in range(3)}
    path = tmp_path / "damaged.zip"
    for n, data in enumerate(_flips(file.read_bytes(), step)):
        path.write_bytes(data)
        into = tmp_path / f"into{n}"
        try:
            import_entries(into, path)
        except CacheError:
            continue
        forget()
        store = Store(into)
        assert store.verify().bad == ()
        for entry in store.entries():
            assert store.get(entry.key) == sound[entry.key]
