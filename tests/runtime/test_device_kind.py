"""Which kernels a device gets: by its type, by a measurement where that misleads, as CLNN_DEVICE_KIND says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from harness import normal
from small_graphs import GRAPHS

from clnn.errors import SettingError
from clnn.graph.evaluate import evaluate
from clnn.ops.conv.tiles import Extents, conv_tiles
from clnn.ops.conv.winograd_cpu import plan
from clnn.ops.shared.matrices import gemm_tiles
from clnn.options import Options
from clnn.runtime.device import probe_core
from clnn.runtime.device import target as target_module
from clnn.runtime.device.device import discover, select
from clnn.runtime.device.probe import Capabilities, Capability
from clnn.runtime.device.probe_bench import RefusedError
from clnn.runtime.device.processor import compiled_for
from clnn.runtime.device.target import kind_of, target_of, vector_of
from clnn.runtime.drivers.loader import child_environment
from clnn.runtime.run.session import Session
from clnn.target import Target

PAYS = Capabilities(work_groups=Capability(True))
CPU, GPU = 2, 4


@pytest.mark.parametrize(
    ("asked", "type_", "caps", "rounds", "kind"),
    [
        ("auto", "cpu", Capabilities(), 0, "cpu"),
        ("auto", "cpu", PAYS, 0, "gpu"),
        ("auto", "cpu", Capabilities(), 65535, "gpu"),
        ("auto", "gpu", Capabilities(), 0, "gpu"),
        ("auto", "accelerator", Capabilities(), 0, "gpu"),
        ("cpu", "gpu", PAYS, 0, "cpu"),
        ("cpu", "cpu", Capabilities(), 65535, "cpu"),
        ("gpu", "cpu", Capabilities(), 0, "gpu"),
    ],
)
def test_the_kind_of_kernels(
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    type_: str,
    caps: Capabilities,
    rounds: int,
    kind: str,
) -> None:
    monkeypatch.setenv("CLNN_DEVICE_KIND", asked)
    assert kind_of(SimpleNamespace(type=type_, caps=caps, max_rounds=rounds)) == kind


def test_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLNN_DEVICE_KIND", "npu")
    with pytest.raises(SettingError, match="one of auto, cpu, gpu"):
        kind_of(SimpleNamespace(type="gpu", caps=PAYS, max_rounds=0))


def bench_with(monkeypatch: pytest.MonkeyPatch, seconds: dict, type_: int = CPU, lanes: int = 1):
    """A device whose kernels take so many seconds of a clock of their own."""
    clock = [0.0]
    monkeypatch.setattr(probe_core, "perf_counter", lambda: clock[0])

    def kernel(_: str, name: str):
        return lambda *args: clock.__setitem__(0, clock[0] + seconds[name])

    return SimpleNamespace(
        device=SimpleNamespace(type=type_, native_vector_width_float=lanes),
        cl=SimpleNamespace(device_type=SimpleNamespace(CPU=CPU)),
        queue=SimpleNamespace(finish=lambda: None),
        kernel=kernel,
        buffer=lambda x: x,
        run=lambda kernel, size, group, args, out: out + 1,
    )


def test_a_measurement_decides_where_a_driver_states_no_vectors(monkeypatch) -> None:
    step = probe_core.step_work_groups
    assert step(bench_with(monkeypatch, {"wide": 9.0, "beside": 5.0})) == 180
    with pytest.raises(RefusedError, match=r"wide vectors take 0\.04 of the time"):
        step(bench_with(monkeypatch, {"wide": 1.0, "beside": 25.0}))
    with pytest.raises(RefusedError, match="states vectors of 16"):
        step(bench_with(monkeypatch, {}, lanes=16))
    with pytest.raises(RefusedError, match="not a CPU"):
        step(bench_with(monkeypatch, {}, type_=GPU))


def test_the_kernels_of_the_measurement_agree(device: str, monkeypatch) -> None:
    """They are built and run on devices that are not measured, too."""
    from clnn.runtime.device.device import open_context
    from clnn.runtime.device.probe_bench import ProbeBench, expect
    from clnn.runtime.drivers.loader import cl

    info = select(device)
    bench, x = ProbeBench(cl, open_context(info)[1], [info.cl_std]), normal((128,))
    args = (np.int32(3), x)
    wide = bench.run(bench.kernel("kind", "wide"), 8, 1, args, x)
    expect(bench.run(bench.kernel("kind", "beside"), 128, 64, args, x), wide)


def test_a_network_with_the_kernels_of_gpus(device: str, monkeypatch) -> None:
    info = replace(select(device), max_rounds=0)
    sessions = []
    for kind in ("cpu", "gpu"):
        monkeypatch.setenv("CLNN_DEVICE_KIND", kind)
        assert target_of(info).is_cpu == (kind == "cpu")
        sessions.append(Session(GRAPHS["classifier"](), info, Options()))
    feeds = {i.name: normal(i.shape, 0) for i in sessions[0].inputs}
    first, second = (session(feeds) for session in sessions)
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=1e-4, atol=1e-5)
    names = {s.variant.name for s in sessions[1]._plan.scheduled}
    assert names != {s.variant.name for s in sessions[0]._plan.scheduled}


@pytest.mark.parametrize(
    ("asked", "stated", "wider", "vector"),
    [
        ("auto", 8, False, 8),
        ("auto", 8, True, 16),
        ("auto", 16, True, 16),
        ("auto", 4, False, 16),
        ("auto", 0, False, 16),
        ("8", 16, True, 8),
        ("16", 8, False, 16),
    ],
)
def test_the_vector_of_a_cpu(
    monkeypatch, asked: str, stated: int, wider: bool, vector: int
) -> None:
    """wider: the processor has registers of 16 floats, whatever its driver states."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", asked)
    monkeypatch.setattr(target_module, "lists", lambda feature: feature == "avx512f" and wider)
    assert vector_of(SimpleNamespace(native_vector=stated, compiled_for="")) == vector


