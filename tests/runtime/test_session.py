from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from harness import check_memory, normal
from small_graphs import Builder

import clnn
from clnn.errors import DeviceLostError, DTypeError, InputNameError, ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.plan.layouts import place
from clnn.runtime.run.state import ExecutionState
from clnn.types import TensorType

SHAPE = (1, 3, 8, 8)


def small_graph() -> Graph:
    """x -> conv 3x3 -> relu -> (conv 3x3, conv 1x1) -> concat -> y; borders, views and fusion."""
    nodes, types = [], {"x": TensorType(SHAPE)}
    consts = {}

    def add(name, spec, *inputs):
        types[name] = spec.infer([types[i] for i in inputs])[0]
        nodes.append(Node(name, spec, inputs, (name,)))

    def conv(name, source, oc, k):
        consts[f"{name}.w"] = normal((oc, types[source].shape[1], k, k), len(consts)) / 4
        types[f"{name}.w"] = TensorType(consts[f"{name}.w"].shape)
        p = (k - 1) // 2
        add(name, Conv2d(Window((k, k), (1, 1), (1, 1), (p, p), (p, p))), source, f"{name}.w")

    conv("a", "x", 16, 3)
    add("b", Eltwise((PostOp("relu"),)), "a")
    conv("c", "b", 8, 3)
    conv("d", "b", 24, 1)
    add("e", Concat(1), "c", "d")
    return check(Graph(tuple(nodes), types, consts, ("x",), {"y": "e"}))


def expected(x: np.ndarray) -> np.ndarray:
    graph = small_graph()
    values = {"x": x.astype(np.float64), **graph.consts}
    for node in graph.nodes:
        values[node.name] = node.spec.reference(*[values[n] for n in node.inputs])[0]
    return values["e"]


@pytest.fixture(scope="module", params=["shared", "separate"])
def session(request, any_device):
    with clnn.compile_model(
        small_graph(), any_device, clnn.Options(arena=request.param, guard=128, states=2)
    ) as made:
        yield made


def close_to(got: np.ndarray, x: np.ndarray) -> bool:
    want = expected(x)
    return bool(np.abs(got - want).max() <= 1e-5 * np.abs(want).max())


def test_outputs_are_right_and_runs_are_equal_to_the_bit(device):
    with clnn.compile_model(small_graph(), device) as session:
        x = normal(SHAPE)
        first = session({"x": x})["y"]
        assert close_to(first, x)
        assert session.run(["y"], {"x": x})[0].tobytes() == first.tobytes()


def test_arena_and_separate_buffers_agree_to_the_bit(device):
    x = normal(SHAPE)
    results = {
        clnn.compile_model(small_graph(), device, clnn.Options(arena=arena))({"x": x})[
            "y"
        ].tobytes()
        for arena in ("shared", "separate")
    }
    assert len(results) == 1


def test_memory_outside_of_tensors_is_untouched(session):
    for seed in range(3):
        x = normal(SHAPE, seed)
        assert close_to(session({"x": x})["y"], x)
    if session.plan.separate:
        check_memory(session, "small graph")


def test_threads_get_their_own_answers(session):
    inputs = [normal(SHAPE, seed) for seed in range(6)]
    wanted = [session({"x": x})["y"].tobytes() for x in inputs]

    def call(number: int) -> bool:
        k = number % len(inputs)
        return session({"x": inputs[k]})["y"].tobytes() == wanted[k]

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(120)))
    assert len(session._call_states) <= 2


def test_a_shared_state_would_mix_callers_up(session, monkeypatch):
    """The forced interleaving that the pool of states rules out: two uploads, then two runs."""
    one, two = normal(SHAPE, 1), normal(SHAPE, 2)
    wanted = session({"x": one})["y"]
    state: ExecutionState = session._call_states[0]
    host = session.plan.inputs[0].host
    state.upload(host, one)
    state.upload(host, two)
    out = state.run({}, state.bound)[session.plan.outputs[0].host]
    assert not np.array_equal(out, wanted)


def test_states_are_not_lent_twice(session):
    seen: list[int] = []
    inside = threading.Barrier(2)

    def hold() -> None:
        loan = session._states.take(session._call_state)
        seen.append(id(loan.thing))
        inside.wait(30)
        session._states.give(loan)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 2


