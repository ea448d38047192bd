"""Loops that are recurrent layers: they become such, and give the same; all others stay loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from written_layers import Way, drawn, mutated, written
from written_layers import feeds as feeds_of

import clnn
from clnn.importers.onnx.load import load_model
from clnn.importers.onnx.loops import with_layers
from clnn.runtime.stages.session import StagedSession

HIDDEN, WIDTH = 5, 3
OUTER = """
<ir_version: 8, opset_import: ["" : {opset}]>
layer (float[B, T, 3] sound, float[B, 5] h0, float[B, 5] c0)
      => (float[T, B, 5] every, float[B, 5] last, float[B, 5] cell, int32 count, float[3, 20] kept)
<int64[1] zero = {{0}}, int64[1] one = {{1}}, int32 first = {{0}}, float nought = {{0}}>
{{
    x = Transpose <perm = [1, 0, 2]> (sound)
    shape = Shape (x)
    extents = Cast <to = 6> (shape)
    row = Slice (extents, zero, one, zero)
    turns = Squeeze {axes} (row{given})
    limit = Cast <to = 1> (turns)
    begins = Less (nought, limit)
    {reversed}
}}
"""
BODY = """
<ir_version: 8, opset_import: ["" : {opset}]>
body (int64 turn, bool going, int32 at, float[B, 5] h, float[B, 5] c, int32 limit, float[3, 20] w, float[20] b,
      float[5, 20] r) => (bool more, int32 next, float[B, 5] h2, float[B, 5] c2, int32 limit, float[3, 20] w,
      float[20] b, float[5, 20] r, float[B, 5] shown)
<int32 one = {{1}}>
{{
    w0, w1, w2, w3 = Split <axis = 1> (w)
    b0, b1, b2, b3 = Split <axis = 0> (b)
    next = Add (at, one)
    xt = Gather <axis = 0> (x, at)
    {gates}
    fc = Mul (forget, c)
    ic = Mul (candidate, take)
    c2 = Add (ic, fc)
    seen = {shown} (c2)
    shown = Mul (output, seen)
    h2 = Identity (shown)
    limits = Cast <to = 1> (limit)
    nexts = Cast <to = 1> (next)
    more = Less (nexts, limits)
}}
"""
GATE = """
    begin{k} = Constant <value_ints = [0, {begin}]> ()
    end{k} = Constant <value_ints = [9, {end}]> ()
    axes{k} = Constant <value_ints = [0, 1]> ()
    r{k} = Slice (r, begin{k}, end{k}, axes{k})
    xw{k} = MatMul (xt, w{k})
    xb{k} = Add (xw{k}, b{k})
    size{k} = Shape (h)
    ones{k} = ConstantOfShape <value = float[1] {{1}}> (size{k})
    hs{k} = Mul (ones{k}, h)
    hr{k} = MatMul (hs{k}, r{k})
    all{k} = Add (hr{k}, xb{k})
    {name} = {function} (all{k})
