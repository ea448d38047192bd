"""Launches without events: what they compute, and what becomes of a launch that the driver refuses."""

from __future__ import annotations

import numpy as np
import pytest

from clnn.runtime.device.device import open_context, select
from clnn.runtime.drivers import eventless
from clnn.runtime.drivers.loader import load

SOURCE = """
__kernel void add(__global int *out, const int step)
{
    out[get_global_id(1) * get_global_size(0) + get_global_id(0)] += step * (int)get_local_size(0);
}
"""


@pytest.fixture
def opened(device):
    """A queue, a buffer of 12 integers and a kernel that adds to them."""
    cl, (context, _) = load(), open_context(select(device))
    queue = cl.CommandQueue(context)
    out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 48)
    cl.enqueue_copy(queue, out, np.arange(12, dtype=np.int32))
    kernel = cl.Program(context, SOURCE).build(cache_dir=False).add
    kernel.set_args(out, np.int32(5))
    return queue, out, kernel


def values(queue, out):
    found = np.empty(12, np.int32)
    load().enqueue_copy(queue, found, out)
    return found.tolist()


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_launches_come_one_behind_the_other(opened, kind):
    queue, out, kernel = opened
    launch = eventless.launch_on(kind, queue, kernel, (4, 3), (2, 1))
    for _ in range(50):
        launch()
    assert values(queue, out) == [k + 500 for k in range(12)]


def test_a_launch_has_no_event_on_gpus_alone(opened):
    queue, _, kernel = opened
    assert eventless.launch_on("gpu", queue, kernel, (4, 3), (1, 1))() is None
    assert eventless.launch_on("cpu", queue, kernel, (4, 3), (1, 1))() is not None


def test_a_refused_launch_is_pyopencls_error(opened):
    queue, out, kernel = opened
    with pytest.raises(load().Error, match="INVALID_WORK_GROUP_SIZE"):
        eventless.launch_on("gpu", queue, kernel, (4, 3), (2**20, 1))()
    assert values(queue, out) == list(range(12))


def test_what_takes_the_drivers_place_gets_events(opened, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/liboclgrind-rt.so")
    assert eventless._function.__wrapped__() is None
    monkeypatch.setattr(eventless, "_function", lambda: None)
    queue, _, kernel = opened
    assert eventless.launch_on("gpu", queue, kernel, (4, 3), (1, 1))() is not None