@pytest.mark.parametrize(
    ("platform", "env", "processor", "vector"),
    [
        ("Intel(R) OpenCL", {"CL_CONFIG_CPU_TARGET_ARCH": "core-avx2"}, "core-avx2", 8),
        ("Intel(R) OpenCL", {"CL_CONFIG_CPU_TARGET_ARCH": "skylake-avx512"}, "skylake-avx512", 16),
        ("Intel(R) OpenCL", {"CL_CONFIG_CPU_TARGET_ARCH": "unheard-of"}, "unheard-of", 16),
        ("Intel(R) OpenCL", {"POCL_LLVM_CPU_NAME": "haswell"}, "", 16),
        ("Portable Computing Language", {"POCL_LLVM_CPU_NAME": "skylake"}, "skylake", 8),
        ("Portable Computing Language", {"POCL_LLVM_CPU_NAME": "znver3"}, "znver3", 8),
        ("Portable Computing Language", {"POCL_LLVM_CPU_NAME": "znver4"}, "znver4", 16),
        ("Portable Computing Language", {}, "", 16),
    ],
)
def test_the_vector_of_another_processor(
    monkeypatch, platform: str, env: dict[str, str], processor: str, vector: int
) -> None:
    """Drivers state the host's registers, whatever processor they were told to compile for."""
    monkeypatch.setattr(target_module, "lists", lambda feature: feature == "avx512f")
    assert compiled_for(platform, env) == processor
    told = SimpleNamespace(native_vector=16, compiled_for=processor)
    assert vector_of(told) == vector


