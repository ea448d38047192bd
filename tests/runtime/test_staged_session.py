"""Models of which values decide shapes or what runs: equal to onnxruntime's results."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_models import BOOL, FLOAT, INT64, ints, model, tensor, value

import clnn
from clnn.errors import DeviceLostError, InputNameError, ModelError, ShapeError, UnsupportedOpError
from clnn.runtime.stages.session import StagedSession

node = helper.make_node


def graph(name, nodes, inputs=(), outputs=(), initializers=()):
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(initializers))


def typed(proto, *outputs):
    """The model with types of its outputs, which onnxruntime wants."""
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def compared(device, proto, *feeds, tolerance=1e-5):
    """Run feeds through one session and through onnxruntime; return the session's last outputs."""
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, device) as session:
        assert isinstance(session, StagedSession)
        for feed in feeds:
            want, got = engine.run(None, feed), session.run(None, feed)
            for a, b in zip(want, got, strict=True):
                np.testing.assert_equal(b.dtype, a.dtype)
                np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, strict=True)
        return got, session.stages


def x_of(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sparse(seed, *shape):
    x = x_of(*shape, seed=seed)
    return np.where(x > 0.3, x, 0).astype(np.float32)


WEIGHTS = x_of(4, 3, 3, 3, seed=9)


def picked_rows():
    """relu(conv(x)), of which the places of values above 1 are gathered and multiplied."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Greater", ["c", "one"], ["high"]),
        node("NonZero", ["high"], ["places"]),
        node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        node("GatherND", ["c", "rows"], ["found"]),
        node("Unsqueeze", ["found", "axis"], ["column"]),
        node("MatMul", ["column", "line"], ["y"]),
    ]
    inits = [
        tensor("w", WEIGHTS),
        tensor("one", np.float32(1)),
        ints("axis", 1),
        tensor("line", x_of(1, 5, seed=8)),
    ]
    proto = model(nodes, [value("x", (1, 3, 8, 8))], initializers=inits, opset=17)
    return typed(proto, value("y", (None, 5)), value("rows", (None, 4), INT64))


def test_rows_that_data_picks(device):
    x = x_of(1, 3, 8, 8)
    feeds = [{"x": x}, {"x": x * 2}, {"x": x * 0}, {"x": -x}, {"x": x}]
    got, stages = compared(device, picked_rows(), *feeds)
    assert len(got[0]) == len(got[1]) > 0
    assert [s.nodes for s in stages] == [("Conv_0", "Greater_1"), ("MatMul_6",)]
    assert "NonZero" in stages[1].why or "Unsqueeze" in stages[1].why
    assert (stages[0].read_back, stages[0].crossed) == (4 * 8 * 8 * (4 + 1), 0)


def test_no_row_is_picked(device):
    got, _ = compared(device, picked_rows(), {"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert got[0].shape == (0, 5)
    assert got[1].shape == (0, 4)


def detector(center=0):
    """Boxes and scores of convolutions; the best boxes, their features, a head on these."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("Reshape", ["t", "flat"], ["raw"]),
        node("Abs", ["raw"], ["boxes"]),
        node("Sigmoid", ["c"], ["s"]),
        node("Slice", ["s", "zero", "two", "axis1"], ["s2"]),
        node("Reshape", ["s2", "lines"], ["scores"]),
        node(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "overlap", "lowest"],
            ["kept"],
            center_point_box=center,
        ),
        node("Slice", ["kept", "two", "three", "axis1"], ["place"]),
        node("Squeeze", ["place", "axis1"], ["places"]),
        node("Gather", ["raw", "places"], ["best"], axis=1),
        node("Gemm", ["best2", "head"], ["logits"]),
        node("Squeeze", ["best", "zero"], ["best2"]),
        node("Softmax", ["logits"], ["y"]),
    ]
    inits = [
        tensor("w", WEIGHTS),
        ints("flat", 1, -1, 4),
        ints("lines", 1, 2, -1),
        ints("zero", 0),
        ints("axis1", 1),
        ints("two", 2),
        ints("three", 3),
        ints("most", 9),
        tensor("overlap", np.float32([0.2])),
        tensor("lowest", np.float32([0.6])),
        tensor("head", x_of(4, 6, seed=5)),
    ]
    proto = model(nodes, [value("x", (1, 3, 16, 16))], initializers=inits, opset=17)
    return typed(proto, value("kept", (None, 3), INT64), value("y", (None, 6)))


@pytest.mark.parametrize("center", [0, 1])
def test_a_detector_keeps_the_boxes_that_onnxruntime_keeps(device, center):
    feeds = [{"x": x_of(1, 3, 16, 16, seed=k)} for k in range(4)]
    feeds.append({"x": np.zeros((1, 3, 16, 16), np.float32)})  # no score is high enough
    got, _ = compared(device, detector(center), *feeds)
    assert got[0].shape == (0, 3)
    assert got[1].shape == (0, 6)


