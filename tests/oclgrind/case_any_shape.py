"""Cases of kernels that read extents at run time: networks whose dimensions are open."""

from __future__ import annotations

from unittest import mock

import harness
import numpy as np
from harness import compare, normal
from open_images import resizing, segmentation
from sequences import WIDTH, attention, batches, classes, movements, rows
from simulator import DEVICE
from table import put

import clnn
from clnn.compile import load_graph
from clnn.ops.gemm import families
from clnn.options import Options
from clnn.verification.reference import reference_values

CPU = ("cpu",)
IMAGES = ((1, 3, 8, 12), (2, 3, 12, 8))
SEQUENCES = ((1, 5, WIDTH), (2, 19, WIDTH))


def run(model: bytes, shape: tuple[int, ...]) -> None:
    """Run a network at one of its shapes and compare with the references of its ops."""
    feeds = {"x": normal(shape, 50).astype(np.float32)}
    graph = load_graph(model, {"x": shape})
    want = reference_values(graph, feeds)
    options = Options(guard=harness.GUARD, arena="separate")
    with clnn.compile_model(model, DEVICE, options) as session:
        got = session(feeds)
        for public, name in graph.outputs.items():
            compare(got[public], want[name], 1e-4, public)


for _make, _shapes in (
    (segmentation, IMAGES),
    (resizing, IMAGES),
    (attention, SEQUENCES),
    (rows, SEQUENCES),
    (movements, SEQUENCES),
    (batches, SEQUENCES),
):
    for _shape in _shapes:
        put(
            f"any_shape_{_make.__name__}_{'x'.join(map(str, _shape))}",
            lambda make=_make, shape=_shape: run(make(), shape),
            targets=CPU,
            quick=CPU,
        )


def packed() -> None:
    """Products whose second matrix is packed first, which is not done for one as small as here."""
    with mock.patch.object(families, "is_best_direct", lambda problem: False):
        run(batches(), SEQUENCES[1])


put("any_shape_classes", lambda: run(classes(), SEQUENCES[0]), targets=("gpu",))
put("any_shape_packed", packed, targets=CPU, quick=CPU)
