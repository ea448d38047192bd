"""Borders, views and memory of whole graphs; no device."""

from __future__ import annotations

import pytest
from small_graphs import Builder

from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose, slice_of
from clnn.ops.rows.softmax import Softmax
from clnn.plan.plan import TensorArg
from clnn.plan.schedule import make_plan
from clnn.target import Target


def plan(graph: Graph, **options):
    return make_plan(optimise(graph), Target(), **options)


def test_a_tensor_gets_the_largest_border_of_its_consumers():
    b = Builder(x=(1, 4, 8, 8))
    v = b.post_ops("relu", b.conv("x", 8, 1))
    made = plan(b.graph(b.conv(v, 4, 3), b.conv(v, 4, 5)))
    layout = made.placed[v].layout
    assert layout.before == (0, 0, 2, 2) == layout.after
    convs = [s.variant.name for s in made.scheduled if s.node.spec.kind == "conv2d"]
    assert all("direct" in name or "winograd_rows" in name for name in convs)
    assert not any("checked" in s.variant.name for s in made.scheduled)


def test_channels_are_innermost_between_convolutions_and_outputs_are_dense():
    b = Builder(x=(2, 3, 8, 8))
    v = b.conv("x", 8)
    made = plan(b.graph(b.conv(v, 5)))
    assert made.placed[v].layout.pitches[1] == 1
    port = made.outputs[0]
    assert made.placed[port.host].layout.is_dense and port.host != port.value


def test_an_input_of_few_channels_keeps_its_planes_where_all_consumers_take_them():
    b = Builder(x=(1, 3, 8, 8), y=(1, 3, 8, 8))
    made = plan(b.graph(b.conv("x", 8), b.conv("y", 8), b.post_ops("relu", "y")))
    assert made.placed["x"].layout.pitches == (300, 100, 10, 1)
    assert made.placed["y"].layout.pitches[1] == 1


def test_pixels_that_would_share_few_cache_sets_lie_further_apart():
    b = Builder(x=(1, 16, 6, 6))
    wide, half = b.conv("x", 1024), b.conv("x", 512)
    narrow, odd = b.conv("x", 256), b.conv("x", 1040)
    outs = [b.conv(v, 16) for v in (wide, half, narrow, odd)]
    made = plan(b.graph(*outs))
    assert [made.placed[v].layout.pitches[3] for v in (wide, half, narrow, odd)] == [
        1040,
        528,
        256,
        1040,
    ]
    gpu = make_plan(made.graph, Target("gpu", vector=4))
    assert gpu.placed[wide].layout.pitches[3] == 1024


def test_vectors_are_not_kept_apart():
    b = Builder(x=(4, 512, 1, 1))
    made = plan(b.graph(b.conv(b.conv("x", 1024, 1), 1024, 1)))
    assert all(
        w.layout.size == 4 * w.layout.shape[1]
        for w in made.placed.values()
        if w.layout.shape[0] == 4
    )


def test_concat_members_are_written_in_place():
    b = Builder(x=(1, 4, 8, 8))
    left, right = b.conv("x", 8), b.conv("x", 16, 1)
    joined = b.add(Concat(1), left, right)
    made = plan(b.graph(b.conv(joined, 4)))
    assert made.copied_bytes == 0
    assert made.placed[left].storage == made.placed[right].storage == made.placed[joined].storage
    assert made.placed[right].layout.offset == made.placed[joined].layout.offset + 8
    assert made.placed[joined].layout.before == (0, 0, 1, 1)


def test_prefixes_of_a_growing_concat_are_views():
    b = Builder(x=(1, 8, 6, 6))
    parts = [b.conv("x", 8, 1)]
    for _ in range(4):
        joined = b.add(Concat(1), *parts) if len(parts) > 1 else parts[0]
        parts.append(b.conv(b.post_ops("relu", joined), 4))
    made = plan(b.graph(b.conv(b.add(Concat(1), *parts), 4)))
    assert made.copied_bytes == 0


