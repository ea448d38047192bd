"""Mixtures of experts give onnxruntime's numbers."""

from __future__ import annotations

import pytest
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
