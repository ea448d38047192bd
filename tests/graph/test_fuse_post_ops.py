"""Elementwise steps join the node before them, where nothing else wants what lies between."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

from clnn.graph.ir import check
from clnn.graph.passes import optimise
from clnn.verification.reference import reference_values


@pytest.mark.parametrize("readers", [1, 2])
def test_an_output_that_others_read_too_stays(readers):
    b = Builder(x=(1, 3, 5, 6))
    made = b.conv("x", 4)
    graph = b.graph(made, *(b.post_ops(fn, made) for fn in ("relu", "sigmoid")[:readers]))
    fused = check(optimise(graph))
    x = np.linspace(-2, 2, 90).reshape(1, 3, 5, 6)
    want, got = reference_values(graph, {"x": x}), reference_values(fused, {"x": x})
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[fused.outputs[public]], want[name], rtol=1e-12)
