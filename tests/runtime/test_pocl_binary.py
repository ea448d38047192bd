"""Binaries of PoCL without the code that kernels for any work-group have no need of."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from clnn.runtime.build.pocl_binary import MAGIC, NOTHING, quick_to_load
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select

CODE = b"BC\xc0\xde" + bytes(range(200))
SOURCE = """__kernel void first(__global float *x) { x[get_global_id(0)] += 1; }
__kernel void second(__global float *x) { x[get_global_id(0)] *= 3; }
__kernel void third(__global float *x) {
  __local float kept[8];
  const size_t last = get_local_size(0) - 1;
  kept[get_local_id(0)] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] = kept[last - get_local_id(0)];
}
"""
NAMES = ("first", "second", "third")


FOLDER = b"AG/" + b"HEOPC" * 7 + b"AB\0"


def made(version=9, kernels=("k",), path=b"/program.bc", code=CODE, folder=FOLDER):
    """Return a binary of PoCL's form."""
    file = struct.pack("<I", len(path)) + path + struct.pack("<I", len(code)) + code
    head = MAGIC + struct.pack("<QIIQI", 7, version, len(kernels), 0, 1) + folder
    parts = [f"/{k}/0-0-0/{k}.so\x05\0\0\0text.".encode() for k in kernels]
    return head + struct.pack("<Q", len(file)) + file + b"".join(parts)


@pytest.fixture(autouse=True)
def one_kernel_for_all_groups(monkeypatch):
    monkeypatch.setenv("POCL_WORK_GROUP_SPECIALIZATION", "0")


def test_the_code_becomes_that_of_nothing():
    for kernels in (("k",), ("a", "b")):
        short = quick_to_load(made(kernels=kernels))
        assert short == made(kernels=kernels, code=NOTHING, folder=short[36:77])
        assert short[36:77] != FOLDER and re.fullmatch(rb"[A-P]{2}/[A-P]{37}\0", short[36:77])


@pytest.mark.parametrize(
    "binary",
    [
        b"",
        b"\x7fELF" * 40,
        made(version=10),
        made(folder=b"a text of 41 characters that is no folder"),
        made(path=b"/program.xx"),
        made(code=b"text of another kind"),
        made(kernels=()) + b"/k/0-0-0/k.so",
        made().replace(b"0-0-0", b"8-1-1"),
        made().replace(struct.pack("<I", len(CODE)), struct.pack("<I", 1 << 30)),
        made()[:90],
    ],
)
def test_others_stay_as_they_are(binary):
    assert quick_to_load(binary) is binary


def test_kernels_for_fixed_groups_may_need_it(monkeypatch):
    binary = made()
    monkeypatch.setenv("POCL_WORK_GROUP_SPECIALIZATION", "1")
    assert quick_to_load(binary) is binary
    monkeypatch.delenv("POCL_WORK_GROUP_SPECIALIZATION")
    assert quick_to_load(binary) is binary


def test_what_was_loaded_in_part_computes_and_is_kept_whole(any_device):
    info = select(any_device)
    built = Device.open(info)
    built.build({"both": SOURCE})
    binary = built.binary(SOURCE)
    again = Device.open(info)
    again.ahead[SOURCE] = binary
    again.build({"both": SOURCE})
    assert again.counts.pair == (1, 0) and again.binary(SOURCE) == binary
    if info.platform == "Portable Computing Language" and binary[16:20] == b"\x09\0\0\0":
        assert len(quick_to_load(binary)) < len(binary)
    anew = Device.open(info)  # from its source, where PoCL looks for an earlier build
    anew.programs[SOURCE] = anew._build_here(SOURCE, "both")
    import pyopencl as cl

    assert [anew.kernel(SOURCE, name).num_args for name in NAMES] == [1, 1, 1]
    local = cl.kernel_work_group_info.LOCAL_MEM_SIZE
    sizes = [
        opened.kernel(SOURCE, "third").get_work_group_info(local, opened.handle)
        for opened in (built, again)
    ]
    assert sizes[0] == sizes[1] >= 32
    for size in (1, 4):
        x = np.arange(8, dtype=np.float32)
        buffer = cl.Buffer(again.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        queue = cl.CommandQueue(again.context)
        for name in NAMES:
            kernel = again.kernel(SOURCE, name)
            kernel.set_arg(0, buffer)
            cl.enqueue_nd_range_kernel(queue, kernel, (8,), (size,))
        out = np.empty_like(x)
        cl.enqueue_copy(queue, out, buffer)
        assert np.array_equal(out, ((x + 1) * 3).reshape(-1, size)[:, ::-1].ravel())
