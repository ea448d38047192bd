"""The probe's steps that each device must pass, and those that try out what it states of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, expect

MIN_LOCAL_BYTES = 1024
# (rounds of the outer loop, rounds of the inner one) of each work-item of the step "loops": on both
# sides of 2^16, in one loop and in two, and more than a float can count.
ROUNDS = ((1, 0), (1, 1), (60, 50), (1, 65535), (1, 65537), (300, 300), (70001, 1), (1, 2**24 + 3))
# Fewer rounds than this leave too few kernels.
MIN_ROUNDS = 16384
_FACTOR, _ADDEND, _WORD = 1664525, 1013904223, 1 << 32
_TERMS = 64
_MOST_TRIED = 1 << 18  # rounds, in looking for those that were done
GIB_2 = 1 << 31
# The step "work_groups": floats, rounds of two multiply-adds on each, runs of which the best counts,
# and how much faster work-items side by side must be than wide vectors.
_FLOATS, _ROUNDS_EACH, _RUNS, PAYS = 1 << 14, 1000, 12, 1.25


def step_saxpy(bench: ProbeBench) -> int:
    """y = a x + y over a size that is no multiple of anything."""
    n = 1003
    x = np.arange(n, dtype=np.float32) - 500
    y = np.arange(n, dtype=np.float32)[::-1].copy()
    kernel = bench.kernel("saxpy", "saxpy")
    got = bench.run(kernel, n, None, (np.int32(3), x, y), y)
    expect(got, 3 * x + y)
    return 1


def step_barrier(bench: ProbeBench) -> int:
    """Sums by a tree in local memory with a barrier per level, in small groups and the largest ones."""
    kernel = bench.kernel("barrier", "barrier_sum")
    for local in sorted({bench.group_size(kernel), bench.group_size(kernel, 1 << 30)}):
        src = (np.arange(8 * local, dtype=np.int32) * 37) % 101
        sums = np.full(8, -1, np.int32)
        part = bench.cl.LocalMemory(4 * local)
        got = bench.run(kernel, src.size, local, (src, sums, part), sums)
        rows = src.reshape(8, local)
        want = rows.sum(1)
        want[1::2] = rows[1::2, : max(local // 2, 1)].sum(1)
        expect(got, want.astype(np.int32))
    return 1


def step_loops(bench: ProbeBench) -> int:
    """Loops do all their rounds; returns after how many the device ends them otherwise, 0 for never.

    A device that ends all loops of a work-item after the same number of rounds in all can be used.
    """
    got, want = _loops(bench, ROUNDS)
    if np.array_equal(got, want):
        return 0
    ended, whole = [], [0]
    for row in ROUNDS:  # on all work-items at once, for lanes of a vector may end together
        got, want = _loops(bench, (row,) * len(ROUNDS))
        if np.array_equal(got, want):
            whole.append(row[0] * (2 + row[1]) - 2)  # less those that end the loops
        else:
            ended.append(_rounds_done(int(got[0, 0]), *row))
    limit = min(ended, default=0)
    if limit < max(MIN_ROUNDS, *whole):
        raise RefusedError(
            f"loops end after {limit} rounds, and some do not: {max(whole)} were done"
        )
    return limit


def _loops(
    bench: ProbeBench, rounds: Sequence[tuple[int, int]]
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return what work-items give for their rounds, and what they should."""
    terms = 2 * np.arange(_TERMS, dtype=np.float32) - (_TERMS - 1)
    sums = np.concatenate([[0], np.cumsum(terms)])
    want = np.zeros((len(rounds), 2), np.uint32)
    want[:, 0] = [state_after(i, outer * inner) for i, (outer, inner) in enumerate(rounds)]
    totals = [outer * sums[inner % _TERMS] for outer, inner in rounds]
    want[:, 1] = np.array(totals, np.float32).view(np.uint32)
    args = (np.array(rounds, np.uint32), terms, np.full_like(want, 7))
    return bench.run(bench.kernel("loops", "loops"), len(rounds), None, args, args[2]), want


