"""Calls that follow each other closely are helped by PoCL's threads: the same results, whoever comes and goes."""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf
from pathlib import Path
from platform import machine

import numpy as np
import pytest
from launch import opened, run_source
from test_calling_thread import BEGIN, POCL, _pocl, answer

from clnn.codegen.fused_kernel import FusedCall, fuse
from clnn.codegen.kernels import ALL, CALLS, DESK, HELPS, INSIDE, KERNEL, OPENED, PRESENT
from clnn.runtime.build.pocl_binary import MAGIC, with_id_of
from clnn.runtime.device import processor
from clnn.runtime.device.device import select
from clnn.runtime.run import helped, small
from clnn.runtime.run.small import can_be_helped

__all__ = ["_pocl"]  # a fixture
COUNT = """__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void count(__global int *dst, const int first)
{
    volatile __global int *at = dst + first + get_global_id(0);
    atomic_inc(at);
}
"""
# Layers of one step that run in the thread that calls, and on PoCL's threads, when nobody helps.
BEGIN_HELPED = (
    BEGIN
    + """
import gc, time
from clnn.runtime.run import helped as runs
runs.CLOSE_NS, runs.STAYS = 10**9, 2**24  # so that a busy machine changes nothing
SMALL, WIDE = dict(steps=1, batch=1, width=256, hidden=256), dict(steps=1, batch=1, width=512, hidden=512)
def helped(session):
    return session._states.things[0]._enqueues[0]
def closely(session, feeds, wanted, seconds=60.0):
    # Calls in a loop until so many were helped: a busy machine may need a while.
    shared, seen, end = [0], set(), time.monotonic() + seconds
    counted = None
    while shared[0] < wanted and time.monotonic() < end:
        for _ in range(50): seen.add(digest(session(feeds)))
        helpers = helped(session)._helpers
        if helpers is None: continue
        if counted is None:
            counted, share = True, helpers.share
            def counting(): shared[0] += 1; share()
            helpers.share = counting
        for _ in range(400): session(feeds)
        seen.add(digest(session(feeds)))
    return shared[0] >= wanted, sorted(seen)
"""
)

needs_x86 = pytest.mark.skipif(
    not can_be_helped(replace(select(), platform="Portable Computing Language")),
    reason="kernels ask x86 which processor they run on",
)
needs_spare = pytest.mark.skipif(
    not 2 <= (os.cpu_count() or 1) <= min(len(os.sched_getaffinity(0)), helped.allowance()),
    reason="this process may use fewer processors than PoCL has threads, or one",
)


@needs_x86
@pytest.mark.parametrize("units", [1, 2, 4])
def test_every_item_runs_once_whoever_runs_it(units: int) -> None:
    shapes = [(1,), (2,), (5,), (64,), (1000,)]
    starts = np.cumsum([0, *map(np.prod, shapes)])
    calls = [
        FusedCall(COUNT, s, ("dst", str(at))) for s, at in zip(shapes, starts[:-1], strict=True)
    ]
    made = fuse(calls, units, {"dst": "__global int *"}, helpers=1)
    assert made.is_helped and not fuse(calls, units, {"dst": "__global int *"}).is_helped
    counts, counters = np.zeros(starts[-1], np.int32), np.zeros(made.counters, np.int32)
    scratch = np.zeros(made.scratch * made.groups, np.uint8)
    for role, groups, total in ((ALL, made.groups, 1), (CALLS, 1, 2), (HELPS, 2, 2), (CALLS, 1, 3)):
        args = [counters, scratch, counts, role, 1000]
        counters, _, counts = run_source(POCL, KERNEL, made.source, args, (groups,), (1,))
        desk = counters[made.counters - DESK :]
        assert not counters[: made.counters - DESK].any()
        assert not desk[[OPENED, INSIDE, PRESENT]].any()
        assert (counts == total).all()  # helpers that nobody calls leave, and do nothing


@needs_spare
@needs_x86
@pytest.mark.parametrize("sizes", ["SMALL", "WIDE"])
def test_results_are_the_same_with_helpers_and_without(sizes: str) -> None:
    code = f"""
session, feeds = compiled(**{sizes})
found = closely(session, feeds, 200)
helpers = helped(session)._helpers
helpers.queue.finish()
print(json.dumps([*found, helpers.present, session.device.in_caller]))
"""
    came, digests, present, in_caller = answer(code, BEGIN_HELPED)
    code = f"session, feeds = compiled(**{sizes}); print(json.dumps([digest(session(feeds))]))"
    assert [came, digests] == [True, answer(code, BEGIN_HELPED, CLNN_CALLING_THREAD="never")]
    assert (present, in_caller) == (False, sizes == "SMALL")


