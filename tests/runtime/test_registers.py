"""What NVIDIA's compiler tells of registers is read, told once, and kept with the binary."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest
from small_graphs import Builder

from clnn.cache.store import Store
from clnn.plan.schedule import first_variant, make_plan
from clnn.runtime.build import program as module
from clnn.runtime.build import registers
from clnn.runtime.build.build_child import main as child_build
from clnn.runtime.build.program import EXACT_QUOTIENTS, Device, key_of, options_of
from clnn.runtime.build.registers import Registers, of_log, spills_of
from clnn.runtime.device.device import ROUNDS_QUOTIENTS, Capability, open_context, select
from clnn.runtime.device.target import target_of
from clnn.runtime.drivers.loader import load
from clnn.runtime.run import trial_child
from clnn.runtime.run.spills import replace_spilling_kernels
from clnn.target import LARGE_REGISTERS

ROOM = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'saxpy' for 'sm_90'
ptxas info    : Function properties for 'saxpy'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 512 bytes smem, 380 bytes cmem[0]
"""
NO_ROOM = """
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers
ptxas info    : Function properties for second
    136 bytes stack frame, 120 bytes spill stores, 148 bytes spill loads
ptxas info    : Used 255 registers, 380 bytes cmem[0]
"""
STACK = "64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 32 registers\n"
SOURCE = "__kernel void {name}(__global float *x) {{ x[get_global_id(0)] *= 2; }}\n"


def test_logs():
    assert of_log(ROOM) == Registers(40, 0) and spills_of(ROOM) == ""
    assert of_log(ROOM.replace("\n", "\r\n")) == Registers(40, 0)
    assert of_log(NO_ROOM) == Registers(255, 148)
    assert spills_of(NO_ROOM) == "148 bytes of registers are kept in memory (255 registers used)"
    assert of_log(STACK) == Registers(32, 0) and spills_of(STACK) == ""
    for nothing in ("", "Device build done\n", "warning: 12 bytes\n"):
        assert of_log(nothing) is None and spills_of(nothing) == ""


def test_logs_of_intels_compiler():
    told = "warning: kernel {}  compiled SIMD32 allocated 128 regs and spilled around {}\n"
    assert of_log(told.format("gemm", 204) + told.format("conv", 12)) == Registers(128, 204 * 32)
    assert spills_of(told.format("gemm", 204)).startswith(
        "6528 bytes of registers are kept in memory"
    )
    assert registers.are_told("Intel(R) OpenCL Graphics", "gpu")
    assert not registers.are_told("Intel(R) OpenCL", "cpu")
    assert registers.are_told("NVIDIA CUDA", "gpu") and not registers.are_told("rusticl", "gpu")


def test_gpus_are_told_to_round_quotients_where_they_can(device):
    """CPUs round them anyhow, and their programs keep their keys."""
    states = replace(select(device), rounds_quotients=True)
    assert EXACT_QUOTIENTS not in options_of(replace(states, type="cpu"))
    assert EXACT_QUOTIENTS in options_of(replace(states, type="gpu"))
    assert EXACT_QUOTIENTS not in options_of(replace(states, type="gpu", rounds_quotients=False))


def test_a_program_builds_with_exact_quotients_where_a_driver_states_them(device):
    info = select(device)
    context, handle = open_context(info)
    stated = handle.get_info(load().device_info.SINGLE_FP_CONFIG) & ROUNDS_QUOTIENTS
    assert info.rounds_quotients == bool(stated)
    if stated:
        load().Program(context, "__kernel void none() {}").build([EXACT_QUOTIENTS], cache_dir=False)


def test_only_nvidia_is_asked(device):
    info = replace(select(device), platform="Portable Computing Language")
    assert registers.VERBOSE not in options_of(info)
    assert options_of(replace(info, platform="NVIDIA CUDA"))[-1] == registers.VERBOSE


@pytest.fixture
def opened(device, tmp_path):
    found = Device.open(select(device))
    found.store = Store(tmp_path)
    return found


@pytest.mark.parametrize("log,told", [(ROOM, ""), (NO_ROOM, spills_of(NO_ROOM))])
def test_a_build_tells_it_and_keeps_it(opened, monkeypatch, caplog, log, told):
    monkeypatch.setattr(registers, "build_log", lambda *_: log)
    source = SOURCE.format(name="twice")
    with caplog.at_level(logging.INFO, "clnn"):
        opened.build({"twice": source})
    entry = opened.store.get(opened.key(source))
    assert entry is not None and entry.meta.get("spills", "") == told
    assert [told in r.getMessage() for r in caplog.records] == ([True] if told else [])


