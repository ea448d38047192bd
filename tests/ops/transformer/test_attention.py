"""Attention as one op: its kernel for CPUs, and its products and softmax as steps."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus
from targets import GPU

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.gemm.spec import Gemm
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer.attend import Attention
from clnn.target import Target
from clnn.types import F32, TensorType

MASKED = (PostOp("mul", (0.25,)), PostOp("add", operand=3))


def heads(batch, count, queries, keys, terms, columns):
    """Random queries, keys, no addend, and values."""
    q, k = normal((batch, count, queries, terms)), normal((batch, count, keys, terms), 1)
    return [q, k, None, normal((batch, count, keys, columns), 2)]


def masked(inputs, mask):
    return [*inputs[:3], mask.astype(np.float32), inputs[3]]


@pytest.mark.parametrize(
    "shape",
    [
        (1, 3, 49, 49, 32, 32),  # a window of Swin
        (1, 2, 197, 197, 64, 64),  # ViT
        (2, 1, 7, 19, 5, 3),
        (1, 2, 16, 4, 80, 96),
        (1, 1, 5, 1, 8, 1),
        (1, 2, 3, 40, 16, 16),  # few queries: in steps
        (1, 1, 6, 1100, 8, 24),
        (1, 2, 61, 1024, 8, 8),  # rows of scores lie apart: in one set of a cache else
        (1, 1, 30, 509, 16, 40),
        (1, 1, 48, 33, 196, 128),
    ],
)
def test_heads(device, shape):
    ran = check_op(device, Attention(Gemm(shape[4] ** -0.5, trans_b=True)), heads(*shape))
    assert ran[0].startswith("attention_f32") == (shape[2] >= 4) or not of_cpus(device)


@pytest.mark.parametrize("turned", [False, True])
def test_candidates_with_masks(device, turned):
    spec = Attention(Gemm(trans_b=True, post_ops=MASKED), turned=turned)
    keys = np.where(np.arange(20) > 13, -np.inf, normal((20,), 4)).reshape(1, 1, 1, 20)
    check_op(device, spec, masked(heads(2, 2, 33, 20, 16, 64), keys), every=True)


@pytest.mark.parametrize("mask", [(1, 1, 21, 21), (2, 1, 1, 21), (3, 21, 21), (2, 3, 21, 1), (1,)])
def test_masks_of_any_shape(device, mask):
    spec = Attention(Gemm(0.3, trans_b=True, post_ops=(PostOp("add", operand=3),)))
    check_op(device, spec, masked(heads(2, 3, 21, 21, 8, 8), normal(mask, 5)))


def test_addend_with_a_factor(device):
    q, k, _, v = heads(1, 2, 9, 18, 8, 16)
    check_op(device, Attention(Gemm(0.5, 2.0, trans_b=True)), [q, k, normal((9, 18), 3), v])


def test_causal(device):
    behind = np.where(np.arange(37) > np.arange(37)[:, None], -np.inf, 0)
    spec = Attention(Gemm(0.2, trans_b=True, post_ops=(PostOp("add", operand=3),)))
    check_op(device, spec, masked(heads(1, 2, 37, 37, 32, 32), behind))


@pytest.mark.parametrize("keys", [3, 16, 49])
def test_distances_of_scores(device, keys):
    """Masks of the least number, weights below the least normal number, and rows whose keys are all masked alike."""
    mask = np.zeros((1, 1, 14, keys), np.float32)
    mask[..., 1, :] = mask[..., 2, 1:] = np.finfo(np.float32).min
    mask[..., 3, :] = np.linspace(-87.0, 0.0, keys)
    mask[..., 4, :] = np.linspace(0.0, -300.0, keys)
    mask[..., 5, 1:], mask[..., 6, :] = -10000.0, 3e38
    mask[..., 7, :-1] = -np.inf
    spec = Attention(Gemm(0.2, trans_b=True, post_ops=(PostOp("add", operand=3),)))
    inputs = heads(1, 3, 14, keys, 8, 16)
    check_op(device, spec, masked(inputs, mask))
    inputs[0] *= 40  # of both signs
    check_op(device, spec, masked(inputs, mask))


@pytest.mark.parametrize("zeros", [False, True])
def test_queries_without_keys(device, zeros):
    mask = np.zeros((1, 1, 10, 35))
    mask[..., 3, :] = -np.inf
    mask[..., 5, 7], mask[..., 6, 34] = np.inf, np.nan
    add = (PostOp("add", operand=3),)
    spec = Attention(Gemm(0.2, trans_b=True, post_ops=add), zeros_for_nan=zeros)
    inputs = masked(heads(1, 2, 10, 35, 16, 16), mask)
    (made,) = spec.reference(*inputs)
    lost = np.zeros((1, 2, 10, 16)) if zeros else np.full((1, 2, 10, 16), np.nan)
    np.testing.assert_array_equal(made[:, :, [3, 5, 6]], lost[:, :, [3, 5, 6]])
    check_op(device, spec, inputs)


def test_keys_and_values_that_heads_share(device):
    q, _, _, _ = heads(2, 6, 11, 23, 16, 32)
    k, v = normal((2, 1, 23, 16), 1), normal((2, 1, 23, 32), 2)
    check_op(device, Attention(Gemm(0.25, trans_b=True)), [q, k, None, v])


@pytest.mark.parametrize("queries", [1, 3, 11])
@pytest.mark.parametrize("turned", [0, 1, 2])
def test_groups_of_heads_that_share_keys_and_values(device, queries, turned):
    q = normal((2, 3, 2, queries, 16))
    k, v = normal((2, 3, 1, 23, 16), 1), normal((2, 3, 1, 23, 32), 2)
    spec = Attention(Gemm(0.25, trans_b=True, post_ops=(PostOp("add", operand=3),)), turned=turned)
    inputs = [q, k, None, normal((3, 2, queries, 23), 3), v]
    check_op(device, spec, inputs)
    check_op(device, spec, inputs, orders={"i0": (0, 3, 1, 2, 4), "i1": (0, 3, 1, 2, 4)})


def test_operands_at_any_pitch(device):
    orders = {"i0": (0, 2, 1, 3), "i1": (0, 2, 1, 3), "i3": (0, 2, 1, 3), "o0": (0, 1, 3, 2)}
    inputs = heads(2, 3, 9, 17, 8, 24)
    ran = check_op(device, Attention(Gemm(0.3, trans_b=True)), inputs, orders=orders)
    assert ran[0].startswith("attention_f32")
    # Columns of values that do not lie side by side are for the steps.
    ran = check_op(device, Attention(Gemm(trans_b=True)), inputs, orders={"i3": (0, 1, 3, 2)})
    assert ran[0].startswith("attention_in_steps")


def test_transposed_operands(device):
    q, k, _, v = heads(1, 2, 13, 18, 8, 16)
    turned = [np.ascontiguousarray(np.swapaxes(a, -1, -2)) for a in (q, k, v)]
    spec = Attention(Gemm(0.3, trans_a=True), trans_v=True)
    check_op(device, spec, [turned[0], turned[1], None, turned[2]], orders={"i3": (0, 1, 3, 2)})


def test_matrices_without_heads(device):
    check_op(device, Attention(Gemm()), [normal((9, 6)), normal((6, 21), 1), None, normal((21, 5))])


def test_constant_keys_are_for_the_steps(device):
    inputs = heads(1, 2, 9, 17, 8, 8)
    ran = check_op(device, Attention(Gemm(trans_b=True)), inputs, consts=(1, 3))
    assert ran[0].startswith("attention_in_steps")


def problem(shapes, target, spec):
    types = [None if s is None else TensorType(s, F32) for s in shapes]
    (made,) = spec.infer(types)
    placed = [t and Operand(t, TensorLayout.make(t.shape)) for t in (*types, made)]
    return Problem(tuple(placed[:-1]), (placed[-1],), target)


@pytest.mark.parametrize("keys", [50, 1024])
def test_scores_lie_in_no_memory_of_the_device(keys):
    spec = Attention(Gemm(trans_b=True))
    shapes = [(1, 2, 64, 32), (1, 2, keys, 32), None, (1, 2, keys, 32)]
    variant = spec.variants(problem(shapes, Target(local_bytes=1 << 20), spec))[0]
    panels = [a for launch in variant.launches for a in launch.args if hasattr(a, "nbytes")]
    assert {a.name for a in panels} == {"panels"}
    assert max(a.nbytes for a in panels) <= 2 * 32 * (keys + 63) * 4
    assert spec.variants(problem(shapes, GPU, spec))[0].name.startswith("attention_in_steps")


@pytest.mark.parametrize(
    "shapes, turned",
    [
        (((2, 4, 8), (2, 5, 8), None, (2, 6, 8)), False),  # values of other keys
        (((4, 8), (5, 8), None, (5, 8)), True),  # no heads to turn
        (((4, 8), (5, 8), None, (3, 5, 8)), False),  # more values than scores
        (((4, 8), (5, 8), None, (5,)), False),
    ],
)
def test_shapes_that_do_not_fit(shapes, turned):
    types = [None if s is None else TensorType(s, F32) for s in shapes]
    with pytest.raises(ShapeError):
        Attention(Gemm(trans_b=True), turned=turned).infer(types)