"""


def loop(
    *,
    opset: int = 13,
    backwards: bool = False,
    candidate: str = "Tanh",
    shown: str = "Tanh",
    swap: str = "",
) -> onnx.ModelProto:
    """Return a layer as exporters of TensorFlow write it; swap: text of the body, and what is in its place."""
    names = [
        ("take", "Sigmoid"),
        ("forget", "Sigmoid"),
        ("candidate", candidate),
        ("output", "Sigmoid"),
    ]
    gates = "".join(
        GATE.format(k=k, begin=5 * k, end=5 * k + 5, name=name, function=function)
        for k, (name, function) in enumerate(names)
    )
    text = BODY.format(opset=opset, gates=gates, shown=shown)
    old, _, new = swap.partition(" -> ")
    assert old in text
    body = parser.parse_model(text.replace(old, new) if swap else text).graph
    squeeze = (
        {"axes": "<axes = [0]>", "given": ""} if opset < 13 else {"axes": "", "given": ", zero"}
    )
    turned = ""
    if backwards:
        turned = (
            "lengths = Constant <value_ints = [4, 4]> ()"
            " back = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths)"
        )
    text = OUTER.format(opset=opset, reversed=turned, **squeeze)
    model = parser.parse_model(text)
    if backwards:
        for node in body.node:
            node.input[:] = ["back" if n == "x" else n for n in node.input]
    given = ["", "begins", "first", "h0", "c0", "turns", "W", "B", "R"]
    made = ["count", "last", "cell", "limits", "kept", "biases", "states", "every"]
    model.graph.node.append(helper.make_node("Loop", given, made, "walk", body=body))
    rng = np.random.default_rng(3)
    shapes = {"W": (WIDTH, 4 * HIDDEN), "B": (4 * HIDDEN,), "R": (HIDDEN, 4 * HIDDEN)}
    for name, shape in shapes.items():
        data = rng.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    onnx.checker.check_model(model)
    return model


def feeds(batch: int, steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch + steps)
    shapes = {"sound": (batch, steps, WIDTH), "h0": (batch, HIDDEN), "c0": (batch, HIDDEN)}
    return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def kinds(model: onnx.ModelProto) -> list[str]:
    proto, _ = load_model(model)
    known = ("Loop", "Scan", "RNN", "GRU", "LSTM")
    return [node.op_type for node in proto.graph.node if node.op_type in known]


WAYS = [
    {},
    {"opset": 12},
    {"backwards": True},
    {"candidate": "Relu", "shown": "Sigmoid"},
    {"candidate": "Sigmoid", "shown": "Relu"},
    {"swap": "hs0 = Mul (ones0, h) -> hs0 = Identity (h)"},
    {"swap": "xt = Gather <axis = 0> (x, at) -> xt = Gather <axis = 0> (x, turn)"},
    {"swap": "ic = Mul (candidate, take) -> ic = Mul (candidate, forget)"},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_layer_written_as_a_loop_is_one_and_gives_what_the_loop_gives(device, way):
    model = loop(**way)
    assert kinds(model) == ["LSTM"]
    assert [n.op_type for n in model.graph.node].count("Loop") == 1, (
        "the model itself is left as it is"
    )
    other = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.output]
    with clnn.compile_model(model, device=device) as session:
        for batch, steps in (
            ((2, 4), (2, 7)) if way.get("backwards") else ((1, 1), (2, 4), (3, 7), (3, 0))
        ):
            given = feeds(batch, steps)
            for name, want in zip(names, other.run(names, given), strict=True):
                got = session(given)[name]
                assert got.dtype == want.dtype, name
                if not want.size:  # onnxruntime knows no batch of states that were never made
                    assert got.shape == (steps, batch, HIDDEN), name
                    continue
                assert got.shape == want.shape, name
                np.testing.assert_allclose(got, want, 0, 1e-5, err_msg=name)


LEFT = [
    "next = Add (at, one) -> two = Add (one, one) next = Add (at, two)",
    "nexts = Cast <to = 1> (next) -> nexts = Cast <to = 1> (at)",
    "hs0 = Mul (ones0, h) -> hs0 = Mul (h, h)",
    "<value = float[1] {1}> (size0) -> <value = float[1] {2}> (size0)",
    "fc = Mul (forget, c) -> fc = Mul (forget, h)",
    "shown = Mul (output, seen) -> late = Mul (output, seen) shown = Mul (late, seen)",
    "xw1 = MatMul (xt, w1) -> xw1 = MatMul (h, r1)",
    "h2 = Identity (shown) -> h2 = Neg (shown)",
]


@pytest.mark.parametrize("swap", LEFT)
def test_a_loop_that_computes_something_else_stays_one(swap):
    assert kinds(loop(swap=swap)) == ["Loop"]


def test_rows_that_have_no_sequences_stay_in_a_loop(device):
    """A row of one axis meets all sequences by broadcasting, which LSTM does not know."""
    model = loop()
    sound = model.graph.input[0].type.tensor_type.shape
    del sound.dim[0]
    model.graph.node[0].CopyFrom(helper.make_node("Identity", ["sound"], ["x"]))
    onnx.checker.check_model(model)
    assert kinds(model) == ["Loop"]
    given = feeds(2, 4)
    given["sound"] = given["sound"][0]
    other = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with clnn.compile_model(model, device=device) as session:
        got = session(given)
    for value, want in zip(model.graph.output, other.run(None, given), strict=True):
        np.testing.assert_allclose(got[value.name], want, 0, 1e-5, err_msg=value.name)


def check(device: str, model: onnx.ModelProto, fed: list[dict[str, np.ndarray]]) -> bool:
    """Compare a model with onnxruntime, where that takes it; return whether it did, each time."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        other = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        wanted = [other.run(None, given) for given in fed]
    except Exception:  # onnxruntime's errors have no class in common
        return False
    names = [value.name for value in other.get_outputs()]
    with clnn.compile_model(model, device=device) as session:
        for given, want in zip(fed, wanted, strict=True):
            got = session(given)
            for name, array in zip(names, want, strict=True):
                assert got[name].dtype == array.dtype, name
                bound = 1e-5 * max(1, np.abs(array).max(initial=0))
                np.testing.assert_allclose(got[name], array, 0, bound, err_msg=name)
    return True