def branches():
    """If the sum is positive, conv(x) with the bias from outside, else x itself: other shapes."""
    then = graph(
        "then",
        [node("Conv", ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["r"])],
        outputs=[value("r", None)],
    )
    other = graph("else", [node("Identity", ["x"], ["same"])], outputs=[value("same", None)])
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("Abs", ["bias"], ["b"]),
        node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
        node("Neg", ["y"], ["z"]),
    ]
    inits = [tensor("w", WEIGHTS), tensor("zero", np.float32(0))]
    inputs = [value("x", (1, 3, 5, 5)), value("bias", (4,))]
    proto = model(nodes, inputs, initializers=inits, opset=17)
    return typed(proto, value("z", None))


def test_if_on_a_value(device):
    x, bias = x_of(1, 3, 5, 5), x_of(4)
    feeds = [{"x": x + k, "bias": bias} for k in (1, -1, 2)]
    got, stages = compared(device, branches(), *feeds)
    assert got[0].shape == (1, 4, 3, 3)
    assert {s.name: s.runs for s in stages if "then" in s.name} == {"stage If_3.then/1": 2}


def loop(condition=True, scan=True):
    """A state that is multiplied by a matrix until its sum is above a limit, or `count` times."""
    body = graph(
        "body",
        [
            node("MatMul", ["state", "m"], ["next"]),
            node("ReduceSum", ["next"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["go"]),
            node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            node("Add", ["total", "number"], ["scanned"]),
        ],
        [value("i", (), INT64), value("unused", (), BOOL), value("state", (2, 3))],
        [value("go", (), BOOL), value("next", (2, 3)), value("scanned", ())],
    )
    nodes = [
        node("Relu", ["x"], ["first"]),
        node("Loop", ["count", "start" if condition else "", "first"], ["y", "z"], body=body),
    ]
    inits = [tensor("m", np.abs(x_of(3, 3, seed=4)))]
    inputs = [value("x", (2, 3)), value("count", (), INT64), value("start", (), BOOL)]
    inputs.append(value("limit", ()))
    proto = model(nodes, inputs, initializers=inits, opset=17)
    return typed(proto, value("y", (2, 3)), value("z", (None,)))


@pytest.mark.parametrize("condition", [True, False])
def test_a_loop_that_values_end(device, condition):
    def feed(count, start, limit):
        return {
            "x": np.abs(x_of(2, 3)),
            "count": np.array(count, np.int64),
            "start": np.array(start),
            "limit": np.array(limit, np.float32),
        }

    feeds = [feed(5, True, 1e9), feed(50, True, 40), feed(0, True, 1), feed(3, False, 1e9)]
    _, stages = compared(device, loop(condition), *feeds)
    (body,) = [s for s in stages if "body" in s.name]
    assert body.plans == 1
    assert body.runs > 8


def test_a_loop_that_never_ends_can_be_interrupted(any_device):
    """The signal is raised between the runs of the body; the session works on afterwards."""
    forever = graph(
        "body",
        [node("Identity", ["go_in"], ["go"]), node("MatMul", ["s", "m"], ["s2"])],
        [value("i", (), INT64), value("go_in", (), BOOL), value("s", (2, 2))],
        [value("go", (), BOOL), value("s2", (2, 2))],
    )
    nodes = [node("Loop", ["", "start", "x"], ["y"], body=forever)]
    inputs = [value("x", (2, 2)), value("start", (), BOOL)]
    inits = [tensor("m", np.eye(2, dtype=np.float32))]
    proto = model(nodes, inputs, initializers=inits, opset=17)
    with clnn.compile_model(proto, any_device) as session:
        feed = {"x": x_of(2, 2), "start": np.array(True)}
        run_stage, turns = session._run_stage, []

        def interrupted(stage, values):
            turns.append(stage)
            if len(turns) == 5:
                raise KeyboardInterrupt
            return run_stage(stage, values)

        session._execution._run_stage = interrupted
        with pytest.raises(KeyboardInterrupt):
            session(feed)
        still = session({**feed, "start": np.array(False)})
        np.testing.assert_array_equal(still["y"], feed["x"])


def scan(axis, backwards):
    """A recurrent layer: state = tanh(state m + slice), all states as output."""
    body = graph(
        "body",
        [
            node("MatMul", ["h", "m"], ["hm"]),
            node("Add", ["hm", "xt"], ["sum"]),
            node("Tanh", ["sum"], ["h2"]),
            node("Identity", ["h2"], ["all"]),
        ],
        [value("h", (2, 4)), value("xt", (2, 4))],
        [value("h2", (2, 4)), value("all", (2, 4))],
    )
    attrs = {
        "scan_input_axes": [axis],
        "scan_input_directions": [backwards],
        "scan_output_axes": [axis],
        "scan_output_directions": [backwards],
    }
    nodes = [node("Scan", ["h0", "x"], ["h", "y"], body=body, num_scan_inputs=1, **attrs)]
    shape = [2, 4]
    shape.insert(axis, 6)
    proto = model(
        nodes,
        [value("h0", (2, 4)), value("x", shape)],
        initializers=[tensor("m", x_of(4, 4, seed=3))],
        opset=17,
    )
    return typed(proto, value("h", (2, 4)), value("y", shape)), shape


@pytest.mark.usefixtures("no_unrolling")
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(device, axis, backwards):
    proto, shape = scan(axis, backwards)
    compared(device, proto, *({"h0": x_of(2, 4, seed=k), "x": x_of(*shape)} for k in range(2)))


def sizes():
    """Shapes that values of inputs, and of what the device makes, decide."""
    nodes = [
        node("MatMul", ["x", "m"], ["p"]),
        node("ReduceMax", ["p"], ["top"], keepdims=0),
        node("Clip", ["top", "low", "high"], ["clipped"]),
        node("Cast", ["clipped"], ["k"], to=TensorProto.INT64),
        node("Unsqueeze", ["k", "zero"], ["k1"]),
        node("TopK", ["p", "k1"], ["best", "where"]),
        node("Expand", ["column", "shape"], ["wide"]),
        node("Range", ["from", "k", "one"], ["count"]),
    ]
    inits = [
        tensor("m", x_of(4, 5, seed=2)),
        ints("zero", 0),
        tensor("low", np.float32(1)),
        tensor("high", np.float32(5)),
        tensor("from", np.int64(0)),
        tensor("one", np.int64(1)),
    ]
    inputs = [value("x", (3, 4)), value("column", (3, 1)), value("shape", (2,), INT64)]
    proto = model(nodes, inputs, initializers=inits, opset=17)
    outputs = [value("best", None), value("where", None, INT64), value("wide", None)]
    return typed(proto, *outputs, value("count", (None,), INT64))


def test_sizes_that_values_say(device):
    feeds = [
        {
            "x": x_of(3, 4, seed=k) * (k + 1),
            "column": x_of(3, 1),
            "shape": np.array([3, 2 + k % 3], np.int64),
        }
        for k in range(4)
    ]
    compared(device, sizes(), *feeds)


def test_open_dimensions_and_data(device):
    proto = picked_rows()
    proto.graph.input[0].CopyFrom(value("x", ("batch", 3, "height", "width")))
    feeds = [{"x": x_of(n, 3, h, 4, seed=n)} for n, h in ((1, 4), (2, 6), (1, 4))]
    compared(device, proto, *feeds)
    with clnn.compile_model(proto, device) as session:
        assert session.inputs[0].shape == ("batch", 3, "height", "width")
        with pytest.raises(ShapeError, match="model wants"):
            session({"x": x_of(1, 4, 4, 4)})


def test_names_inside_hide_those_outside(device):
    """The body of the loop calls its own values x and w, as the graph around it does."""
    body = graph(
        "body",
        [node("Add", ["x", "w"], ["s"]), node("Identity", ["go"], ["went"])],
        [value("i", (), INT64), value("go", (), BOOL), value("x", (2,))],
        [value("went", (), BOOL), value("s", (2,))],
        [tensor("w", np.float32([1, 10]))],
    )
    nodes = [node("Mul", ["x", "w"], ["p"]), node("Loop", ["n", "", "p"], ["y"], body=body)]
    inputs = [value("x", (2,)), value("n", (), INT64)]
    proto = model(nodes, inputs, initializers=[tensor("w", np.float32([2, 3]))], opset=17)
    with clnn.compile_model(proto, device) as session:
        got = session({"x": np.float32([1, 1]), "n": np.array(2)})
    np.testing.assert_array_equal(got["y"], np.float32([4, 23]))


@pytest.mark.parametrize("turn", [(), (1,)])
@pytest.mark.parametrize("going", [(), (1,)])
@pytest.mark.parametrize("count", [12, None])
def test_turn_and_condition_are_rows_where_the_body_says_so(any_device, turn, going, count):
    """count: a constant, or an input."""
    body = graph(
        "body",
        [
            node("Identity", ["i"], ["row"]),
            node("Identity", ["go"], ["went"]),
            node("Identity", ["go"], ["seen"]),
            node("Add", ["a", "a"], ["twice"]),
        ],
        [value("i", turn, INT64), value("go", going, BOOL), value("a", (2,))],
        [
            value("went", going, BOOL),
            value("twice", (2,)),
            value("row", None, INT64),
            value("seen", None, BOOL),
        ],
    )
    inputs = [value("a0", (2,)), *([] if count else [value("n", (), INT64)])]
    given = [tensor("n", np.int64(count))] if count else []
    loop = node("Loop", ["n", "", "a0"], ["last", "rows", "all"], body=body)
    proto = model([loop], inputs, initializers=given, opset=17)
    outputs = [value("last", (2,)), value("rows", None, INT64), value("all", None, BOOL)]
    proto = typed(proto, *outputs)
    feeds = {"a0": np.float32([1, 2])} | ({} if count else {"n": np.array(12)})
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, any_device) as session:
        got = session(feeds)
    for name, want in zip(("last", "rows", "all"), engine.run(None, feeds), strict=True):
        np.testing.assert_array_equal(got[name], want, strict=True)
    assert got["rows"].shape == (12, *turn)


