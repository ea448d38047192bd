"""Attention of bfloat16 by tiles of registers, and in steps where tiles do not take it."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus
from targets import with_tiles

from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer.attend import Attention

pytestmark = pytest.mark.dealt  # kernels that are slow to build
ADD = (PostOp("add", operand=3),)


@pytest.fixture(params=["x86", "plain"])
def how(request, monkeypatch, device):
    with_tiles(monkeypatch, device, request.param)


def heads(batch, count, queries, keys, terms, columns):
    """Random queries, keys, no addend, and values."""
    q, k = normal((batch, count, queries, terms)), normal((batch, count, keys, terms), 1)
    return [q, k, None, normal((batch, count, keys, columns), 2)]


def check(device, spec, inputs, name="attention_amx", **more):
    ran = check_op(device, spec, inputs, dtype="bf16", **more)
    assert ran[0].startswith(name) or not of_cpus(device), ran
    return ran


SHAPES = {
    "window_of_swin": (1, 3, 49, 49, 32, 32),
    "vit": (1, 2, 197, 197, 64, 64),
    "columns_left": (2, 1, 7, 19, 6, 3),
    "few_keys": (1, 2, 16, 4, 80, 96),
    "one_key": (1, 1, 5, 1, 8, 1),
    "one_tile_of_rows": (1, 1, 17, 40, 48, 33),
    "many_keys": (1, 1, 6, 1100, 8, 24),
    "pitch_of_a_set": (1, 1, 33, 1024, 16, 16),
    "last_keys": (1, 2, 34, 31, 64, 70),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_heads(device, how, shape):
    check(device, Attention(Gemm(shape[4] ** -0.5, trans_b=True)), heads(*shape), every=True)


STEPS = {
    "no_keys": (heads(1, 2, 8, 0, 16, 16), {}),
    "few_queries": (heads(1, 2, 3, 40, 16, 16), {}),
    "odd_terms": (heads(1, 2, 9, 40, 15, 16), {}),
    "constant_keys": (heads(1, 2, 9, 17, 8, 8), {"consts": (1, 3)}),
    "terms_apart": (heads(1, 2, 9, 17, 8, 8), {"orders": {"i0": (0, 1, 3, 2)}}),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_in_steps(device, how, case):
    inputs, more = case
    spec = Attention(Gemm(inputs[0].shape[-1] ** -0.5, trans_b=True))
    check(device, spec, inputs, "attention_in_steps", **more)


@pytest.mark.parametrize("mask", [(1, 1, 21, 21), (2, 1, 1, 21), (3, 21, 21), (2, 3, 21, 1), (1,)])
def test_masks_of_any_shape(device, how, mask):
    q, k, _, v = heads(2, 3, 21, 21, 8, 8)
    inputs = [q, k, None, normal(mask, 5), v]
    check(device, Attention(Gemm(0.3, trans_b=True, post_ops=ADD)), inputs)


def test_causal(device, how):
    behind = np.where(np.arange(37) > np.arange(37)[:, None], -np.inf, 0).astype(np.float32)
    q, k, _, v = heads(1, 2, 37, 37, 32, 32)
    check(device, Attention(Gemm(0.2, trans_b=True, post_ops=ADD)), [q, k, None, behind, v])


@pytest.mark.parametrize("zeros", [False, True])
def test_queries_without_keys(device, how, zeros):
    mask = np.zeros((1, 1, 10, 35), np.float32)
    mask[..., 3, :] = -np.inf
    mask[..., 5, 7], mask[..., 6, 34] = np.inf, np.nan
    q, k, _, v = heads(1, 2, 10, 35, 16, 16)
    spec = Attention(Gemm(0.2, trans_b=True, post_ops=ADD), zeros_for_nan=zeros)
    check(device, spec, [q, k, None, mask, v])


def test_values_that_are_no_numbers_stay_in_their_columns(device, how):
    q, k, _, v = heads(1, 1, 18, 33, 16, 40)
    v[0, 0, 2, 5], v[0, 0, 32, 37] = np.nan, np.inf
    check(device, Attention(Gemm(0.2, trans_b=True)), [q, k, None, v])


def test_keys_and_values_that_heads_share(device, how):
    q = normal((2, 6, 11, 16))
    k, v = normal((2, 1, 23, 16), 1), normal((2, 1, 23, 32), 2)
    check(device, Attention(Gemm(0.25, trans_b=True)), [q, k, None, v])


@pytest.mark.parametrize("turned", [0, 1, 2])
def test_groups_of_heads_that_share_keys_and_values(device, how, turned):
    q = normal((2, 3, 2, 11, 16))
    k, v = normal((2, 3, 1, 23, 16), 1), normal((2, 3, 1, 23, 32), 2)
    spec = Attention(Gemm(0.25, trans_b=True, post_ops=ADD), turned=turned)
    check(device, spec, [q, k, None, normal((3, 2, 11, 23), 3), v])


def test_operands_at_any_pitch(device, how):
    orders = {"i0": (0, 2, 1, 3), "i1": (0, 2, 1, 3), "i3": (0, 1, 3, 2), "o0": (0, 1, 3, 2)}
    inputs = heads(2, 3, 9, 17, 8, 24)
    check(device, Attention(Gemm(0.3, trans_b=True)), inputs, orders=orders)
    inputs[1] = np.ascontiguousarray(np.swapaxes(inputs[1], -1, -2))
    check(device, Attention(Gemm(0.3), turned=1), inputs, orders={"i1": (0, 3, 1, 2)})


def test_transposed_values(device, how):
    q, k, _, v = heads(1, 2, 13, 18, 8, 16)
    v = np.ascontiguousarray(np.swapaxes(v, -1, -2))
    check(device, Attention(Gemm(0.3, trans_b=True), trans_v=True), [q, k, None, v], border=1)