def test_bound_input_replaces_feeds(session):
    x = normal(SHAPE, 5)
    want = session({"x": x})["y"].tobytes()
    buffer = session.bind_input("x")
    assert buffer.layout == session.inputs[0].layout and buffer.layout.has_padding
    buffer.copy_from(x)
    assert session({})["y"].tobytes() == want
    with buffer.map() as view:
        view *= 2
    assert close_to(session({})["y"], 2 * x)
    with pytest.raises(ShapeError, match=r"array is \(3, 8, 8\)"):
        buffer.copy_from(x[0])
    with pytest.raises(DTypeError, match="array is float64"):
        buffer.copy_from(x.astype(np.float64))
    with pytest.raises(InputNameError, match="'x' is bound to a buffer and given in feeds"):
        session({"x": x})
    session.unbind_input("x")
    assert session({"x": x})["y"].tobytes() == want
    with pytest.raises(InputNameError, match="no input is named 'z'"):
        session.bind_input("z")


def test_the_layout_it_reports_is_the_one_it_uses(session):
    graph = session.plan.graph
    assert session.inputs[0].layout == place(small_graph())["x"].layout
    assert session.placement.copied_bytes == 0
    assert "conv2d" in str(session.placement) and graph.name == ""


@pytest.mark.parametrize(
    "feeds,error,words",
    [
        (
            {"x": np.zeros((1, 4, 8, 8), np.float32)},
            ShapeError,
            r"input 'x' is \(1, 4, 8, 8\), model wants \(1, 3, 8, 8\): axis 1 is 4, must be 3",
        ),
        ({"x": np.zeros((3, 8, 8), np.float32)}, ShapeError, "it has 3 axes, must have 4"),
        (
            {"x": np.zeros(SHAPE)},
            DTypeError,
            r"is float64, model wants float32. Pass x.astype\(np.float32\)",
        ),
        ({}, InputNameError, "input 'x' is missing"),
        (
            np.zeros(SHAPE, np.float32),
            InputNameError,
            "takes {input name: array}, not ndarray.*{'x': ...}",
        ),
        (
            {"X": np.zeros(SHAPE, np.float32)},
            InputNameError,
            "no input is named 'X'.*The model's inputs are: 'x'",
        ),
    ],
)
def test_wrong_feeds_are_named(session, feeds, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        session(feeds)


def test_unknown_output_is_named(session):
    with pytest.raises(InputNameError, match="no output is named 'yy'"):
        session.run(["yy"], {"x": normal(SHAPE)})


def test_runs_do_not_describe_the_outputs_anew(session, monkeypatch):
    x = normal(SHAPE, 3)
    want = session({"x": x})["y"]
    monkeypatch.setattr("clnn.runtime.run.session.tensor_info", None)
    for names in (None, ["y"]):
        np.testing.assert_array_equal(session.run(names, {"x": x})[0], want)


def test_feeds_may_be_strided_or_foreign(session):
    x = normal((1, 8, 8, 3)).transpose(0, 3, 1, 2)
    assert close_to(session({"x": x})["y"], x)


def test_closed_sessions_are_refused(device):
    session = clnn.compile_model(small_graph(), device)
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        session({"x": normal(SHAPE)})


def test_what_nobody_holds_is_freed_at_once(device):
    """Device memory does not wait until Python looks for cycles."""
    session = clnn.compile_model(small_graph(), device)
    session({"x": normal(SHAPE)})
    gone = weakref.ref(session)
    gc.disable()
    try:
        del session
        assert gone() is None
    finally:
        gc.enable()


def test_two_names_of_one_output_are_two_arrays(device):
    b = Builder(x=(1, 4, 3, 3))
    graph = b.graph(b.post_ops("relu", "x"))
    (value,) = graph.outputs.values()
    graph = replace(graph, outputs={"first": value, "second": value})
    x = np.arange(-18, 18, dtype=np.float32).reshape(1, 4, 3, 3)
    with clnn.compile_model(graph, device) as session:
        for outs in (session({"x": x}), next(session.stream([{"x": x}]))):
            assert all(np.array_equal(outs[n], np.maximum(x, 0)) for n in ("first", "second"))
            outs["first"][...] = 7
            assert np.array_equal(outs["second"], np.maximum(x, 0))
