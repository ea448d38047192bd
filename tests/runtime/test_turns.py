"""Loops drawn by chance: what lasts, what is carried unchanged and what joins stages give onnxruntime's results."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import BOOL, INT64, ints, model, tensor, value

import clnn
from clnn.importers.onnx.stages.build import read_program
from clnn.importers.onnx.stages.program import DeviceStage, Repeat

node = helper.make_node
SEEDS = range(10)


def normal(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 2


class Body:
    """A loop's body: nodes, and carried values with the names that they begin with."""

    def __init__(self, rng):
        self.rng = rng
        self.nodes, self.carried, self.scans = [], [], []
        self.inits = [ints("one", 1), ints("zero", 0), ints("minus", -1), ints("row4", 1, 4)]

    def add(self, op, inputs, output, **attrs):
        self.nodes.append(node(op, inputs, [output], **attrs))
        return output

    def carry(self, before, after, begin, like):
        self.carried.append((value(before, *like), value(after, *like), begin))

    def state(self):
        """h2 = tanh(h w + outer), w carried unchanged."""
        self.add("MatMul", ["outer", "w_in"], "lasting")
        self.add("MatMul", ["h", "w_in"], "hm")
        self.add("Add", ["hm", "lasting"], "sum")
        self.add("Tanh", ["sum"], "h1")
        self.add("Identity", ["w_in"], "w_out")
        self.carry("w_in", "w_out" if self.rng.random() < 0.5 else "w_in", "w", ((4, 4),))
        return "h1"

    def joined(self, h):
        """The turn's number beside a state, times a matrix: a node of the host between two stages."""
        self.add("Cast", ["i"], "number", to=TensorProto.FLOAT)
        self.add("Mul", ["number", "tenth"], "small")
        self.add("Shape", [h], "h_shape")
        self.add("Slice", ["h_shape", "zero", "one"], "batch")
        self.add("Concat", ["batch", "one"], "column", axis=0)
        self.add("Expand", ["small", "column"], "numbers")
        self.add("Concat", [h, "numbers"], "wide", axis=1)
        return self.add("MatMul", ["wide", "narrow"], "h_joined")

    def table(self, h):
        """A row of a table that is as long as the turns may be."""
        self.add("Reshape", ["i", "one"], "at")
        self.add("Add", ["at", "one"], "behind")
        self.add("Slice", ["t", "at", "behind", "one", "one"], "part")
        self.add("Shape", ["part"], "extents")
        self.add("Squeeze", ["at", "zero"], "from")
        self.add("Squeeze", ["behind", "zero"], "to")
        self.add("Squeeze", ["one", "zero"], "step")
        self.add("Range", ["from", "to", "step"], "rows")
        self.add("Reshape", ["rows", "minus1"], "line")
        self.add("Tile", ["line", "row4"], "places")
        self.add("ReduceMax", [h], "highest", axes=[0], keepdims=1)
        self.add("Unsqueeze", ["highest", "zero"], "block")
        self.add("Expand", ["highest", "row4"], "update")
        self.add("ScatterElements", ["t", "places", "update"], "t2", axis=0)
        self.inits.append(ints("minus1", -1, 1))
        self.carry("t", "t2", "table", ((12, 4),))
        return h

    def list(self, h):
        """A list that grows, whose sum goes into the state."""
        self.add("ReduceSum", [h], "total", keepdims=0)
        self.add("Reshape", ["total", "one"], "item")
        self.add("Concat", ["l", "item"], "l2", axis=0)
        self.add("ReduceMean", ["l2"], "mean", keepdims=0)
        self.add("Mul", ["mean", "tenth"], "share")
        self.carry("l", "l2", "start", ((None,),))
        return self.add("Add", [h, "share"], "h_list")

    def branch(self, h):
        self.add("Mod", ["i", "two"], "rest")
        self.add("Cast", ["rest"], "odd", to=TensorProto.BOOL)
        then = helper.make_graph(
            [node("MatMul", [h, "w_in"], ["a"])], "then", [], [value("a", None)]
        )
        other = helper.make_graph([node("Neg", [h], ["b"])], "else", [], [value("b", None)])
        return self.add("If", ["odd"], "h_if", then_branch=then, else_branch=other)

    def inner(self, h):
        """Two turns of a loop that hands on a value of this one unchanged."""
        body = helper.make_graph(
            [node("Identity", ["go_i"], ["go_o"]), node("Add", ["s", "k"], ["s2"])],
            "inner",
            [value("n", (), INT64), value("go_i", (), BOOL), value("k", None), value("s", None)],
            [value("go_o", (), BOOL), value("k", None), value("s2", None)],
        )
        self.nodes.append(node("Loop", ["two", "", "tenth", h], ["k_end", "h_inner"], body=body))
        return "h_inner"

    def proto(self, by_data, batch):
        h = self.state()
        for part in (self.joined, self.table, self.list, self.branch, self.inner):
            if self.rng.random() < 0.5:
                h = part(h)
        self.add("Identity", [h], "h2")
        self.add("Abs", ["h2"], "size")
        self.add("ReduceMax", ["size"], "largest", keepdims=0)
        self.add("Add", ["i", "two"], "counted")
        if by_data:
            self.add("Less", ["largest", "limit"], "go")
        else:
            self.add("Identity", ["go_in"], "go")
        self.carry("h", "h2", "x", ((batch, 4),))
        carried = self.carried
        body = helper.make_graph(
            self.nodes,
            "body",
            [value("i", (), INT64), value("go_in", (), BOOL), *(c[0] for c in carried)],
            [
                value("go", (), BOOL),
                *(c[1] for c in carried),
                value("largest", ()),
                value("counted", (), INT64),
            ],
        )
        ends = [f"end{k}" for k in range(len(carried))]
        loop = node(
            "Loop", ["count", "", *(c[2] for c in carried)], [*ends, "all", "ns"], body=body
        )
        before = node("MatMul", ["x", "first"], ["outer"])
        two = tensor("two", np.array(2, np.int64))
        tenth, limit = (tensor(n, np.float32(v)) for n, v in (("tenth", 0.1), ("limit", 0.8)))
        inits = [*self.inits, two, tenth, limit, tensor("w", normal(4, 4, seed=1))]
        inits += [tensor("first", normal(4, 4, seed=2)), tensor("narrow", normal(5, 4, seed=3))]
        inits += [
            tensor("table", np.zeros((12, 4), np.float32)),
            tensor("start", np.ones(1, np.float32)),
        ]
        inputs = [value("x", (batch, 4)), value("count", (), INT64)]
        made = model([before, loop], inputs, initializers=inits, opset=17)
        del made.graph.output[:]
        ended = [value(e, *_shape(c[1])) for e, c in zip(ends, carried, strict=True)]
        made.graph.output.extend([*ended, value("all", (None,)), value("ns", (None,), INT64)])
        return made