def test_a_child_tells_it_too(opened, monkeypatch, caplog):
    """Sources that child processes build: what they write is found and told."""

    def run(name, argument, *_):
        monkeypatch.setattr(registers, "build_log", lambda *_: NO_ROOM)
        child_build(argument)
        return [], ""

    monkeypatch.setattr(module, "run_python", run)
    monkeypatch.setenv("CLNN_BUILD_JOBS", "2")
    sources = {f"k{n}": SOURCE.format(name=f"k{n}") for n in range(module.CHILDREN_FROM)}
    with caplog.at_level(logging.INFO, "clnn"):
        opened.build(sources)
    assert set(opened.spills) == set(sources.values())
    assert all(opened.store.get(opened.key(s)).meta["spills"] for s in sources.values())
    assert sum("148 bytes" in r.getMessage() for r in caplog.records) == len(sources)


@pytest.mark.parametrize("log,kept", [(ROOM, True), (NO_ROOM, False)])
def test_the_tuners_child_keeps_no_such_binary(device, monkeypatch, tmp_path, log, kept):
    info = select(device)
    bench = trial_child._TrialBench(
        {"platform": info.platform_index, "device": info.device_index, "options": options_of(info)}
    )
    monkeypatch.setattr(registers, "build_log", lambda *_: log)
    source, binary = tmp_path / "k.cl", tmp_path / "k.bin"
    source.write_text(SOURCE.format(name="twice"))
    reply = bench.answer({"build": str(source), "binary": str(binary)})
    assert reply["fault"] == "" and bool(reply.get("spills")) == (not kept)
    assert binary.exists() == kept


def test_a_program_is_built_with_the_registers_that_it_asks_for():
    asks, plain = f"{LARGE_REGISTERS}\n__kernel void k() {{}}", "__kernel void k() {}"
    assert registers.options_with(["-x"], asks, True) == ["-x", registers.LARGE]
    for source, takes in ((asks, False), (plain, True), ("", True)):
        assert registers.options_with(["-x"], source, takes) == ["-x"]
    info = select("Portable")
    takes = replace(info, caps=replace(info.caps, large_registers=Capability(True)))
    assert options_of(takes, asks) == [*options_of(info, asks), registers.LARGE]
    assert key_of(takes, asks) != key_of(info, asks) and key_of(takes, plain) == key_of(info, plain)


def test_the_log_of_a_build_is_read(opened):
    """Whatever the driver says, it is text; none but NVIDIA's tells of registers."""
    source = SOURCE.format(name="thrice")
    opened.build({"thrice": source})
    text = registers.build_log(opened.programs[source], opened.handle)
    asked = registers.VERBOSE in options_of(opened.info)
    assert isinstance(text, str) and (of_log(text) is None or asked)


def lacking(monkeypatch, *parts: str) -> None:
    """Let sources in which one of these texts occurs lack registers."""
    monkeypatch.setattr(module, "options_of", lambda info: [info.cl_std, registers.VERBOSE])

    def build(self, sources):
        self.spills |= {s: "40 bytes" for s in sources.values() if any(p in s for p in parts)}

    monkeypatch.setattr(Device, "build", build)


def choice_of(device: str, monkeypatch, *parts: str) -> str:
    """Return the kernel that a convolution ends up with where these lack registers."""
    lacking(monkeypatch, *parts)
    info = select(device)
    b = Builder(x=(1, 16, 13, 12))
    graph = b.graph(b.conv("x", 32))
    plan_by = partial(make_plan, graph, target_of(info))
    plan = replace_spilling_kernels(plan_by(), plan_by, first_variant, Device.open(info))
    return next(s.variant.name for s in plan.scheduled if s.node.spec.kind == "conv2d")


def test_a_session_takes_the_next_kernel(device, monkeypatch, caplog):
    first = choice_of(device, monkeypatch, "no such kernel")
    second = choice_of(device, monkeypatch, f" {first}(")
    third = choice_of(device, monkeypatch, f" {first}(", f" {second}(")
    assert len({first, second, third}) == 3
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "clnn"):
        assert choice_of(device, monkeypatch, "__kernel")
    assert "lacks registers" in caplog.text


def test_other_compilers_are_not_asked(device, monkeypatch):
    lacking(monkeypatch, "__kernel")
    monkeypatch.setattr(module, "options_of", lambda info: [info.cl_std])
    made = object()
    assert replace_spilling_kernels(made, None, None, Device.open(select(device))) is made


def test_the_cache_tells_it_too(opened, device, monkeypatch):
    source = SOURCE.format(name="again")
    with monkeypatch.context() as patch:
        patch.setattr(registers, "build_log", lambda *_: NO_ROOM)
        opened.build({"again": source})
    later = Device.open(select(device))
    later.store = opened.store
    later.build({"again": source})
    assert later.from_cache == {source} and later.spills == opened.spills != {}
