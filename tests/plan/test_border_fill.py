"""The launch that fills borders: all of the padding and nothing else, by one work-item of a line or by many."""

from __future__ import annotations

import numpy as np
import pytest
from targets import CPU, GPU

from clnn.codegen.render import render
from clnn.layout import TensorLayout, channels_last
from clnn.plan.border import MOST_WIDE, fill_launch
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.drivers.loader import load
from clnn.types import F32, I8, U8

GUARD = 64
LAYOUTS = {
    "nhwc": ((2, 5, 4, 3), (0, 2, 3, 1), (0, 0, 1, 1), (0, 0, 1, 2)),
    "wide": ((1, 300, 3, 2), (0, 2, 3, 1), (0, 0, 1, 1), (0, 0, 1, 1)),
    "nchw": ((2, 3, 4, 5), (0, 1, 2, 3), (0, 0, 2, 1), (0, 0, 1, 3)),
    "below": ((2, 5, 4, 3), (0, 2, 3, 1), (0, 0, 0, 0), (0, 0, 1, 0)),
    "front": ((1, 7, 9), (0, 2, 1), (0, 0, 3), (0, 0, 0)),
    "volume": ((1, 6, 3, 2, 4), (0, 2, 3, 4, 1), (0, 0, 1, 0, 1), (0, 0, 0, 2, 1)),
}


def padding(layout):
    """Return which elements of a storage are padding."""
    whole = np.ones(layout.size, bool)
    real = np.lib.stride_tricks.as_strided(
        whole[layout.offset :], layout.shape, layout.pitches, writeable=True
    )
    real[...] = False
    return whole


@pytest.mark.parametrize(("dtype", "fill"), [(F32, 0.0), (F32, -np.inf), (U8, 77), (I8, -3)])
@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_padding_alone_is_written(device, name, target, dtype, fill):
    shape, order, before, after = LAYOUTS[name]
    layout = TensorLayout.make(shape, order, before, after)
    launch = fill_launch(layout, dtype, fill, target)
    assert (launch.params["wide"] > 1) == (target is GPU)
    cl, opened = load(), Device.open(select(device))
    source = render(launch.template, launch.params)
    opened.build({launch.params["name"]: source})
    kernel = opened.kernel(source, launch.params["name"])
    host = np.random.default_rng(0).integers(1, 60, layout.size + 2 * GUARD).astype(dtype.numpy)
    queue = cl.CommandQueue(opened.context)
    buffer = cl.Buffer(opened.context, cl.mem_flags.READ_WRITE, host.nbytes)
    cl.enqueue_copy(queue, buffer, host)
    kernel.set_args(buffer, np.int32(GUARD))
    cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
    found, wanted = np.empty_like(host), host.copy()
    cl.enqueue_copy(queue, found, buffer)
    wanted[GUARD:-GUARD][padding(layout)] = fill
    assert found.tobytes() == wanted.tobytes()


def test_work_items_of_a_line_are_bounded():
    layout = TensorLayout.make((1, 2048, 7, 7), channels_last(4), (0, 0, 1, 1), (0, 0, 1, 1))
    launch = fill_launch(layout, F32, 0.0, GPU)
    assert launch.global_size == (MOST_WIDE, 9) and launch.params["wide"] == MOST_WIDE
    assert fill_launch(layout, F32, 0.0, CPU).global_size == (9,)
