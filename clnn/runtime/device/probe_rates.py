"""The probe's steps that measure a GPU for the estimates of kernels: a few tens of ms on the device's own clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError

CHAINS, ITEMS = 16, 2048  # multiply-adds side by side, and work-items of what a driver counts
ENOUGH_S, MOST_ROUNDS = 0.004, 1 << 16
COPY_BYTES, CHUNK, WIDTH = 1 << 27, 4, 4
LAUNCHES, REPEATS = 64, 3


def step_multiply_rate(bench: ProbeBench) -> int:
    """Millions of float32 products that are multiplied and added in a second."""
    _need_gpu(bench)
    queue = _queue(bench)
    kernel, items, group, out = _multiplier(bench)
    rounds, seconds = 64, 0.0
    while seconds < ENOUGH_S and rounds < MOST_ROUNDS:
        rounds *= 4
        seconds = _best(bench, queue, kernel, items, group, _factors(out, rounds))
    return _rate(items * CHAINS * rounds, seconds)


def step_copy_rate(bench: ProbeBench) -> int:
    """Millions of bytes that are read or written in a second, by a copy of what no cache holds."""
    _need_gpu(bench)
    group = _group(bench)
    params = {"vec": WIDTH, "chunk": CHUNK, "blocked": False, "wg": (group,)}
    kernel = _built(bench, "peak_copy", params)
    device, unit = bench.device, 4 * WIDTH * CHUNK * group
    most = min(COPY_BYTES, int(device.max_mem_alloc_size), int(device.global_mem_size) // 8)
    nbytes = max(most // unit, 1) * unit
    buffers = [bench.cl.Buffer(bench.context, bench.cl.mem_flags.READ_WRITE, nbytes) for _ in "ab"]
    try:
        queue, items = _queue(bench), nbytes // (4 * WIDTH * CHUNK)
        for buffer in buffers:
            bench.cl.enqueue_fill_buffer(queue, buffer, np.float32(0), 0, nbytes)
        seconds = _best(bench, queue, kernel, items, group, buffers)
    finally:
        for buffer in buffers:
            buffer.release()
    return _rate(2 * nbytes, seconds)


def step_launch_time(bench: ProbeBench) -> int:
    """Nanoseconds from the end of a launch to that of the next, behind one that takes long enough to enqueue both."""
    _need_gpu(bench)
    queue, empty = _queue(bench), _built(bench, "peak_empty", {})
    kernel, items, group, out = _multiplier(bench)
    times = []
    for _ in range(REPEATS):
        first = _enqueue(bench, queue, kernel, items, group, _factors(out, MOST_ROUNDS // 4))
        events = [_enqueue(bench, queue, empty, 1, 1, [out]) for _ in range(LAUNCHES)]
        queue.finish()
        times.append((events[-1].profile.end - first.profile.end) / LAUNCHES)
    nanoseconds = float(min(times))
    if not nanoseconds >= 1:
        raise RefusedError(f"the device's clock is too coarse: {nanoseconds} ns")
    return int(nanoseconds)


def _need_gpu(bench: ProbeBench) -> None:
    if not bench.device.type & bench.cl.device_type.GPU:
        raise RefusedError("not measured: not a GPU")


def _queue(bench: ProbeBench) -> Any:
    profiled = bench.cl.command_queue_properties.PROFILING_ENABLE
    return bench.cl.CommandQueue(bench.context, properties=profiled)


def _group(bench: ProbeBench) -> int:
    return min(256, int(bench.device.max_work_group_size))


def _built(bench: ProbeBench, template: str, params: dict[str, Any]) -> Any:
    from clnn.codegen.render import render  # Mako, which takes long to load: for GPUs alone

    source = render(f"_probe/{template}.cl.mako", {**params, "name": template})
    program = bench.cl.Program(bench.context, source).build(bench.options, cache_dir=False)
    return bench.cl.Kernel(program, template)


def _multiplier(bench: ProbeBench) -> tuple[Any, int, int, Any]:
    """Return the kernel of multiply-adds, its work-items, their groups, and where results go."""
    group = _group(bench)
    params = {"vec": 1, "chains": CHAINS, "fused": True, "wg": (group,)}
    items = ITEMS * int(bench.device.max_compute_units) // group * group or group
    out = bench.cl.Buffer(bench.context, bench.cl.mem_flags.READ_WRITE, 4 * items)
    return _built(bench, "peak_fma", params), items, group, out


def _factors(out: Any, rounds: int) -> list[Any]:
    return [out, np.int32(rounds), np.float32(0.999), np.float32(0.001)]


def _enqueue(
    bench: ProbeBench, queue: Any, kernel: Any, items: int, group: int, args: list[Any]
) -> Any:
    kernel.set_args(*args)
    return bench.cl.enqueue_nd_range_kernel(queue, kernel, (items,), (group,))


def _best(
    bench: ProbeBench, queue: Any, kernel: Any, items: int, group: int, args: list[Any]
) -> float:
    """Return the shortest time of a kernel, in seconds; the first run counts for nothing."""
    events = [_enqueue(bench, queue, kernel, items, group, args) for _ in range(1 + REPEATS)]
    queue.finish()
    return float(min(e.profile.end - e.profile.start for e in events[1:])) * 1e-9


def _rate(done: int, seconds: float) -> int:
    """Return millions in a second."""
    if seconds <= 0:
        raise RefusedError("the device gives no times")
    return max(1, round(done / seconds / 1e6))
