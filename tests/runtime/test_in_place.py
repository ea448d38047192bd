"""Runs on memory of the caller, in layouts that the caller chooses."""

from __future__ import annotations

import numpy as np
import pytest
from harness import select

from clnn.errors import DeviceLostError, InputNameError, SettingError, ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.layout import TensorLayout, view_of
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.runtime.drivers.pages import pages
from clnn.runtime.run.in_place import in_place
from clnn.runtime.run.session import Session
from clnn.types import F32, TensorType

SHAPE = (2, 3, 4)
LAYOUT = TensorLayout.make(SHAPE, (1, 0, 2), (0, 1, 2), (0, 1, 1))
VALUES = np.arange(24, dtype=np.float32).reshape(SHAPE)


def twice():
    """Return a network of two inputs and two outputs, 2 x and y - x."""
    build = GraphBuilder()
    x, y = (build.input(name, TensorType(SHAPE, F32)) for name in "xy")
    double = build.add(Eltwise((PostOp("mul", (2.0,)),)), x)
    less = build.add(Eltwise((PostOp("sub", operand=1),)), y, x)
    return build.graph({"double": double, "less": less})


@pytest.fixture
def session(device):
    graph = twice()
    hints = Hints(layouts={"x": LAYOUT, graph.outputs["double"]: LAYOUT})
    with Session(graph, select(device), Options(merge=False), hints=hints) as made:
        yield made


def memory(offset=0):
    """Return bytes for LAYOUT; an offset takes them off the begin of a page."""
    return pages(LAYOUT.size * 4 + offset)[offset : offset + LAYOUT.size * 4]


@pytest.mark.parametrize("offset", [0, 4])
def test_results_lie_in_the_callers_memory(session, offset):
    x, double = memory(offset), memory(offset)
    run = in_place(session, {"x": x}, {"double": double})
    assert run.shared == (set() if offset else {"x", "double"})
    for factor in (1, 3):
        view_of(x.view(np.float32), LAYOUT)[...] = VALUES * factor
        outs = run({"y": VALUES})
        assert set(outs) == {"less"}
        np.testing.assert_array_equal(outs["less"], VALUES - VALUES * factor)
        flat = double.view(np.float32)
        np.testing.assert_array_equal(view_of(flat, LAYOUT), 2 * factor * VALUES)
        assert np.count_nonzero(flat) == np.count_nonzero(VALUES), "padding stays zero"
    plain = session({"x": VALUES, "y": VALUES})
    np.testing.assert_array_equal(plain["double"], 2 * VALUES)


def test_memory_that_does_not_fit(session, device):
    with pytest.raises(ShapeError, match="at least"):
        in_place(session, {"x": memory()[:-1]}, {})
    with pytest.raises(ShapeError, match="uint8"):
        in_place(session, {"x": memory().view(np.float32)}, {})
    with pytest.raises(InputNameError, match="named 'z'"):
        in_place(session, {"z": memory()}, {})
    run = in_place(session, {"x": memory()}, {})
    with pytest.raises(InputNameError, match="bound to a buffer"):
        run({"x": VALUES, "y": VALUES})
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        in_place(session, {"x": memory()}, {})
    with Session(twice(), select(device), Options()) as fused:
        if fused._fused is not None:
            with pytest.raises(SettingError, match="merge"):
                in_place(fused, {"x": memory()}, {})
