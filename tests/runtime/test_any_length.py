"""Networks over sequences at many lengths and batches: kernels built once, results of each shape."""

from __future__ import annotations

import random

import numpy as np
import pytest
from harness import normal
from onnx_models import run
from sequences import NETWORKS, WIDTH

import clnn
from clnn.codegen.render import render
from clnn.codegen.runtime_numbers import Texts
from clnn.compile import load_graph
from clnn.ops.launch import KernelText

# What is short for a vector or a tile of rows, what they divide, and what is left behind them.
LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 48, 64, 100, 257)
TOLERANCE = 2e-5


def shapes(seed, count):
    """Random (batch, length), single ones of both among them; small in all, for numpy's sake."""
    draw = random.Random(seed)
    found = [(1, 1), (7, 1), (1, draw.choice(LENGTHS))]
    found += [(draw.randrange(2, 10), draw.choice(LENGTHS)) for _ in range(count - len(found))]
    return [(batch, length, WIDTH) for batch, length in found]


def fed(shape):
    return {"x": normal(shape, sum(shape)).astype(np.float32)}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("first", [(1, 16), (4, 60)], ids=["short", "long"])
def test_a_new_length_builds_nothing(device, name, first):
    """And gives what numpy gives in double precision."""
    model = NETWORKS[name]()
    with clnn.compile_model(model, device) as session:
        session(fed((*first, WIDTH)))
        built = session.build_counts
        for shape in shapes(len(name), 10):
            got = session(fed(shape))
            assert session.build_counts == built, shape
            want = run(load_graph(model, {"x": shape}), **fed(shape))
            for output, expected in want.items():
                assert got[output].shape == expected.shape
                away = np.abs(got[output] - expected.astype(np.float64)).max()
                assert away <= TOLERANCE * np.abs(expected).max(), (shape, output, away)


@pytest.mark.parametrize("name", NETWORKS)
def test_texts_give_what_those_for_one_length_give(device, name, monkeypatch):
    """To the bit: numbers that are read at run time are the numbers of the text."""
    model, few = NETWORKS[name](), [(1, 16, WIDTH), *shapes(3 + len(name), 5)[2:]]
    with clnn.compile_model(model, device) as session:
        got = [session(fed(shape)) for shape in few]
    monkeypatch.setattr(
        Texts,
        "kernel",
        lambda self, key, template, params: KernelText(
            render(template, params), str(params["name"])
        ),
    )
    with clnn.compile_model(model, device) as session:
        for shape, outputs in zip(few, got, strict=True):
            want = session(fed(shape))
            for output in want:
                assert np.array_equal(outputs[output], want[output], equal_nan=True), (
                    shape,
                    output,
                )