def _rounds_done(state: int, outer: int, inner: int) -> int:
    """Return the rounds of both loops of work-item 0 after which its state was `state`.

    The test that ends a loop counts as a round, too.
    """
    now = 0
    for done in range(min(outer * inner, _MOST_TRIED)):
        if now == state:
            return done + 2 * (done // inner)
        now = (_FACTOR * now + _ADDEND) % _WORD
    raise RefusedError(f"wrong result: a loop of {outer} x {inner} rounds gives {state}")


def state_after(start: int, rounds: int) -> int:
    """Return the state of the step's recurrence after `rounds`, by squaring."""
    factor, addend, total, offset = _FACTOR, _ADDEND, 1, 0
    while rounds:
        if rounds & 1:
            total, offset = total * factor % _WORD, (offset * factor + addend) % _WORD
        factor, addend = factor * factor % _WORD, (factor + 1) * addend % _WORD
        rounds >>= 1
    return (total * start + offset) % _WORD


def step_longs(bench: ProbeBench) -> int:
    """Arithmetic of 64 bits: products, quotients, shifts and comparisons."""
    a, b = np.random.default_rng(5).integers(1, 2**64 - 1, (2, 64), np.uint64)
    b[::3] >>= np.uint64(33)  # quotients of more than a bit or two
    out = np.zeros((64, 6), np.uint64)
    got = bench.run(bench.kernel("longs", "longs"), 64, None, (a, b, out), out)
    by, signed = np.arange(64, dtype=np.uint64), (a.view(np.int64), b.view(np.int64))
    right_shift = (signed[0] >> by.view(np.int64)).view(np.uint64)
    less = (signed[0] < signed[1]).astype(np.uint64) + np.uint64(2) * (a < b)
    expect(got, np.stack([a * b, a // b, a % b, a << by, right_shift, less], 1))
    return 1


def step_denormals(bench: ProbeBench) -> int:
    """Numbers below the smallest normal float are kept, as the device states."""
    if not bench.device.single_fp_config & bench.cl.device_fp_config.DENORM:
        raise RefusedError("the device states that it takes them for 0")
    x = np.arange(1, 65, dtype=np.uint32).view(np.float32)
    y = x[::-1].copy()
    got = bench.run(bench.kernel("saxpy", "saxpy"), x.size, None, (np.int32(2), x, y), y)
    expect(got, 2 * x + y)
    return 1


def step_large_buffers(bench: ProbeBench) -> int:
    """Bytes on both sides of 2 GiB in one buffer are apart, where the device gives such buffers."""
    size = GIB_2 + (1 << 20)
    if bench.device.max_mem_alloc_size < size or bench.device.global_mem_size < 2 * size:
        raise RefusedError("the device gives no buffer beyond 2 GiB")
    places = np.array([0, 4096, GIB_2 - 1, GIB_2, GIB_2 + 4096, size - 1], np.uint64)
    marks = np.arange(1, places.size + 1, dtype=np.uint8)
    large = bench.cl.Buffer(bench.context, bench.cl.mem_flags.READ_WRITE, size)
    try:
        kernel, out = bench.kernel("far", "far"), np.zeros_like(marks)
        bench.run(kernel, places.size, None, (np.int32(1), places, marks, large), marks)
        args = (np.int32(0), places, out, large)
        expect(bench.run(kernel, places.size, None, args, out), marks)
        for place, mark in zip(places, marks, strict=True):
            byte = np.zeros(1, np.uint8)
            bench.cl.enqueue_copy(bench.queue, byte, large, src_offset=int(place))
            expect(byte, np.full(1, mark))
    finally:
        large.release()
    return 1


def step_local_memory(bench: ProbeBench) -> int:
    """Fill all local memory that the device reports, or the largest half, quarter... that works."""
    kernel = bench.kernel("local_memory", "local_fill")
    local = bench.group_size(kernel)
    size = int(bench.device.local_mem_size)
    used = int(
        kernel.get_work_group_info(bench.cl.kernel_work_group_info.LOCAL_MEM_SIZE, bench.device)
    )
    error: Exception = RefusedError(f"{size} bytes reported")
    amount = (size - used) // 4 * 4
    while amount >= MIN_LOCAL_BYTES:
        try:
            _fill_local(bench, kernel, local, amount // 4)
        except (bench.cl.Error, RefusedError) as err:
            error, amount = err, amount // 8 * 4
        else:
            return amount
    raise error


def _fill_local(bench: ProbeBench, kernel: Any, local: int, words: int) -> None:
    out = np.zeros(2 * local, np.uint32)
    got = bench.run(
        kernel, out.size, local, (np.uint32(words), out, bench.cl.LocalMemory(4 * words)), out
    )
    k = np.arange(words, dtype=np.uint32)
    want = [
        (7 * k[(lid + 1) % local :: local] + group).sum(dtype=np.uint32)
        for group in range(2)
        for lid in range(local)
    ]
    expect(got, np.array(want, np.uint32))


def step_work_groups(bench: ProbeBench) -> int:
    """Whether work-items side by side are faster than wide vectors, where the type does not tell.

    A driver for CPUs that states no vectors may run the work-items of a group in the lanes of one. Both are
    timed in turns, and the least times count, as other work may be beside.
    """
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")
    if (lanes := bench.device.native_vector_width_float) > 1:
        raise RefusedError(f"not measured: the device states vectors of {lanes}")
    x, ways, results = (
        np.arange(_FLOATS, dtype=np.float32),
        {"wide": (16, 1), "beside": (1, 64)},
        [],
    )
    kernels = {name: bench.kernel("kind", name) for name in ways}
    args, least = (np.int32(_ROUNDS_EACH), x), dict.fromkeys(ways, float("inf"))
    for name, (lanes, group) in ways.items():
        results.append(bench.run(kernels[name], _FLOATS // lanes, group, args, x))
    expect(*results)
    buffer = bench.buffer(x)
    for _ in range(_RUNS):
        for name, (lanes, group) in ways.items():
            begun = perf_counter()
            kernels[name](bench.queue, (_FLOATS // lanes,), (group,), args[0], buffer)
            bench.queue.finish()
            least[name] = min(least[name], perf_counter() - begun)
    ratio = least["wide"] / least["beside"]
    if ratio < PAYS:
        raise RefusedError(f"wide vectors take {ratio:.2f} of the time")
    return round(100 * ratio)