def _shape(info):
    dims = info.type.tensor_type.shape.dim
    return ([d.dim_value if d.HasField("dim_value") else None for d in dims],)


def feed(rows, count, seed):
    return {"x": normal(rows, 4, seed=seed), "count": np.array(count, np.int64)}


@pytest.mark.parametrize("seed", SEEDS)
def test_loops_drawn_by_chance(any_device, seed):
    """Results, of other extents, of no turns, and of the first feed once more to the bit."""
    rng = np.random.default_rng(seed)
    is_open = rng.random() < 0.7
    proto = Body(rng).proto(rng.random() < 0.5, "rows" if is_open else 2)
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    feeds = [
        feed(2, 11, 4),
        feed(2, 0, 5),
        feed(3 if is_open else 2, 9, 6),
        feed(2, 1, 7),
        feed(2, 12, 8),
        feed(3 if is_open else 2, 11, 9),
        feed(2, 11, 4),
    ]
    with clnn.compile_model(proto, any_device) as session:
        rows = []
        for one in feeds:
            rows.append(session.run(None, one))
            for got, want in zip(rows[-1], engine.run(None, one), strict=True):
                np.testing.assert_equal(got.dtype, want.dtype)
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, strict=True)
        for first, again in zip(rows[0], rows[-1], strict=True):
            np.testing.assert_array_equal(first, again)


def test_two_threads_and_arrays_that_change_in_place(any_device):
    """One session, feeds of other extents in each thread, each array written anew between calls."""
    body = Body(np.random.default_rng(0))
    body.rng = type("All", (), {"random": staticmethod(lambda: 0.0)})()
    proto = body.proto(False, "rows")
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    wrong = []
    with clnn.compile_model(proto, any_device) as session:

        def work(rows):
            given = feed(rows, 4, rows)
            for k in range(4):
                given["x"][...] = normal(rows, 4, seed=10 * rows + k)
                given["count"][...] = 3 * k + 1
                want, got = engine.run(None, given), session.run(None, given)
                if not all(np.allclose(a, b, 1e-5, 1e-5) for a, b in zip(got, want, strict=True)):
                    wrong.append((rows, k))

        threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_turn_has_one_stage_and_what_lasts_runs_once():
    """Weights carried unchanged are constants, and what stands on the host between stages joins them."""
    body = Body(np.random.default_rng(0))
    body.rng = iter_of([0.9, 0.0, 0.9, 0.9, 0.9, 0.9])
    (loop,) = [s for s in read_program(body.proto(True, 2)).steps if isinstance(s, Repeat)]
    stages = [step for step in loop.body.steps if isinstance(step, DeviceStage)]
    assert [stage.once for stage in stages] == [True, False]
    assert all("w" not in stage.inputs for stage in stages)
    assert "MatMul" in {n.op_type for n in stages[1].make_model.nodes}


