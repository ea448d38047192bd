"""Programs that fork, one by its name; each prints what its processes saw as one JSON object."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parent)]

from small_graphs import Builder

import clnn
from clnn.graph.ir import Graph

X = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)


def network() -> Graph:
    b = Builder(x=X.shape)
    value = "x"
    for _ in range(5):
        value = b.post_ops("relu", b.conv(value, 16))
    return b.graph(value)


def run() -> float:
    """Compile and run; return a number that depends on all results."""
    with clnn.compile_model(network()) as session:
        return total(session)


def total(session: Any) -> float:
    return float(np.abs(session({"x": X})["out0"]).sum())


def attempt(work: Callable[[], Any]) -> str:
    """Return the class of what `work` raises, and whether it says what to do."""
    try:
        return f"{work()}"
    except clnn.ClnnError as err:
        advice = all(word in str(err) for word in ("spawn", "compile in the child", "forked"))
        return type(err).__name__ + (" with advice" if advice else f": {err}")


def in_child(work: Callable[[], Any], leave: Callable[[], None] | None = None) -> Any:
    """Return what `work` returns in a forked child, which ends by `leave`; None where it hangs."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, json.dumps(attempt(work)).encode())
        if leave:
            leave()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as replies:
        answer = json.loads(replies.read() or b'""')
    assert os.waitpid(pid, 0)[1] == 0
    return answer


def calls_of_a_used_session() -> Any:
    session = clnn.compile_model(network())
    before = total(session)
    buffer = session.bind_input("x")
    session.unbind_input("x")
    calls: dict[str, Callable[[], Any]] = {
        "call": lambda: total(session),
        "compile": run,
        "stream": lambda: list(session.stream([{"x": X}])),
        "bind": lambda: session.bind_input("x"),
        "unbind": lambda: session.unbind_input("x"),
        "write": lambda: buffer.copy_from(X),
        "profile": lambda: session.profile().__enter__(),
        "tune": lambda: clnn.tune_model(network(), budget=1),
        "second fork": lambda: in_child(lambda: total(session)),
        "close": session.close,
    }
    return {
        **{name: in_child(call) for name, call in calls.items()},
        "parent": total(session) == before,
    }


def held_by_another_thread() -> Any:
    """Locks of the session are held, and commands are on the device, when the process forks."""
    session = clnn.compile_model(network(), options=clnn.Options(states=1))
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with session._device.lock, session._states._lock:
            session._states.take(session._call_state)
            inside.set()
            over.wait()

    def work() -> None:
        while not over.is_set():
            total(busy)

    busy = clnn.compile_model(network())
    threads = [threading.Thread(target=target) for target in (hold, work)]
    for thread in threads:
        thread.start()
    inside.wait()
    time.sleep(0.05)
    seen = [in_child(lambda: total(session)), in_child(lambda: session.bind_input("x"))]
    over.set()
    for thread in threads:
        thread.join()
    return seen


def ends_of_children() -> Any:
    """Sessions go in a child, by hand, by collection and at its exit, while the device computes."""
    sessions = [clnn.compile_model(network())]

    def forget() -> str:
        sessions[0].close()
        sessions.clear()
        return f"gone {gc.collect() >= 0}"

    over = threading.Event()

    def work(session: Any) -> None:
        while not over.is_set():
            total(session)

    thread = threading.Thread(target=work, args=(sessions[0],))
    thread.start()
    seen = [in_child(forget, leave) for leave in (None, sys.exit) for _ in range(5)]
    left = subprocess.run(["true"], preexec_fn=os.getpid).returncode
    over.set()
    thread.join()
    return [*dict.fromkeys(seen), left]


def only_imported() -> Any:
    """Two children compile at once, then the parent does, and children of that are told."""
    folder: Callable[[], Any] = lambda: os.environ.get("POCL_CACHE_DIR")  # noqa: E731
    from clnn.runtime.drivers.loader import load

    load()  # pyopencl is there, no driver is
    before = folder()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        totals = [f.get() for f in [pool.apply_async(run) for _ in range(4)]]
        folders = {f.get() for f in [pool.apply_async(os.getenv, ("POCL_CACHE_DIR",))]}
    return {
        "equal": len({*totals, run()}) == 1,
        "own folders": before is None or before not in folders,
        "then": in_child(run),
    }


def pool_of_a_used_session() -> Any:
    global SESSION
    SESSION = clnn.compile_model(network())
    total(SESSION)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(_use, range(4))


SESSION: Any = None


def _use(number: int) -> str:
    return attempt(lambda: total(SESSION))


def preloading_server() -> Any:
    """As a server that imports its application, forks workers, and restarts those that end."""

    def serve(session: Any) -> Any:
        return [in_child(lambda: total(session()), sys.exit) for _ in range(3)]

    compiled: list[Any] = []

    def lazily() -> Any:
        compiled.append(compiled[0] if compiled else clnn.compile_model(network()))
        return compiled[0]

    late = serve(lazily)
    early = clnn.compile_model(network())
    return {"late": [t == f"{total(early)}" for t in late], "early": serve(lambda: early)}


class Dataset:
    """Pictures that go through a session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def __getitem__(self, k: int) -> float:
        return total(self.session)


def _load(dataset: Dataset, queue: Any) -> None:
    queue.put(attempt(lambda: dataset[0]))


def loader_of_a_dataset() -> Any:
    """As the workers of a data loader, which get the dataset."""
    dataset, seen = Dataset(clnn.compile_model(network())), {}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        worker = context.Process(target=_load, args=(dataset, queue))
        try:
            worker.start()
        except clnn.ClnnError as err:
            seen[method] = f"{type(err).__name__}: {err}"
            continue
        seen[method] = queue.get(timeout=60)
        worker.join()
    return seen


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
