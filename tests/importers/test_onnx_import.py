"""What an import makes of a model: functions, branches, constants, names, old forms, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as make
from onnx_models import BOOL, FLOAT, INT64, conv, ints, model, relu, run, tensor, value

from clnn.errors import ModelError, ShapeError, UnsupportedOpError
from clnn.importers.onnx import import_onnx

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def function(name, nodes, inputs=("a",), outputs=("b",), **options):
    options = {"opset_imports": [make.make_opsetid("", 21)], **options}
    return make.make_function("own", name, list(inputs), list(outputs), list(nodes), **options)


def call(name, inputs, outputs, **attrs):
    return make.make_node(name, inputs, outputs, domain="own", name=f"call_{name}", **attrs)


def importing(nodes, functions, outputs=("y",), **options):
    return import_onnx(model(nodes, [value("x", (3, 4))], outputs, functions=functions,
                             domains={"own": 1}, **options))  # fmt: skip


# Functions of the model


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
    nodes = [call("Plain", ["x"], ["p"], slope=0.25), call("Plain", ["x"], ["o"]),
             call("Default", ["x"], ["d"]), call("Default", ["x"], ["e"], slope=0.125)]  # fmt: skip
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
    monkeypatch.setattr("clnn.importers.onnx_limits.MAX_NODES", 2000)
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


def test_operator_runs_by_its_onnx_definition():
    """Swish has no op of clnn's own; ONNX defines it by Sigmoid and Mul."""
    from clnn.ops._registry import onnx_importers

    assert "Swish" not in onnx_importers()
    node = make.make_node("Swish", ["x"], ["y"], name="swish", alpha=2.0)
    graph = import_onnx(model([node], [value("x", (3, 4))], opset=24))
    np.testing.assert_allclose(run(graph, x=X)["y"], X / (1 + np.exp(-2 * X)), rtol=1e-6)
    assert len(graph.nodes) > 1
    assert all(n.name.startswith("swish/") for n in graph.nodes)


def test_refusal_inside_a_definition_names_the_operator_of_the_model():
    node = make.make_node("Bernoulli", ["x"], ["y"], name="coin", dtype=FLOAT)
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model([node], [value("x", (3, 4))]))
    (problem,) = caught.value.problems
    assert (problem.node, problem.op_type) == ("coin", "Bernoulli")
    assert problem.reason.startswith("random numbers would make runs differ")
    assert "and ONNX's definition of it needs RandomUniformLike" in problem.reason


# Branches and loops


def branch(name, nodes, outputs, initializers=()):
    values = [onnx.ValueInfoProto(name=n) for n in outputs]
    return make.make_graph(list(nodes), name, [], values, list(initializers))


def choosing(condition):
    """y = relu(x) * w where the condition holds, else -x; w belongs to the branch."""
    then = branch("then", [make.make_node("Relu", ["x"], ["t"]), make.make_node("Mul", ["t", "w"], ["z"])],
                  ["z"], [tensor("w", np.float32(3))])  # fmt: skip
    other = branch("else", [make.make_node("Neg", ["x"], ["z"])], ["z"])
    node = make.make_node("If", [condition], ["y"], then_branch=then, else_branch=other, name="if")
    return node


@pytest.mark.parametrize("truth", [True, False])
def test_if_with_a_constant_condition_takes_its_branch(truth):
    graph = import_onnx(
        model([choosing("c")], [value("x", (3, 4))], initializers=[tensor("c", truth)])
    )
    want = 3 * np.maximum(X, 0) if truth else -X
    np.testing.assert_array_equal(run(graph, x=X)["y"], want)


def test_if_whose_condition_folds_takes_its_branch():
    """The condition is computed from the input's shape, which is known."""
    nodes = [make.make_node("Shape", ["x"], ["s"]), make.make_node("Size", ["s"], ["rank"]),
             make.make_node("Equal", ["rank", "two"], ["c"]), choosing("c")]  # fmt: skip
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


# Constants and folding


