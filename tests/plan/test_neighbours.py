"""Images whose channels lie apart: fast kernels read a copy in which they are neighbours."""

from __future__ import annotations

import re

import numpy as np
import pytest
from harness import normal
from small_graphs import Builder

from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose
from clnn.ops.pool.roi_align import RoiAlign
from clnn.ops.pool.roi_max import RoiMax
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.deform_sample import DeformSample
from clnn.ops.resize.grid_sample import GridSample
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import TensorType
from clnn.verification.reference import reference_values

CHANNELS, HEIGHT, WIDTH = 16, 7, 9
IMAGE = (1, CHANNELS, HEIGHT, WIDTH)
SLOW = re.compile("reference|_any$|spread|_v1$")  # in the names of kernels that take any layout


def planes(b: Builder) -> str:
    """Rows of a softmax seen as planes of an image."""
    return b.add(Reshape(IMAGE), b.add(Softmax((2,)), "planes"))


def heads(b: Builder) -> str:
    """Rows of a product whose parts are channels, as heads of attention are."""
    made = b.add(Gemm(), "tokens", b.const(8, CHANNELS * WIDTH))
    seen = b.add(Reshape((1, HEIGHT, CHANNELS, WIDTH)), made)
    return b.add(Transpose((0, 2, 1, 3)), seen)


def every_other(b: Builder) -> str:
    """Every second channel of an image."""
    wide = b.conv("image", 2 * CHANNELS, 1)
    return b.add(Slice((0, 1, 0, 0), IMAGE, (1, 2, 1, 1)), wide)


def joined(b: Builder) -> str:
    """An image that is a part of joined rows, too, in whose memory it may lie."""
    made = b.post_ops("relu", b.add(Reshape(IMAGE), b.add(Softmax((2,)), "planes")))
    rows = b.add(Reshape((1, CHANNELS, HEIGHT * WIDTH)), made)
    b.also = b.add(Softmax((2,)), b.add(Concat(1), rows, "planes"))
    return made


PRODUCERS = {f.__name__: f for f in (planes, heads, every_other, joined)}


def pool(mode: str, kernel: int, stride: int = 1):
    side = ((kernel - 1) // 2,) * 2
    window = Window((kernel, kernel), (stride, stride), (1, 1), side, side)
    return lambda b, x: b.add(Pool(window, mode), x)


def transposed(outputs: int, group: int = 1):
    spec = ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (2 * HEIGHT, 2 * WIDTH), group)
    return lambda b, x: b.add(spec, x, b.const(CHANNELS, outputs // group, 2, 2), b.const(outputs))


READERS = {
    "conv1x1": lambda b, x: b.conv(x, 24, 1),
    "conv1x1_to_one": lambda b, x: b.conv(x, 1, 1),
    "conv3x3": lambda b, x: b.conv(x, 8),
    "conv3x3_stride": lambda b, x: b.conv(x, 8, stride=2),
    "conv_grouped": lambda b, x: b.conv(x, CHANNELS, group=4),
    "depthwise": lambda b, x: b.conv(x, CHANNELS, group=CHANNELS),
    "separable": lambda b, x: b.conv(b.conv(x, CHANNELS, group=CHANNELS), 8, 1),
    "conv_pooled": lambda b, x: pool("max", 2, 2)(b, b.post_ops("relu", b.conv(x, 16))),
    "transposed_depthwise": transposed(CHANNELS, CHANNELS),
    "transposed_to_one": transposed(1),
    "max": pool("max", 3, 2),
    "average": pool("average", 3),
    "lp": pool("lp", 2, 2),
    "samples": lambda b, x: b.add(GridSample(), x, b.const(1, 5, 6, 2)),
    "moved_samples": lambda b, x: b.add(
        DeformSample(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))), x, b.const(1, 18, *IMAGE[2:])
    ),
    "regions": lambda b, x: b.add(
        RoiAlign((2, 3)), x, b.const(4, 4), b.fixed(np.zeros(4, np.int64))
    ),
    "largest_of_regions": lambda b, x: b.add(
        RoiMax((2, 2)), x, b.fixed(np.array([[0, 1, 1, 6, 5]], np.float32))
    ),
}


def network(producer: str, reader) -> Graph:
    b = Builder(
        planes=(1, CHANNELS, HEIGHT * WIDTH), tokens=(1, HEIGHT, 8), image=(1, 8, *IMAGE[2:])
    )
    b.also = ""
    out = reader(b, PRODUCERS[producer](b))
    return optimise(b.graph(out, *[b.also] * bool(b.also)))


def kernels(graph: Graph, target: Target | None = None) -> list[str]:
    """Names of the kernels of image ops."""
    made = make_plan(graph, target or Target())
    return [s.variant.name for s in made.scheduled if s.node.spec.layout_rule == "image"]


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("reader", READERS)
def test_images_whose_channels_lie_apart_are_copied_for_fast_kernels(producer, reader, device):
    graph = network(producer, READERS[reader])
    names = kernels(graph)
    assert names and not [n for n in names if SLOW.search(n)], names
    feeds = {n: normal(graph.types[n].shape, k) for k, n in enumerate(graph.inputs)}
    want = reference_values(graph, feeds)
    with Session(graph, select(device), Options(tune="off", guard=64)) as session:
        got = session(feeds)
    for name, value in graph.outputs.items():
        exact = np.asarray(want[value], np.float64)
        assert np.abs(got[name] - exact).max() <= 2e-6 * max(np.abs(exact).max(), 1.0)


def test_poolings_that_gain_nothing_read_planes_where_they_are():
    made = make_plan(network("planes", pool("max", 1, 2)), Target())
    assert made.copied_bytes == 0
    window = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    assert not Pool(window, "max", indices="row").needs_neighbours([TensorType(IMAGE)])


def test_few_channels_and_strides_over_most_elements_need_no_copy():
    b = Builder(x=(1, 3, 63), y=(1, 16, 64))
    few = b.add(Reshape((1, 3, 7, 9)), b.add(Softmax((2,)), "x"))
    wide = b.add(Reshape((1, 16, 8, 8)), b.add(Softmax((2,)), "y"))
    made = make_plan(b.graph(b.conv(few, 8, 1), b.conv(wide, 3, 1, stride=2)), Target())
    assert made.placed[few].storage != few and made.placed[wide].storage != wide
