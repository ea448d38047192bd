from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import normal, of_cpus, picks, single_node

from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.edges import MOST_AT_EDGES, Edges, column_tiles
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.views import Slice
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan import schedule
from clnn.plan.border import fill_launch
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import TensorType


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0)):
    return Window(kernel, strides, dilations, before, after)


SAME = window((3, 3), before=(1, 1), after=(1, 1))
WINDOWS = {
    "same": SAME,
    "halved": window((3, 3), (2, 2), before=(1, 1), after=(1, 1)),
    "five": window((5, 5), before=(2, 2), after=(2, 2)),
    "left": window((2, 3), before=(1, 2)),
    "right": window((3, 2), (1, 2), after=(2, 1)),
    "apart": window((3, 3), dilations=(2, 3), before=(2, 3), after=(2, 3)),
    "far": window((7, 3), (2, 1), before=(6, 2), after=(3, 2)),  # windows of border alone
}


def filters(win, size, channels):
    shapes = [(2, channels, *size), (channels, 1, *win.kernel), (channels,)]
    return Conv2d(win, channels), [normal(s, k) for k, s in enumerate(shapes)]


def pair(win, size, channels, out=20):
    shapes = [(2, channels, *size), (channels, 1, *win.kernel), (channels,), (out, channels, 1, 1)]
    return Separable(win), [*(normal(s, k) for k, s in enumerate(shapes)), None]


def taken(device, graph):
    """Return name -> whether it leaves borders unread, of a node's variants and candidates."""
    found = {}

    def note(node, problem, variants):
        if node.name == "node":
            every = [*variants, *node.spec.candidates(problem)]
            found.update((v.name, v.unread == (0,)) for v in every)
        return variants[0]

    with Session(graph, select(device), Options(fuse=False), note):
        return found


@pytest.mark.dealt
@pytest.mark.parametrize("made", [filters, pair])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size,channels", [((7, 7), 40), ((6, 9), 19), ((14, 29), 16), ((3, 2), 3)])
def test_borders_are_not_read(device, monkeypatch, made, name, size, channels):
    """Borders hold NaN, which reaches the results of kernels that read them."""

    def with_nan(layout, dtype, fill, target):
        return fill_launch(layout, dtype, np.nan, target)

    monkeypatch.setattr(schedule, "fill_launch", with_nan)
    win = WINDOWS[name]
    spec, inputs = made(win, size, channels)
    graph = single_node(spec, inputs, range(1, len(inputs)))
    (want,) = spec.reference(*(None if a is None else a.astype(np.float64) for a in inputs))
    kinds = taken(device, graph)
    stay = [name for name, unread in kinds.items() if unread]
    read = [n for n in kinds if n not in stay and not {"reference", "checked"} & {*n.split("_")}]
    assert stay or not of_cpus(device)
    for way in [*stay[:3], *read[:1]]:
        with Session(graph, select(device), Options(fuse=False), picks(way)) as session:
            (got,) = session({"i0": inputs[0]}).values()
        if way in stay:
            np.testing.assert_allclose(got, want, atol=1e-4, err_msg=way)
        else:
            assert np.isnan(got).any(), way


def chained(last):
    """Return a graph of four layers of filters, one after the other; `last` reads the second one's result, too."""
    spec, (x, taps, shift) = filters(SAME, (7, 7), 24)
    types = {"x": TensorType(x.shape), "w": TensorType(taps.shape), "b": TensorType(shift.shape)}
    consts, nodes, name = {"w": taps, "b": shift}, [], "x"
    for k in range(4):
        types[f"y{k}"] = TensorType(x.shape)
        nodes.append(Node(f"n{k}", spec, (name, "w", "b"), (f"y{k}",), "conv2d"))
        name = f"y{k}"
    if last is not None:
        consts["v"] = normal((8, 24, *last.window.kernel), 5)
        types |= {"v": TensorType(consts["v"].shape)}
        types["z"] = last.infer([types["y1"], types["v"]])[0]
        nodes.append(Node("z", last, ("y1", "v"), ("z",), "conv2d"))
    outs = {"y3": "y3"} | ({"z": "z"} if last else {})
    return check(Graph(tuple(nodes), types, consts, ("x",), outs))


