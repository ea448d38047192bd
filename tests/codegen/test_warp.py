"""Warp primitives alone: the emulated bodies against the formulas of the PTX ISA in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from fragments import (
    DEPTH,
    STORED,
    SUM,
    a_places,
    b_places,
    c_places,
    decode,
    encode,
    ldmatrix,
    shuffled,
    words,
)
from launch import run

from clnn.codegen.render import render

HEAD = '<%namespace name="pt" file="_common/ptx.cl.mako"/>'
WARPS = 2


@pytest.fixture
def on_warps(tmp_path, monkeypatch):
    """Return a function that runs statements on WARPS warps: arrays in and out, by name."""
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path))

    def call(device, statements, out, kinds=(), exchange=256, copies=0, **arrays):
        types = {np.uint32: "uint", np.uint16: "ushort", np.float32: "float", np.int32: "int"}
        given = "".join(f"__global {types[a.dtype.type]} *{n}, " for n, a in arrays.items())
        (tmp_path / "t.cl.mako").write_text(
            HEAD
            + f"${{pt.declare(body, {kinds!r}, {copies})}}\n"
            + f"${{group_size(wg)}}\n__kernel void ${{name}}({given}__global uint *out)\n{{\n"
            + "    __local uint memory[1024] __attribute__((aligned(128)));\n"
            + "    const int id = get_local_id(0), lane = id & 31;\n"
            + f'    ${{pt.prepare(body, {exchange}, {WARPS}, "memory", 4096)}}\n{statements}\n}}\n'
        )
        params = {"name": "t", "wg": (32 * WARPS,), "body": "emulated"}
        *_, found = run(device, "t.cl.mako", params, [*arrays.values(), out], (32 * WARPS,))
        assert "asm" in render("t.cl.mako", params | {"body": "ptx"})
        return found

    return call


@pytest.mark.parametrize("kind", DEPTH)
@pytest.mark.parametrize("mi,ni", [(1, 1), (2, 3)])
def test_products_take_and_give_fragments(device, on_warps, kind, mi, ni):
    rng, depth = np.random.default_rng(mi), DEPTH[kind]
    a = encode(kind, rng.integers(-99, 99, (WARPS, mi, 16, depth)).astype(np.float32))
    b = encode(kind, rng.integers(-99, 99, (WARPS, ni, depth, 8)).astype(np.float32))
    c = rng.integers(-999, 999, (WARPS, mi, ni, 16, 8)).astype(SUM[kind])
    regs = [
        words(a[(..., *a_places(kind))].reshape(-1, a_places(kind)[0].shape[1])).reshape(
            WARPS, mi, 32, 4
        ),
        words(b[(..., *b_places(kind))].reshape(-1, b_places(kind)[0].shape[1])).reshape(
            WARPS, ni, 32, 2
        ),
        c[(..., *c_places())].view(np.uint32),
    ]
    flat = [np.moveaxis(r, -2, 1).reshape(WARPS * 32, -1) for r in regs]
    form = "float" if SUM[kind] is np.float32 else "int"
    text = f"""    uint a[{4 * mi}], b[{2 * ni}]; {form} c[{4 * mi * ni}];
    for (int i = 0; i < {4 * mi}; ++i) a[i] = left[id * {4 * mi} + i];
    for (int i = 0; i < {2 * ni}; ++i) b[i] = right[id * {2 * ni} + i];
    for (int i = 0; i < {4 * mi * ni}; ++i) c[i] = as_{form}(out[id * {4 * mi * ni} + i]);
    ${{pt.mma(body, "{kind}", {mi}, {ni}, "a", "b", "c")}}
    for (int i = 0; i < {4 * mi * ni}; ++i) out[id * {4 * mi * ni} + i] = as_uint(c[i]);"""
    left, right, out = (np.ascontiguousarray(f) for f in flat)
    got = on_warps(device, text, out, (kind,), 32 * (4 * mi + 2 * ni), left=left, right=right)
    got = np.moveaxis(got.view(SUM[kind]).reshape(WARPS, 32, mi, ni, 4), 1, 3)
    want = c + np.einsum("wimk,wjkn->wijmn", decode(kind, a), decode(kind, b))
    np.testing.assert_array_equal(got, want[(..., *c_places())])


def test_bits_below_tf32_are_not_taken_silently(device, on_warps):
    left = np.full(4 * 32 * WARPS, 0x3F800001, np.uint32)
    text = """    uint a[4] = {left[id], left[id], left[id], left[id]}, b[2] = {0x3f800000, 0x3f800000};
    float c[4] = {0, 0, 0, 0};
    ${pt.mma(body, "tf32", 1, 1, "a", "b", "c")}
    out[id] = as_uint(c[0]);"""
    got = on_warps(device, text, np.zeros(32 * WARPS, np.uint32), ("tf32",), left=left)
    assert np.isnan(got.view(np.float32)).all()


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_takes_rows_from_anywhere(device, on_warps, trans):
    rng = np.random.default_rng(2)
    memory = rng.integers(0, 1 << 16, 2048).astype(np.uint16)
    at = (rng.permutation(256)[: WARPS * 2 * 32] * 16).astype(np.uint32)
    text = f"""    for (int i = id; i < 1024; i += {32 * WARPS}) memory[i] = src[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    uint d[8];
    ${{pt.ldmatrix(body, 2, {trans}, "d", lambda i: f"shared_ + at[((id >> 5) * 2 + {{i}}) * 32 + lane]")}}
    for (int i = 0; i < 8; ++i) out[id * 8 + i] = d[i];"""
    got = on_warps(
        device, text, np.zeros(WARPS * 32 * 8, np.uint32), src=memory.view(np.uint32), at=at
    )
    want = [ldmatrix(memory, row, trans) for row in at.reshape(-1, 32)]
    want = np.stack(want).reshape(WARPS, 2, 32, 4).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(got, want.reshape(-1))


@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
@pytest.mark.parametrize("by", [0, 1, 5, 16, 31, 33])
def test_shuffles(device, on_warps, mode, by):
    src = np.random.default_rng(3).integers(0, 1 << 32, 32 * WARPS, np.uint32)
    text = f'    uint d;\n    ${{pt.shuffle(body, "d", "src[id]", "{mode}", "{by}")}}\n    out[id] = d;'
    got = on_warps(device, text, np.zeros_like(src), src=src)
    want = [shuffled(part, mode, by) for part in src.reshape(WARPS, 32)]
    np.testing.assert_array_equal(got, np.concatenate(want))


def test_dp4a(device, on_warps):
    rng = np.random.default_rng(4)
    left, right = (rng.integers(0, 1 << 32, 32 * WARPS, np.uint32) for _ in range(2))
    left[0] = right[0] = 0x80808080
    sums = rng.integers(-(1 << 30), 1 << 30, 32 * WARPS).astype(np.int32)
    text = """    int d = as_int(out[id]);
    ${pt.dp4a(body, "d", "left[id]", "right[id]")}
    out[id] = as_uint(d);"""
    got = on_warps(device, text, sums.view(np.uint32), ("s8",), left=left, right=right)
    products = left.view(np.int8).astype(np.int32) * right.view(np.int8).astype(np.int32)
    np.testing.assert_array_equal(got.view(np.int32), sums + products.reshape(-1, 4).sum(1))


COPY = """    for (int i = id; i < 1024; i += 64) memory[i] = 7;
    barrier(CLK_LOCAL_MEM_FENCE);
    ${pt.copy(body, "shared_ + id * 16", "src + id * 4", "bytes[id]")}
    ${pt.commit(body)}
    ${pt.copy(body, "shared_ + 1024 + id * 16", "src + 256 + id * 4", "bytes[64 + id]")}
    ${pt.commit(body)}
    ${pt.wait(body, OPEN)}
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < 1024; i += 64) out[i] = memory[i];"""


@pytest.mark.parametrize("open_groups", [0, 1, 2])
def test_copies_fill_with_zeros_and_arrive_when_waited_for(device, on_warps, open_groups):
    src = np.random.default_rng(5).integers(0, 1 << 32, 512, np.uint32)
    sizes = (np.arange(128) % 17).astype(np.uint32)
    got = on_warps(
        device,
        COPY.replace("OPEN", str(open_groups)),
        np.zeros(1024, np.uint32),
        copies=2,
        src=src,
        bytes=sizes,
    )
    want = np.where(np.arange(16) < sizes[:, None], src.view(np.uint8).reshape(128, 16), 0)
    want = want.astype(np.uint8).view(np.uint32).reshape(-1)
    arrived = 512 - 256 * open_groups
    np.testing.assert_array_equal(got[:arrived], want[:arrived])
    assert (got[arrived:512] == 0xFFFFFFFF).all(), "bytes that nobody waited for must not be there"
    assert (got[512:] == 7).all()


def finite_and_others() -> np.ndarray:
    """Floats around every rounding of halves, and NaN, infinities, zeros and subnormals."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (halves[:-1].astype(np.float64) + halves[1:]) / 2
        near = [np.nextafter(middle.astype(np.float32), np.float32(s)) for s in (-np.inf, np.inf)]
    rng = np.random.default_rng(6)
    wild = rng.integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    odd = np.array([0x38C01000, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 1], np.uint32)
    return np.concatenate([halves, middle.astype(np.float32), *near, wild, odd.view(np.float32)])


