"""The child process of a probe: builds, runs and checks small kernels on one device.

Writes one JSON line when a step starts and one with its outcome, so that the parent knows which
step a driver crashed or hung in. Kernels lie in kernels_cl/_probe; each step compares the
device's results with NumPy's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer, pages
from clnn.runtime.process.child import reply_stream

# Steps without which a device is of no use: the rest is not tried.
REQUIRED = ("saxpy", "barrier")
PTX_VENDOR = "NVIDIA"
MIN_LOCAL_BYTES = 1024
REASON_LENGTH = 160
# A compiler's error line, less the place in the source.
_ERROR_LINE = re.compile(r"\berror:\s*(?:\S+:\d+:\d+:\s*)?(.+)", re.IGNORECASE)


class RefusedError(Exception):
    """The device cannot do what a step asks, for the reason given."""


class ProbeBench:
    """A context and queue on one device, with what the steps need to run a kernel."""

    def __init__(self, cl: Any, device: Any, options: Sequence[str]) -> None:
        self.cl, self.device, self.options = cl, device, list(options)
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)

    def kernel(self, file: str, name: str) -> Any:
        """Build `kernels_cl/_probe/<file>.cl` and return its kernel `name`."""
        source = (kernel_folder() / f"{file}.cl").read_text(encoding="utf-8")
        program = self.cl.Program(self.context, source)
        return getattr(program.build(options=self.options, cache_dir=False), name)

    def buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a device buffer with a copy of `array`."""
        flags = self.cl.mem_flags
        return self.cl.Buffer(
            self.context,
            flags.READ_WRITE | flags.COPY_HOST_PTR,
            hostbuf=np.ascontiguousarray(array),
        )

    def run(self, kernel: Any, size: int, local: int | None, args: Sequence[Any], out: Any) -> Any:
        """Run `kernel` over `size` items; arrays become buffers; return what `out` then holds."""
        held = [self.buffer(a) if isinstance(a, np.ndarray) else a for a in args]
        position = next(i for i, a in enumerate(args) if a is out)
        kernel(self.queue, (size,), None if local is None else (local,), *held)
        result = np.empty_like(out)
        self.cl.enqueue_copy(self.queue, result, held[position])
        self.queue.finish()
        return result

    def group_size(self, kernel: Any, most: int = 64) -> int:
        """Return the largest power of two, at most `most`, that `kernel` takes as group size."""
        info = self.cl.kernel_work_group_info.WORK_GROUP_SIZE
        limit = min(most, kernel.get_work_group_info(info, self.device))
        return int(1 << (int(limit).bit_length() - 1))


def kernel_folder() -> Path:
    """Return the folder of the probe kernels: of the checkout, else of the installed package."""
    package = Path(__file__).resolve().parents[2]
    places = (package.parent / "kernels_cl" / "_probe", package / "_kernels_cl" / "_probe")
    return next((p for p in places if p.is_dir()), places[-1])


