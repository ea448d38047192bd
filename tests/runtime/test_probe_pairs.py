"""The probe's steps that time multiply-adds of CPUs, on a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clnn.cli.devices import table
from clnn.runtime.device import probe_pairs
from clnn.runtime.device.device import DeviceInfo, select
from clnn.runtime.device.probe import Capability
from clnn.runtime.device.probe_bench import RefusedError, SlowError


def bench_of(monkeypatch: pytest.MonkeyPatch, pair: float, single: float) -> SimpleNamespace:
    """Return a bench whose kernels take so many seconds, each second run twice as many.

    pair: those of pairs of bfloat16 and of vectors of 16; single: those of floats and of vectors of 8.
    """
    now, runs = [0.0], [0]
    monkeypatch.setattr(probe_pairs, "perf_counter", lambda: now[0])
    monkeypatch.setattr(probe_pairs, "lists", lambda feature: feature in ("avx512_bf16", "avx512f"))
    seconds = dict.fromkeys(("pair_rounds", "rounds_of_16"), pair)
    seconds |= dict.fromkeys(("float_rounds", "rounds_of_8"), single)

    def kernel(file: str, name: str):
        def run(*args: object) -> None:
            runs[0] += 1
            now[0] += seconds[name] * (1 + runs[0] % 4 // 2)

        return run

    cl = SimpleNamespace(device_type=SimpleNamespace(CPU=2))
    queue = SimpleNamespace(finish=lambda: None)
    device = SimpleNamespace(type=2)
    return SimpleNamespace(
        cl=cl, device=device, queue=queue, kernel=kernel, buffer=lambda array: array
    )


def test_an_instruction_that_gains_is_told_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_pairs.step_fast_bf16(bench_of(monkeypatch, 0.001, 0.001)) == 200


def test_an_instruction_that_gains_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RefusedError, match=r"at 0\.57 of the rate"):
        probe_pairs.step_fast_bf16(bench_of(monkeypatch, 0.0035, 0.001))


def test_processors_without_it_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch, 0.001, 0.001)
    monkeypatch.setattr(probe_pairs, "lists", lambda feature: False)
    for step in (probe_pairs.step_x86_bf16, probe_pairs.step_fast_bf16):
        with pytest.raises(RefusedError, match="the CPU has no avx512_bf16"):
            step(bench)
    bench.device.type = 4
    with pytest.raises(RefusedError, match="not a CPU"):
        probe_pairs.step_x86_bf16(bench)


@pytest.mark.parametrize(("wide", "percent"), [(0.002, 100), (0.0016, 125)])
def test_wide_vectors_at_half_the_rate(monkeypatch: pytest.MonkeyPatch, wide, percent) -> None:
    assert probe_pairs.step_half_rate(bench_of(monkeypatch, wide, 0.001)) == percent


def test_wide_vectors_at_the_whole_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(monkeypatch, 0.00105, 0.001)
    with pytest.raises(SlowError, match=r"16 add products at 1\.90 of the rate of 8"):
        probe_pairs.step_half_rate(bench)
    monkeypatch.setattr(probe_pairs, "lists", lambda feature: False)
    with pytest.raises(RefusedError, match="the CPU has no avx512f"):
        probe_pairs.step_half_rate(bench)


def test_devices_say_how_bfloat16_is_multiplied(any_device: str) -> None:
    from dataclasses import replace

    info: DeviceInfo = select(any_device)
    for there, slow, text in (
        (True, "", "in pairs by vdpbf16ps"),
        (True, "half the rate", "as float32: half the rate"),
        (False, "unknown", "as float32: no such instruction"),
    ):
        caps = replace(
            info.caps,
            x86_amx=Capability(False, "none"),
            x86_bf16=Capability(there, "" if there else "no such instruction"),
            fast_bf16=Capability(not slow, slow),
        )
        assert (
            f"bfloat16  multiplied {text}" in table([replace(info, caps=caps)])
            or info.type != "cpu"
        )