def test_detection_heads_are_written_into_the_joined_rows():
    b = Builder(x=(1, 8, 6, 5))
    rows = []
    for size in (8, 4):
        v = b.conv("x", size)
        v = b.add(Transpose((0, 2, 3, 1)), v)
        rows.append(b.add(Reshape((1, 30 * size // 4, 4)), v))
    made = plan(b.graph(b.add(Concat(1), *rows)))
    assert made.copied_bytes == 0


def test_split_parts_are_views_and_a_cut_side_has_no_border():
    b = Builder(x=(1, 8, 8, 8))
    v = b.post_ops("relu", b.conv("x", 8))
    top = b.add(slice_of((1, 8, 8, 8), 2, 0, 4), v)
    front = b.add(slice_of((1, 8, 8, 8), 1, 0, 4), v)
    made = plan(b.graph(b.conv(top, 4), b.conv(front, 4)))
    assert made.copied_bytes == 0
    assert made.placed[front].layout.before == (0, 0, 1, 1)
    assert made.placed[top].layout.after[2] == 0
    names = {s.node.inputs[0]: s.variant.name for s in made.scheduled}
    assert "checked" in names[top] and "checked" not in names[front]


def test_a_border_wins_over_a_view():
    b = Builder(x=(1, 4, 6, 6))
    v = b.conv("x", 8)
    flat = b.add(Reshape((1, 36 * 8)), v)
    made = plan(b.graph(b.conv(v, 4), b.post_ops("relu", flat)))
    assert made.placed[v].layout.before == (0, 0, 1, 1)
    assert made.placed[flat].storage != made.placed[v].storage
    assert made.copied_bytes == 36 * 8 * 4


@pytest.mark.parametrize("group", [16, 1])
def test_tokens_are_copied_for_the_border_of_filters_of_one_channel(group):
    """As pictures of transformers: (n, h * w, c), transposed and reshaped to (n, c, h, w)."""
    b = Builder(x=(1, 30, 8))
    tokens = b.add(Gemm(), "x", b.const(8, 16))
    image = b.add(Reshape((1, 16, 5, 6)), b.add(Transpose((0, 2, 1)), tokens))
    made = plan(b.graph(b.conv(image, 16, group=group)))
    names = [s.variant.name for s in made.scheduled if s.node.spec.kind == "conv2d"]
    apart = made.placed[image].storage != made.placed[tokens].storage
    assert apart == (group > 1) == ("depthwise" in names[0])


@pytest.mark.parametrize("reader", ["product", "softmax", "output"])
def test_elementwise_results_keep_the_order_of_heads_where_products_read_them(reader):
    """As XCiT's queries: (n, tokens, heads, d) seen as (n, heads, d, tokens), divided along the tokens."""
    b = Builder(x=(1, 20, 8))
    heads = b.add(Reshape((1, 20, 2, 16)), b.add(Gemm(), "x", b.const(8, 32)))
    seen = b.add(Transpose((0, 2, 3, 1)), heads)
    made = b.post_ops("mul", seen, b.const(2, 1, 1))
    turned = b.add(Transpose((0, 1, 3, 2)), made)
    last = b.add(Softmax((3,)), made) if reader == "softmax" else made
    products = [b.add(Gemm(), made, turned)] if reader == "product" else []
    found = plan(b.graph(*products, *([last] if reader != "product" else [])))
    pitches = found.placed[made].layout.pitches
    assert pitches[1:] == ((16, 1, 32) if reader == "product" else (320, 20, 1))


def test_reversed_slice_is_a_view():
    b = Builder(x=(1, 4, 6, 6))
    v = b.post_ops("relu", "x")
    back = b.add(Slice((0, 0, 5, 0), (1, 4, 6, 6), (1, 1, -1, 1)), v)
    made = plan(b.graph(b.post_ops("add", back, v)))
    assert made.copied_bytes == 0 and made.placed[back].layout.pitches[2] < 0


def test_value_that_is_input_and_output():
    b = Builder(x=(1, 4, 6, 6))
    made = plan(b.graph("x", b.post_ops("relu", "x")))
    assert made.outputs[0].host != "x"


@pytest.mark.parametrize("separate", [False, True])
def test_storages_are_inside_and_apart_while_alive(separate):
    b = Builder(x=(1, 8, 16, 16))
    v = "x"
    skips = []
    for _ in range(5):
        v = b.post_ops("relu", b.conv(v, 8))
        skips.append(v)
    for skip in reversed(skips):
        v = b.post_ops("add", b.conv(v, 8), skip)
    made = plan(b.graph(v), separate=separate)
    spans = [
        (made.memory.offsets[k], made.memory.offsets[k] + s.nbytes, s.first, s.last)
        for k, s in made.storages.items()
    ]
    for i, (a0, a1, f0, l0) in enumerate(spans):
        assert a0 >= 0 and a1 <= made.memory.total
        for b0, b1, f1, l1 in spans[:i]:
            alive_together = separate or not (l0 < f1 or l1 < f0)
            assert not alive_together or a1 <= b0 or b1 <= a0
    if not separate:
        assert made.memory.total <= 1.1 * made.memory.lower_bound


def test_every_read_of_a_border_is_filled_before():
    """A storage with a border is filled once, or again before its first writer when shared."""
    b = Builder(x=(1, 8, 16, 16))
    v = "x"
    for k in (3, 1, 3, 5, 1, 3):
        v = b.post_ops("relu", b.conv(v, 8, k))
    made = plan(b.graph(v))
    filled = {a.storage for f in made.first_fills for a in f.args if isinstance(a, TensorArg)}
    for step in made.scheduled:
        filled |= {a.storage for f in step.fills for a in f.args if isinstance(a, TensorArg)}
    assert filled == {k for k, s in made.storages.items() if s.layout.has_padding}
