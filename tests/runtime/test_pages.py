"""Host memory as device memory: zeros, whole pages, alive as long as its buffer."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pyopencl as cl
import pytest

import clnn
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.drivers.pages import LARGE, SMALL, host_buffer, pages


@pytest.mark.parametrize("nbytes", [0, 1, LARGE, LARGE + 1])
def test_pages_are_zeros_at_the_begin_of_a_page(nbytes):
    made = pages(nbytes)
    page = LARGE if nbytes >= LARGE else SMALL
    assert made.dtype == np.uint8 and made.size % page == 0
    assert max(nbytes, 1) <= made.size < max(nbytes, 1) + page
    assert made.ctypes.data % 4096 == 0 and not made.any()


def test_a_buffer_keeps_its_host_memory(device):
    opened = Device.open(select(device))
    queue = cl.CommandQueue(opened.context)
    host = pages(LARGE)
    host[:1000] = np.arange(1000) % 251
    buffer = host_buffer(opened.context, host)
    del host
    gc.collect()
    found = np.empty(LARGE, np.uint8)
    cl.enqueue_copy(queue, found, buffer)
    assert np.array_equal(found[:1000], np.arange(1000) % 251) and not found[1000:].any()


def test_constants_that_outgrow_their_memory_are_moved(device, monkeypatch):
    from small_graphs import GRAPHS

    import clnn.runtime.run.constants as constants

    graph = GRAPHS["classifier"]()
    with clnn.compile_model(graph, device) as session:
        want = _all_bytes(session)
    asked: list[int] = []

    def short_at_first(nbytes):
        asked.append(nbytes)
        return pages(nbytes)[: 64 if len(asked) == 1 else None]

    monkeypatch.setattr(constants, "pages", short_at_first)
    with clnn.compile_model(graph, device) as session:
        assert session._constants.whole is not None and len(asked) > 1
        assert _all_bytes(session) == want


def _all_bytes(session):
    return [_bytes(session, session._constants, a) for a in _args(session)]


def _args(session):
    from clnn.plan.plan import ConstArg

    return [a for launch in session.plan.launches for a in launch.args if isinstance(a, ConstArg)]


def _bytes(session, constants, arg):
    buffer = constants.buffer(arg)
    found = np.empty(buffer.size, np.uint8)
    cl.enqueue_copy(cl.CommandQueue(session._device.context), found, buffer)
    return found.tobytes()


def test_refused_memory_is_a_memory_error(monkeypatch):
    def full(*args: object, **more: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(MemoryError, match=r"\d+ bytes were refused \(Cannot allocate memory\)"):
        pages(5000)
