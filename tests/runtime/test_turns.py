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
        feed(2, 5, 4),
        feed(2, 0, 5),
        feed(3 if is_open else 2, 9, 6),
        feed(2, 1, 7),
        feed(2, 5, 4),
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
                given["count"][...] = k + 1
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


def iter_of(numbers):
    """What gives these numbers in place of random ones."""
    left = iter(numbers)
    return type("Listed", (), {"random": staticmethod(lambda: next(left))})()