@pytest.mark.parametrize("last,filled", [(None, set()), (Conv2d(SAME), {"y1"})])
def test_borders_are_filled_for_who_reads_them(monkeypatch, last, filled):
    monkeypatch.setattr(schedule, "dirty_borders", lambda blocks, memory: {b.key for b in blocks})
    plan = make_plan(chained(last), Target("cpu"))
    filling = {arg.storage for step in plan.scheduled for one in step.fills for arg in one.args}
    assert filling == filled
    gpu = make_plan(chained(last), Target("gpu"))
    filling = {arg.storage for step in gpu.scheduled for one in step.fills for arg in one.args}
    assert {"y0", "y1", "y2"} <= filling


def test_borders_of_views_are_filled(monkeypatch):
    """The border of a slice is that of the whole, of which the slice of another place sees its own part."""
    monkeypatch.setattr(schedule, "dirty_borders", lambda blocks, memory: {b.key for b in blocks})
    spec, (x, taps, shift) = filters(SAME, (7, 7), 16)
    wide = np.concatenate([x, x], 1)
    many, (_, more, moved) = filters(SAME, (7, 7), 32)
    types = {n: TensorType(a.shape) for n, a in {"x": wide, "y": wide, "half": x, "z": x}.items()}
    consts = {"w": taps, "b": shift, "v": more, "c": moved}
    types |= {n: TensorType(a.shape) for n, a in consts.items()}
    nodes = (
        Node("wide", many, ("x", "v", "c"), ("y",), "conv2d"),
        Node("part", Slice((0, 8, 0, 0), (2, 16, 7, 7), (1, 1, 1, 1)), ("y",), ("half",), "slice"),
        Node("last", spec, ("half", "w", "b"), ("z",), "conv2d"),
    )
    plan = make_plan(check(Graph(nodes, types, consts, ("x",), {"z": "z"})), Target("cpu"))
    filling = {arg.storage for step in plan.scheduled for one in step.fills for arg in one.args}
    assert plan.placed["half"].storage == "y" and filling == {"y"}


@pytest.mark.parametrize("overlap", [False, True])
def test_tiles_are_written_out_where_they_meet_the_border(overlap):
    """Against every place of every window."""
    widths, kernels, steps, pads = (3, 7, 16), (1, 2, 5), ((1, 1), (2, 1), (1, 3)), (0, 2)
    for w, k, (s, d), pad in itertools.product(widths, kernels, steps, pads):
        out = (w + 2 * pad - d * (k - 1) - 1) // s + 1
        if out < 1:
            continue
        edges = Edges(w, w, out, (k, k), (s, s), (d, d), (pad, pad))
        inside = np.array([[0 <= x * s + t * d - pad < w for t in range(k)] for x in range(out)])
        have = [[edges.has_column(x, t) for t in range(k)] for x in range(out)]
        assert (inside == have).all()
        for t in range(k):
            text = edges.row_condition(t).replace("&&", "and") or "True"
            assert [bool(eval(text, {"y": y})) for y in range(out)] == [*inside[:, t]]
            assert (text == "True") == inside[:, t].all()
        for tx in {1, min(3, out), out}:
            tiles = column_tiles(out, tx, overlap)
            runs = [*edges.runs(tiles)]
            seen = [(x, n) for first, last, n, _ in runs for x in range(first, last + 1, n)]
            assert seen == tiles
            assert {x + c for x, n in tiles for c in range(n)} == {*range(out)}
            for first, last, count, free in runs:
                assert free == inside[first : last + count].all()
                assert free or first == last
            assert edges.fits(tiles) == (sum(not free for *_, free in runs) <= MOST_AT_EDGES)
