"""Devices: what a probe promises holds, selection, and every way in which it can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clnn.errors import DeviceError, NoDeviceError
from clnn.runtime.device import device as module
from clnn.runtime.device.device import DeviceInfo, discover, open_context, select
from clnn.runtime.device.probe import CAPABILITY_NAMES, Capabilities, Capability
from clnn.runtime.device.processor import may_use_tiles

MULTIPLY_ADD = """
#pragma OPENCL EXTENSION cl_khr_{extension} : enable
__kernel void f(__global {type}* x) {{
  int i = get_global_id(0);
  x[i] = x[i] * x[i] + ({type})1;
}}
"""


def info_of(index: int, **changes: object) -> DeviceInfo:
    base = DeviceInfo(
        index=index,
        platform="Vendor One",
        platform_version="OpenCL 3.0",
        name=f"Device {index}",
        vendor="Maker",
        type="gpu",
        driver_version="1",
        version="OpenCL 3.0",
        opencl_c_version="OpenCL C 3.0",
        compute_units=1,
        global_mem=1 << 30,
        local_mem=1 << 15,
        max_alloc=1 << 28,
        max_work_group_size=256,
        mem_base_addr_align=1024,
        unified_memory=False,
        extensions=(),
        compute_capability=None,
        platform_index=0,
        device_index=index,
        why_not="",
    )
    return replace(base, **changes)


MACHINE = (
    info_of(0, name="GeForce 9", platform="NVIDIA CUDA", vendor="NVIDIA Corporation"),
    info_of(1, name="Arc 7", platform="Intel(R) Graphics", why_not="saxpy: wrong result"),
    info_of(
        2,
        name="pthread-Intel Xeon",
        platform="Portable Computing Language",
        type="cpu",
        platform_version="OpenCL 3.0 PoCL 3.1",
        device_index=0,
    ),
    info_of(3, name="Intel Xeon", platform="Intel(R) OpenCL", type="cpu", device_index=0),
    info_of(
        4,
        name="Board",
        platform="Intel(R) OpenCL",
        type="accelerator",
        device_index=1,
        vendor="Odd: maker",
    ),
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceInfo, ...]:
    """A machine with five devices, the second of them broken."""
    monkeypatch.setattr(module, "list_unprobed", lambda: MACHINE)
    monkeypatch.setattr(module, "_with_probe", lambda info, refresh: info)
    monkeypatch.setattr(module, "_probed", {})
    monkeypatch.delenv("CLNN_DEVICE", raising=False)
    return MACHINE


@pytest.mark.parametrize(
    ("spec", "index"),
    [
        (None, 0),
        ("auto", 0),
        ("gpu", 0),
        ("GPU", 0),
        ("cpu", 2),
        ("accelerator", 4),
        (3, 3),
        ("3", 3),
        ("cuda", 0),
        ("portable", 2),
        ("pocl", 2),
        ("opencl:xeon", 3),
        ("Intel(R) OpenCL", 3),
        ("intel(r) opencl:1", 4),
        ("odd: maker", 4),
        (":board", 4),
        ("geforce", 0),
        ("pthread-Intel Xeon", 2),
        ("pocl: pthread", 2),
        (" auto ", 0),
    ],
)
def test_select_takes(machine: object, spec: str | int | None, index: int) -> None:
    assert select(spec).index == index


def test_platform_names_go_before_device_names(machine: object) -> None:
    # "intel" is part of a PoCL device's name too, and of a broken GPU's platform.
    assert select("intel").index == 3


@pytest.mark.parametrize("spec", ["tpu", 5, -1, "17", "pocl:arc", "", "pocl:", "nvidia:7"])
def test_unknown_names_are_refused_with_the_list(machine: object, spec: str | int) -> None:
    with pytest.raises(NoDeviceError) as caught:
        select(spec)
    text = str(caught.value)
    assert repr(spec) in text
    assert all(info.name in text for info in MACHINE)


@pytest.mark.parametrize("spec", [1, "arc", "graphics:arc"])
def test_a_broken_device_is_refused_with_its_reason(machine: object, spec: str | int) -> None:
    with pytest.raises(DeviceError, match="saxpy: wrong result") as caught:
        select(spec)
    assert not isinstance(caught.value, NoDeviceError)
    assert "GeForce 9" in str(caught.value)


def test_the_environment_names_the_device(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLNN_DEVICE", "pocl")
    assert select().index == 2
    assert select("auto").index == 0
    monkeypatch.setenv("CLNN_DEVICE", "fpga")
    with pytest.raises(NoDeviceError, match="'fpga' \\(from CLNN_DEVICE\\)"):
        select()


def test_auto_on_a_machine_where_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [replace(info, why_not="barrier: driver crashed") for info in MACHINE]
    monkeypatch.setattr(module, "list_unprobed", lambda: tuple(broken))
    monkeypatch.setattr(module, "_with_probe", lambda info, refresh: info)
    with pytest.raises(NoDeviceError) as caught:
        select("auto")
    assert str(caught.value).count("barrier: driver crashed") == len(MACHINE)


def test_only_candidates_are_probed(machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    monkeypatch.setattr(
        module, "_with_probe", lambda info, refresh: probed.append(info.index) or info
    )
    select("cpu")
    assert probed == [2]


def test_order_of_preference() -> None:
    small = info_of(0, name="small", global_mem=1 << 30)
    large = info_of(1, name="large", global_mem=1 << 34)
    shared = info_of(2, name="shared", global_mem=1 << 36, unified_memory=True)
    pocl = info_of(3, type="cpu", platform="Portable Computing Language")
    intel = info_of(4, type="cpu", platform="Intel(R) OpenCL")
    board = info_of(5, type="accelerator")
    simulator = info_of(6, type="cpu", platform="Oclgrind")
    shuffled = [simulator, intel, small, board, shared, pocl, large]
    wanted = [large, small, shared, pocl, intel, board, simulator]
    assert sorted(shuffled, key=module._preference) == wanted


@pytest.mark.parametrize(
    ("version", "option"),
    [
        ("OpenCL C 3.1 ", "3.0"),
        ("OpenCL C 3.0", "3.0"),
        ("OpenCL C 2.0", "2.0"),
        ("OpenCL C 1.2 PoCL", "1.2"),
        ("OpenCL C 1.1", "1.2"),
        ("", "1.2"),
    ],
)
def test_build_option(version: str, option: str) -> None:
    assert info_of(0, opencl_c_version=version).cl_std == f"-cl-std=CL{option}"


def test_importing_the_room_touches_no_device() -> None:
    code = "import sys, clnn.runtime.device.device; sys.exit('pyopencl' in sys.modules)"
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0


def test_discover_numbers_what_it_lists(device: str) -> None:
    found = discover()
    assert [info.index for info in found] == list(range(len(found)))
    assert found == discover()
    assert [info.type for info in found] == sorted(
        (info.type for info in found), key=("gpu", "cpu", "accelerator").index
    )
    for info in found:
        assert info.compute_units > 0
        assert 0 < info.max_alloc <= info.global_mem
        assert info.mem_base_addr_align % 8 == 0
        assert info.usable_local_mem <= info.local_mem


def test_select_by_platform_and_context(device: str) -> None:
    info = select(device)
    assert info.platform == device
    context, handle = open_context(info)
    assert context.devices == [handle]
    assert handle.name.strip() == info.name
    assert select(f"{info.platform}:{info.device_index}") == info
    assert select(info.index) == info


def test_a_device_that_is_gone(device: str) -> None:
    info = select(device)
    for gone in (replace(info, name="other"), replace(info, platform_index=99)):
        with pytest.raises(DeviceError, match="is gone"):
            open_context(gone)
    with pytest.raises(DeviceError, match="cannot be used: too old"):
        open_context(replace(info, why_not="too old"))


def run_multiply_add(info: DeviceInfo, kind: str, dtype: type) -> np.ndarray:
    from clnn.runtime.drivers.loader import cl

    context, _ = open_context(info)
    source = MULTIPLY_ADD.format(extension=kind, type={"fp16": "half", "fp64": "double"}[kind])
    program = cl.Program(context, source).build(options=[info.cl_std], cache_dir=False)
    x = np.arange(16).astype(dtype)
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(context, flags, hostbuf=x)
    program.f(queue, x.shape, None, buffer)
    cl.enqueue_copy(queue, x, buffer)
    return x


@pytest.mark.parametrize(("kind", "dtype"), [("fp16", np.float16), ("fp64", np.float64)])
def test_floating_point_capabilities_hold(device: str, kind: str, dtype: type) -> None:
    info = select(device)
    capability = getattr(info.caps, kind)
    if capability:
        want = (np.arange(16.0) ** 2 + 1).astype(dtype)
        np.testing.assert_array_equal(run_multiply_add(info, kind, dtype), want)
    else:
        assert capability.reason
        from clnn.runtime.drivers.loader import cl

        with pytest.raises(cl.Error):
            run_multiply_add(info, kind, dtype)


def test_capabilities_name_their_reasons(device: str) -> None:
    info = select(device)
    assert info.caps.local_memory
    assert info.usable_local_mem >= 1024
    for name in CAPABILITY_NAMES:
        capability: Capability = getattr(info.caps, name)
        assert bool(capability) == capability.available == (capability.reason == "")
    assert bool(info.caps.subgroups) == (info.subgroup_size > 0)
    if "cl_khr_subgroups" in info.extensions or "cl_intel_subgroups" in info.extensions:
        assert info.caps.subgroups


def test_inline_assembly_depends_on_the_implementation(device: str) -> None:
    info, cpuinfo = select(device), Path("/proc/cpuinfo")
    flags = cpuinfo.read_text("utf-8") if cpuinfo.exists() else ""
    if info.type != "cpu":
        assert info.caps.x86_vnni.reason == "not a CPU"
    elif "avx512_vnni" not in flags:
        assert info.caps.x86_vnni.reason == "the CPU has no avx512_vnni"
    elif device in ("Portable Computing Language", "Intel(R) OpenCL"):
        assert info.caps.x86_vnni
    if device in ("Portable Computing Language", "Intel(R) OpenCL"):
        assert bool(info.caps.x86_madd) == ("avx2" in flags.split())
        assert bool(info.caps.x86_vbmi) == ("avx512vbmi" in flags.split())
    if info.type == "cpu" and device == "Portable Computing Language":
        assert bool(info.caps.x86_bf16) == ("avx512_bf16" in flags.split())
        assert bool(info.caps.x86_amx) == may_use_tiles()
    assert info.caps.x86_bf16 or not info.caps.fast_bf16
    if "NVIDIA" not in info.vendor.upper():
        instructions = [name for name in CAPABILITY_NAMES if name.startswith("ptx_")]
        assert len(instructions) == 4
        assert {getattr(info.caps, n).reason for n in instructions} == {"not an NVIDIA device"}


def test_unprobed_capabilities_are_false() -> None:
    assert not any(getattr(Capabilities(), name) for name in CAPABILITY_NAMES)


def test_buffers_are_no_larger_than_seen() -> None:
    info = replace(MACHINE[0], why_not="", max_alloc=3 << 30)
    assert module._within(info).max_alloc == 2 << 30
    sure = replace(info, caps=Capabilities(large_buffers=Capability(True)))
    assert module._within(sure).max_alloc == module._within(replace(info, why_not="no")).max_alloc
    assert module._within(sure).max_alloc == 3 << 30
