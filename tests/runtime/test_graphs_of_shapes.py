"""Graphs that are built from notes of other shapes' imports are those that an import makes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from open_images import resizing, segmentation, separable, tokens
from test_plans_from_nothing import recogniser, whole

import clnn
from clnn.compile import load_graph, prepare
from clnn.graph.replayed import Graphs
from clnn.importers.onnx.load import load_parts
from clnn.plan.schedule import lay_out
from clnn.traced import Open

DIMS = {"x": ("n", 3, "h", "w")}


def graphs_of(net, dims):
    loaded, made = load_parts(net()), []

    def make(shapes):
        made.append(shapes)
        return prepare(load_graph(loaded, shapes), clnn.Options(), fixed=False)

    return Graphs(make, dims), make, made


@pytest.mark.parametrize("net", [segmentation, resizing, separable, recogniser, tokens])
def test_graphs_are_those_of_an_import(net, pytestconfig):
    channels = 16 if net is separable else 3
    graphs, make, _ = graphs_of(net, {"x": ("n", channels, "h", "w")})
    rng = random.Random(pytestconfig.getoption("--long"))
    for _ in range(200 if pytestconfig.getoption("--long") else 25):
        shape = rng.randrange(1, 4), channels, rng.randrange(1, 130), rng.randrange(1, 130)
        found = []
        for at in (make, graphs.at):
            try:
                found.append(whole(at({"x": shape})))
            except clnn.ClnnError as err:
                found.append(f"{type(err)} {err}")
        assert found[0] == found[1], shape


def test_a_network_is_read_for_few_shapes():
    graphs, _, made = graphs_of(segmentation, DIMS)
    for height in range(32, 320, 32):
        for width in range(32, 320, 32):
            graphs.at({"x": (1 + height // 64, 3, height, width)})
    assert len(made) <= 3  # the first, those of one image, those of more


def test_functions_in_front_of_views_are_found_for_few_shapes():
    graphs, _, made = graphs_of(tokens, DIMS)
    for height in range(32, 320, 32):
        for width in range(32, 320, 32):
            graph = graphs.at({"x": (1 + height // 64, 3, height, width)})
            assert [n for n in graph.nodes if n.spec.kind == "eltwise"] == []
    assert len(made) <= 3


def test_constants_of_two_ways_are_kept_once():
    graphs, _, made = graphs_of(segmentation, DIMS)
    one, two, three = (graphs.at({"x": (n, 3, 64, 64)}) for n in (1, 1, 2))
    assert len(made) == 3
    for name, array in two.consts.items():
        assert three.consts[name] is array
        assert np.array_equal(one.consts[name], array)


def test_another_limit_is_kept(monkeypatch):
    graphs, _, _ = graphs_of(segmentation, DIMS)
    for side in (32, 64, 96):
        graphs.at({"x": (1, 3, side, side)})
    monkeypatch.setenv("CLNN_MAX_BYTES", "100000")
    with pytest.raises(clnn.ClnnError, match="CLNN_MAX_BYTES"):
        graphs.at({"x": (1, 3, 128, 128)})


@pytest.mark.parametrize("net", [segmentation, resizing, recogniser, tokens])
def test_tensors_lie_as_they_do_without_notes(device, net, pytestconfig):
    """Notes of the second shape on, against a graph that is read and laid out anew."""
    long, rng = pytestconfig.getoption("--long"), random.Random(3)
    with clnn.compile_model(net(), device, clnn.Options(specialise="never")) as session:
        target = session.at({"x": (1, 3, 64, 48)}).plan.target
        model, family = session._compile_at, session._compile_at._family
        compared = 0
        for k in range(200 if long else 30):
            sides = range(20, 130) if k % 3 else range(32, 129, 32)
            shape = rng.randrange(1, 4), 3, rng.choice(sides), rng.choice(sides)
            try:
                graph = model._read({"x": shape})
            except clnn.ClnnError:  # strides leave a rest that the network does not take
                continue
            compared += 1
            wanted, got = (
                laid_out(graph, target)
                for laid_out in (lambda g, t: lay_out(family._opened(g), t), family._lay_out)
            )
            assert whole(got) == whole(wanted), shape
            assert opens(got) == opens(wanted), shape
        assert compared > 5


def opens(value):
    """The open numbers of a plan's tables, each as both shapes have it."""
    if isinstance(value, Open):
        return int(value), value.other
    if is_dataclass(value) and not isinstance(value, type):
        return [opens(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, Mapping):
        return [opens(v) for v in value.values()]
    return [opens(v) for v in value] if isinstance(value, (tuple, list)) else None
