from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from pathlib import Path

import pytest
from cache_faults import DribblingOs, HookedOs, forget, using
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clnn.cache import Entry, Store, cache_dir
from clnn.cache import store as store_module
from clnn.cache.envelope import MAX_ENTRY_BYTES, BadEntry, decode, encode
from clnn.errors import CacheError, SettingError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=300), st.dictionaries(st.text(), json_values, max_size=4))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_encode_decode_round_trip(payload, meta):
    name = "0123456789abcdef" * 4
    assert decode(encode(name, meta, payload), name) == Entry(meta, payload)


@pytest.mark.parametrize(
    "meta", [{"x": float("nan")}, {"x": float("inf")}, {"x": b""}, {"x": object()}]
)
def test_meta_that_is_not_json_is_refused_and_nothing_is_written(store, key, meta):
    with pytest.raises((TypeError, ValueError)):
        store.put(key(1), b"p", meta)
    assert not store.folder.exists()


def test_an_entry_in_pieces_is_that_of_all_its_bytes(tmp_path, key):
    """What is large is written as it lies, without a copy that joins it."""
    whole, pieces = Store(tmp_path / "whole", "rw"), Store(tmp_path / "pieces", "rw")
    payload = bytes(range(256)) * 40
    assert whole.put(key(1), payload, {"n": 1})
    assert pieces.put(
        key(1), [payload[:7], memoryview(payload)[7:9000], b"", payload[9000:]], {"n": 1}
    )
    assert whole.path(key(1)).read_bytes() == pieces.path(key(1)).read_bytes()
    assert pieces.get(key(1)).payload == payload


def test_put_get_and_replace(store, key):
    assert store.get(key(1)) is None
    assert store.put(key(1), b"one", {"a": [1, None, "é"]})
    assert store.get(key(1)) == Entry({"a": [1, None, "é"]}, b"one")
    assert store.put(key(1), b"", {})
    assert store.get(key(1)) == Entry({}, b"")
    assert store.get(key(2)) is None
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.written, stats.entries) == (2, 2, 2, 1)
    assert stats.bytes == store.path(key(1)).stat().st_size


def test_another_store_object_and_kind(store, key):
    store.put(key(1), b"one", {})
    assert Store(store.root, "ro").get(key(1)).payload == b"one"
    assert Store(store.root, "rw", "tuning").get(key(1)) is None


def test_modes(tmp_path, key, told):
    off, ro, rw = (Store(tmp_path, mode) for mode in ("off", "ro", "rw"))
    assert not off.put(key(1), b"x", {})
    assert not ro.put(key(1), b"x", {})
    assert list(tmp_path.iterdir()) == []
    assert rw.put(key(1), b"x", {})
    assert off.get(key(1)) is None
    assert ro.get(key(1)).payload == b"x"
    assert told == []


def test_read_only_mode_changes_nothing_on_disk(store, key):
    for seed in (1, 2):
        store.put(key(seed), b"x" * 50, {})
    store.path(key(2)).write_bytes(b"bad")
    for seed in (1, 2):
        os.utime(store.path(key(seed)), (5, 5))
    forget()
    reader = Store(store.root, "ro")
    writes = []
    watch = HookedOs(
        lambda name, _, args: writes.append((name, args)) if _writes(name, args) else None
    )
    with using(watch), pytest.warns(store_module.CacheWarning):
        assert reader.get(key(1)).payload == b"x" * 50
        assert reader.get(key(2)) is None
        assert reader.verify() == store_module.Verification(2, (key(2),))
    assert writes == []
    assert watch.count > 0