@pytest.mark.parametrize(
    ("platform", "variable", "processor"),
    [
        ("Intel(R) OpenCL", "CL_CONFIG_CPU_TARGET_ARCH", "core-avx2"),
        ("Portable Computing Language", "POCL_LLVM_CPU_NAME", "haswell"),
    ],
)
def test_programs_for_another_processor(platform: str, variable: str, processor: str) -> None:
    """A driver that was told a processor is another device to the cache: no program is taken for the other's."""
    info = next((info for info in discover() if info.platform == platform), None)
    if info is None:
        pytest.skip(f"no device of {platform}")
    code = (
        "import sys; from clnn.runtime.build.program import key_of\n"
        "from clnn.runtime.device.device import select\n"
        "from clnn.runtime.device.target import target_of\n"
        "info = select(sys.argv[1]); print(key_of(info, ''), target_of(info).vector)"
    )
    command, base = [sys.executable, "-c", code, platform], child_environment(info.driver)
    plain, told = (
        subprocess.run(
            command, env=env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
        for env in (base, {**base, variable: processor})
    )
    assert plain[0] != told[0]
    assert told[1] == "8"


@pytest.mark.parametrize(("vector", "most"), [(8, 16), (16, 32)])
def test_tiles_fit_the_registers(vector: int, most: int) -> None:
    """Sums, a vector of weights for each column of them, and one of inputs."""
    target = Target("cpu", vector)
    assert target.registers == most
    extents = Extents(14, 14, 256, vector, registers=target.registers)
    tiles = [tile for _, tile in conv_tiles(extents)] + [
        t for _, t in gemm_tiles(196, 256, 1, target)
    ]
    assert all(t.vw == vector and t.mr * t.nv + t.nv + 1 <= most for t in tiles)
    chosen = plan((1, 256, 28, 28), 256, replace(target, local_bytes=1 << 19), vector)
    assert chosen is not None and chosen.mr * chosen.nv + chosen.nv + 1 <= most


def test_tiles_of_sixteen_registers_fill_them_with_few_loads() -> None:
    """Of equal estimates 4 pixels by 3 vectors load 7 values for 12 products, 6 by 2 load 8."""
    extents = Extents(112, 112, 96, 8, flat=True, registers=16)
    best = conv_tiles(extents)[0][1]
    assert (best.mr, best.nv) == (4, 3)
    fewer = conv_tiles(replace(extents, registers=15))
    assert all(t.mr * t.nv + t.nv + 1 <= 15 for _, t in fewer)
    limbs = conv_tiles(replace(extents, weight_limbs=2, registers=32))
    assert all((t.mr, t.nv) != (4, 3) for _, t in limbs)


@pytest.mark.parametrize("vector", [8, 16])
def test_half_rate_is_that_of_the_widest_vectors(any_device, monkeypatch, vector: int) -> None:
    """Where kernels have narrower ones, what was measured of the widest says nothing of them."""
    monkeypatch.setenv("CLNN_DEVICE_KIND", "cpu")
    monkeypatch.setenv("CLNN_CPU_VECTOR", str(vector))
    info = select(any_device)
    info = replace(info, caps=replace(info.caps, half_rate=Capability(True)))
    assert ("half_rate" in target_of(info).features) == (vector == 16)
    monkeypatch.setenv("CLNN_DEVICE_KIND", "gpu")
    assert "half_rate" not in target_of(info).features


@pytest.mark.parametrize("vector", [8, 16])
def test_networks_with_each_vector(any_device: str, monkeypatch, vector: int) -> None:
    monkeypatch.setenv("CLNN_DEVICE_KIND", "cpu")
    monkeypatch.setenv("CLNN_CPU_VECTOR", str(vector))
    info = select(any_device)
    assert target_of(info).vector == vector
    for make in GRAPHS.values():
        graph = make()
        session = Session(graph, info, Options())
        feeds = {i.name: normal(i.shape, 0) for i in session.inputs}
        wanted = evaluate(graph, feeds)
        for name, array in session(feeds).items():
            np.testing.assert_allclose(array, wanted[name], rtol=1e-3, atol=1e-4)
