"""Every file call fails in turn: no error for the caller, no wrong entry, at most one warning."""

from __future__ import annotations

import pytest
from cache_faults import ERRNOS, failing, forget, using

from clnn.cache import Entry, Store

OLD, NEW = Entry({"v": 1}, b"old" * 40), Entry({"v": 2}, b"new" * 40)


def _prepare(root, key):
    """A folder with an entry to read, one to replace, a bad one, and old ones to be evicted."""
    store = Store(root, "rw")
    for name in ("read", "replaced", "bad", "x", "y", "z"):
        assert store.put(key(name), OLD.payload, OLD.meta)
    store.path(key("bad")).write_bytes(b"bad")
    forget()


def _work(root, key):
    """Use every path of the store once; return what was read by key name."""
    store, got = Store(root, "rw"), {}
    got["read"] = store.get(key("read"))
    got["bad"] = store.get(key("bad"))
    store.put(key("replaced"), NEW.payload, NEW.meta)
    got["replaced"] = store.get(key("replaced"))
    for name in ("added", "more"):
        store.put(key(name), NEW.payload, NEW.meta)
        got[name] = store.get(key(name))
    return got


ALLOWED = {
    "read": (OLD, None),
    "bad": (None,),
    "replaced": (OLD, NEW, None),
    "added": (NEW, None),
    "more": (NEW, None),
}


def _run(root, key, told, chosen, number):
    """Work under faults, then as a new process without; return the number of calls made."""
    _prepare(root, key)
    told.clear()
    with using(failing(chosen, number)) as faulty:
        got = _work(root, key)
    for name, entry in got.items():
        assert entry in ALLOWED[name], name
    assert sum("quarantine" not in text for text in told) <= 1
    assert len(told) <= 2
    forget()
    _check_afterwards(root, key)
    return faulty.count


def _check_afterwards(root, key):
    store = Store(root, "rw")
    for name, allowed in ALLOWED.items():
        assert store.get(key(name)) in allowed
        assert store.put(key(name), NEW.payload, NEW.meta)
        assert store.get(key(name)) == NEW
    assert store.verify().bad == ()


@pytest.fixture
def capped(monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_MAX_BYTES", "1500")


SHORT = ("ENOSPC", "EACCES", "ENOENT", "EISDIR")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.exhaustive) for n in ERRNOS],
)
@pytest.mark.parametrize("lasting", [False, True])
def test_each_call_fails(tmp_path, key, told, capped, name, lasting):
    calls = _run(tmp_path / "sound", key, told, lambda _: False, 0)
    assert calls > 60
    for n in range(calls):
        chosen = (lambda i, n=n: i >= n) if lasting else (lambda i, n=n: i == n)
        _run(tmp_path / f"{n}", key, told, chosen, ERRNOS[name])


def test_without_faults_the_work_does_all_it_says(tmp_path, key, told, capped):
    _prepare(tmp_path, key)
    got = _work(tmp_path, key)
    assert got == {"read": OLD, "bad": None, "replaced": NEW, "added": NEW, "more": NEW}
    store = Store(tmp_path, "rw")
    assert store.stats().entries < 8
    assert store.stats().quarantined == 1


@pytest.mark.parametrize("number", ["ENOSPC", "EROFS", "EACCES", "EDQUOT", "EIO"])
def test_writing_stops_for_the_process_but_reading_goes_on(store, key, told, number):
    store.put(key(1), b"x", {})
    with using(failing(lambda _: True, ERRNOS[number])):
        assert not store.put(key(2), b"x", {})
    for other in (store, Store(store.root, "rw")):
        assert other.mode == "ro"
        assert not other.put(key(2), b"x", {})
        assert other.get(key(1)).payload == b"x"
    assert len(told) == 1
    assert str(store.root) in told[0]
    assert "CLNN_CACHE_DIR" in told[0]


def test_reading_stops_when_reading_fails(store, key, told):
    store.put(key(1), b"x", {})
    with using(failing(lambda _: True, ERRNOS["EACCES"])):
        assert store.get(key(1)) is None
    assert store.mode == "off"
    assert store.get(key(1)) is None
    assert not store.put(key(1), b"x", {})
    assert len(told) == 1


def test_a_failed_write_leaves_no_file(store, key, told):
    store.put(key(0), b"x", {})
    for index in range(4):
        forget()
        with using(failing(lambda i, n=index: i == n, ERRNOS["ENOSPC"])):
            assert not Store(store.root, "rw").put(key(0), b"y" * 99, {})
        assert [f.path for f in store._scan()] == [store.path(key(0))]
        assert store.get(key(0)).payload == b"x"
