"""Child processes of the cache tests: `python cache_worker.py TASK FOLDER [ARGUMENT...]`.

They fork, die, change user or run out of disk, and print their answer as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

import cache_faults

from clnn.cache import CacheWarning, Entry, Store

TOLD: list[str] = []


def _note(message, category, *_):
    if issubclass(category, CacheWarning):
        TOLD.append(str(message))


def key(seed):
    return hashlib.sha256(repr(seed).encode()).hexdigest()


def content(seed):
    """The one entry that belongs to key(seed); sizes vary from nothing to some pages."""
    chance = random.Random(repr(seed))
    return Entry({"seed": repr(seed)}, chance.randbytes(chance.choice([0, 10, 900, 5000, 20000])))


def put(store, seed):
    entry = content(seed)
    return store.put(key(seed), entry.payload, entry.meta)


def _forked(work):
    """Run `work` in a forked process; return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as err:
            sys.stderr.write(f"{err!r}\n")
            os._exit(9)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def kill_each(root):
    """Die before the n-th file call of two writes, for all n; check the folder each time."""
    answer = {"calls": 0, "killed": 0, "wrong": []}

    def work():
        store = Store(root / f"{answer['calls']}", "rw")
        with cache_faults.using(cache_faults.killing(answer["calls"])):
            store.put(key(1), b"first", {})
            store.put(key(1), b"second", {})
            store.get(key(1))

    while os.WIFSIGNALED(status := _forked(work)):
        answer["killed"] += os.WTERMSIG(status) == signal.SIGKILL
        answer["wrong"] += _after_kill(root / f"{answer['calls']}")
        answer["calls"] += 1
    if status:
        answer["wrong"].append(f"exit status {status}")
    return answer


def _after_kill(root):
    cache_faults.forget()
    store = Store(root, "rw")
    found = store.get(key(1))
    wrong = [] if found is None or found.payload in (b"first", b"second") else [f"{root}: {found}"]
    if store.verify().bad or store.stats().quarantined:
        wrong.append(f"{root}: a bad file")
    if not store.put(key(1), b"third", {}) or store.get(key(1)).payload != b"third":
        wrong.append(f"{root}: cannot write")
    return wrong


def kill_loop(root, rounds):
    """Kill a process that writes in a loop after a random time, `rounds` times."""
    chance, wrong, seen = random.Random(rounds), [], 0
    for _ in range(int(rounds)):
        seed = chance.random()
        ready, told_ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            _write_for_ever(root, seed, told_ready)
        os.read(ready, 1)
        time.sleep(chance.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told_ready)
        found, bad = _sound(root)
        seen, wrong = seen + found, wrong + bad
    return {"rounds": int(rounds), "seen": seen, "wrong": wrong}


def _write_for_ever(root, seed, told_ready):
    store, chance = Store(root, "rw"), random.Random(seed)
    put(store, 0)
    os.write(told_ready, b"!")
    while True:
        put(store, chance.randrange(30))


def _sound(root):
    store = Store(root, "rw")
    entries = [(seed, store.get(key(seed))) for seed in range(30)]
    wrong = [f"{seed}" for seed, entry in entries if entry not in (None, content(seed))]
    return sum(e is not None for _, e in entries), wrong + list(store.verify().bad)


def hammer(root, seed, operations):
    """Read and write at random with others in the same folder, which is too small for all keys."""
    store, chance = Store(root, "rw"), random.Random(seed)
    wrong, unwritten = [], 0
    print("started", file=sys.stderr, flush=True)
    for _ in range(int(operations)):
        which = chance.randrange(200)
        entry = store.get(key(which))
        if entry is None:
            unwritten += not put(store, which)
        elif entry != content(which):
            wrong.append(which)
        if chance.random() < 0.002:
            store.clear()
    stats = store.stats()
    return {
        "wrong": wrong,
        "unwritten": unwritten,
        "hits": stats.hits,
        "evicted": stats.evicted,
        "bad": stats.quarantined,
        "mode": store.mode,
        "told": TOLD,
    }


def _as_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def read_only(root):
    """Use a folder that may be read and not be written, as a user who is not root."""
    _as_nobody()
    return _use_twice(root)


def unwritable(root):
    """Use a folder on a file system that takes no writes."""
    return _use_twice(root)


def _use_twice(root):
    got, stored = [], []
    for _ in range(2):
        store = Store(root, "rw")
        entry = store.get(key("there"))
        got.append(entry == content("there") if entry else None)
        stored += [put(store, "there"), put(store, "another")]
        got.append(store.get(key("another")) is not None)
    return {"got": got, "stored": stored, "mode": store.mode, "told": TOLD}


def full(root, limit):
    """Write until the disk is full, or (limit not 0) files may only have `limit` bytes."""
    if int(limit):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    store = Store(root, "rw")
    stored = [put(store, seed) for seed in range(200)]
    reads = [store.get(key(seed)) for seed in range(200)]
    return {
        "stored": sum(stored),
        "right": sum(e == content(s) for s, e in enumerate(reads) if e is not None),
        "read": sum(e is not None for e in reads),
        "left_over": sum(f.path.suffix != ".clbin" for f in store._scan()),
        "mode": store.mode,
        "told": TOLD,
    }


def homeless(_root):
    """Use the default folder as a user without a home."""
    import platformdirs  # noqa: F401  (such a user may not read the interpreter's files)

    for name in ("HOME", "XDG_CACHE_HOME", "CLNN_CACHE_DIR"):
        os.environ.pop(name, None)
    os.setgid(54321)
    os.setuid(54321)
    stores = [Store(), Store()]
    stored = [put(s, 1) for s in stores]
    got = [s.get(key(1)) for s in stores]
    return {"stored": stored, "got": got, "mode": stores[0].mode, "told": TOLD}


TASKS = {
    "kill-each": kill_each,
    "kill-loop": kill_loop,
    "hammer": hammer,
    "read-only": read_only,
    "unwritable": unwritable,
    "full": full,
    "homeless": homeless,
}

if __name__ == "__main__":
    warnings.simplefilter("always")
    warnings.showwarning = _note
    print(json.dumps(TASKS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
