"""x86's instructions as Intel's compiler for CPUs takes them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from x86_in_c import BODIES, CHANGING, x86_in_c

from clnn.runtime.device.device import open_context, select
from clnn.runtime.drivers.assembly import FUNCTIONS, for_intel, taken_by
from clnn.runtime.drivers.in_turn import INTEL
from clnn.runtime.drivers.loader import load

PROBES = Path(__file__).resolve().parents[2] / "kernels_cl" / "_probe"


@pytest.mark.parametrize("name", ["x86_vnni", "x86_vbmi", "x86_madd"])
def test_every_statement_of_the_probes_is_made_another(name):
    source = (PROBES / f"{name}.cl").read_text()
    made = for_intel(source)
    assert source.count("__asm__") > 1
    assert not re.search(r'"[+=]?[vx]"', made)
    calls = made.replace(FUNCTIONS, "").count("= clnn_vpdpbusd(")
    assert made.replace(FUNCTIONS, "").count("__asm__") == source.count("__asm__") - calls
    assert calls == source.count("vpdpbusd %2") * (name == "x86_vnni")


def test_operands_may_hold_brackets():
    made = for_intel(
        'x; __asm__("vpmaddwd %2, %1, %0" : "=x"(pair_) : "x"(as_int8(a << (short16)8)), "x"(b[f(1)])); y'
    )
    assert made == FUNCTIONS + (
        "x; { __typeof__(clnn_floats(pair_)) held_;"
        ' __asm__("vpmaddwd %2, %1, %0" : "=X"(held_) :'
        ' "X"(clnn_floats(as_int8(a << (short16)8))), "X"(clnn_floats(b[f(1)])));'
        " pair_ = __builtin_astype(held_, __typeof__(pair_)); } y"
    )


def test_sums_of_other_instructions_begin_with_what_they_hold():
    made = for_intel('__asm__("vdpbf16ps %2, %1, %0" : "+v"(a0) : "v"(s), "v"(b0));')
    assert "held_ = clnn_floats(a0);" in made
    assert '"+X"(held_)' in made


def test_other_assembly_is_left_as_it_is():
    text = '__asm__("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum_) : "r"(x), "r"(w));'
    assert for_intel(text) == text


def test_other_devices_get_what_was_written(device):
    info, source = select(device), (PROBES / "x86_vnni.cl").read_text()
    handle = open_context(info)[1]
    assert (taken_by(handle, source) == source) == (info.platform != INTEL)


WAYS = [(name, width) for name in (*BODIES, "vcvtps2dq") for width in (16, 8)]
WAYS.remove(("vpermi2b", 8))


@pytest.mark.parametrize(("name", "width"), [*WAYS, ("vpdpbusd", 4), ("vpdpwssd", 4)])
def test_instructions_do_what_c_does(device, name, width):
    """Each instruction of kernels on all sorts of bytes, beside its function in C on the same device."""
    info = select(device)
    wide = info.caps.x86_vbmi if name == "vpermi2b" else info.caps.x86_vnni
    if not (wide if width != 8 or name.startswith("vpdp") else info.caps.x86_madd):
        pytest.skip("the device does not build the instruction")
    source = _kernel(name, width)
    want = _run(info, x86_in_c(source, width)[0], width)
    got = _run(info, source, width)
    assert np.array_equal(got, want)
    assert len(np.unique(got)) > 8


def _kernel(name: str, width: int) -> str:
    r = "x" if width == 8 else "v"
    if name == "vcvtps2dq":
        line = f'__asm__("vcvtps2dq %1, %0" : "={r}"(sum) : "{r}"(real));'
    else:
        change = "+" if name in CHANGING else "="
        line = f'__asm__("{name} %2, %1, %0" : "{change}{r}"(sum) : "{r}"(left), "{r}"(right));'
    return (
        f"__kernel void one(__global const int{width} *a, __global const int{width} *b,"
        f" __global int{width} *acc) {{\n  const int i = get_global_id(0);\n"
        f"  int{width} sum = acc[i];\n  const int{width} left = a[i], right = b[i];\n"
        f"  const float{width} real = convert_float{width}(left % 1000003) / 2;\n"
        f"  {line}\n  acc[i] = sum;\n}}\n"
    )


def _run(info, source: str, width: int) -> np.ndarray:
    cl, random = load(), np.random.default_rng(7)
    context, handle = open_context(info)
    queue = cl.CommandQueue(context)
    program = cl.Program(context, taken_by(handle, source)).build(cache_dir=False)
    words = [random.integers(-(2**31), 2**31, 8 * width).astype(np.int32) for _ in range(3)]
    for given in words:
        given[::2] >>= 15  # shorts that packs keep, beside those that they saturate
    flags = cl.mem_flags
    buffers = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=w) for w in words]
    cl.Kernel(program, "one")(queue, (8,), (1,), *buffers)
    out = np.empty_like(words[2])
    cl.enqueue_copy(queue, out, buffers[2])
    queue.finish()
    return out
