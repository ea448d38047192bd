"""Sessions of models with open dimensions: any shape in any call, equal to what is compiled for it."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn.errors import DeviceLostError, InputNameError, ShapeError
from clnn.runtime.run import keeping, open_session
from clnn.runtime.run.open_session import OpenSession

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((8, 3, 3, 3)).astype(np.float32)


def model(dims=("batch", 3, "height", "width"), other=("batch",)):
    """relu(conv(x)) + bias of the batch, with a mean over the image."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Unsqueeze", ["b", "axes"], ["u"]),
        helper.make_node("Add", ["r", "u"], ["y"]),
        helper.make_node("GlobalAveragePool", ["y"], ["mean"]),
    ]
    graph = helper.make_graph(
        nodes,
        "open",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, dims),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, other),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, ("batch", 8, 1, 1)),
        ],
        [
            numpy_helper.from_array(WEIGHTS, "w"),
            numpy_helper.from_array(np.array([1, 2, 3]), "axes"),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def feeds(batch, height, width):
    x = RNG.standard_normal((batch, 3, height, width)).astype(np.float32)
    return {"x": x, "b": np.arange(batch, dtype=np.float32)}


SHAPES = [(1, 8, 8), (2, 7, 5), (1, 8, 8), (3, 1, 9), (2, 7, 5)]


def test_each_call_may_have_another_shape(device):
    with clnn.compile_model(model(), device) as session:
        assert isinstance(session, OpenSession)
        assert session.inputs[0].shape == ("batch", 3, "height", "width")
        assert session.outputs[1].shape == ("batch", 8, 1, 1)
        assert session.outputs[0].shape is None
        for shape in SHAPES:
            fed = feeds(*shape)
            fixed = {name: array.shape for name, array in fed.items()}
            with clnn.compile_model(model(), device, shapes=fixed) as alone:
                assert isinstance(alone, clnn.Session)
                want = alone(fed)
            got = session(fed)
            for name in want:  # of kernels that are chosen for other extents
                np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
            assert session.run(["mean"], fed)[0].tolist() == got["mean"].tolist()
        assert len(session.shapes) == 3 and session.shapes[-1]["x"] == (2, 3, 7, 5)
        assert session.placement.launches


def test_some_dimensions_may_be_fixed(any_device):
    with clnn.compile_model(model(), any_device, shapes={"batch": 2, "width": 6}) as session:
        assert session.inputs[0].shape == (2, 3, "height", 6)
        session.prepare({"height": 4})
        built = session.build_counts
        assert session(feeds(2, 4, 6))["y"].shape == (2, 8, 2, 3)
        assert session.build_counts == built
        with pytest.raises(ShapeError, match=r"axis 0 is 1, must be 2"):
            session(feeds(1, 4, 6))


def test_dimensions_without_a_name_get_one(any_device):
    with clnn.compile_model(model((None, 3, "h", None), ("n",)), any_device) as session:
        assert session.inputs[0].shape == ("x.0", 3, "h", "x.3")
        assert session.at({"x.0": 1, "h": 2, "x.3": 4, "n": 1}).inputs[0].shape == (1, 3, 2, 4)


def test_what_does_not_fit_is_said(any_device):
    session = clnn.compile_model(model(), any_device)
    fed = feeds(2, 4, 4)
    with pytest.raises(ShapeError, match="dimension 'batch' is 3 in input 'b' and 2 in input 'x'"):
        session({**fed, "b": np.zeros(3, np.float32)})
    with pytest.raises(ShapeError, match="it has 2 axes, must have 4"):
        session({**fed, "x": np.zeros((2, 3), np.float32)})
    with pytest.raises(InputNameError, match="input 'b' is missing"):
        session({"x": fed["x"]})
    with pytest.raises(InputNameError, match="not list"):
        session([fed])
    with pytest.raises(ShapeError, match="dimension 'height' of input 'x' is not given"):
        session.prepare({"batch": 1, "width": 4})
    with pytest.raises(ShapeError, match="nothing is placed before shapes are known"):
        print(session.placement)
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        session(fed)


def test_a_stream_of_several_shapes_keeps_its_order(any_device):
    items = [feeds(*shape) for shape in [(1, 4, 4), (1, 4, 4), (2, 6, 4), (1, 4, 4)]]
    with clnn.compile_model(model(), any_device) as session:
        got = list(session.stream(iter(items)))
        for out, fed in zip(got, items, strict=True):
            assert np.array_equal(out["y"], session(fed)["y"])


def test_shapes_used_longest_ago_are_forgotten(any_device, monkeypatch):
    monkeypatch.setattr(open_session, "FEW_SHAPES", 2)
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 0)
    with clnn.compile_model(model(), any_device) as session:
        for width in (4, 5, 4, 6):
            session(feeds(1, 4, width))
        assert [ready["x"][3] for ready in session.shapes] == [4, 6]
        assert sum(session.build_counts) > 0


def test_small_plans_are_kept_for_more_shapes(device, monkeypatch):
    """As for the decoder of a language model, whose states grow by a row with each call."""
    monkeypatch.setattr(open_session, "FEW_SHAPES", 2)
    with clnn.compile_model(model(), device) as session:
        shapes = [{"x": (1, 3, 4, width), "b": (1,)} for width in range(3, 9)]
        made = [session.at(shape) for shape in shapes]
        assert [session.at(shape) for shape in shapes] == made
        launches = [one.cost.launches for one in made]
        assert min(launches) > 0 and session.cost.launches == sum(launches)
        monkeypatch.setattr(keeping, "MAX_LAUNCHES", 4 * max(launches))
        session.prepare({"x": (1, 3, 4, 9), "b": (1,)})
        assert [ready["x"][3] for ready in session.shapes] == [6, 7, 8, 9]


def test_memory_of_forgotten_shapes_is_free_at_once(device, monkeypatch):
    """It does not wait until Python looks for cycles."""
    monkeypatch.setattr(open_session, "FEW_SHAPES", 2)
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 0)
    options = clnn.Options(specialise="never")
    with clnn.compile_model(model(), device, options) as session:
        gc.disable()
        try:
            made = [weakref.ref(session.at({"x": (1, 3, 4, w), "b": (1,)})) for w in range(3, 9)]
            assert sum(one() is not None for one in made) == 2
        finally:
            gc.enable()


@pytest.mark.parametrize("guard", [0, 64])
def test_shapes_with_memory_of_their_own_are_forgotten_for_their_size(
    any_device, monkeypatch, guard
):
    monkeypatch.setattr(keeping, "MAX_BYTES", 0)
    with clnn.compile_model(model(), any_device, clnn.Options(guard=guard)) as session:
        for width in (4, 5):
            session(feeds(1, 4, width))
        assert [ready["x"][3] for ready in session.shapes] == ([5] if guard else [4, 5])


def test_threads_with_shapes_of_their_own(any_device):
    wrong = []
    with clnn.compile_model(model(), any_device) as session:

        def calls(width):
            fed = feeds(1, 4, width)
            want = session(fed)["y"]
            wrong.extend(1 for _ in range(20) if not np.array_equal(session(fed)["y"], want))

        threads = [threading.Thread(target=calls, args=(width,)) for width in (3, 4, 5, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert not wrong