def expect(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Raise RefusedError with the first difference unless both arrays are equal."""
    wrong = np.flatnonzero(np.asarray(got).ravel() != np.asarray(want).ravel())
    if wrong.size:
        i = int(wrong[0])
        raise RefusedError(
            f"wrong result: element {i} is {got.ravel()[i]}, must be {want.ravel()[i]}"
            f" ({wrong.size} of {got.size} wrong)"
        )


def step_saxpy(bench: ProbeBench) -> int:
    """y = a x + y over a size that is no multiple of anything."""
    n = 1003
    x = np.arange(n, dtype=np.float32) - 500
    y = np.arange(n, dtype=np.float32)[::-1].copy()
    kernel = bench.kernel("saxpy", "saxpy")
    got = bench.run(kernel, n, None, (np.int32(n), np.float32(3), x, y), y)
    expect(got, 3 * x + y)
    return 1


def step_barrier(bench: ProbeBench) -> int:
    """Sums by a tree in local memory with a barrier per level."""
    kernel = bench.kernel("barrier", "barrier_sum")
    local = bench.group_size(kernel)
    src = (np.arange(8 * local, dtype=np.int32) * 37) % 101
    sums = np.full(8, -1, np.int32)
    got = bench.run(kernel, src.size, local, (src, sums, bench.cl.LocalMemory(4 * local)), sums)
    expect(got, src.reshape(8, local).sum(1, dtype=np.int32))
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


def step_fp16(bench: ProbeBench) -> int:
    """Exact products of halves, then sums that half must round and float would not."""
    return _multiply_add(bench, "fp16", "half_mad", np.float16, 2048.0)


def step_fp64(bench: ProbeBench) -> int:
    """Products and sums that need more bits than float has."""
    return _multiply_add(bench, "fp64", "double_mad", np.float64, 2.0**40)


def _multiply_add(bench: ProbeBench, file: str, name: str, dtype: Any, large: float) -> int:
    count = np.arange(32)
    a, b = (count + 1).astype(dtype), (3 - count % 7).astype(dtype)
    c = (large + 2 * count).astype(dtype)
    dst = np.zeros_like(c)
    kernel = bench.kernel(file, name)
    expect(bench.run(kernel, c.size, None, (a, b, c, dst), dst), a * b + c)
    return 1


def step_subgroups(bench: ProbeBench) -> int:
    """Sum and broadcast within each subgroup; returns the size of the first one."""
    kernel = bench.kernel("subgroups", "subgroup_sum")
    local = bench.group_size(kernel)
    src = ((np.arange(2 * local) * 29) % 97 + 1).astype(np.uint32)
    out = np.zeros((src.size, 5), np.uint32)
    got = bench.run(kernel, src.size, local, (src, out), out)
    group = np.repeat([0, 1], local)
    want = got.copy()
    for key in {(g, s) for g, s in zip(group, got[:, 0], strict=True)}:
        members = np.flatnonzero((group == key[0]) & (got[:, 0] == key[1]))
        lanes = members[np.argsort(got[members, 1])]
        want[lanes, 1] = np.arange(lanes.size)
        want[lanes, 2] = lanes.size
        want[lanes, 3] = src[lanes].sum(dtype=np.uint32)
        want[lanes, 4] = src[lanes[0]]
    expect(got, want)
    return int(got[0, 2])


def _four_bytes(seed: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).integers(0, 256, (64, 4), np.uint8)
    values[:4] = [[0, 0, 0, 0], [255] * 4, [128] * 4, [127] * 4]
    return values


def _dots(bench: ProbeBench, file: str) -> int:
    a, b = _four_bytes(1), _four_bytes(2)
    out = np.zeros((64, 3), np.int32)
    words = (a.view(np.uint32).ravel(), b.view(np.uint32).ravel(), out)
    got = bench.run(bench.kernel(file, "dots"), 64, None, words, out)
    unsigned, signed = (a.astype(np.int32), b.astype(np.int32)), a.view(np.int8).astype(np.int32)
    b_signed = b.view(np.int8).astype(np.int32)
    columns = (signed * b_signed, unsigned[0] * unsigned[1], unsigned[0] * b_signed)
    expect(got, np.stack([c.sum(1) for c in columns], 1).astype(np.int32))
    return 1


def step_integer_dot(bench: ProbeBench) -> int:
    """dot_4x8packed_* of cl_khr_integer_dot_product, three signednesses."""
    return _dots(bench, "integer_dot")


def step_ptx_dp4a(bench: ProbeBench) -> int:
    """NVIDIA's dp4a through inline PTX, three signednesses."""
    _need_ptx(bench)
    return _dots(bench, "ptx_dp4a")


def _need_ptx(bench: ProbeBench) -> None:
    if PTX_VENDOR not in bench.device.vendor.upper():
        raise RefusedError("not an NVIDIA device")


def step_ptx_mma(bench: ProbeBench) -> int:
    """NVIDIA's mma.sync of four kinds of numbers; exact, for the operands are small integers."""
    _need_ptx(bench)
    for kind in ("f16", "bf16", "tf32", "s8"):
        a, b, c, want = mma_fragments(kind)
        kernel = bench.kernel("ptx_mma", f"mma_{kind}")
        expect(bench.run(kernel, 32, 32, (a, b, c), c), want)
    return 1


def mma_fragments(kind: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Return fragments (a, b, c, a * b + c) of a product 16x8, words or sums by lane and register."""
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}[kind]
    rng = np.random.default_rng(depth)
    a, b = rng.integers(-99, 100, (16, depth)), rng.integers(-99, 100, (depth, 8))
    c = rng.integers(-999, 1000, (16, 8))
    lane, register = np.arange(32)[:, None], np.arange(4)
    of_a = _words(kind, a)[lane // 4 + 8 * (register % 2), lane % 4 + 4 * (register // 2)]
    of_b = _words(kind, b.T)[lane // 4, lane % 4 + 4 * register[:2]]
    place = (lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2)
    sums = np.int32 if kind == "s8" else np.float32
    return of_a, of_b, c[place].astype(sums), (c + a @ b)[place].astype(sums)


def _words(kind: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return rows of numbers of `kind`, packed into words."""
    dtype = {"f16": np.float16, "s8": np.int8}.get(kind, np.float32)
    packed = np.ascontiguousarray(rows, dtype)
    if kind == "bf16":
        packed = (packed.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return packed.view(np.uint32)


def step_ptx_ldmatrix(bench: ProbeBench) -> int:
    """NVIDIA's ldmatrix of four matrices with scattered rows, as they are and transposed."""
    _need_ptx(bench)
    src = np.arange(256, dtype=np.uint16)
    order = np.arange(32) * 11 % 32
    matrices = src.reshape(32, 8)[order].reshape(4, 8, 8)
    both = np.stack([matrices, matrices.transpose(0, 2, 1)])
    want = np.ascontiguousarray(both).view(np.uint32).reshape(8, 32).T
    out = np.zeros((32, 8), np.uint32)
    args = (src.view(np.uint32), (16 * order).astype(np.uint32), out)
    expect(bench.run(bench.kernel("ptx_ldmatrix", "matrices"), 32, 32, args, out), want)
    return 1


def step_ptx_cp_async(bench: ProbeBench) -> int:
    """NVIDIA's cp.async of 0 to 16 bytes, the rest of 16 filled with zeros, in two groups."""
    _need_ptx(bench)
    src = (np.arange(1024) % 251 + 1).astype(np.uint8).reshape(64, 16)
    sizes = (np.arange(64) % 17).astype(np.uint32)
    filled = np.where(np.arange(16) < sizes[:, None], src, 0).astype(np.uint8)
    want = np.concatenate([filled[31::-1], filled[:31:-1]])
    out = np.zeros_like(src)
    expect(bench.run(bench.kernel("ptx_cp_async", "pieces"), 32, 32, (src, sizes, out), out), want)
    return 1


def step_x86_vnni(bench: ProbeBench) -> int:
    """The x86 instruction vpdpbusd through inline assembly."""
    _expect_cpu(bench)
    if not cpu_has_vnni():
        raise RefusedError("the CPU has no avx512_vnni")
    u = np.concatenate([_four_bytes(seed) for seed in (1, 2)])
    s = np.concatenate([_four_bytes(seed) for seed in (2, 3)])
    acc = np.arange(128, dtype=np.int32) * 1001 - 64000
    words = (u.view(np.int32).ravel(), s.view(np.int32).ravel(), acc)
    got = bench.run(bench.kernel("x86_vnni", "vnni"), 8, None, words, acc)
    products = u.astype(np.int32) * s.view(np.int8).astype(np.int32)
    expect(got, acc + products.sum(1, dtype=np.int32))
    return 1


def step_prefetch(bench: ProbeBench) -> int:
    """Reads ahead into the cache by the compiler's builtin, beyond the buffer's end too."""
    _expect_cpu(bench)
    x = np.arange(1000, dtype=np.float32)
    y = np.zeros_like(x)
    expect(bench.run(bench.kernel("prefetch", "ahead"), x.size, None, (x, y), y), x + 1)
    return 1


def step_clock(bench: ProbeBench) -> int:
    """The cycle counter: it advances, and work takes some cycles of it."""
    _expect_cpu(bench)
    x = np.arange(64, dtype=np.float32)
    when = np.zeros((64, 2), np.uint64)
    got = bench.run(bench.kernel("clock", "ticks"), 64, None, (x, np.zeros_like(x), when), when)
    taken = (got[:, 1] - got[:, 0]).astype(np.int64)
    if not (got.all() and (taken > 0).all()):
        raise RefusedError(f"the counter stands still or goes back: {taken.min()} cycles")
    return 1


def step_host_memory(bench: ProbeBench) -> int:
    """Memory lent to the device, written and read by the host between kernels, without a copy or map."""
    _expect_cpu(bench)
    n, kernel = 1003, bench.kernel("saxpy", "saxpy")
    hosts = [pages(4 * n)[: 4 * n].view(np.float32) for _ in range(2)]
    buffers = [host_buffer(bench.context, host) for host in hosts]
    for turn in range(4):
        hosts[0][:] = np.arange(n) + turn
        hosts[1][:] = turn
        kernel(bench.queue, (n,), None, np.int32(n), np.float32(3), *buffers)
        bench.queue.finish()
        expect(hosts[1], 3 * (np.arange(n) + turn) + turn)
    return 1


def _expect_cpu(bench: ProbeBench) -> None:
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")


def cpu_has_vnni() -> bool:
    """Tell whether this machine's CPU lists the feature avx512_vnni."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_vnni" in text


STEPS: dict[str, Callable[[ProbeBench], int]] = {
    "saxpy": step_saxpy,
    "barrier": step_barrier,
    "local_memory": step_local_memory,
    "fp16": step_fp16,
    "fp64": step_fp64,
    "subgroups": step_subgroups,
    "integer_dot": step_integer_dot,
    "x86_vnni": step_x86_vnni,
    "ptx_dp4a": step_ptx_dp4a,
    "ptx_mma": step_ptx_mma,
    "ptx_ldmatrix": step_ptx_ldmatrix,
    "ptx_cp_async": step_ptx_cp_async,
    "prefetch": step_prefetch,
    "clock": step_clock,
    "host_memory": step_host_memory,
}


def find_device(cl: Any, want: dict[str, Any]) -> Any:
    """Return the device that `want` describes by positions and names."""
    platforms = cl.get_platforms()
    first = want["platform_index"]
    for platform in platforms[first : first + 1] + platforms:
        if platform.name.strip() != want["platform"]:
            continue
        devices = platform.get_devices()
        position = want["device_index"]
        if position < len(devices) and devices[position].name.strip() == want["name"]:
            return devices[position]
    raise RefusedError("the device is not visible in the probe's process")


def reason_of(err: Exception) -> str:
    """Return why a step failed, on one line: the compiler's first error, else the message."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    error = next((m for m in map(_ERROR_LINE.search, lines) if m), None)
    text = f"error: {error.group(1)}" if error else (lines or [repr(err)])[0]
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 3] + "..."


def outcome(step: str, bench: ProbeBench) -> dict[str, Any]:
    """Run one step; return its JSON outcome."""
    try:
        value = STEPS[step](bench)
    except Exception as err:
        return {"step": step, "available": False, "reason": reason_of(err), "value": 0}
    return {"step": step, "available": True, "reason": "", "value": value}


def main(want: dict[str, Any]) -> None:
    """Run the steps that `want` lists, reporting on the real standard output only."""
    replies = reply_stream()

    def report(**line: Any) -> None:
        replies.write(json.dumps(line) + "\n")
        replies.flush()

    report(start="open")
    try:
        cl = load()
        bench = ProbeBench(cl, find_device(cl, want), want["options"])
    except Exception as err:
        report(step="open", available=False, reason=reason_of(err), value=0)
        return
    report(step="open", available=True, reason="", value=1)
    for step in want["steps"]:
        report(start=step)
        done = outcome(step, bench)
        report(**done)
        if step in REQUIRED and not done["available"]:
            return
