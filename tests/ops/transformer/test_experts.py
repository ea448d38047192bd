"""Mixtures of experts give onnxruntime's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnxruntime_nodes import check, model, normal

import clnn
from clnn.errors import ClnnError

TOKENS, WIDTH, HIDDEN, EXPERTS = 4, 8, 6, 5
NAMES = ("x", "scores", "w1", "b1", "w2", "b2")


def inputs(fused=1, biases=True):
    feeds = {"x": normal(1, TOKENS, WIDTH), "scores": 2 * normal(TOKENS, EXPERTS, seed=1)}
    feeds |= {"w1": normal(EXPERTS, fused * HIDDEN, WIDTH, seed=2)}
    feeds |= {"w2": normal(EXPERTS, WIDTH, HIDDEN, seed=3)}
    if biases:
        feeds |= {
            "b1": normal(EXPERTS, fused * HIDDEN, seed=4),
            "b2": normal(EXPERTS, WIDTH, seed=5),
        }
    return feeds, [n if n in feeds else "" for n in NAMES[: 6 if biases else 5]]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("normalised", [0, 1])
def test_experts(device, activation, count, normalised):
    attrs = {"k": count, "activation_type": activation, "normalize_routing_weights": normalised}
    for biases in (False, True):
        feeds, order = inputs(biases=biases)
        check(device, "MoE", feeds, order=order, **attrs)


@pytest.mark.parametrize("limits", [{}, {"swiglu_limit": 0.5}])
def test_gated_experts(device, limits):
    feeds, order = inputs(2)
    attrs = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7} | limits
    check(device, "MoE", feeds, order=order, k=2, activation_beta=1.0, **attrs)


def test_refused_experts(device):
    feeds, order = inputs(2)
    attrs = {"k": 2, "activation_type": "swiglu"}
    made = model("MoE", feeds, {}, order, ["y"], "com.microsoft", attrs)
    with pytest.raises(ClnnError, match="interleaved"):
        clnn.compile_model(made, device)


def packed(bits, block, zeros, fused):
    """Return the names of QMoE's inputs, tokens and scores, and bytes, scales and zero points of both layers."""
    feeds = {"x": normal(TOKENS, 32), "scores": 2 * normal(TOKENS, EXPERTS, seed=1)}
    consts, each = {}, 8 // bits
    for layer, (rows, width) in enumerate(((fused * 32, 32), (32, 32)), 1):
        blocks = (width // block,) if block else ()
        made = rng(layer).integers(0, 256, (EXPERTS, rows, width // each), np.uint8, endpoint=False)
        steps = (rng(layer + 9).random((EXPERTS, rows, *blocks)) + 0.5) / 2**bits
        consts |= {f"w{layer}": made, f"s{layer}": steps.astype(np.float32)}
        consts[f"b{layer}"] = normal(EXPERTS, rows, seed=layer + 3)
        if zeros:
            shape = (EXPERTS, rows, -(-blocks[0] // each)) if block else (EXPERTS, rows // each)
            consts[f"z{layer}"] = rng(layer + 5).integers(0, 256, shape, np.uint8)
    order = ["x", "scores", "w1", "s1", "b1", "w2", "s2", "b2", "", "", ""]
    return feeds, consts, order + (["z1", "z2"] if zeros else [])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits, block", [(4, 0), (4, 16), (8, 0), (2, 0)])
def test_experts_of_few_bits(device, bits, block, zeros):
    feeds, consts, order = packed(bits, block, zeros, 2)
    attrs = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7}
    attrs |= {"expert_weight_bits": bits, "normalize_routing_weights": 1, "activation_beta": 1.0}
    attrs |= {"block_size": block} if block else {}
    check(device, "QMoE", feeds, consts, order=order, tolerance=3e-5, **attrs)


@pytest.mark.parametrize(
    "attrs, said",
    [({"quant_type": "fp4"}, "quant_type"), ({"weights_prepacked": 1}, "one device")],
)
def test_refused_experts_of_few_bits(device, attrs, said):
    feeds, consts, order = packed(4, 0, False, 1)
    made = model("QMoE", feeds, consts, order, ["y"], "com.microsoft", attrs)
    with pytest.raises(ClnnError, match=said):
        clnn.compile_model(made, device)
