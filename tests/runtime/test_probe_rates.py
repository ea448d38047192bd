"""What the probe measures of GPUs, and what estimates make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import single_node
from targets import GPU

from clnn.cli.devices import table
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import (
    ELEMENT,
    LAUNCH,
    MOST_ELEMENT,
    GemmShape,
    element_slots,
    fetch_slots,
    group_tiles,
    second_launch,
)
from clnn.plan.schedule import make_plan
from clnn.runtime.device import probe, probe_rates, probe_registers
from clnn.runtime.device.device import probe_target, select
from clnn.runtime.device.probe import MEASURED, StepResult
from clnn.runtime.device.probe_bench import ProbeBench, RefusedError
from clnn.runtime.device.probe_child import STEPS
from clnn.runtime.device.target import measured, target_of
from clnn.runtime.drivers.loader import load
from clnn.target import Target


@pytest.fixture
def bench(device: str) -> ProbeBench:
    cl = load()
    info = select(device)
    handles = [d for p in cl.get_platforms() for d in p.get_devices()]
    handle = next((d for d in handles if d.name.strip() == info.name), None)
    if handle is None:
        pytest.skip("this process does not see the device")
    return ProbeBench(cl, handle, [info.cl_std])


@pytest.mark.parametrize("step", MEASURED)
def test_rates_are_measured(bench: ProbeBench, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps themselves, on a device that is no GPU and with little work."""
    monkeypatch.setattr(probe_rates, "_need_gpu", lambda bench: None)
    small = {"ITEMS": 8, "COPY_BYTES": 1 << 20, "ENOUGH_S": 1e-5, "MOST_ROUNDS": 512}
    for name, value in (small | {"LAUNCHES": 8}).items():
        monkeypatch.setattr(probe_rates, name, value)
    assert STEPS[step](bench) >= 1


@pytest.mark.parametrize("step", [*MEASURED, "large_registers", "wave64"])
def test_cpus_are_not_measured(bench: ProbeBench, step: str) -> None:
    if bench.device.type & bench.cl.device_type.GPU:
        pytest.skip("a GPU")
    with pytest.raises(RefusedError, match=r"not (measured: not )?a GPU"):
        STEPS[step](bench)


def test_rates_come_with_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a step that found nothing leaves nothing known."""
    names = (*probe.REQUIRED, *probe.CAPABILITY_NAMES, *MEASURED)
    steps = {name: StepResult(True, value=7) for name in names}
    steps |= {"copy_rate": StepResult(True, value=9), "launch_time": StepResult(False, "late")}
    monkeypatch.setattr(probe, "run_steps", lambda *_: steps)
    target = replace(probe_target(select("Portable")), name="one that nobody has")
    assert probe.probe(target, refresh=True).rates == (7, 9, 0)
    assert probe.probe(target).rates == (7, 9, 0)


def test_many_values_are_what_the_probe_says(bench: ProbeBench) -> None:
    """The kernel that tells how many registers there are, without the option."""
    x = np.random.default_rng(3).random((probe_registers.VALUES, 32), np.float32)
    kernel = bench.kernel("large_registers", "many")
    got = bench.run(kernel, 32, None, (np.int32(probe_registers.ROUNDS), x), x)
    assert np.allclose(got, probe_registers.summed(x), rtol=1e-5)


def test_a_target_has_two_digits_of_them() -> None:
    """So that noise of a measurement is no other plan."""
    info = replace(
        select("Portable"), multiply_rate=33_512_345, copy_rate=2_712_345, launch_ns=1234
    )
    assert measured(info, 132) == (310_000, 49)
    found = target_of(info)
    assert (found.launch_products, found.element_products) == measured(info, found.compute_units)
    assert measured(replace(info, multiply_rate=0), 132) == (0, 0)
    assert measured(replace(info, copy_rate=0), 132) == (310_000, 0)


def test_the_list_of_devices_has_them() -> None:
    info = select("Portable")
    gpu = replace(info, multiply_rate=33_500_000, copy_rate=2_700_000, launch_ns=1500)
    want = "take 67000 GFLOP/s, 2700 GB/s and 1.5 us a launch, from the probe"
    assert want in table([gpu]) and "estimates" not in table([info])


def test_what_was_not_measured_is_as_of_a_large_gpu() -> None:
    assert (element_slots(GPU), fetch_slots(GPU)) == (ELEMENT, 6)
    assert second_launch(GPU) == LAUNCH * GPU.lanes
    same = replace(GPU, element_products=ELEMENT, launch_products=int(LAUNCH * GPU.lanes * 8))
    sums = GemmShape(500, 300, 4000)
    assert group_tiles(sums, same) == group_tiles(sums, GPU)
    assert element_slots(replace(GPU, element_products=10**6)) == MOST_ELEMENT


def chosen(target: Target) -> str:
    spec = Conv2d(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
    inputs = [np.zeros((1, 64, 56, 56), np.float32), np.zeros((64, 64, 3, 3), np.float32), None]
    plan = make_plan(single_node(spec, inputs, (1,)), target)
    return next(step.variant.name for step in plan.scheduled if step.node.name == "node")


def test_kernels_follow_the_rates() -> None:
    """Three launches and more memory for fewer products: where both are cheap."""
    large = replace(GPU, compute_units=32, local_bytes=49152)
    cheap = replace(large, element_products=8, launch_products=1000)
    assert "winograd_workgroup" in chosen(cheap)
    assert "winograd_workgroup" not in chosen(replace(cheap, launch_products=4_000_000))
    assert "winograd_workgroup" not in chosen(replace(cheap, element_products=MOST_ELEMENT))


def test_few_tiles_are_divided_where_a_launch_is_cheap() -> None:
    sums = GemmShape(64, 64, 4096)
    cheap, dear = (replace(GPU, compute_units=64, launch_products=n) for n in (1000, 40_000_000))
    assert group_tiles(sums, cheap)[0].slices > 1
    assert group_tiles(sums, dear)[0].slices == 1
