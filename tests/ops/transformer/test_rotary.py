"""Rotary positions, norms without a centre, and what stands beside them, give onnxruntime's numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from harness import rng
from onnxruntime_nodes import check, normal

from clnn.errors import ClnnError


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 4])
def test_rotary_embedding(device, rank, interleaved, part):
    x = normal(2, 3, 5, 8) if rank == 4 else normal(2, 5, 24)
    half = (part or 8) // 2
    tables = {"c": normal(9, half, seed=1), "s": normal(9, half, seed=2)}
    sizes = {"rotary_embedding_dim": part, "num_heads": 3} if part else {}
    for places in (np.array([2]), np.arange(10).reshape(2, 5) % 9):
        feeds = {"x": x, "i": places.astype(np.int64)}
        check(device, "RotaryEmbedding", feeds, tables, interleaved=interleaved, **sizes)


def test_rotary_tables_must_fit(device):
    with pytest.raises(ClnnError, match="places"):
        feeds = {"x": normal(2, 5, 24), "i": np.zeros((3, 5), np.int64)}
        check(device, "RotaryEmbedding", feeds, {"c": normal(9, 4), "s": normal(9, 4)})


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_simplified_layer_normalisation(device, axis, dtype):
    x = normal(2, 3, 8).astype(dtype)
    feeds = {"x": x, "g": normal(*x.shape[axis:], seed=1).astype(dtype)}
    kept = {"axis": axis, "epsilon": 1e-3, "stash_type": 1}
    tolerance = 1e-5 if dtype == np.float32 else 2e-3
    for outputs in (("y",), ("y", "factor")):
        op = "SimplifiedLayerNormalization"
        check(device, op, feeds, outputs=outputs, domain="", tolerance=tolerance, **kept)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_moments_of_skip_normalisations(device, op):
    feeds = {"x": normal(2, 3, 8), "skip": normal(2, 3, 8, seed=1), "g": normal(8, seed=2)}
    for outputs in (("y", "mean"), ("y", "", "factor"), ("y", "mean", "factor", "sum")):
        check(device, op, feeds, outputs=outputs, epsilon=1e-4)


def test_transposed_products(device):
    for a, b in product((0, 1), repeat=2):
        left = normal(2, *((4, 3) if a else (3, 4)))
        right = normal(2, *((5, 4) if b else (4, 5)), seed=1)
        check(device, "TransposeMatMul", {"a": left, "b": right}, transA=a, transB=b, alpha=0.5)


@pytest.mark.parametrize("given", ["", "mask", "places", "mask places"])
@pytest.mark.parametrize("segments", [False, True])
def test_embeddings(device, given, segments):
    feeds = {"words": rng(0).integers(0, 5, (2, 3))}
    feeds |= {"segments": rng(1).integers(0, 2, (2, 3))} if segments else {}
    feeds |= {"mask": np.array([[1, 0, 1], [2, 1, 1]])} if "mask" in given else {}
    feeds |= {"places": np.array([[4, 0, 2]])} if "places" in given else {}
    feeds = {name: a.astype(np.int32) for name, a in feeds.items()}
    tables = {"w": normal(5, 8), "p": normal(6, 8, seed=1), "s": normal(2, 8, seed=2)}
    tables |= {"g": normal(8, seed=3), "b": normal(8, seed=4)}
    order = ["words", "segments", "w", "p", "s", "g", "b", "mask", "places"]
    if not segments:
        del tables["s"]
    order = [n if n in feeds or n in tables else "" for n in order]
    op, outputs = "EmbedLayerNormalization", ("y", "counts", "sum")
    check(device, op, feeds, tables, outputs, order=order, epsilon=1e-4)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [False, True])
def test_quantised_embeddings(device, kind, segments, mask):
    feeds = {"words": rng(0).integers(0, 5, (2, 3))}
    feeds |= {"segments": rng(1).integers(0, 2, (2, 3))} if segments else {}
    feeds |= {"mask": np.array([[1, 0, 1], [2, 1, 1]])} if mask else {}
    feeds = {name: a.astype(np.int32) for name, a in feeds.items()}
    low = int(np.iinfo(kind).min)
    shapes = {"w": (5, 8), "p": (6, 8), "s": (2, 8), "g": (8,), "b": (8,)}
    order, steps, zeros = ["words", "segments", *shapes, "mask"], {}, {}
    tables = {
        n: rng(k).integers(low, low + 256, shape).astype(kind)
        for k, (n, shape) in enumerate(shapes.items())
    }
    for k, n in enumerate(shapes):
        steps[f"{n}s"] = np.array([0.01 * (k + 1)] if k % 2 else 0.01 * (k + 1), np.float32)
        zeros[f"{n}z"] = np.array(low + 90 + k, kind)
    tables |= steps | zeros
    order += [*steps, *zeros]
    if not segments:
        tables = {n: a for n, a in tables.items() if not n.startswith("s")}
    order = [n if n in feeds or n in tables else "" for n in order]
    op, outputs = "QEmbedLayerNormalization", ("y", "counts")
    check(device, op, feeds, tables, outputs, order=order, epsilon=1e-4)