def _writes(name, args):
    if name == "open":
        return bool(args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return name in ("write", "replace", "mkdir", "unlink", "utime", "fsync")


def test_settings_choose_folder_and_mode(tmp_path, monkeypatch, key):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    store = Store()
    assert store.mode == "rw"
    assert store.put(key(1), b"x", {})
    assert store.path(key(1)).is_relative_to(tmp_path / "here")
    monkeypatch.setenv("CLNN_CACHE", "ro")
    assert Store().mode == "ro"
    monkeypatch.setenv("CLNN_CACHE", "sometimes")
    with pytest.raises(SettingError, match="CLNN_CACHE"):
        Store()


def test_default_folder_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "clnn"


def test_home_and_relative_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLNN_CACHE_DIR", "~/c")
    assert cache_dir() == tmp_path / "c"
    monkeypatch.setenv("CLNN_CACHE_DIR", "c")
    assert cache_dir() == Path.cwd() / "c"


def test_no_home_means_no_cache_with_one_warning(monkeypatch, key, told):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for _ in range(2):
        store = Store()
        assert store.mode == "off"
        assert store.get(key(1)) is None
        assert not store.put(key(1), b"x", {})
        assert store.stats().entries == 0
    assert len(told) == 1
    assert "CLNN_CACHE_DIR" in told[0]


def test_folders_are_private(store, key):
    store.put(key(1), b"x", {})
    at = store.path(key(1))
    assert stat.S_IMODE(at.stat().st_mode) == 0o600
    while at != store.root.parent:
        at = at.parent
        if at.is_relative_to(store.root):
            assert stat.S_IMODE(at.stat().st_mode) == 0o700, at


@pytest.mark.parametrize("bad", ["", "x" * 64, "../../etc/passwd", "A" * 64, "0" * 63])
def test_what_is_no_key_is_refused(store, bad):
    for call in (store.get, store.path, lambda k: store.put(k, b"", {})):
        with pytest.raises(ValueError, match="no cache key"):
            call(bad)


def test_bad_mode_and_kind(tmp_path):
    with pytest.raises(ValueError, match="mode"):
        Store(tmp_path, "wr")
    for kind in ("", "..", "a/b", "Upper", "x" * 33):
        with pytest.raises(ValueError, match="kind"):
            Store(tmp_path, "rw", kind)


@pytest.mark.parametrize("most", [1, 7, 64])
def test_short_reads_and_writes(store, key, most):
    with using(DribblingOs(most)):
        assert store.put(key(1), bytes(range(200)), {"a": 1})
        assert store.get(key(1)) == Entry({"a": 1}, bytes(range(200)))
    assert store.get(key(1)) == Entry({"a": 1}, bytes(range(200)))


def test_too_large_an_entry_is_not_stored(tmp_path, monkeypatch, key, told):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "1000")
    store = Store(tmp_path, "rw")
    assert not store.put(key(1), b"x" * 1000, {})
    assert store.put(key(2), b"x" * 800, {})
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "0")
    assert not Store(tmp_path, "rw").put(key(3), b"", {})
    assert told == []


def test_file_larger_than_any_entry_is_not_read(store, key, told):
    store.put(key(1), b"x", {})
    with store.path(key(1)).open("r+b") as file:
        file.truncate(MAX_ENTRY_BYTES + 1)
    assert store.get(key(1)) is None
    assert len(told) == 1


def test_keyboard_interrupt_leaves_no_file(store, key):
    def stop(name, _, args):
        if name == "fsync":
            raise KeyboardInterrupt

    store.put(key(0), b"x", {})
    with using(HookedOs(stop)), pytest.raises(KeyboardInterrupt):
        store.put(key(1), b"y", {})
    assert [f.path for f in store._scan()] == [store.path(key(0))]


# Least recently used first


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "10000")
    return Store(tmp_path / "small", "rw")


def _age(store, name, seconds):
    info = store.path(name).stat()
    os.utime(store.path(name), (info.st_mtime - seconds, info.st_mtime - seconds))


def test_the_size_stays_below_the_cap(small, key):
    for seed in range(100):
        assert small.put(key(seed), b"x" * 700, {})
        assert small.stats().bytes <= 10000
        assert small.get(key(seed)) is not None
    assert small.stats().evicted == 100 - small.stats().entries
    assert small.stats().entries >= 9


def test_longest_unused_goes_first_and_a_read_is_a_use(small, key):
    for seed in range(12):
        small.put(key(seed), b"x" * 680, {})
        _age(small, key(seed), 10000 - seed)
    assert small.get(key(0)) is not None
    for seed in range(12, 15):
        small.put(key(seed), b"x" * 680, {})
    left = {e.key for e in small.entries()}
    assert key(0) in left
    assert key(1) not in left
    assert {key(s) for s in range(12, 15)} <= left


def test_the_entry_just_written_stays_even_when_the_clock_went_back(small, key):
    for seed in range(12):
        small.put(key(seed), b"x" * 680, {})
        _age(small, key(seed), -10_000_000)
    for seed in range(12, 20):
        assert small.put(key(seed), b"x" * 680, {})
        assert small.get(key(seed)) is not None


def test_entries_lists_most_recently_used_first(store, key):
    for seed in range(4):
        store.put(key(seed), b"x" * seed, {})
        _age(store, key(seed), 1000 * seed)
    assert [e.key for e in store.entries()] == [key(s) for s in range(4)]


def test_writes_do_not_scan_the_folder_each_time(store, key):
    store.put(key("first"), b"x", {})
    scans = []
    with using(HookedOs(lambda name, _, args: scans.append(name) if name == "scandir" else None)):
        for seed in range(50):
            store.put(key(seed), b"x" * 100, {})
    assert scans == []


