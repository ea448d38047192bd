"""Probes: crashes, hangs, wrong results and torn reports of a driver, and the kept results."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fragments
import numpy as np
import pytest

from clnn.cache.store import CacheWarning, Store
from clnn.runtime.device import device as device_module
from clnn.runtime.device import probe, probe_child
from clnn.runtime.device.device import probe_target, select
from clnn.runtime.device.probe import (
    CAPABILITY_NAMES,
    MEASURED,
    ProbeTarget,
    StepResult,
    run_steps,
)
from clnn.runtime.process import child

TARGET = ProbeTarget(0, "Some Platform", "OpenCL 3.0 v1", 0, "Some Device", "1.0", "-cl-std=CL3.0")
ALL = (*probe.REQUIRED[1:], *CAPABILITY_NAMES, *MEASURED)
BENCH = "sys.modules['clnn.runtime.device.probe_bench']"
BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); import json, os, pathlib;"
    " import clnn.runtime.device.probe_child as p; from clnn.runtime.{} import main;"
    " CODE; main(json.loads(sys.argv[2]))"
)


def sabotage(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have each child run `code` first; `p` is its probe_child module."""
    monkeypatch.setattr(child, "BOOT", BOOT.replace("CODE", code))


def use_kernels(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have each child take its kernels from `folder`."""
    sabotage(monkeypatch, f"{BENCH}.kernel_folder = lambda: pathlib.Path({str(folder)!r})")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CLNN_CACHE", "rw")
    return tmp_path / "cache"


def replies(monkeypatch: pytest.MonkeyPatch, *children: tuple[str, str]) -> list[list[str]]:
    """Let child processes answer with `children`, in turn; return the steps each was asked."""
    asked: list[list[str]] = []

    def answer(module: str, want: dict, timeout_s: float, env: object) -> tuple[str, str]:
        asked.append(want["steps"])
        return children[len(asked) - 1]

    monkeypatch.setattr(probe, "run_python", answer)
    return asked


def done(*names: str, **failed: str) -> str:
    """The report of a child that did `names`, with the reasons of those that failed."""
    lines = []
    for name in ("open", *names):
        record = {"step": name, "available": name not in failed, "reason": failed.get(name, "")}
        lines += [json.dumps({"start": name}), json.dumps({**record, "value": 8})]
    return "\n".join(lines) + "\n"


def test_a_crash_costs_one_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch, "p.STEPS['fp64'] = lambda bench: os.abort()")
    results = run_steps(probe_target(select(device)), ("saxpy", "fp64", "local_memory"))
    assert results["fp64"].reason.startswith("the driver crashed (SIGABRT)")
    assert results["fp64"].doubtful
    assert results["saxpy"] == StepResult(True, "", 1)
    assert results["local_memory"].available


def test_a_crash_of_the_joint_build_costs_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch, "p.build_most = lambda bench, steps: os.abort()")
    results = run_steps(probe_target(select(device)), ("saxpy", "fp64"))
    assert list(results) == ["open", "saxpy", "fp64"]
    assert all(result.available for result in results.values())


def test_a_wrong_result_makes_a_device_unusable(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from clnn.runtime.device.probe_bench import kernel_folder

    for kernel in kernel_folder().glob("*.cl"):
        text = kernel.read_text("utf-8").replace("a * x[i] + y[i];", "a * x[i] + 2 * y[i];")
        (tmp_path / kernel.name).write_text(text, "utf-8")
    use_kernels(monkeypatch, tmp_path)
    result = probe.probe(probe_target(select(device)))
    assert result.why_not.startswith("saxpy: wrong result: element 0 is")
    assert not result.caps.local_memory
    assert result.caps.local_memory.reason == "not probed"


def test_a_kernel_that_does_not_build_names_the_compilers_error(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "saxpy.cl").write_text("__kernel void saxpy() { undeclared_thing; }", "utf-8")
    use_kernels(monkeypatch, tmp_path)
    result = run_steps(probe_target(select(device)), ("saxpy",))["saxpy"]
    assert not result.available
    assert "undeclared_thing" in result.reason
    assert str(tmp_path) not in result.reason
    assert not result.doubtful


def test_drivers_may_print_what_they_like(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(
        monkeypatch,
        "old = p.STEPS['saxpy'];"
        " p.STEPS['saxpy'] = lambda b: (os.write(1, b'[1]\\n'), print('hello'), old(b))[2]",
    )
    assert run_steps(probe_target(select(device)), ("saxpy",))["saxpy"].available


def test_a_device_that_is_not_there() -> None:
    results = run_steps(TARGET, ALL)
    assert list(results) == ["open"]
    assert not results["open"].available
    assert not results["open"].doubtful


def test_a_hang_is_ended_with_all_that_it_started() -> None:
    script = "sleep 3600 & echo $!; sleep 3600"
    out, end = child.run_command(["sh", "-c", script], 2.0, os.environ)
    assert end == "did not answer within 2 s"
    assert not is_running(int(out))


def is_running(pid: int) -> bool:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import os; os.abort()", "the driver crashed (SIGABRT)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the driver crashed (SIGSEGV)"),
        ("import sys; print('why', file=sys.stderr); sys.exit(7)", "ended with status 7 (why)"),
        ("pass", ""),
    ],
)
def test_how_a_child_ends(code: str, end: str) -> None:
    assert child.run_command([sys.executable, "-c", code], 60.0, os.environ) == ("", end)


def test_a_child_that_cannot_start(tmp_path: Path) -> None:
    _, end = child.run_command([str(tmp_path / "nothing")], 60.0, os.environ)
    assert end.startswith("cannot start a child process")


def test_each_crash_is_blamed_on_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = "the driver crashed (SIGSEGV)"
    asked = replies(
        monkeypatch,
        (done(*probe.REQUIRED[1:]) + '{"start": "local_memory"}\n', crash),
        (done("fp16", fp16="error: no half") + '{"start": "fp64"}\n{"step": "fp64", "avai', crash),
        (done("subgroups"), crash),
        (done(*ALL[ALL.index("x86_vnni") :]), "ended with status 1"),
    )
    results = run_steps(TARGET, ALL)
    assert asked == [list(ALL), list(ALL[5:]), list(ALL[7:]), list(ALL[9:])]
    failed = {name for name, result in results.items() if not result.available}
    assert failed == {"local_memory", "fp16", "fp64", "integer_dot"}
    assert {name for name, result in results.items() if result.doubtful} == failed - {"fp16"}
    assert results["subgroups"].value == 8


def test_a_crash_after_the_last_step_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replies(monkeypatch, (done(*ALL), "the driver crashed (SIGSEGV)"))
    assert all(result.available for result in run_steps(TARGET, ALL).values())


@pytest.mark.parametrize(
    ("report", "culprit"),
    [
        ("", "open"),
        ('{"start": "open"}\n', "open"),
        (done(), "saxpy"),
        (done() + '{"start": "saxpy"}\n', "saxpy"),
        (done("saxpy"), "barrier"),
        ('[1]\nnull\n{"start": 3}\n{"step": "saxpy"}\n', "open"),
    ],
)
def test_a_required_step_that_fails_ends_the_probe(
    monkeypatch: pytest.MonkeyPatch, report: str, culprit: str
) -> None:
    asked = replies(monkeypatch, (report, "did not answer within 120 s"))
    result = probe.probe(TARGET)
    assert result.why_not == f"{culprit}: did not answer within 120 s"
    assert len(asked) == 1


def test_hangs_cannot_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 200.0, 300.0])
    monkeypatch.setattr(probe.time, "monotonic", lambda: next(clock))
    hang = "did not answer within 120 s"
    replies(
        monkeypatch,
        (done(*probe.REQUIRED[1:]) + '{"start": "local_memory"}\n', hang),
        (done() + '{"start": "fp16"}\n', hang),
    )
    results = run_steps(TARGET, ALL)
    assert results["fp64"].reason == "not tried: earlier steps used up the time"
    assert set(results) == {"open", *ALL}


def test_results_are_kept(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = probe_target(select(device))
    first = probe.probe(target)
    asked = replies(monkeypatch)
    assert probe.probe(target) == first
    assert asked == []


def test_threads_that_ask_at_once_share_a_probe(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ProbeTarget] = []
    result = probe.probe(probe_target(select(device)))

    def slow(target: ProbeTarget, refresh: bool) -> probe.ProbeResult:
        asked.append(target)
        time.sleep(0.05)
        return result

    monkeypatch.setattr(device_module, "probe", slow)
    monkeypatch.setattr(device_module, "_probed", {})
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: select(device), range(8)))
    assert len(asked) == 1
    assert all(known == got[0] for known in got)
    assert got[0].caps == result.caps


@pytest.mark.parametrize(
    "field", ["platform", "platform_version", "name", "driver_version", "cl_std"]
)
def test_whatever_decides_a_result_is_part_of_its_key(field: str) -> None:
    assert probe._key(replace(TARGET, **{field: "-cl-std=CL1.2"})) != probe._key(TARGET)


def test_the_key_follows_the_driver_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = probe._key(TARGET)
    monkeypatch.setattr(probe, "_driver_files", lambda driver: ["/some/libdriver.so:1"])
    one = probe._key(TARGET)
    monkeypatch.setattr(probe, "_driver_files", lambda driver: ["/some/libdriver.so:2"])
    assert len({before, one, probe._key(TARGET)}) == 3


def test_driver_libraries_are_found(device: str) -> None:
    driver = select(device).driver
    named = [line.split(":")[0] for line in probe._driver_files(driver)]
    stem = {"Portable Computing Language": "libpocl", "Intel(R) OpenCL": "libintelocl"}.get(device)
    if stem is not None:
        assert any(Path(path).name.startswith(stem) for path in named)
    assert all(Path(path).exists() for path in named)


def stored_file(cache: Path) -> Path:
    (file,) = cache.rglob("probes/*/*.clbin")
    return file


def test_a_damaged_result_is_probed_again(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    replies(monkeypatch, (done(*ALL), ""))
    good = probe.probe(TARGET)
    whole = stored_file(own_cache).read_bytes()
    for damage in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        stored_file(own_cache).write_bytes(damage)
        asked = replies(monkeypatch, (done(*ALL), ""))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            assert probe.probe(TARGET) == good
        assert len(asked) == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"time": 0, "steps": {"open": 3}}',
        b'{"time": 0, "steps": {"open": {"available": 1, "reason": "", "value": 0}}}',
        b'{"time": "x", "steps": {}}',
        b'{"time": 0, "steps": []}',
        b"\xff",
    ],
)
def test_foreign_content_is_probed_again(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    Store(kind="probes").put(probe._key(TARGET), payload, {})
    asked = replies(monkeypatch, (done(*ALL), ""))
    assert probe.probe(TARGET).why_not == ""
    assert len(asked) == 1


def test_a_crash_is_not_believed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = (done("saxpy") + '{"start": "barrier"}\n', "the driver crashed (SIGSEGV)")
    now = [1000.0]
    monkeypatch.setattr(probe.time, "time", lambda: now[0])
    asked = replies(monkeypatch, crash, (done(*ALL), ""))
    assert probe.probe(TARGET).why_not
    assert probe.probe(TARGET).why_not
    assert len(asked) == 1
    now[0] += probe.DOUBTFUL_S
    assert probe.probe(TARGET).why_not == ""
    now[0] += 1e9
    assert probe.probe(TARGET).why_not == ""
    assert len(asked) == 2


def test_refresh_probes_anew_and_keeps_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replies(monkeypatch, (done(*ALL), ""), (done(*ALL, fp16="error: no half"), ""))
    assert probe.probe(TARGET).caps.fp16
    assert not probe.probe(TARGET, refresh=True).caps.fp16
    assert probe.probe(TARGET).caps.fp16.reason == "error: no half"
    assert len(asked) == 2


@pytest.mark.parametrize("mode", ["off", "ro"])
def test_nothing_is_written_where_nothing_may_be(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path, mode: str
) -> None:
    monkeypatch.setenv("CLNN_CACHE", mode)
    asked = replies(monkeypatch, (done(*ALL), ""), (done(*ALL), ""))
    assert probe.probe(TARGET) == probe.probe(TARGET)
    assert len(asked) == 2
    assert not own_cache.exists()


class Warp:
    """A device whose warp instructions are the formulas of the PTX ISA; wrong: one result differs."""

    def __init__(self, vendor: str = "NVIDIA Corporation", wrong: bool = False) -> None:
        self.device, self.wrong = SimpleNamespace(vendor=vendor), wrong

    def kernel(self, file: str, name: str) -> str:
        return name

    def run(self, kernel: str, size: int, local: int, args: tuple, out: np.ndarray) -> np.ndarray:
        assert size == local == 32
        found = {"matrices": self.matrices, "pieces": self.pieces}.get(kernel, self.product)
        result = found(kernel, *args).astype(out.dtype).reshape(out.shape)
        result.reshape(-1)[-1] += self.wrong
        return result

    def product(self, kernel: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        kind = kernel.removeprefix("mma_")
        other = "s8" if kind == "u8" else kind
        left, right = np.zeros((16, fragments.DEPTH[kind])), np.zeros((fragments.DEPTH[kind], 8))
        left[fragments.a_places(kind)] = fragments.decode(kind, a.view(fragments.STORED[kind]))
        right[fragments.b_places(kind)] = fragments.decode(other, b.view(fragments.STORED[other]))
        return (left @ right)[fragments.c_places()] + c

    def matrices(self, _: str, src: np.ndarray, at: np.ndarray, out: np.ndarray) -> np.ndarray:
        memory = src.view(np.uint16)
        return np.hstack([fragments.ldmatrix(memory, at, trans) for trans in (False, True)])

    def pieces(self, _: str, src: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> np.ndarray:
        memory = [bytes(row[:size]).ljust(16, b"\0") for row, size in zip(src, sizes, strict=True)]
        order = [*range(31, -1, -1), *range(63, 31, -1)]
        return np.frombuffer(b"".join(memory[k] for k in order), np.uint8)


@pytest.mark.parametrize("step", ["ptx_mma", "ptx_ldmatrix", "ptx_cp_async"])
def test_warp_instructions_are_compared_with_their_documentation(step: str) -> None:
    assert probe_child.STEPS[step](Warp()) == 1
    with pytest.raises(probe_child.RefusedError, match="wrong result"):
        probe_child.STEPS[step](Warp(wrong=True))
    with pytest.raises(probe_child.RefusedError, match="not an NVIDIA device"):
        probe_child.STEPS[step](Warp("GenuineIntel"))


LIARS = {
    "returns wrong sums": "saxpy: wrong result: element 1002 is",
    "has no barriers": "barrier: wrong result: element",
    "states large groups": "barrier: ",
    "forgets long sums": "loops: wrong result: ",
    "ends each loop": "loops: loops end after ",
    "ends loops soon": "loops: loops end after 1000 rounds",
    "multiplies 32 bits": "longs: wrong result: element 0 is",
    "shifts 32 bits": "longs: wrong result: element 195 is",
}


@pytest.mark.parametrize("liar", LIARS)
def test_a_device_that_lies_is_refused(
    device: str, monkeypatch: pytest.MonkeyPatch, liar: str
) -> None:
    sabotage(monkeypatch, f"import liars; liars.lie({liar!r})")
    result = probe.probe(probe_target(select(device)))
    assert result.why_not.startswith(LIARS[liar])


def test_what_a_device_lies_about_is_off(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = select(device)
    lies = ("flushes denormals", "wraps at 2 GiB", "has little local memory", "ends loops")
    sabotage(monkeypatch, "import liars; " + "; ".join(f"liars.lie({name!r})" for name in lies))
    result = probe.probe(probe_target(info))
    assert not result.why_not and result.max_rounds == 65535
    assert 2000 <= result.usable_local_mem <= 4000
    for name in ("denormals", "large_buffers"):
        assert not getattr(result.caps, name)
        assert not getattr(info.caps, name) or "wrong" in getattr(result.caps, name).reason