def test_doubles_on_the_host_stay_there():
    """Not every device has them, and nothing of theirs joins a stage."""
    body = Body(np.random.default_rng(0))
    body.rng = iter_of([0.9, 0.0, 0.9, 0.9, 0.9, 0.9])
    proto = body.proto(True, 2)
    (loop,) = [n for n in proto.graph.node if n.op_type == "Loop"]
    (inner,) = [a.g for a in loop.attribute if a.name == "body"]
    (number,) = [n for n in inner.node if "number" in n.output]
    (small,) = [n for n in inner.node if "small" in n.output]
    number.attribute[0].i = TensorProto.DOUBLE
    small.input[1], small.output[0] = "exact", "precise"
    place = list(inner.node).index(small) + 1
    inner.node.insert(place, node("Cast", ["precise"], ["small"], to=TensorProto.FLOAT))
    proto.graph.initializer.append(tensor("exact", np.float64(0.1)))
    (loop,) = [s for s in read_program(proto).steps if isinstance(s, Repeat)]
    stages = [step for step in loop.body.steps if isinstance(step, DeviceStage)]
    made = {name for stage in stages for n in stage.make_model.nodes for name in n.output}
    assert stages and not made & {"number", "precise", "small"}


def written(session):
    """How many functions were written for the turns of each loop."""
    return [len(turning.written) for turning in session._execution._turnings.values()]


def loop_of(nodes, carried, kinds, inits=(), count=40):
    """A loop: carried: before, after, type, shape. Its outputs are the last values, and all of the first."""
    body = helper.make_graph(
        [node("Identity", ["go_in"], ["go"]), *nodes, node("Identity", [carried[0][1]], ["kept"])],
        "body",
        [
            value("i", (), INT64),
            value("go_in", (), BOOL),
            *(value(b, s, k) for (b, _), (k, s) in zip(carried, kinds, strict=True)),
        ],
        [
            value("go", (), BOOL),
            *(value(a, s, k) for (_, a), (k, s) in zip(carried, kinds, strict=True)),
            value("kept", kinds[0][1], kinds[0][0]),
        ],
    )
    begins = [f"begin_{b}" for b, _ in carried]
    ends = [f"end_{a}" for _, a in carried]
    loop = node("Loop", ["turns", "", *begins], [*ends, "rows"], body=body)
    inputs = [value(n, s, k) for n, (k, s) in zip(begins, kinds, strict=True)]
    made = model([loop], inputs, initializers=[tensor("turns", np.int64(count)), *inits], opset=17)
    del made.graph.output[:]
    made.graph.output.extend(value(e, s, k) for e, (k, s) in zip(ends, kinds, strict=True))
    made.graph.output.append(value("rows", (None, *kinds[0][1]), kinds[0][0]))
    return made


def agree(session, proto, feeds):
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    for one in feeds:
        for got, want in zip(session.run(None, one), engine.run(None, one), strict=True):
            np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.usefixtures("no_unrolling")
def test_whole_numbers_wrap_in_the_middle_of_a_loop(device):
    """What a number of Python's does not do deviates."""
    kinds = [(TensorProto.INT32, (1,)), (TensorProto.FLOAT, ())]
    nodes = [
        node("Mul", ["a", "three"], ["a2"]),
        node("Mul", ["f", "large"], ["f1"]),
        node("Add", ["f1", "large"], ["f2"]),
    ]
    inits = [tensor("three", np.array([3], np.int32)), tensor("large", np.float32(1e3))]
    proto = loop_of(nodes, [("a", "a2"), ("f", "f2")], kinds, inits)
    with clnn.compile_model(proto, device) as session:
        one = {"begin_a": np.array([5], np.int32), "begin_f": np.array(0.5, np.float32)}
        agree(session, proto, [one, {**one, "begin_a": np.array([-7], np.int32)}])
        assert written(session) == [1]