def test_scan_outputs_of_different_shapes_are_refused(any_device):
    body = graph(
        "body",
        [
            node("Identity", ["go"], ["went"]),
            node("Range", ["zero", "i", "one"], ["row"]),
        ],
        [value("i", (), INT64), value("go", (), BOOL)],
        [value("went", (), BOOL), value("row", (None,), INT64)],
    )
    proto = model(
        [node("Loop", ["n", ""], ["y"], body=body)],
        [value("n", (), INT64)],
        initializers=[tensor("zero", np.int64(0)), tensor("one", np.int64(1))],
        opset=17,
    )
    with clnn.compile_model(proto, any_device) as session:
        assert session({"n": np.array(1)})["y"].shape == (1, 0)
        with pytest.raises(ModelError, match=r"'Loop_0'.*different shapes"):
            session({"n": np.array(3)})


def test_feeds_that_do_not_fit_are_refused(any_device):
    with clnn.compile_model(picked_rows(), any_device) as session:
        x = x_of(1, 3, 8, 8)
        with pytest.raises(InputNameError, match="'z'"):
            session({"x": x, "z": x})
        with pytest.raises(ShapeError, match=r"\(1, 3, 8, 8\)"):
            session({"x": x[:, :2]})
        with pytest.raises(TypeError, match="float64"):
            session({"x": x.astype(np.float64)})
        with pytest.raises(InputNameError, match="output"):
            session.run(["nothing"], {"x": x})
    with pytest.raises(DeviceLostError, match="closed"):
        session({"x": x})