def sizes(way: Way) -> list[tuple[int, int]]:
    """Return batches and steps: others than the way's where its steps are open, or one state is for all."""
    if way.counted == "constant":
        return [(1, way.steps), (3, way.steps)]
    return [(1, way.steps), (3, way.steps), (2, way.steps + 3)]


SEEDS = [pytest.param(k, marks=[pytest.mark.exhaustive] * (k >= 12)) for k in range(160)]


@pytest.mark.parametrize("seed", SEEDS)
def test_layers_by_chance(device, seed):
    way = drawn(seed)
    model = written(way)
    kind = "GRU" if way.kind == "LATE" else way.kind
    assert kinds(model) == [kind] * way.layers, way
    fed = [feeds_of(way, *size) for size in sizes(way)]
    # Of some sizes onnxruntime takes not all: one first state beside several sequences.
    if not check(device, model, fed):
        ran = [check(device, model, [given]) for given in fed]
        assert any(ran)


KINDS = [
    (kind, mask) for kind in ("RNN", "GRU", "LATE", "LSTM") for mask in ("", "where", "products")
]


@pytest.mark.parametrize(("kind", "mask"), KINDS)
def test_layers_of_every_kind(device, kind, mask):
    for shown in ("states", "zeros", "held") if mask else ("states",):
        way = Way(kind, mask, shown, layers=2, seed=7)
        assert check(device, written(way), [feeds_of(way, *size) for size in sizes(way)])


MUTANTS = [pytest.param(k, marks=[pytest.mark.exhaustive] * (k >= 4)) for k in range(60)]


@pytest.mark.parametrize("seed", MUTANTS)
def test_what_is_almost_a_layer_is_computed_as_it_is_written(device, seed):
    """One operator or input of a layer is another: what onnxruntime takes, it computes alike."""
    way = drawn(seed)
    for k in range(12):
        model = mutated(written(way), 100 * seed + k)
        if not {"Loop", "Scan"} & set(kinds_or_nothing(model)):
            check(device, model, [feeds_of(way, 3, way.steps)])


def kinds_or_nothing(model: onnx.ModelProto) -> list[str]:
    try:
        return kinds(model)
    except clnn.ClnnError:
        return ["Loop"]  # it is no valid model


def test_mutants_are_loops_and_layers():
    """Some mutants stay loops, and some are layers of another kind: neither test is empty."""
    found = [kinds_or_nothing(mutated(written(drawn(k)), k)) for k in range(100)]
    assert sum(bool({"Loop", "Scan"} & set(f)) for f in found) > 10
    assert sum(bool({"RNN", "GRU", "LSTM"} & set(f)) for f in found) > 2


def test_a_mask_that_is_no_truth_value_stays_in_a_loop():
    """Products by a number and by what is left of 1 mix states unless the number is 0 or 1."""
    way = Way("GRU", "difference", seed=3)
    model = written(way)
    assert kinds(model) == ["GRU"]
    for node in model.graph.node:
        if node.op_type == "Not":
            node.CopyFrom(
                helper.make_node("Cast", [node.input[0]], list(node.output), to=TensorProto.FLOAT)
            )
    equal = next(n for n in model.graph.node if n.op_type == "Equal")
    equal.CopyFrom(helper.make_node("Mul", list(equal.input), list(equal.output)))
    assert kinds(model) == ["Loop"]


def test_a_sequence_of_fewer_rows_than_turns_is_refused(device):
    """A loop of a constant number of turns reads that many rows, or fails."""
    way = Way("RNN", counted="constant", steps=6)
    model = written(way)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "T"
    assert kinds(model) == ["RNN"]
    more, fewer = feeds_of(way, 2, 9), feeds_of(way, 2, 5)
    assert check(device, model, [more])
    with clnn.compile_model(model, device=device) as session, pytest.raises(clnn.ClnnError):
        session(fewer)