@needs_spare
@needs_x86
def test_who_is_sent_for_joins_a_call_that_began_in_the_thread_that_calls() -> None:
    code = """
session, feeds = compiled(**WIDE)
want = digest(session(feeds))
closely(session, feeds, 1)
one = helped(session)
class Sent:  # nobody is there
    present, failed, shared, sent = False, 0, 0, 0
    def __init__(self, real, come): self.real, self.come = real, come
    def share(self): self.shared += 1; self.real.share()
    def send(self): self.sent += 1
real, found = one._helpers, []
for come in (True, False):
    one._helpers, one._close = Sent(real, come), 0
    same = [digest(session(feeds)) == want for _ in range(20)]
    found.append([all(same), one._helpers.shared, one._helpers.sent])
print(json.dumps(found))
"""
    assert answer(code, BEGIN_HELPED) == [[True, 20, 5], [True, 0, 5]]


@needs_x86
def test_calls_with_other_feeds_and_pauses_between() -> None:
    code = """
session, feeds = compiled(**SMALL)
other, _ = compiled(options=Options(timeout=60.0), **SMALL)
rng, same = np.random.default_rng(0), []
for number in range(3000):
    feeds = {n: rng.standard_normal(a.shape).astype(a.dtype) if a.dtype == np.float32 else a for n, a in feeds.items()}
    outputs = session(feeds)
    if number % 100 == 0: time.sleep(rng.uniform(0, 0.002))
    if number % 50 == 0: same.append(digest(outputs) == digest(other(feeds)))
unhelped = type(helped(other)).__name__
print(json.dumps([all(same), len(same), unhelped]))
"""
    assert answer(code, BEGIN_HELPED) == [True, 60, "partial"]


@needs_x86
def test_threads_sessions_and_their_end() -> None:
    code = """
sessions = [compiled(options=Options(states=2), **sizes) for sizes in (SMALL, WIDE)]
want = [digest(session(feeds)) for session, feeds in sessions]
same = []
def calls(k):
    session, feeds = sessions[k % 2]
    for _ in range(400): same.append(digest(session(feeds)) == want[k % 2])
threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
for _ in range(5):  # sessions that end while they are helped
    session, feeds = compiled(**WIDE)
    for _ in range(60): outputs = session(feeds)
    same.append(digest(outputs) == want[1])
    session.close()
    del session
    gc.collect()
print(json.dumps([all(same), len(same)]))
"""
    assert answer(code, BEGIN_HELPED) == [True, 1605]


@needs_x86
def test_without_processors_to_spare_nobody_helps() -> None:
    code = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
session, feeds = compiled(**SMALL)
for _ in range(300): session(feeds)
print(json.dumps([helped(session)._helpers is None]))
"""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")
    assert answer(code, BEGIN_HELPED) == [True]


@needs_spare
@needs_x86
def test_a_saved_network_is_helped_and_runs_without_help_elsewhere(tmp_path: Path) -> None:
    path = str(tmp_path / "net.clnn")
    code = f"""
session, feeds = compiled(**SMALL)
session.save({path!r})
with clnn.load({path!r}, {POCL!r}) as session:
    came, digests = closely(session, feeds, 50)
from clnn.runtime.run import loaded
loaded.can_be_helped = lambda info: False
with clnn.load({path!r}, {POCL!r}) as session:
    print(json.dumps([came, {{*digests}} == {{digest(session(feeds))}}, type(helped(session)).__name__]))
"""
    assert answer(code, BEGIN_HELPED) == [True, True, "partial"]
    code = f"""
with clnn.load({path!r}, {POCL!r}) as session:
    print(json.dumps([digest(session(compiled(**SMALL)[1])), where(session)]))
"""
    found = answer(code, BEGIN_HELPED, CLNN_CALLING_THREAD="never")
    assert found[1] == ["pthread", False]


@pytest.mark.parametrize("feature", ["rdtscp", "no-such-feature"])
def test_processors_are_asked_only_where_they_know_the_instruction(
    feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "ASKED_BY", feature)
    info = replace(select(), platform="Portable Computing Language")
    assert can_be_helped(info) == (processor.lists(feature) and machine() in small.HELPED_ON)
    assert not processor.lists("no-such-feature")


@pytest.mark.parametrize(
    ("text", "processors"),
    [("max 100000\n", inf), ("150000 100000\n", 1.5), ("", inf), ("many 0\n", inf)],
)
def test_a_group_of_processes_with_less_time_counts(
    text: str, processors: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(helped, "GROUP", tmp_path / "cpu.max")
    assert helped.allowance() == inf
    helped.GROUP.write_text(text)
    assert helped.allowance() == processors
    device = opened(POCL)
    assert helped._few_processors(device) or processors >= device.info.compute_units


def test_a_binary_of_another_form_is_not_moved() -> None:
    at = opened(POCL)
    source = "__kernel void k(__global int *x) { x[0] = 7; }"
    at.build({"k": source})
    binary = at.binary(source)
    assert binary is not None
    assert with_id_of(binary, binary) == binary
    for sample in (b"", MAGIC, binary[:60], b"other" + binary, binary[:16] + b"\xff" * 100):
        assert with_id_of(sample, binary) is None