def test_an_index_out_of_range_is_one_clear_error(any_device):
    nodes = [node("NonZero", ["x"], ["n"]), node("Gather", ["n", "i"], ["y"])]
    proto = model(nodes, [value("x", (3,)), value("i", (1,), INT64)], opset=17)
    with (
        clnn.compile_model(proto, any_device) as session,
        pytest.raises(ModelError, match=r"'Gather_1' \(Gather\).*index 5 is outside of extent 1"),
    ):
        session({"x": x_of(3), "i": np.array([5])})


def test_what_nothing_computes_is_refused_before_the_run(any_device):
    nodes = [node("NonZero", ["x"], ["n"]), node("ImageDecoder", ["q"], ["y"], name="d")]
    proto = model(nodes, [value("x", (3,)), value("q", (2, 2))], ["n", "y"], opset=20)
    with pytest.raises(UnsupportedOpError, match="ImageDecoder") as caught:
        clnn.compile_model(proto, any_device)
    assert [p.op_type for p in caught.value.problems] == ["ImageDecoder"]


def test_several_threads(any_device):
    proto = picked_rows()
    feeds = [{"x": x_of(1, 3, 8, 8, seed=k) * (k % 3)} for k in range(6)]
    with clnn.compile_model(proto, any_device) as session:
        alone = [session(feed) for feed in feeds]
        streamed = list(session.stream(feeds))
        found = [None] * len(feeds)

        def work(k):
            found[k] = session(feeds[k])

        threads = [threading.Thread(target=work, args=(k,)) for k in range(len(feeds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for want, *others in zip(alone, found, streamed, strict=True):
        for got in others:
            for name, array in want.items():
                np.testing.assert_array_equal(got[name], array)


def test_functions_of_the_model_are_staged(device):
    inner = helper.make_function(
        "own",
        "Places",
        ["a"],
        ["b"],
        [node("NonZero", ["a"], ["n"]), node("Cast", ["n"], ["b"], to=FLOAT)],
        [helper.make_opsetid("", 17)],
    )
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Places", ["r"], ["y"], domain="own")],
        [value("x", (3, 4))],
        opset=17,
        functions=[inner],
        domains={"own": 1},
    )
    compared(device, typed(proto, value("y", None)), {"x": x_of(3, 4)})


def test_a_model_without_such_nodes_is_not_staged(any_device):
    proto = model([onnx.helper.make_node("Relu", ["x"], ["y"])], [value("x", (2, 2))])
    with clnn.compile_model(proto, any_device) as session:
        assert not isinstance(session, StagedSession)