def short(steps: int, *, more: Callable[[list[onnx.NodeProto]], None] = lambda nodes: None):
    """Return a loop of a constant number of turns that is no layer: its state is normalised."""
    way = replace(Way("GRU", counted="constant", seed=5), steps=steps)
    model = written(way)
    (body,) = [a.g for n in model.graph.node if n.op_type == "Loop" for a in n.attribute]
    made = body.output[2].name
    nodes = list(body.node)
    (last,) = [n for n in nodes if made in n.output]
    last.output[0] = "plain"
    scale = numpy_helper.from_array(np.ones(way.hidden, np.float32), "scale")
    body.initializer.append(scale)
    place = nodes.index(last) + 1
    nodes.insert(place, helper.make_node("LayerNormalization", ["plain", "scale"], [made]))
    more(nodes)
    del body.node[:]
    body.node.extend(nodes)
    onnx.checker.check_model(model)
    return way, model


@pytest.mark.parametrize("steps", [1, 7])
def test_short_loops_are_their_turns_in_one_plan(device, steps):
    way, model = short(steps)
    assert kinds(model) == []
    assert check(device, model, [feeds_of(way, 1, steps), feeds_of(way, 3, steps)])
    with clnn.compile_model(model, device=device) as session:
        assert not isinstance(session, StagedSession)


SHORT = [pytest.param(k, marks=[pytest.mark.exhaustive] * (k >= 2)) for k in range(24)]


@pytest.mark.parametrize("seed", SHORT)
def test_short_loops_by_chance(device, seed):
    """Of another operator or input than a layer has."""
    ran = 0
    for k in range(8):
        way = replace(drawn(seed), counted="constant")
        model = mutated(written(way), 100 * seed + k)
        if kinds_or_nothing(model) == []:
            ran += check(device, model, [feeds_of(way, 3, way.steps)])
    assert ran or seed not in (0, 1, 2)


def test_loops_of_many_turns_stay_loops(device):
    way, model = short(90)
    assert kinds(model) == ["Loop"]
    assert check(device, model, [feeds_of(way, 2, 90)])


def test_loops_of_random_numbers_stay_loops():
    def more(nodes: list[onnx.NodeProto]) -> None:
        nodes.append(helper.make_node("RandomNormalLike", ["plain"], ["noise"], seed=1.0))

    assert kinds(short(4, more=more)[1]) == ["Loop"]


def test_loops_of_no_turns_give_no_rows(device):
    way, model = short(1)
    (turns,) = [n.input[0] for n in model.graph.node if n.op_type == "Loop"]
    (tensor,) = [t for t in model.graph.initializer if t.name == turns]
    tensor.CopyFrom(numpy_helper.from_array(np.array(0), turns))
    given = feeds_of(way, 2, 1)
    with clnn.compile_model(model, device=device) as session:
        got = session(given)
    assert got["every"].shape[0] == 0
    assert np.array_equal(got["last_h0"], given["first_h0"])


CIRCLES = [(op, True) for op in ("Identity", "Add", "Not", "Cast", "Mul")]
CIRCLES += [(op, False) for op in ("Transpose", "Slice", "Squeeze", "Not")]


@pytest.mark.parametrize(("op", "inside"), CIRCLES)
def test_nodes_that_wait_for_each_other_are_left_to_the_import(op, inside):
    model = written(Way("LSTM", "products", seed=2))
    graph = model.graph
    if inside:
        (graph,) = [a.g for n in graph.node if n.op_type == "Loop" for a in n.attribute]
        graph.node.insert(0, helper.make_node("Identity", ["b"], ["a"]))
        graph.node.insert(0, helper.make_node("Identity", ["a"], ["b"]))
    for node in graph.node:
        if node.op_type == op:
            node.input[0] = node.output[0]
    assert with_layers(model) is model


