"""Whatever a file holds or is, a store gives the right entry or a miss, and never fails."""

from __future__ import annotations

import os
import shutil
import socket
import struct

import pytest
from cache_faults import forget

from clnn.cache import Entry, Store
from clnn.cache.envelope import BadEntry, decode

PAYLOAD = bytes(range(256))
META = {"variant": "gemm", "log": ""}


@pytest.fixture
def good(store, key):
    """The bytes of a sound file under key 1, whose folder also holds a sound key 2."""
    for seed in (1, 2):
        assert store.put(key(seed), PAYLOAD, META)
    return store.path(key(1)).read_bytes()


def _recovers(store, key):
    """After damage of key 1: a miss and no error; key 2 is untouched; key 1 can be stored again."""
    forget()
    store = Store(store.root, "rw")
    assert store.get(key(1)) is None
    assert store.get(key(2)) == Entry(META, PAYLOAD)
    assert store.put(key(1), PAYLOAD, META)
    assert store.get(key(1)) == Entry(META, PAYLOAD)
    assert store.mode == "rw"


def test_cut_short_at_every_byte(store, good, key):
    for length in range(len(good)):
        with pytest.raises(BadEntry):
            decode(good[:length], key(1))


def test_every_byte_flipped(good, key):
    for at in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(good)
            damaged[at] ^= flip
            with pytest.raises(BadEntry):
                decode(bytes(damaged), key(1))


@pytest.mark.parametrize("tail", [b"\0", b"\n", b"x" * 32])
def test_longer_than_written(good, key, tail):
    for blob in (good + tail, tail + good):
        with pytest.raises(BadEntry):
            decode(blob, key(1))


def _damages(good):
    yield b""
    yield b"\0" * len(good)
    yield good[:-1]
    yield good[: len(good) // 2]
    yield good + good
    yield good[:8] + struct.pack("<I", 2) + good[12:]
    yield good[:12] + struct.pack("<IQ", 2**32 - 1, 2**64 - 1) + good[24:]
    yield good[:12] + struct.pack("<IQ", 0, 0) + good[24:]
    yield b"\x80\x04." + good[3:]


def _every_damage(good):
    yield from _damages(good)
    yield from (good[:length] for length in range(len(good)))
    for at in range(len(good)):
        for bit in range(8):
            yield good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :]


@pytest.mark.parametrize(
    "damages", [_damages, pytest.param(_every_damage, marks=pytest.mark.exhaustive)]
)
def test_damaged_file_on_disk(store, good, key, told, damages):
    for damaged in damages(good):
        told.clear()
        store.path(key(1)).write_bytes(damaged)
        _recovers(store, key)
        assert len(told) == 1


def test_bad_file_goes_to_quarantine(store, good, key, told):
    store.path(key(1)).write_bytes(good[:-1])
    assert store.get(key(1)) is None
    (kept,) = (store.folder / "quarantine").iterdir()
    assert kept.read_bytes() == good[:-1]
    assert not store.path(key(1)).exists()
    assert str(store.path(key(1))) in told[0]


def test_one_warning_for_many_bad_files_and_a_bounded_quarantine(store, key, told):
    for seed in range(30):
        store.put(key(seed), PAYLOAD, META)
        store.path(key(seed)).write_bytes(b"bad")
        assert store.get(key(seed)) is None
    assert len(told) == 1
    assert store.stats().quarantined == 16


def test_sound_entry_under_the_name_of_another(store, good, key, told):
    shutil.copy(store.path(key(2)), store.path(key(1)))
    _recovers(store, key)


def _folder(path):
    path.unlink()
    path.mkdir()
    (path / "inside").write_bytes(b"x")


def _empty_folder(path):
    path.unlink()
    path.mkdir()


def _link_to_sound(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _dangling_link(path):
    path.unlink()
    path.symlink_to("nowhere")


def _link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


def _fifo(path):
    path.unlink()
    os.mkfifo(path)


def _socket(path):
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path.name[-20:])
            os.rename(path.name[-20:], path.name)
    finally:
        os.chdir(here)


THINGS = (_folder, _empty_folder, _link_to_sound, _dangling_link, _link_to_itself, _fifo, _socket)


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("first", ["get", "put"])
def test_not_a_file_in_the_place_of_a_file(store, good, key, told, thing, first):
    thing(store.path(key(1)))
    if first == "get":
        _recovers(store, key)
    else:
        assert store.put(key(1), PAYLOAD, META)
        assert store.get(key(1)) == Entry(META, PAYLOAD)
        assert not store.path(key(1)).is_symlink()


@pytest.mark.parametrize("first", ["get", "put"])
def test_file_in_the_place_of_a_fan_out_folder(store, good, key, told, first):
    shutil.rmtree(store.path(key(1)).parent)
    store.path(key(1)).parent.write_bytes(b"junk")
    if first == "get":
        assert store.get(key(1)) is None
    assert store.put(key(1), PAYLOAD, META)
    assert store.get(key(1)) == Entry(META, PAYLOAD)


@pytest.mark.parametrize("level", ["root", "folder"])
def test_file_in_the_place_of_the_cache_folder(store, key, told, level):
    at = getattr(store, level)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(b"precious")
    for _ in range(2):
        assert store.get(key(1)) is None
        assert not store.put(key(1), PAYLOAD, META)
        assert store.stats().entries == 0
    assert at.read_bytes() == b"precious"
    assert len(told) == 1


def test_foreign_files_are_left_alone_by_reads_and_eviction(tmp_path, monkeypatch, key):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "5000")
    store = Store(tmp_path, "rw")
    store.put(key(0), PAYLOAD, META)
    mine = [
        store.folder / "README",
        store.folder / "zz" / "a.clbin",
        store.path(key(0)).with_name("n"),
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (5, 5))
    for seed in range(40):
        store.put(key(seed), PAYLOAD, META)
    assert store.stats().evicted > 0
    assert [p.read_bytes() for p in mine] == [b"mine"] * 3
    assert len(store.entries()) == store.stats().entries