def test_shape_arithmetic_folds_away():
    """reshape(x, (x.shape[0], -1)), the way exporters write it."""
    nodes = [
        make.make_node("Shape", ["x"], ["s"]),
        make.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        make.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        make.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        make.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = [tensor("zero", np.int64(0)), ints("axes", 0), ints("rest", -1)]
    graph = import_onnx(model(nodes, [value("x", (3, 4, 5))], initializers=weights))
    assert graph.types[graph.outputs["y"]].shape == (3, 20)
    assert len(graph.nodes) == 1


CONSTANT_NODES = {
    "slice of a shape": ([make.make_node("Shape", ["x"], ["y"], start=1, end=-1)], [3, 4]),
    "size": ([make.make_node("Size", ["x"], ["y"])], 120),
    "range": ([make.make_node("Range", ["a", "b", "c"], ["y"])], [2, 5, 8]),
    "constant of shape": (
        [make.make_node("ConstantOfShape", ["v"], ["y"], value=ints("v", 7))], [[7, 7, 7]] * 1),
    "integer division": ([make.make_node("Div", ["n", "c"], ["y"])], [-2, 3]),
    "remainder": ([make.make_node("Mod", ["n", "c"], ["y"])], [2, 1]),
    "largest integer": ([make.make_node("Identity", ["big"], ["y"])], [2**63 - 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", CONSTANT_NODES)
def test_integer_constants_are_exact(case):
    nodes, want = CONSTANT_NODES[case]
    weights = [tensor("a", np.int64(2)), tensor("b", np.int64(9)), tensor("c", np.int64(3)),
               ints("v", 1, 3), ints("n", -7, 10), ints("big", 2**63 - 1)]  # fmt: skip
    graph = import_onnx(model(nodes, [value("x", (2, 3, 4, 5))], initializers=weights))
    got = graph.consts[graph.outputs["y"]]
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
    assert not graph.nodes


CONSTANT_FORMS = {
    "value_float": (1.5, np.float32(1.5)),
    "value_floats": ([1.0, 2.0], np.array([1, 2], np.float32)),
    "value_int": (3, np.int64(3)),
    "value_ints": ([3, 4], np.array([3, 4])),
    "value": (tensor("", np.array([[5]], np.int32)), np.array([[5]], np.int32)),
}


@pytest.mark.parametrize("form", CONSTANT_FORMS)
def test_every_form_of_constant(form):
    given, want = CONSTANT_FORMS[form]
    graph = import_onnx(model([make.make_node("Constant", [], ["y"], **{form: given})]))
    got = graph.consts[graph.outputs["y"]]
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_constants_of_types_without_tensors_fold_through_casts():
    """Weights stored as bfloat16, float16 or float8 and cast to float32 at once."""
    for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN):
        stored = make.make_tensor("w", kind, [2], [1.5, -0.5])
        nodes = [
            make.make_node("Cast", ["w"], ["f"], to=FLOAT),
            make.make_node("Add", ["x", "f"], ["y"]),
        ]
        graph = import_onnx(model(nodes, [value("x", (2,))], initializers=[stored]))
        np.testing.assert_array_equal(run(graph, x=np.zeros(2, np.float32))["y"], [1.5, -0.5])


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_quantised_constants_fold(opset):
    nodes = [make.make_node("DequantizeLinear", ["w", "s", "z"], ["f"]),
             make.make_node("Add", ["x", "f"], ["y"])]  # fmt: skip
    weights = [tensor("w", np.array([3, 130], np.uint8)), tensor("s", np.float32(0.5)),
               tensor("z", np.uint8(128))]  # fmt: skip
    graph = import_onnx(model(nodes, [value("x", (2,))], initializers=weights, opset=opset))
    np.testing.assert_array_equal(run(graph, x=np.zeros(2, np.float32))["y"], [-62.5, 1])


def test_sparse_initializers_are_made_dense():
    for indices in ([[0, 1], [2, 3]], None):
        places = np.array(indices if indices else [1, 11], np.int64)
        sparse = make.make_sparse_tensor(
            tensor("w", np.array([5, 7], np.float32)), tensor("", places), [3, 4])  # fmt: skip
        proto = model([make.make_node("Add", ["x", "w"], ["y"])], [value("x", (3, 4))])
        proto.graph.sparse_initializer.append(sparse)
        want = np.zeros((3, 4))
        want[0, 1], want[2, 3] = 5, 7
        np.testing.assert_array_equal(
            run(import_onnx(proto), x=np.zeros((3, 4), np.float32))["y"], want
        )


TYPED = [np.float32, np.float64, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
         np.int64, np.uint64, np.bool_]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPED, ids=lambda d: d.__name__)
@pytest.mark.parametrize("raw", [True, False])
def test_initializers_of_every_type_and_storage(dtype, raw):
    array = np.array([[0, 1, 1], [1, 0, 100]]).astype(dtype)
    kind = make.np_dtype_to_tensor_dtype(array.dtype)
    data = array.tobytes() if raw else array.reshape(-1).tolist()
    proto = model([], [], ["w"], [make.make_tensor("w", kind, array.shape, data, raw=raw)])
    got = import_onnx(proto).consts["w"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_true_is_true_whatever_byte_it_is_stored_as():
    proto = model([], [], ["w"], [make.make_tensor("w", BOOL, [3], bytes([0, 2, 255]), raw=True)])
    np.testing.assert_array_equal(import_onnx(proto).consts["w"], [False, True, True])


# Names and order


def test_nodes_may_come_in_any_order():
    nodes = [make.make_node("Neg", ["t"], ["y"]), make.make_node("Relu", ["x"], ["t"])]
    np.testing.assert_array_equal(
        run(import_onnx(model(nodes, [value("x", (3, 4))])), x=X)["y"], -np.maximum(X, 0)
    )


def test_nodes_without_names_or_with_equal_ones_are_told_apart():
    nodes = [make.make_node("Relu", ["x"], ["a"], name="same"), make.make_node("Neg", ["a"], ["b"], name="same"),
             make.make_node("Abs", ["b"], ["c"]), make.make_node("Abs", ["c"], ["y"])]  # fmt: skip
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
    from clnn.ops._base import Target
    from clnn.plan.schedule import make_plan

    evil = '"; } kernel void EVIL(global int *p) { *p = 1; } /* ${EVIL} <%EVIL%> \n#define EVIL'
    nodes = [make.make_node("Conv", [evil, f"w{evil}"], [f"t{evil}"], name=evil, doc_string=evil),
             make.make_node("Relu", [f"t{evil}"], [f"y{evil}"], name=f"{evil}2")]  # fmt: skip
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
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model([make.make_node("Loop", ["", "", "x"], ["y"], name=name, body=branch("b", [], []))],
                          [value("x", (1,))]))  # fmt: skip
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


# Old operator sets


def old(nodes, inputs, opset=6, **options):
    return import_onnx(model(nodes, inputs, opset=opset, **options))


@pytest.mark.parametrize(
    ("attrs", "shape"),
    [({"broadcast": 1, "axis": 1}, (3,)), ({"broadcast": 1, "axis": 1}, (3, 4)),
     ({"broadcast": 1, "axis": -3}, (3,)), ({"broadcast": 1}, (5,)), ({"broadcast": 1}, (4, 5)),
     ({"broadcast": 1, "axis": 0}, (2,)), ({}, (2, 3, 4, 5)), ({"broadcast": 1}, ())],
)  # fmt: skip
@pytest.mark.parametrize("constant", [True, False])
def test_broadcasting_of_opset_6(attrs, shape, constant):
    x = np.random.default_rng(0).random((2, 3, 4, 5), np.float32)
    b = np.random.default_rng(1).random(shape, np.float32)
    axis = attrs.get("axis", 4 - b.ndim) % 4 if b.ndim else 0
    want = x - b.reshape((1,) * axis + b.shape + (1,) * (4 - axis - b.ndim))
    node = make.make_node("Sub", ["x", "b"], ["y"], **attrs)
    inputs = [value("x", x.shape)] + ([] if constant else [value("b", shape)])
    graph = old([node], inputs, initializers=[tensor("b", b)] if constant else [])
    feeds = {"x": x} if constant else {"x": x, "b": b}
    np.testing.assert_allclose(run(graph, **feeds)["y"], want, rtol=1e-6)


def test_prelu_of_opset_6_has_a_slope_per_channel():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    slope = np.array([0.1, 0.2, 0.3], np.float32)
    graph = old([make.make_node("PRelu", ["x", "s"], ["y"])], [value("x", x.shape)],
                initializers=[tensor("s", slope)])  # fmt: skip
    want = np.where(x < 0, slope[:, None, None] * x, x)
    np.testing.assert_allclose(run(graph, x=x)["y"], want, rtol=1e-6)


def test_ops_that_did_not_change_run_from_any_opset():
    np.testing.assert_array_equal(
        run(old([make.make_node("Neg", ["x"], ["y"])], [value("x", (3, 4))], opset=6), x=X)["y"], -X
    )


@pytest.mark.parametrize(
    ("node", "opset", "words"),
    [
        (make.make_node("Dropout", ["x"], ["y"]), 6, "training mode"),
        (make.make_node("Add", ["x", "b"], ["y"]), 6, "differ without `broadcast`"),
        (make.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1), 6, "axis 1 does not place"),
        (make.make_node("Relu", ["x"], ["y"]), 1, "another form before opset 7"),
    ],
)
def test_old_forms_that_do_not_run_say_so(node, opset, words):
    with pytest.raises(UnsupportedOpError, match=words):
        old(
            [node],
            [value("x", (3, 4))],
            opset,
            initializers=[tensor("b", np.ones((1, 4), np.float32))],
        )


# Refusals


def test_all_unsupported_nodes_are_listed_at_once():
    nodes = [
        make.make_node("Relu", ["x"], ["a"]),
        make.make_node("NonMaxSuppression", ["a3", "b3"], ["n"], name="nms"),
        make.make_node("Fancy", ["a"], ["b"], name="f1", domain="com.example"),
        make.make_node("Fancy", ["a"], ["c"], name="f2", domain="com.example"),
        make.make_node("Fancy", ["w"], ["d"], name="f3", domain="com.example"),
        make.make_node("Neg", ["b"], ["e"], name="behind"),
        make.make_node("Bogus", ["x"], ["g"], name="bogus"),
        make.make_node("Strange", ["x"], ["h"], name="strange", domain="not.imported"),
    ]
    boxes = [value("a3", (1, 4, 4)), value("b3", (1, 1, 4))]
    proto = model(nodes, [value("x", (3, 4)), *boxes], "yebcdgh"[1:], [ints("w", 1)],
                  domains={"com.example": 3})  # fmt: skip
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(proto)
    text = str(caught.value)
    assert text.startswith("6 node(s) cannot run on clnn:")
    assert "2 x com.example::Fancy (opset 3) of (float32[3x4])" in text
    assert "Node 'f1', 'f2'" in text
    assert "1 x com.example::Fancy (opset 3) of (int64[1])" in text
    assert (
        "ai.onnx::NonMaxSuppression (opset 21) of (float32[1x4x4], float32[1x1x4]): the shape of"
        in text
    )
    assert (
        "ai.onnx::Bogus (opset 21) of (float32[3x4]): opset 21 of ONNX has no such operator" in text
    )
    assert "not.imported::Strange of (float32[3x4]): the model imports no operator set of" in text
    assert "docs/operators.md" in text
    assert "behind" not in text
    assert [p.node for p in caught.value.problems] == ["nms", "f1", "f2", "f3", "bogus", "strange"]


def test_very_many_unsupported_nodes_stay_readable():
    nodes = [
        make.make_node(f"Op{k % 60}", ["x"], [f"o{k}"], domain="own", name=f"n{k}")
        for k in range(600)
    ]
    with pytest.raises(UnsupportedOpError) as caught:
        import_onnx(model(nodes, [value("x", (1,))], ["o0"], domains={"own": 1}))
    assert "... and 10 more kinds" in str(caught.value)
    assert "and 7 more" in str(caught.value)
    assert len(caught.value.problems) == 600


def test_form_from_a_newer_operator_set_than_clnn_knows_is_refused(monkeypatch):
    monkeypatch.setattr("clnn.importers.onnx_nodes.NEWEST_OPSET", 5)
    monkeypatch.setattr("clnn.importers.onnx_report.NEWEST_OPSET", 5)
    from clnn.importers import onnx_nodes

    onnx_nodes._known.cache_clear()
    with pytest.raises(
        UnsupportedOpError, match=r"it changed in opset \d+; clnn knows ONNX up to opset 5"
    ):
        import_onnx(relu())
    onnx_nodes._known.cache_clear()


def test_float16_models_are_refused_with_what_to_do():
    weights = np.ones((4, 3, 3, 3), np.float16)
    nodes = [
        make.make_node("Conv", ["x", "w"], ["t"], name="c"),
        make.make_node("Relu", ["t"], ["y"]),
    ]
    proto = model(
        nodes, [value("x", (1, 3, 8, 8), TensorProto.FLOAT16)], initializers=[tensor("w", weights)]
    )
    with pytest.raises(UnsupportedOpError, match="convert the model to float32"):
        import_onnx(proto)


def test_wrong_shapes_inside_a_model_name_the_node():
    node = make.make_node("Add", ["x", "w"], ["y"], name="sum")
    proto = model(
        [node], [value("x", (3, 4))], initializers=[tensor("w", np.ones((3, 5), np.float32))]
    )
    with pytest.raises(ShapeError, match=r"node 'sum' \(Add\): shapes \(3, 4\) and \(3, 5\)"):
        import_onnx(proto)


def test_output_that_is_text_is_refused():
    node = make.make_node("Constant", [], ["y"], value_string="words")
    with pytest.raises(ModelError, match="output 'y' is text"):
        import_onnx(model([node], [value("x", (1,))]))


def test_values_of_inputs_become_constants_only_where_an_op_needs_them():
    node = [
        make.make_node("Reshape", ["x", "shape"], ["t"]),
        make.make_node("Add", ["t", "b"], ["y"]),
    ]
    inputs = [value("x", (3, 4)), value("shape", (2,), INT64), value("b", (2, 6))]
    with pytest.raises(UnsupportedOpError, match=r"shape \(input 1\) is not a constant"):
        import_onnx(model(node, inputs))
    data = {"x": X, "shape": np.array([2, 6]), "b": np.ones((2, 6), np.float32)}
    graph = import_onnx(model(node, inputs), values=data)
    assert graph.inputs == ("x", "b")
    np.testing.assert_array_equal(run(graph, x=X, b=data["b"])["y"], X.reshape(2, 6) + 1)


def test_convolution_imports_as_one_node():
    graph = import_onnx(conv(pads=[1, 1, 1, 1]))
    assert [n.spec.kind for n in graph.nodes] == ["conv2d"]
    assert graph.types[graph.outputs["y"]].shape == (1, 4, 8, 8)
