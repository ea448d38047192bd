"""Names and the order of nodes, which a model is free to choose badly."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import helper as make
from onnx_models import ints, model, run, tensor, value

from clnn.errors import UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.stages import build as stages_build

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def test_nodes_may_come_in_any_order():
    nodes = [make.make_node("Neg", ["t"], ["y"]), make.make_node("Relu", ["x"], ["t"])]
    np.testing.assert_array_equal(
        run(import_onnx(model(nodes, [value("x", (3, 4))])), x=X)["y"], -np.maximum(X, 0)
    )


def test_nodes_without_names_or_with_equal_ones_are_told_apart():
    nodes = [
        make.make_node("Relu", ["x"], ["a"], name="same"),
        make.make_node("Neg", ["a"], ["b"], name="same"),
        make.make_node("Abs", ["b"], ["c"]),
        make.make_node("Abs", ["c"], ["y"]),
    ]
    graph = import_onnx(model(nodes, [value("x", (3, 4))]))
    assert len({n.name for n in graph.nodes}) == 4
    np.testing.assert_array_equal(run(graph, x=X)["y"], np.maximum(X, 0))


def test_names_that_look_like_the_importer_s_own_do_not_collide():
    nodes = [
        make.make_node("Relu", ["x"], ["n/0"], name="n"),
        make.make_node("Neg", ["n/0"], ["y"], name="n/0"),
    ]
    graph = import_onnx(model(nodes, [value("x", (3, 4))], initializers=[ints("n", 1)]))
    np.testing.assert_array_equal(run(graph, x=X)["y"], -np.maximum(X, 0))


def test_one_value_may_be_read_twice_and_be_two_outputs():
    nodes = [make.make_node("Add", ["x", "x"], ["y"]), make.make_node("Identity", ["y"], ["z"])]
    out = run(import_onnx(model(nodes, [value("x", (3, 4))], ["y", "z", "x"])), x=X)
    np.testing.assert_array_equal(out["y"], 2 * X)
    np.testing.assert_array_equal(out["z"], 2 * X)
    np.testing.assert_array_equal(out["x"], X)


def test_words_of_the_model_never_reach_kernel_source():
    from clnn.codegen.render import render
    from clnn.graph.passes import optimise
    from clnn.plan.schedule import make_plan
    from clnn.target import Target

    evil = '"; } kernel void EVIL(global int *p) { *p = 1; } /* ${EVIL} <%EVIL%> \n#define EVIL'
    nodes = [
        make.make_node("Conv", [evil, f"w{evil}"], [f"t{evil}"], name=evil, doc_string=evil),
        make.make_node("Relu", [f"t{evil}"], [f"y{evil}"], name=f"{evil}2"),
    ]
    weights = np.ones((4, 3, 3, 3), np.float32)
    proto = model(nodes, [value(evil, (1, 3, 8, 8))], [f"y{evil}"], [tensor(f"w{evil}", weights)])
    proto.graph.name = proto.producer_name = evil
    for target in (Target(), Target("gpu", 4)):
        plan = make_plan(optimise(import_onnx(proto)), target)
        assert plan.launches
        for planned in plan.launches:
            assert "EVIL" not in render(planned.launch.template, planned.launch.params)


def test_long_and_unprintable_names_stay_out_of_messages():
    name = "\x1b[31m\n" + "n" * 100_000
    loop = make.make_node("Loop", ["", "", "x"], ["y"], name=name, body=onnx.GraphProto(name="b"))
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model([loop], [value("x", (1,))]))
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


def test_many_nodes_of_one_name_are_named_at_once():
    """Names are counted, not lengthened until they are new: that took the cube of their number."""
    nodes = [make.make_node("Neg", ["x"], [f"v{k}"], name="same") for k in range(20_000)]
    nodes[7].name = "same'2"
    graph = model(nodes, [value("x", (3, 4))], ["v9"]).graph
    began = time.process_time()
    stages_build._name_nodes(graph, {})
    assert time.process_time() - began < 5
    names = {node.name for node in graph.node}
    assert len(names) == len(nodes) and {"same", "same'2", "same'3"} <= names