def round_up(values: np.ndarray, multiple: int) -> np.ndarray:
    return np.concatenate([values, np.zeros(-values.size % multiple, values.dtype)])


def test_numbers_are_rounded_as_documented(device, on_warps):
    src = round_up(finite_and_others(), 128)
    text = f"""    for (int i = id; i < {src.size // 2}; i += 64) {{
        uint low, high, t[1] = {{as_uint(src[i])}};
        ${{pt.pack(body, "half", "low", "src[i]", f"src[i + {src.size // 2}]")}}
        ${{pt.pack(body, "bf16", "high", "src[i]", f"src[i + {src.size // 2}]")}}
        ${{pt.round_tf32(body, 1, "t")}}
        out[3 * i] = low; out[3 * i + 1] = high; out[3 * i + 2] = t[0];
    }}"""
    got = on_warps(device, text, np.zeros(3 * src.size // 2, np.uint32), src=src).reshape(-1, 3)
    for column, kind in enumerate(("f16", "bf16", "tf32")):
        words_ = np.ascontiguousarray(got[:, column])
        bits = words_ if kind == "tf32" else words_.view(np.uint16).reshape(-1, 2).T.reshape(-1)
        given = src[: bits.size]
        number = ~np.isnan(given)
        with np.errstate(over="ignore", invalid="ignore"):
            np.testing.assert_array_equal(bits[number], encode(kind, given)[number], err_msg=kind)
            assert np.isnan(decode(kind, bits)[~number]).all()


def test_every_half_has_its_value(device, on_warps):
    text = "    for (int i = id; i < 65536; i += 64) out[i] = as_uint(half_value(i));"
    text += "${pt.commit(body)}"
    got = on_warps(device, text, np.zeros(1 << 16, np.uint32)).view(np.float32)
    want = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(got, want)


def test_types_of_storage_match_the_depth_of_products():
    assert all(np.dtype(STORED[k]).itemsize * DEPTH[k] == 32 for k in DEPTH)
