"""Products on tensor cores: the emulated body, with the tiles, copies and stores of the PTX one."""

from __future__ import annotations

import re
import shutil
from itertools import product

import numpy as np
import pytest
from common import ROOT
from mma_cases import BIAS, TEMPLATE, Case, check

from clnn.codegen.render import render
from clnn.errors import TemplateError
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.tensor_cores import MmaProduct, MmaTile, mma_params

pytestmark = pytest.mark.dealt  # kernels that are slow to build

SMALL = {"f16": 32, "bf16": 32, "tf32": 16, "s8": 64}  # bk


def small(kind: str, stages: int = 2, **other: int) -> MmaTile:
    """A tile of two warps."""
    sizes = {"bm": 32, "bn": 32, "bk": SMALL[kind], "wm": 32, "wn": 16} | other
    return MmaTile(**sizes, stages=stages, raster=2)


EVERY = [
    Case(kind, 37, 50, 99, small(kind, stages), rows, "int" if kind == "s8" else "float")
    for kind, rows, stages in product(SMALL, "kn", (1, 2, 3))
    if (kind, rows) != ("s8", "k") and (stages == 2 or (kind, rows) in (("f16", "k"), ("s8", "n")))
]


@pytest.mark.parametrize("case", EVERY, ids=lambda c: f"{c.kind}-{c.b_rows}-{c.tile.stages}")
def test_every_kind_order_and_pipeline(device, case):
    check(device, case)


SHAPES = {
    "one_element": Case("f16", 1, 1, 1, small("f16")),
    "whole_tiles": Case("f16", 64, 64, 128, small("f16")),
    "less_k_than_stages": Case("f16", 32, 32, 32, small("f16", 4)),
    "row": Case("bf16", 1, 40, 70, small("bf16", 3)),
    "column": Case("s8", 40, 1, 130, small("s8"), "n", "int"),
    "ends_inside_a_piece": Case("f16", 33, 34, 35, small("f16"), "n", more=8),
    "one_warp": Case("f16", 20, 20, 40, MmaTile(16, 16, 16, 16, 16, 2, 1)),
    "four_warps": Case("bf16", 70, 100, 64, MmaTile(64, 64, 32, 32, 32, 2, 3)),
    "the_large_tile": Case("f16", 130, 140, 72, MmaTile()),
    "more_rows_than_pieces": Case("f16", 30, 70, 40, MmaTile(16, 64, 16, 16, 16, 2, 1), "n"),
    "twelve_pieces": Case("f16", 30, 100, 40, MmaTile(32, 96, 32, 16, 16, 2, 1)),
    "batch": Case("f16", 20, 24, 40, small("f16"), batch=2),
    "batch_of_one_b": Case("f16", 20, 24, 40, small("f16"), batch=3),
    "half": Case("f16", 37, 50, 40, small("f16"), dst_type="half", dst_pitch=3),
    "half_odd": Case("f16", 37, 51, 40, small("f16"), dst_type="half", post_ops=(PostOp("relu"),)),
    "bf16": Case("bf16", 37, 50, 40, small("bf16"), dst_type="bf16"),
    "floats_are_rounded": Case("tf32", 37, 50, 44, small("tf32"), rounded=True),
    "columns_apart": Case("f16", 37, 50, 40, small("f16"), dst_pitch=-1, post_ops=BIAS, bias="all"),
    "bias": Case("f16", 37, 50, 40, small("f16"), post_ops=(*BIAS, PostOp("relu")), bias="row"),
    "bias_odd": Case("f16", 37, 51, 40, small("f16"), post_ops=BIAS, bias="row", scale=0.5),
    "bias_of_rows": Case("tf32", 37, 50, 40, small("tf32"), post_ops=BIAS, bias="spread"),
    "bytes_to_float": Case(
        "s8", 37, 50, 99, small("s8"), "n", post_ops=(PostOp("mul", (0.25,)), *BIAS), bias="row"
    ),
}