def malformed(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a model of which nodes are not as their operators want them."""
    rng = np.random.default_rng(seed)
    loops = [n for n in model.graph.node if n.op_type in ("Loop", "Scan")]
    (body,) = [a.g for n in loops for a in n.attribute if a.name == "body"]
    others = ("Split", "Slice", "Squeeze", "Transpose", "Concat", "Clip", "Gather", "MatMul")
    for _ in range(rng.integers(1, 4)):
        graph = (model.graph, body)[rng.integers(2)]
        node = graph.node[rng.integers(len(graph.node))]
        what = rng.integers(5)
        if what == 0 and node.input:
            del node.input[rng.integers(len(node.input))]
        elif what == 1 and graph.initializer:
            tensor = graph.initializer[rng.integers(len(graph.initializer))]
            shape = rng.integers(0, 4, rng.integers(0, 4))
            data = rng.integers(-9, 9, tuple(shape))
            tensor.CopyFrom(numpy_helper.from_array(data, tensor.name))
        elif what == 2 and node.op_type not in ("Loop", "Scan"):
            node.op_type = str(rng.choice(others))
        elif what == 3 and node.op_type not in ("Loop", "Scan"):
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("axis", int(rng.integers(-5, 9))))
        elif graph.input:
            graph.input[rng.integers(len(graph.input))].type.tensor_type.shape.dim.add()
    return model


def test_what_is_malformed_is_left_to_the_import():
    for seed in range(400):
        with_layers(malformed(written(drawn(seed % 60)), seed))


def test_outputs_of_more_axes_than_states_stay_in_a_loop(device):
    """What stands for the states of steps that a mask leaves out has three axes, and so have the rows shown."""
    way = Way("RNN", "where", "zeros", counted="constant", steps=4, seed=4)
    model = written(way)
    assert kinds(model) == ["RNN"]
    (loop,) = [n for n in model.graph.node if n.op_type == "Loop"]
    (body,) = [a.g for a in loop.attribute]
    (made,) = [n for n in model.graph.node if n.op_type == "ConstantOfShape"]
    rows = numpy_helper.from_array(np.array([0.5], np.float32))
    shape = numpy_helper.from_array(np.array([4, 1, way.hidden]), "three")
    model.graph.initializer.append(shape)
    made.input[0] = "three"
    made.attribute.append(helper.make_attribute("value", rows))
    for value in (*body.input, *body.output):
        if value.name == "zeros":
            value.type.tensor_type.shape.dim.add()
    for value in model.graph.output:
        if value.name in ("every", "end_zeros"):
            value.type.tensor_type.shape.dim.add()
    (row,) = [v for v in body.output if v.name.endswith("_row")]
    row.type.tensor_type.shape.dim.add()
    assert "RNN" not in kinds(model)
    assert check(device, model, [feeds_of(way, 3, 4)])


@pytest.mark.parametrize("op", ["Add", "And"])
def test_sums_of_themselves_are_looked_at_once(op):
    """Each of fifty nodes adds what the one before makes to itself: 2 ** 50 leaves."""
    model = written(Way("LSTM", seed=2))
    (body,) = [a.g for n in model.graph.node if n.op_type == "Loop" for a in n.attribute]
    last = body.output[0].name if op == "And" else "h0"
    chain = [
        helper.make_node(op, [f"s{k - 1}" if k else last] * 2, [f"s{k}"], f"s{k}")
        for k in range(50)
    ]
    if op == "And":
        body.node.extend(chain)
        body.output[0].name = "s49"
        assert kinds(model) == ["LSTM"]
        return
    nodes = [*chain, *body.node]
    for node in nodes[50:]:
        node.input[:] = ["s49" if n == "h0" else n for n in node.input]
    del body.node[:]
    body.node.extend(nodes)
    assert kinds(model) == ["Loop"]


def one_sequence(swap: Callable[[onnx.GraphProto], None]) -> onnx.ModelProto:
    """Return a layer of one sequence, something of whose loop is changed."""
    model = written(Way("RNN", single=True, seed=11))
    (body,) = [a.g for n in model.graph.node if n.op_type == "Loop" for a in n.attribute]
    swap(body)
    return model


def test_states_that_lose_their_axis_stay_in_a_loop():
    """Of a sum that lost the axis of its one sequence, the state has one axis from the second turn on."""

    def squeezed(body: onnx.GraphProto) -> None:
        (last,) = [n for n in body.node if n.op_type == "Tanh"]
        place = list(body.node).index(last)
        body.node.insert(place, helper.make_node("Squeeze", [last.input[0]], ["flat"], "squeezed"))
        last.input[0] = "flat"

    assert kinds(one_sequence(lambda body: None)) == ["RNN"]
    assert kinds(one_sequence(squeezed)) == ["Loop"]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_layer_of_the_own_domain_without_a_mask_is_refused(any_device, kind):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    weights = [
        numpy_helper.from_array(np.ones((1, gates * 4, width), np.float32), name)
        for name, width in (("W", 3), ("R", 4))
    ]
    node = helper.make_node(kind, ["x", "W", "R"], ["y"], hidden_size=4, domain="clnn")
    graph = helper.make_graph(
        [node],
        "own",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("clnn", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(clnn.ClnnError, match="mask"):
        clnn.compile_model(model, any_device)