def test_writes_of_other_processes_are_seen_after_an_eighth_of_the_cap(small, key, monkeypatch):
    small.put(key("mine"), b"x", {})
    for seed in range(12):
        forget()
        Store(small.root, "rw").put(key(seed), b"x" * 600, {})
    before = small.stats().bytes
    for seed in range(3):
        small.put(key(("more", seed)), b"x" * 600, {})
    assert small._health.unscanned <= 10000 // 8
    assert small._health.size == pytest.approx(small.stats().bytes, abs=10000 // 8)
    assert before < small.stats().bytes <= 10000


def test_left_over_new_files_are_removed_once_old(small, key):
    small.put(key(1), b"x", {})
    young, old = (small.path(key(1)).with_name(f".new-{n}") for n in (1, 2))
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    forget()
    small = Store(small.root, "rw")
    small.put(key(2), b"x", {})
    assert young.exists()
    assert not old.exists()


def test_reading_does_not_touch_a_file_used_lately(store, key):
    store.put(key(1), b"x", {})
    with using(HookedOs(lambda name, *_: pytest.fail("touched") if name == "utime" else None)):
        assert store.get(key(1)).payload == b"x"


# Commands


def test_clear_removes_all_and_the_store_goes_on(store, key):
    for seed in range(5):
        store.put(key(seed), b"x", {})
    store.path(key(0)).write_bytes(b"bad")
    with pytest.warns(store_module.CacheWarning):
        store.get(key(0))
    store.path(key(1)).with_name(".new-1").write_bytes(b"half")
    assert store.clear() == 4
    assert list(store.folder.iterdir()) == []
    assert store.put(key(1), b"y", {})
    assert store.get(key(1)).payload == b"y"


def test_clear_of_nothing(store):
    assert store.clear() == 0


def test_clear_says_when_it_cannot(store, key):
    store.put(key(1), b"x", {})

    def refuse(name, *_):
        if name == "unlink":
            raise PermissionError(1, "no")

    with using(HookedOs(refuse)), pytest.raises(CacheError, match="cannot be emptied"):
        store.clear()
    assert store.get(key(1)) is not None


def test_verify(store, key, told):
    for seed in range(40):
        store.put(key(seed), b"x" * 20, {})
    bad = sorted(key(seed) for seed in range(25))
    for age, name in enumerate(bad):
        path = store.path(name)
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        _age(store, name, 1000 * age)
    result = store.verify()
    assert result.checked == 40
    assert list(result.bad) == bad
    assert store.verify() == store_module.Verification(15, ())
    kept = {path.name[:64] for path in (store.folder / "quarantine").iterdir()}
    assert kept == set(bad[-store_module.QUARANTINE_KEEP :])
    assert len(told) == 1


def test_listing_of_what_cannot_be_read_is_an_error_with_words(store, key):
    store.put(key(1), b"x", {})

    def refuse(name, *_):
        if name == "scandir":
            raise PermissionError(13, "Permission denied")

    with using(HookedOs(refuse)):
        for call in (store.entries, store.stats, store.verify, store.clear):
            with pytest.raises(CacheError, match="owner and mode"):
                call()


def test_meta_is_stored_as_json(store, key):
    store.put(key(1), b"PAYLOAD", {"b": 1, "a": "x"})
    blob = store.path(key(1)).read_bytes()
    start = blob.index(b"{")
    assert json.loads(blob[start : blob.index(b"PAYLOAD")]) == {"a": "x", "b": 1}


def test_forged_but_well_summed_meta_is_refused(key):
    good = encode(key(1), {}, b"")
    for text in (b"[]", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(BadEntry, match="meta data"):
            decode(_sum(good[:12] + struct.pack("<I", len(text)) + good[16:56] + text), key(1))


def test_well_summed_files_of_another_version_or_length_are_refused(key):
    good = encode(key(1), {}, b"payload")
    assert decode(_sum(good[:-32]), key(1)).payload == b"payload"
    with pytest.raises(BadEntry, match="version 2"):
        decode(_sum(good[:8] + struct.pack("<I", 2) + good[12:-32]), key(1))
    with pytest.raises(BadEntry, match="begin"):
        decode(_sum(b"\x89CLBIX\r\n" + good[8:-32]), key(1))
    for length in (6, 8, 0, 2**64 - 1):
        with pytest.raises(BadEntry, match="header says"):
            decode(_sum(good[:16] + struct.pack("<Q", length) + good[24:-32]), key(1))


def _sum(body):
    return body + hashlib.sha256(body).digest()
