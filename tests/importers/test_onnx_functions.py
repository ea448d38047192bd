"""Functions of a model, operators that ONNX defines by others, branches and loops."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper as make
from onnx_models import BOOL, model, run, tensor, value

from clnn.errors import ModelError, UnsupportedOpError
from clnn.importers.onnx.importer import import_onnx
from clnn.ops.onnx_registry import onnx_importers

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


# Functions of the model


def function(name, nodes, inputs=("a",), outputs=("b",), **options):
    options = {"opset_imports": [make.make_opsetid("", 21)], **options}
    return make.make_function("own", name, list(inputs), list(outputs), list(nodes), **options)


def call(name, inputs, outputs, **attrs):
    return make.make_node(name, inputs, outputs, domain="own", name=f"call_{name}", **attrs)


def importing(nodes, functions, outputs=("y",), **options):
    return import_onnx(
        model(
            nodes, [value("x", (3, 4))], outputs, functions=functions, domains={"own": 1}, **options
        )
    )


def test_functions_are_inlined_in_functions():
    inner = function("Inner", [make.make_node("Relu", ["a"], ["b"], name="r")])
    outer = function("Outer", [call("Inner", ["a"], ["t"]), make.make_node("Neg", ["t"], ["b"])])
    graph = importing([call("Outer", ["x"], ["y"])], [outer, inner])
    np.testing.assert_array_equal(run(graph, x=X)["y"], -np.maximum(X, 0))
    assert graph.nodes[0].name == "call_Outer/call_Inner/r"


def test_function_attributes_take_the_call_s_values_else_defaults():
    node = make.make_node("LeakyRelu", ["a"], ["b"])
    node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    plain = function("Plain", [node], attributes=["slope"])
    default = function("Default", [node], attribute_protos=[make.make_attribute("slope", 0.5)])
    nodes = [
        call("Plain", ["x"], ["p"], slope=0.25),
        call("Plain", ["x"], ["o"]),
        call("Default", ["x"], ["d"]),
        call("Default", ["x"], ["e"], slope=0.125),
    ]
    out = run(importing(nodes, [plain, default], "pode"), x=X)
    for name, slope in (("p", 0.25), ("o", 0.01), ("d", 0.5), ("e", 0.125)):
        np.testing.assert_allclose(out[name], np.where(X < 0, slope * X, X), rtol=1e-6)


def test_functions_keep_names_and_opsets_to_themselves():
    """A function of another opset, whose names are those of the caller."""
    squeeze = make.make_node("Unsqueeze", ["x"], ["y"], axes=[0])
    old = function("Old", [squeeze], ["x"], ["y"], opset_imports=[make.make_opsetid("", 11)])
    nodes = [make.make_node("Neg", ["x"], ["t"]), call("Old", ["t"], ["y"])]
    np.testing.assert_array_equal(run(importing(nodes, [old]), x=X)["y"], -X[None])


def test_optional_inputs_and_outputs_of_functions_may_be_left_out():
    clip = make.make_node("Clip", ["a", "low", "high"], ["b"])
    both = function("Both", [clip, make.make_node("Neg", ["a"], ["c"])], ["a", "low", "high"], "bc")
    nodes = [call("Both", ["x", "", "h"], ["y"])]
    graph = importing(nodes, [both], initializers=[tensor("h", np.float32(2))])
    np.testing.assert_array_equal(run(graph, x=X)["y"], np.minimum(X, 2))


def test_overloads_are_told_apart():
    one = function("F", [make.make_node("Neg", ["a"], ["b"])], overload="one")
    two = function("F", [make.make_node("Abs", ["a"], ["b"])], overload="two")
    graph = importing([call("F", ["x"], ["y"], overload="two")], [one, two])
    np.testing.assert_array_equal(run(graph, x=X)["y"], np.abs(X))


def test_function_that_calls_itself_is_refused():
    loop = function("Loop", [call("Loop", ["a"], ["b"])])
    with pytest.raises(ModelError, match="a function calls itself"):
        importing([call("Loop", ["x"], ["y"])], [loop])


def test_functions_that_grow_without_bound_are_refused(monkeypatch):
    """Each calls the next one four times: 4**15 nodes out of a file of some kilobytes."""
    monkeypatch.setattr("clnn.importers.onnx.limits.MAX_NODES", 2000)
    functions = []
    for level in range(15):
        inner = "Neg" if level == 0 else f"F{level - 1}"
        make_call = make.make_node if level == 0 else call
        nodes, source = [], "a"
        for step in range(4):
            nodes.append(make_call(inner, [source], [f"t{step}"]))
            source = f"t{step}"
        functions.append(function(f"F{level}", nodes, outputs=[source]))
    with pytest.raises(ModelError, match="more than 2000 nodes after its functions are inlined"):
        importing([call("F14", ["x"], ["y"])], functions)


def test_call_with_too_many_inputs_is_refused():
    with pytest.raises(
        ModelError, match="takes 1 inputs and makes 1 outputs; the call has 2 and 1"
    ):
        importing(
            [call("F", ["x", "x"], ["y"])], [function("F", [make.make_node("Neg", "a", "b")])]
        )


# Operators that ONNX defines by others


def test_operator_runs_by_its_onnx_definition(monkeypatch):
    """Swish, where clnn has no op of its own for it: ONNX defines it by Sigmoid and Mul."""
    known = onnx_importers()
    monkeypatch.setattr(
        "clnn.importers.onnx.importer.find_importer",
        lambda call: known[call.op_type] if call.op_type != "Swish" else None,
    )
    node = make.make_node("Swish", ["x"], ["y"], name="swish", alpha=2.0)
    graph = import_onnx(model([node], [value("x", (3, 4))], opset=24))
    np.testing.assert_allclose(run(graph, x=X)["y"], X / (1 + np.exp(-2 * X)), rtol=1e-6)
    assert len(graph.nodes) > 1
    assert all(n.name.startswith("swish/") for n in graph.nodes)


def test_refusal_inside_a_definition_names_the_operator_of_the_model():
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    node = make.make_node("LinearAttention", ["q", "k", "v"], ["y", "p"], name="linear", **heads)
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model([node], [value(n, (1, 3, 8)) for n in "qkv"], opset=27))
    (problem,) = caught.value.problems
    assert (problem.node, problem.op_type) == ("linear", "LinearAttention")
    assert problem.reason.startswith("clnn has no such operator")
    assert "and ONNX's definition of it needs Reshape" in problem.reason


# Branches and loops


def branch(name, nodes, outputs, initializers=()):
    values = [onnx.ValueInfoProto(name=n) for n in outputs]
    return make.make_graph(list(nodes), name, [], values, list(initializers))


def choosing(condition):
    """y = relu(x) * w where the condition holds, else -x; w belongs to the branch."""
    then = branch(
        "then",
        [make.make_node("Relu", ["x"], ["t"]), make.make_node("Mul", ["t", "w"], ["z"])],
        ["z"],
        [tensor("w", np.float32(3))],
    )
    other = branch("else", [make.make_node("Neg", ["x"], ["z"])], ["z"])
    return make.make_node("If", [condition], ["y"], then_branch=then, else_branch=other, name="if")


@pytest.mark.parametrize("truth", [True, False])
def test_if_with_a_constant_condition_takes_its_branch(truth):
    graph = import_onnx(
        model([choosing("c")], [value("x", (3, 4))], initializers=[tensor("c", truth)])
    )
    want = 3 * np.maximum(X, 0) if truth else -X
    np.testing.assert_array_equal(run(graph, x=X)["y"], want)


def test_if_whose_condition_folds_takes_its_branch():
    """The condition is computed from the input's shape, which is known."""
    nodes = [
        make.make_node("Shape", ["x"], ["s"]),
        make.make_node("Size", ["s"], ["rank"]),
        make.make_node("Equal", ["rank", "two"], ["c"]),
        choosing("c"),
    ]
    graph = import_onnx(
        model(nodes, [value("x", (3, 4))], initializers=[tensor("two", np.int64(2))])
    )
    np.testing.assert_array_equal(run(graph, x=X)["y"], 3 * np.maximum(X, 0))


def test_if_that_only_the_run_can_decide_is_refused():
    proto = model([choosing("c")], [value("x", (3, 4)), value("c", (), BOOL)])
    with pytest.raises(UnsupportedOpError, match="its condition is not constant"):
        import_onnx(proto)


@pytest.mark.parametrize("kind", ["Loop", "Scan"])
def test_loops_are_refused_with_a_reason(kind):
    body = make.make_graph(
        [make.make_node("Identity", ["i"], ["o"])],
        "body",
        [value("i", (3, 4))],
        [value("o", (3, 4))],
    )
    attrs = {"body": body, **({"num_scan_inputs": 1} if kind == "Scan" else {})}
    inputs = ["x"] if kind == "Scan" else ["", "", "x"]
    node = make.make_node(kind, inputs, ["y"], name="loop", **attrs)
    with pytest.raises(UnsupportedOpError, match=f"{kind}.*clnn plans every launch before the run"):
        import_onnx(model([node], [value("x", (3, 4))]))
