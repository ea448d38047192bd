"""Operators of onnxruntime's transformers give onnxruntime's numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from harness import rng
from onnxruntime_nodes import check, model, normal

import clnn
import clnn.errors

B, S, H, N, P = 2, 5, 24, 3, 4  # batch, length, width, heads, earlier keys


@pytest.mark.parametrize(
    "op, width, attrs",
    [
        ("Gelu", 0, {}),
        ("BiasGelu", H, {}),
        ("FastGelu", 0, {}),
        ("FastGelu", H, {}),
        ("QuickGelu", 0, {}),
        ("QuickGelu", 0, {"alpha": 0.7}),
    ],
)
def test_activations(device, op, width, attrs):
    feeds = {"x": 6 * normal(B, S, H)}
    check(device, op, feeds, {"b": normal(H, seed=1)} if width else None, **attrs)


@pytest.mark.parametrize("simplified", [False, True], ids=["centred", "simplified"])
@pytest.mark.parametrize("skip", [(B, S, H), (1, S, H), (S, H)])
def test_skip_normalisations(device, simplified, skip):
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    feeds = {"x": normal(B, S, H), "skip": normal(*skip, seed=1)}
    consts = {"g": normal(H, seed=2), "beta": normal(H, seed=3), "b": normal(H, seed=4)}
    for shift, bias in product((False, True), repeat=2):
        if simplified and shift:
            continue
        order = ["x", "skip", "g", "beta" if shift else "", "b" if bias else ""]
        if simplified:
            del order[3]
        kept = {n: a for n, a in consts.items() if n in order}
        check(device, op, feeds, kept, ("y", "", "", "sum"), order=order, epsilon=1e-3)


@pytest.mark.parametrize("turns", list(product((0, 1), repeat=4)))
def test_fused_products(device, turns):
    names = ("transA", "transB", "transBatchA", "transBatchB")
    attrs = dict(zip(names, turns, strict=True))

    def shape(rows, columns, turned, batches):
        matrix = (columns, rows) if turned else (rows, columns)
        return (matrix[0], 2, 3, matrix[1]) if batches else (2, 3, *matrix)

    a = normal(*shape(4, 6, turns[0], turns[2]))
    b = normal(*shape(6, 5, turns[1], turns[3]), seed=1)
    check(device, "FusedMatMul", {"a": a, "b": b}, alpha=0.3, **attrs)


def masks(total):
    """Yield name, mask: of keys, of queries and keys, lengths, ends and starts."""
    ends = np.array([total - 2, total], np.int32)
    keys = (np.arange(total) < ends[:, None]).astype(np.int32)
    yield "none", None
    yield "keys", keys
    yield (
        "pairs",
        rng(9).integers(0, 2, (B, S, total)).astype(np.int32) | np.eye(S, total, dtype=np.int32),
    )
    yield "ends", ends
    yield "starts", np.concatenate([ends, np.array([1, 0], np.int32)])


@pytest.mark.parametrize("past", [0, P], ids=["first", "past"])
@pytest.mark.parametrize("mask", [name for name, _ in masks(1)])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(device, mask, past, causal):
    total = S + past
    feeds = {"x": normal(B, S, 16), "w": normal(16, 3 * H, seed=1), "b": normal(3 * H, seed=2)}
    feeds |= {"mask": dict(masks(total))[mask]} if mask != "none" else {}
    feeds |= {"past": normal(2, B, N, past, H // N, seed=4)} if past else {}
    order = [n if n in feeds else "" for n in ("x", "w", "b", "mask", "past")]
    outputs = ("y", "present") if past else ("y",)
    check(
        device, "Attention", feeds, outputs=outputs, order=order, num_heads=N, unidirectional=causal
    )


def test_attention_of_other_sizes_and_scale(device):
    feeds = {"x": normal(B, S, 16), "w": normal(16, 2 * H + 12, seed=1), "bias": normal(1, N, S, S)}
    order = ["x", "w", "b", "", "", "bias"]
    consts = {"b": normal(2 * H + 12, seed=2)}
    check(
        device,
        "Attention",
        feeds,
        consts,
        order=order,
        num_heads=N,
        scale=0.3,
        qkv_hidden_sizes=[H, H, 12],
    )


@pytest.mark.parametrize("mask", [None, (B,), (B, 7)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_many_heads(device, mask, bias, causal):
    feeds = {"q": normal(B, 7, H), "k": normal(B, 7, H, seed=1), "v": normal(B, 7, 12, seed=2)}
    if mask == (B,):
        feeds["m"] = np.array([4, 7], np.int32)
    elif mask:
        feeds["m"] = (np.arange(7) < np.array([[4], [7]])).astype(np.int32)
    feeds["added"] = normal(1, N, 7, 7, seed=5)
    consts = {"b": normal(2 * H + 12, seed=3)} if bias else {}
    order = ["q", "k", "v", "b" if bias else "", "m" if mask else "", "added"]
    check(
        device, "MultiHeadAttention", feeds, consts, order=order, num_heads=N, unidirectional=causal
    )


def test_attention_of_many_heads_behind_a_past(device):
    feeds = {n: normal(B, S, H, seed=k) for k, n in enumerate("qkv")}
    feeds |= {"pk": normal(B, N, P, H // N, seed=4), "pv": normal(B, N, P, H // N, seed=5)}
    order = ["q", "k", "v", "", "", "", "pk", "pv"]
    outputs = ("y", "present_key", "present_value")
    check(device, "MultiHeadAttention", feeds, outputs=outputs, order=order, num_heads=N)


def test_attention_across(device):
    feeds = {
        "q": normal(B, S, H),
        "k": normal(B, N, 6, H // N, seed=1),
        "v": normal(B, N, 6, H // N, seed=2),
    }
    check(device, "MultiHeadAttention", feeds, num_heads=N)


def test_what_is_not_taken_says_so():
    feeds = {"q": normal(B, S, N, 3, H // N)}
    made = model("MultiHeadAttention", feeds, {}, ["q"], ["y"], "com.microsoft", {"num_heads": N})
    with pytest.raises(clnn.errors.UnsupportedOpError, match="packed into one input"):
        clnn.compile_model(made)
