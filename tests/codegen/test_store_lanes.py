"""Vectors of results stored element by element, at any pitch, between elements that are another's."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal
from launch import run

HEAD = '<%namespace name="tl" file="_common/tile.cl.mako"/>'
POISON, EACH = np.float32(-77.5), 80


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Return a function that stores lanes of vectors, one for each work-item, and what becomes of `dst`."""
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path))

    def call(device, width, pitch, first, end, src, at):
        store = f'${{tl.store_lanes({width}, "v", "dst", "at + {EACH} * get_global_id(0)", {pitch}, {first}, {end})}}'
        (tmp_path / "t.cl.mako").write_text(
            f"{HEAD}\n${{group_size(wg)}}\n__kernel void ${{name}}(__global const float *src, __global float *dst,"
            f" const int at)\n{{\n    const float{width} v = vload{width}(get_global_id(0), src);\n{store}\n}}\n"
        )
        dst = np.full(len(src) // width * EACH + 2 * at, POISON)
        params = {"name": "t", "wg": (1,)}
        return run(device, "t.cl.mako", params, [src, dst, at], (len(src) // width,))[1]

    return call


@pytest.mark.parametrize("pitch", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [8, 16])
def test_elements_between_keep_what_they_have(device, stored, width, pitch):
    items = 3
    src = normal((items * width,), 5)
    for first, end in [(0, width), (0, width - 1), (1, width), (0, 7), (0, 3), (5, 6)]:
        want = np.full(items * EACH + 6, POISON)
        for item in range(items):
            for lane in range(first, end):
                want[3 + item * EACH + lane * pitch] = src[item * width + lane]
        got = stored(device, width, pitch, first, end, src, 3)
        np.testing.assert_array_equal(got, want)