@pytest.mark.parametrize("at", [6, 20, 39])
def test_a_branch_changes_late(device, at):
    """Turns are written while one branch is taken; then the other is."""
    kinds = [(INT64, (1,)), (TensorProto.FLOAT, (3,))]
    then = helper.make_graph([node("Mul", ["x", "two"], ["m"])], "then", [], [value("m", (3,))])
    other = helper.make_graph([node("Neg", ["x"], ["n"])], "else", [], [value("n", (3,))])
    nodes = [
        node("Add", ["k", "one"], ["k2"]),
        node("Less", ["k2", "at"], ["is_early"]),
        node("If", ["is_early"], ["x2"], then_branch=then, else_branch=other),
    ]
    inits = [ints("one", 1), ints("at", at), tensor("two", np.float32(1.25))]
    proto = loop_of(nodes, [("k", "k2"), ("x", "x2")], kinds, inits)
    with clnn.compile_model(proto, device) as session:
        one = {"begin_k": np.array([0]), "begin_x": normal(3, seed=1)}
        agree(session, proto, [one, {**one, "begin_k": np.array([30])}, one])
        assert written(session) in (
            [1],
            [2],
        )  # the second is for loops that never take the first branch


@pytest.mark.usefixtures("no_unrolling")
def test_what_a_loop_begins_with_stays_as_it_is(device):
    """A table of the caller's, written in each turn, and outputs that are the caller's to change."""
    kinds = [(TensorProto.FLOAT, (40, 3)), (INT64, (1,))]
    nodes = [
        node("Reshape", ["k", "column"], ["line"]),
        node("Tile", ["line", "row"], ["places"]),
        node("ScatterElements", ["t", "places", "updates"], ["t2"], axis=0),
        node("Add", ["k", "one"], ["k2"]),
    ]
    inits = [ints("one", 1), ints("column", 1, 1), ints("row", 1, 3)]
    inits.append(tensor("updates", np.array([[1, 2, 3]], np.float32)))
    proto = loop_of(nodes, [("t", "t2"), ("k", "k2")], kinds, inits, 20)
    with clnn.compile_model(proto, device) as session:
        one = {"begin_t": normal(40, 3, seed=1), "begin_k": np.array([5])}
        before = one["begin_t"].copy()
        agree(session, proto, [one])
        first = session.run(None, one)
        kept = [array.copy() for array in first]
        first[0][...], first[1][...], first[2][...] = 7, 7, 7
        for got, want in zip(session.run(None, one), kept, strict=True):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(one["begin_t"], before)
        assert one["begin_k"] == 5 and written(session) == [1]


def test_a_list_that_grows_is_no_constant(device):
    """Its length is another in each turn; what follows from that is computed in each."""
    kinds = [(TensorProto.FLOAT, (None,)), (INT64, (1,))]
    nodes = [
        node("Concat", ["l", "item"], ["l2"], axis=0),
        node("Shape", ["l2"], ["extent"]),
        node("Add", ["n", "extent"], ["n2"]),
    ]
    inits = [tensor("item", np.ones(1, np.float32))]
    proto = loop_of(nodes, [("l", "l2"), ("n", "n2")], kinds, inits, 15)
    loop = proto.graph.node[0]
    (body,) = [a.g for a in loop.attribute if a.name == "body"]
    body.output[-1].CopyFrom(value("n2_kept", (1,), INT64))
    body.node[-1].CopyFrom(node("Identity", ["n2"], ["n2_kept"]))
    proto.graph.output[-1].CopyFrom(value("rows", (None, 1), INT64))
    with clnn.compile_model(proto, device) as session:
        for extent in (0, 1, 5):
            agree(
                session,
                proto,
                [{"begin_l": normal(extent, seed=1), "begin_n": np.array([extent])}],
            )


def test_a_scan_of_many_turns(device):
    """A number that each turn adds to, beside rows that are swept."""
    nodes = [
        node("Add", ["s", "one"], ["s2"]),
        node("Cast", ["s2"], ["factor"], to=TensorProto.FLOAT),
        node("Mul", ["row", "factor"], ["longer"]),
        node("Softmax", ["longer"], ["shares"], axis=0),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("s", (1,), INT64), value("row", (3,))],
        [value("s2", (1,), INT64), value("shares", (3,)), value("factor", (1,))],
    )
    scan = node("Scan", ["begin", "rows"], ["end", "all", "factors"], body=body, num_scan_inputs=1)
    inputs = [value("begin", (1,), INT64), value("rows", ("n", 3))]
    proto = model([scan], inputs, initializers=[ints("one", 1)], opset=17)
    del proto.graph.output[:]
    proto.graph.output.extend(
        [value("end", (1,), INT64), value("all", ("n", 3)), value("factors", ("n", 1))]
    )
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, device) as session:
        for count, begin in [(30, 0), (3, 5), (17, 2**62), (30, -9)]:
            given = {"begin": np.array([begin]), "rows": normal(count, 3, seed=count)}
            for got, want in zip(session.run(None, given), engine.run(None, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, strict=True)


def iter_of(numbers):
    """What gives these numbers in place of random ones."""
    left = iter(numbers)
    return type("Listed", (), {"random": staticmethod(lambda: next(left))})()
