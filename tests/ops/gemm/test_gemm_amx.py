"""Products of bfloat16 by tiles of registers: every tile of sums, packed on the host and on the device."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus
from targets import with_tiles

from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared import amx
from clnn.ops.shared.functions import PostOp

pytestmark = pytest.mark.dealt  # kernels that are slow to build


@pytest.fixture(params=["x86", "plain"])
def how(request, monkeypatch, device):
    with_tiles(monkeypatch, device, request.param)


CASES = {
    "constant": (Gemm(), [(37, 64), (64, 70)], (1,), (2, 2)),
    "turned": (Gemm(trans_b=True), [(48, 96), (33, 96), (33,)], (1, 2), (3, 1)),
    "rows_joined": (Gemm(), [(2, 3, 15, 32), (32, 40)], (1,), (4, 1)),
    "matrices": (Gemm(), [(2, 3, 15, 32), (2, 3, 32, 40)], (1,), (1, 3)),
    "given": (Gemm(), [(2, 17, 36), (2, 36, 18)], (), (1, 2)),
    "few_terms": (Gemm(), [(9, 2), (2, 17)], (1,), (1, 1)),
    "far": (Gemm(), [(19, 800), (800, 130)], (1,), (1, 4)),
    "left": (Gemm(), [(34, 20), (20, 31)], (0,), (1, 2)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_products(device, how, case, monkeypatch):
    spec, shapes, consts, sums = case
    monkeypatch.setattr(amx, "SUMS", (sums,))
    inputs = [normal(shape, k) for k, shape in enumerate(shapes)]
    ran = check_op(device, spec, inputs, consts=consts, dtype="bf16", every=True)
    assert any("gemm_amx" in name for name in ran) == of_cpus(device), ran


@pytest.mark.parametrize("rows", [8, 33])
def test_matrices_that_share_what_they_are_multiplied_by(device, how, rows):
    """Their rows are not evenly spaced, so that they are not joined: all of them meet a panel in turn."""
    spec = Gemm(post_ops=(PostOp("add", operand=3),))
    inputs = [normal((2, 3, rows, 96)), normal((96, 70), 1), normal((70,), 2)]
    inputs.append(normal((2, 3, rows, 70), 3))
    orders = {"o0": (0, 2, 1, 3), "i3": (1, 0, 2, 3)}
    check_op(device, spec, inputs, consts=(1, 2), orders=orders, dtype="bf16", only="gemm_amx")


@pytest.mark.parametrize("terms", [33, 7])
def test_odd_terms_are_left(device, how, terms):
    inputs = [normal((9, terms)), normal((terms, 20), 1)]
    ran = check_op(device, Gemm(), inputs, consts=(1,), dtype="bf16")
    assert not any("amx" in name for name in ran), ran


def test_what_is_fused_behind(device, how):
    spec = Gemm(post_ops=(PostOp("add", operand=3), PostOp("gelu")))
    inputs = [normal((22, 48)), normal((48, 50), 1), normal((50,), 2), normal((22, 50), 3)]
    check_op(device, spec, inputs, consts=(1, 2), dtype="bf16", only="gemm_amx")


def test_infinities_and_nan_stay_where_they_are(device, how):
    a, b = normal((20, 34)), normal((34, 20), 1)
    a[1, 0], a[2, 5] = np.inf, np.nan
    check_op(device, Gemm(), [a, b], consts=(1,), dtype="bf16", only="gemm_amx")
