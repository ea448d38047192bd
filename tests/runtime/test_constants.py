"""Constants leave the host once they are on the device, and nothing that comes later needs them."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from small_graphs import GRAPHS
from test_shape_arithmetic import Shaped

import clnn
from clnn.errors import PlanError
from clnn.plan.plan import ConstArg
from clnn.runtime.drivers.pages import pages
from clnn.runtime.run import constants

pytestmark = pytest.mark.dealt  # kernels that are slow to build


@pytest.mark.parametrize("merge", [True, False], ids=["fused", "alone"])
def test_a_session_keeps_no_constants(device, merge):
    graph = GRAPHS["classifier"]()
    kept = [weakref.ref(array) for array in graph.consts.values()]
    names = list(graph.consts)
    with clnn.compile_model(graph, device, clnn.Options(merge=merge)) as session:
        feeds = {p.name: np.ones(p.shape, p.dtype) for p in session.inputs}
        want = session(feeds)
        del graph
        gc.collect()
        assert [array() for array in kept] == [None] * len(kept)
        assert list(session.plan.consts) == names
        for launch in session.plan.launches:
            for arg in launch.args:
                if isinstance(arg, ConstArg):
                    with pytest.raises(PlanError, match="lie on its device only"):
                        arg.make()
        with session.profile() as profile, ThreadPoolExecutor(1):
            timed = session(feeds)
        with session.profile(separate=True):
            separate = session(feeds)
        streamed = list(session.stream([feeds] * 3))
        assert profile.rows()
    for got in (timed, separate, *streamed):
        assert all(np.array_equal(got[name], want[name]) for name in want)


def test_a_model_file_may_change_after_it_was_compiled(device, tmp_path):
    weights = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, (1, 64, 8, 8))],
        [onnx.helper.make_tensor_value_info("y", 1, (1, 64, 8, 8))],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, ir_version=10), path)
    x = {"x": np.ones((1, 64, 8, 8), np.float32)}
    with clnn.compile_model(path, device, clnn.Options(states=2)) as session:
        want = session(x)["y"]
        path.write_bytes(b"")
        loans = [
            session._states.take(session._call_state) for _ in range(2)
        ]  # the second one is made now
        for loan in loans:
            session._states.give(loan)
        assert len(session._call_states) == 2
        with ThreadPoolExecutor(2) as pool:
            assert all(np.array_equal(y["y"], want) for y in pool.map(session, [x] * 4))


def test_a_later_shape_takes_room_for_what_is_new_alone(device, monkeypatch):
    """The model's weights, which it shares, count for nothing; its own is a column of numbers."""
    net, taken = Shaped(), []
    y = net.add("MatMul", "x", net.weight(48, 4096))
    numbers = net.add("Cast", net.range("x", 2), to=onnx.TensorProto.FLOAT)
    y = net.add("Add", y, net.add("Unsqueeze", numbers, net.ints(1)))
    monkeypatch.setattr(constants, "pages", lambda nbytes: taken.append(nbytes) or pages(nbytes))
    model, options = net.model(y, dims=("n", 3, "h", 48)), clnn.Options(specialise="never")
    with clnn.compile_model(model, device, options) as session:
        session.prepare({"x": (1, 3, 8, 48)})
        assert max(taken) > 4 * 48 * 4096
        taken.clear()
        (got,) = session({"x": np.zeros((1, 3, 12, 48), np.float32)}).values()
    assert taken and max(taken) < 2**16
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(12)[:, None], (1, 3, 12, 4096)))