def sliced(kind: str, slices: int, stages: int = 2, **other: int) -> MmaTile:
    """A tile of two warps for each slice, with one or two steps in each."""
    return small(kind, stages, bk=SMALL[kind] * max(slices // 2, 1), slices=slices, **other)


SLICED = {
    "f16-kn": Case("f16", 37, 50, 99, sliced("f16", 2)),
    "f16-nk": Case("f16", 37, 50, 300, sliced("f16", 4, 3), "n"),
    "bf16-one_stage": Case("bf16", 37, 50, 99, sliced("bf16", 2, 1)),
    "tf32-kn": Case("tf32", 37, 50, 99, sliced("tf32", 2), rounded=True),
    "tf32-nk": Case("tf32", 37, 50, 99, sliced("tf32", 4), "n"),
    "s8": Case("s8", 37, 50, 400, sliced("s8", 4), "n", "int"),
    "less_k_than_a_slice": Case("f16", 32, 32, 7, sliced("f16", 4)),
    "more_sums_than_chunks": Case("f16", 64, 64, 70, MmaTile(64, 64, 32, 32, 32, 1, 1, 2)),
    "post_ops": Case("f16", 37, 51, 99, sliced("f16", 2), post_ops=(*BIAS, PostOp("relu")), bias="row"),
    "half": Case("f16", 37, 50, 140, sliced("f16", 4), dst_type="half", batch=2),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICED)
def test_slices_of_chunks(device, name):
    check(device, SLICED[name])


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_results(device, name):
    check(device, SHAPES[name])


def plain(kind: str, tile: MmaTile, **how: object) -> dict:
    """Parameters of a square product."""
    out = "int" if kind == "s8" else "float"
    made = MmaProduct(kind, 256, 256, 256, 256, 256, (256, 1), **({"dst_type": out} | how))
    return mma_params(made, tile, "emulated")


FAULTS = {
    "a wait too few": ("_common/mma_tile.cl.mako", "max(prefetch - 1, 0)", "prefetch"),
    "no barrier": (
        "_common/mma_tile.cl.mako",
        "        ${pt.sync(body)}\n% if t.stages > 1:",
        "% if t.stages > 1:",
    ),
    "no barrier behind the only stage": (
        "_common/mma_tile.cl.mako",
        "% if t.stages == 1:\n        ${pt.sync(body)}\n",
        "% if t.stages == 1:\n",
    ),
    "a copy over what is read": (
        "_common/mma_tile.cl.mako",
        '% {t.stages}")}',
        '% {t.stages} * 0")}',
    ),
    "fragments of another column": (
        "_common/mma_tile.cl.mako",
        "warp_n / 8 + {j} * 2 + (lane >> 4)",
        "warp_n / 8 + {j} * 2 + (lane >> 3 & 1)",
    ),
    "a key that only readers know": (
        "_common/mma_tile.cl.mako",
        'f"warp_m + {i} * 16 + (lane & 15)", f"2 * {s} + (lane >> 4)"',
        'f"warp_m + {i} * 16 + (lane & 15)", f"(2 * {s} + (lane >> 4) ^ 1)"',
    ),
    "k beyond its end": (
        "_common/mma_tile.cl.mako",
        'return "16" if even',
        'return "16" if True',
    ),
}


OF_SLICES = {
    "sums that are not there yet": (
        "_common/mma_tile.cl.mako",
        "    barrier(CLK_LOCAL_MEM_FENCE);\n    if (slice == 0) {",
        "    if (slice == 0) {",
    ),
    "every slice takes the first part": (
        "_common/mma_tile.cl.mako",
        'f"(slice * {t.steps} + {s})"',
        'f"({s})"',
    ),
    "every slice stores": ("_common/mma_store.cl.mako", '"slice == 0"', '"1"'),
}


@pytest.mark.parametrize("name", [*FAULTS, *OF_SLICES])
def test_planted_faults_are_found(name, tmp_path, monkeypatch, any_device):
    template, old, new = (FAULTS | OF_SLICES)[name]
    shutil.copytree(ROOT / "kernels_cl", tmp_path / "k")
    text = (tmp_path / "k" / template).read_text("utf-8")
    assert text.count(old) == 1, f"{template} has {old!r} {text.count(old)} times"
    (tmp_path / "k" / template).write_text(text.replace(old, new), "utf-8")
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path / "k"))
    with pytest.raises(AssertionError, match=r"wrong|beside"):
        for stages in (1, 3):
            tile = sliced("f16", 4, stages) if name in OF_SLICES else small("f16", stages)
            check(any_device, Case("f16", 40, 48, 99, tile))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("rows", ["k", "n"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_no_two_words_of_a_read_share_a_bank(kind, rows, width):
    """Pieces that ldmatrix reads together, and words of a fragment, are in banks of their own."""
    from clnn.codegen.render import _lookup, template_folders

    module = _lookup(template_folders("")).get_template("_common/mma_tile.cl.mako").module
    bk = width // module.BYTES[kind]
    if (kind, rows) == ("s8", "k") or width < 32:
        return
    for bn, p in [(b, module.geometry(kind, 64, b, bk, 32, 16, 1, rows)) for b in (32, 64, 128)]:
        for part in (p.a, p.b):

            def byte(row: int, piece: int, part=part) -> int:
                text = module.at(part, str(row), str(piece)).replace("/", "//")
                return int(eval(text))

            pieces = {byte(r, c) for r in range(part.rows) for c in range(part.pieces)}
            assert pieces == set(range(0, part.bytes, 16)), (bn, part)
            for row, piece in product(range(0, part.rows, 8), range(part.pieces)):
                if part.by_words:
                    reads = [
                        byte(row + t, piece // 2 * 2 + g // 4) + g % 4 * 4
                        for t in range(4)
                        for g in range(8)
                    ]
                    banks = {r // 4 % 32 for r in reads}
                    assert len(banks) == (32 if part.pieces >= 8 else 16), (bn, part)
                else:
                    banks = {byte(row + r, piece) // 16 % 8 for r in range(min(8, part.rows))}
                    assert len(banks) == min(8, part.rows), (bn, part)


@pytest.mark.parametrize(
    "kind,change",
    [
        ("f16", {"bk": 24}),
        ("f16", {"wm": 24}),
        ("f16", {"wn": 24}),
        ("f16", {"stages": 5}),
        ("f16", {"bm": 80}),
        ("f16", {"a": 252}),
        ("f16", {"b": 252}),
        ("f16", {"dst_type": "int"}),
        ("s8", {"b_rows": "k"}),
        ("f16", {"body": "other"}),
        ("f16", {"wg": (32, 1, 1)}),
        ("f16", {"kind": "f32"}),
    ],
)
def test_impossible_parameters_are_refused(kind, change):
    params = plain(kind, small(kind), b_rows="n")
    render(TEMPLATE, params)
    with pytest.raises(TemplateError):
        render(TEMPLATE, params | change)


def test_registers_of_the_assembly_are_constant():
    """Each product is one instruction; no array of fragments is indexed by a variable."""
    for kind, bk in (("f16", 32), ("tf32", 16)):
        text = render(
            TEMPLATE, plain(kind, MmaTile(bk=bk), rounded=kind == "tf32") | {"body": "ptx"}
        )
        assert text.count("mma.sync") == 64 and text.count("cp.async.cg") == 16
        assert text.count("ldmatrix") == (16 if kind == "f16" else 8)
        indices = re.findall(r"\((?:a_|b_|c)\[([^]]+)\]\)", text)
        assert indices and all(i.isdigit() for i in indices)


def test_names_of_tiles_tell_their_tunables():
    assert str(MmaTile()) == "128x128x32_w64x64_s2" and MmaTile().threads == 128
    assert MmaTile().local_bytes("f16") == 32 * 1024
    assert plain("f16", small("f16"))["name"] == "gemm_mma_f16_kn_float_t32x32x32_w32x16_s2"
    assert np.prod(small("s8").threads) == 64
