"""Networks that compute shapes from shapes are read once for many extents, and are then what an import makes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import TensorProto
from open_images import Net
from test_graphs_of_shapes import graphs_of
from test_plans_from_nothing import whole

import clnn
from clnn.compile import load_graph
from clnn.importers.onnx import shape_arithmetic
from clnn.recorded import Recorded, Tape
from clnn.recorded_arrays import RecordedArray, items_of, whole_numbers
from clnn.replays import Replays

INT32, INT64 = TensorProto.INT32, TensorProto.INT64


class Shaped(Net):
    """A network in the making that computes with shapes."""

    def ints(self, *values):
        return self.const(np.array(values, np.int64))

    def extent(self, value, axis):
        """One extent, as a row of one."""
        one = self.add("Gather", self.add("Shape", value), self.const(np.int64(axis)), axis=0)
        return self.add("Unsqueeze", one, self.ints(0))

    def row(self, *parts):
        return self.add("Concat", *parts, axis=0)

    def range(self, value, axis):
        end = self.add("Squeeze", self.extent(value, axis), self.ints(0))
        return self.add("Range", self.const(np.int64(0)), end, self.const(np.int64(1)))


def attention():
    """Heads are split and joined by shapes, positions are the first rows of a table."""
    net = Shaped()
    tokens = net.add("Transpose", net.add("Reshape", "x", net.ints(0, 3, -1)), perm=[0, 2, 1])
    y = net.add("MatMul", tokens, net.weight(3, 16))
    count = net.extent(y, 1)
    at = net.add("Slice", net.const(np.arange(4000)[None]), net.ints(0), count, net.ints(1))
    y = net.add("Add", y, net.add("Gather", net.weight(4000, 16), at, axis=0))
    split = net.row(net.extent(y, 0), count, net.ints(2, 8))
    heads = net.add("Transpose", net.add("Reshape", y, split), perm=[0, 2, 1, 3])
    turned = net.add("Transpose", heads, perm=[0, 1, 3, 2])
    scores = net.add("Softmax", net.add("MatMul", heads, turned), axis=-1)
    y = net.add("Transpose", net.add("MatMul", scores, heads), perm=[0, 2, 1, 3])
    width = net.add("Mul", net.extent(y, 2), net.extent(y, 3))
    return net.model(net.add("Reshape", y, net.row(net.extent(y, 0), net.extent(y, 1), width)))


def grids():
    """Coordinates of all places, as a detector adds them."""
    net = Shaped()
    y = net.conv("x", 3, 4, stride=2)
    across, down = net.range(y, 3), net.range(y, 2)
    size = net.row(net.extent(y, 2), net.extent(y, 3))
    column = net.add("Unsqueeze", down, net.ints(1))
    planes = [net.add("Expand", part, size) for part in (across, column)]
    planes = [net.add("Unsqueeze", part, net.ints(0, 1)) for part in planes]
    grid = net.add("Cast", net.add("Concat", *planes, axis=1), to=TensorProto.FLOAT)
    grid = net.add("Mul", net.add("Sub", grid, net.scales(0.5)), net.scales(8.0))
    halves = net.add("Slice", y, net.ints(0), net.ints(2), net.ints(1))
    return net.model(net.add("Add", halves, grid))


def joined():
    """What was halved is resized to the size of what it is joined with, and cut to it."""
    net = Shaped()
    first = net.conv("x", 3, 8, stride=2)
    second = net.conv(first, 8, 8, stride=2)
    twice = net.add(
        "Mul", net.add("Slice", net.add("Shape", second), net.ints(2), net.ints(4)), net.ints(2)
    )
    size = net.row(net.add("Slice", net.add("Shape", second), net.ints(0), net.ints(2)), twice)
    up = net.add(
        "Resize", second, "", "", size, mode="nearest", coordinate_transformation_mode="asymmetric"
    )
    ends = net.row(net.extent(first, 2), net.extent(first, 3))
    up = net.add("Slice", up, net.ints(0, 0), ends, net.ints(2, 3))
    return net.model(net.add("Concat", first, up, axis=1))


def positions(mode="linear"):
    """A table of positions is resized to the image, of which the first one here has the table's size."""
    net = Shaped()
    y = net.conv("x", 3, 8, stride=4)
    table = net.weight(1, 8, 8, 6)
    size = net.row(net.ints(1, 8), net.extent(y, 2), net.extent(y, 3))
    y = net.add("Add", y, net.add("Resize", table, "", "", size, mode=mode))
    return net.model(net.conv(y, 8, 4))


def positions_smoothly():
    return positions("cubic")


def positions_nearest():
    return positions("nearest")


def recurrent():
    """A recurrent layer whose first state is made for the batch."""
    net = Shaped()
    y = net.add("ReduceMean", net.conv("x", 3, 8, stride=2), axes=[2], keepdims=0)
    y = net.add("Transpose", y, perm=[2, 0, 1])
    state = net.add("ConstantOfShape", net.row(net.ints(1), net.extent(y, 1), net.ints(8)))
    y = net.add(
        "LSTM", y, net.weight(1, 32, 8), net.weight(1, 32, 8), "", "", state, state, hidden_size=8
    )
    return net.model(
        net.add("Reshape", y, net.row(net.extent(y, 0), net.extent(y, 2), net.ints(-1)))
    )


def arithmetic():
    """Every operation that is done number by number, and cuts that count from the end."""
    net = Shaped()
    shape = net.add("Cast", net.add("Shape", "x"), to=INT32)
    shape = net.add("Cast", net.add("Neg", net.add("Neg", shape)), to=INT64)
    high, wide = (net.add("Slice", shape, net.ints(k), net.ints(k + 1)) for k in (2, 3))
    least, most = net.add("Min", high, wide), net.add("Max", high, wide)
    half = net.add("Div", net.add("Add", least, net.ints(1)), net.ints(2))
    larger = net.add("Where", net.add("Less", least, net.ints(40)), half, least)
    larger = net.add("Where", net.add("Not", net.add("Equal", least, most)), larger, half)
    y = net.add("Slice", "x", net.add("Neg", larger), net.ints(2**62), net.ints(3))
    y = net.add("Slice", y, net.add("Sub", most, most), larger, net.ints(2))
    count = net.add("ReduceProd", net.add("Shape", y), keepdims=1)
    y = net.add("Reshape", y, net.row(net.ints(1), count))
    return net.model(net.add("Tile", y, net.row(net.extent("x", 0), net.ints(2))))


def picked():
    """The last steps of a sequence are taken, and elements at places that follow from extents."""
    net = Shaped()
    tokens = net.add("Transpose", net.add("Reshape", "x", net.ints(0, 3, -1)), perm=[0, 2, 1])
    y = net.add("MatMul", tokens, net.weight(3, 16))
    last = net.add("Gather", y, net.const(np.int64(-1)), axis=1)
    turned = net.add("Gather", y, net.ints(-1, -3), axis=1)
    behind = net.add("Sub", net.extent(y, 1), net.ints(2))
    counted = net.add("Gather", y, behind, axis=1)
    twice = net.add("Concat", "x", "x", axis=3)
    across = net.range("x", 3)
    places = net.add("Add", across, net.add("Unsqueeze", across, net.ints(1)))
    diagonals = net.add("Relu", net.add("Gather", twice, places, axis=3))
    return net.model(last, turned, counted, diagonals)


def embedded():
    """Rows of tables at evenly spaced places that were picked themselves, as a language model's types and positions."""
    net = Shaped()
    tokens = net.add("Transpose", net.add("Reshape", "x", net.ints(0, 3, -1)), perm=[0, 2, 1])
    y = net.add("MatMul", tokens, net.weight(3, 16))
    count = net.extent(y, 1)
    at = net.add("Slice", net.const(np.arange(4000)[None]), net.ints(0), count, net.ints(1))
    kinds = net.add("GatherElements", net.const(np.zeros((1, 4000), np.int64)), at, axis=1)
    types = net.add("Expand", kinds, net.row(net.extent(y, 0), count))
    y = net.add("Add", y, net.add("Gather", net.weight(2, 16), types, axis=0))
    y = net.add("Add", y, net.add("Gather", net.weight(4000, 16), at, axis=0))
    points = [net.add("Unsqueeze", one, net.ints(2)) for one in (kinds, at)]
    seen = net.add("GatherND", types, net.add("Concat", *points, axis=2))
    shift = net.add("Cast", net.add("Unsqueeze", seen, net.ints(2)), to=1)
    return net.model(net.add("Add", y, shift))


@pytest.mark.parametrize("net", [attention, grids, joined, recurrent, arithmetic, picked, embedded])
def test_graphs_are_those_of_an_import(net, pytestconfig):
    graphs, make, made = graphs_of(net, {"x": ("n", 3, "h", "w")})
    rng = random.Random(pytestconfig.getoption("--long"))
    anew = 0
    for _ in range(200 if pytestconfig.getoption("--long") else 30):
        high, wide = (4 * rng.randrange(3, 15) for _ in range(2))
        shape = rng.randrange(1, 4), 3, high, wide
        want = whole(make({"x": shape}))
        before = len(made)
        assert whole(graphs.at({"x": shape})) == want, shape
        anew += len(made) > before
    assert anew <= (16 if net is arithmetic else 5)


RESIZED = [positions, positions_smoothly, positions_nearest]


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("net", RESIZED)
def test_what_does_nothing_at_one_shape_stays_where_there_are_others(net, is_open):
    same, other = (
        load_graph(net(), {"x": shape}, is_open=is_open)
        for shape in ((1, 3, 32, 24), (1, 3, 40, 24))
    )
    assert [node.spec.kind for node in same.nodes].count("resize") == is_open
    assert [node.spec.kind for node in other.nodes].count("resize") == 1


def test_what_no_extent_changes_does_nothing_at_any_shape():
    net = Shaped()
    same = net.add("Concat", net.scales(1, 1), net.scales(1, 1), axis=0)
    model = net.model(net.add("Relu", net.add("Resize", "x", "", same, mode="linear")))
    graph = load_graph(model, {"x": (1, 3, 8, 8)}, is_open=True)
    assert [node.spec.kind for node in graph.nodes] == ["eltwise"]


NETWORKS = [attention, grids, joined, recurrent, arithmetic, picked, embedded, *RESIZED]


@pytest.mark.parametrize("net", NETWORKS)
def test_outputs_are_onnxruntimes(device, net):
    onnxruntime = pytest.importorskip("onnxruntime")
    engine = onnxruntime.InferenceSession(net(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    with clnn.compile_model(net(), device, clnn.Options(specialise="background")) as session:
        for turn, shape in enumerate(
            ((1, 32, 24), (2, 40, 56), (1, 28, 20), (3, 44, 44), (2, 24, 60))
        ):
            x = rng.standard_normal((shape[0], 3, *shape[1:])).astype(np.float32)
            for got, want in zip(
                session({"x": x}).values(), engine.run(None, {"x": x}), strict=True
            ):
                np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
            if not turn:
                session._gears.wait(None)
                built = session.build_counts[1]
        # Which part is cut off, and of which axis, makes other copies of the last one.
        assert session.build_counts[1] == built or net is arithmetic


def test_arrays_beyond_the_room_are_read_anew(monkeypatch):
    monkeypatch.setattr(shape_arithmetic, "ROOM", 100)
    graphs, make, made = graphs_of(grids, {"x": ("n", 3, "h", "w")})
    for side in (32, 36, 40, 44):
        assert whole(graphs.at({"x": (1, 3, side, side)})) == whole(make({"x": (1, 3, side, side)}))
    assert len(made) == 8  # one for comparison and one for the notes of each, which fit no other


def noted(*numbers):
    tape = Tape()
    return tape, [tape.input(n) for n in numbers]


READS = {
    "as an array": lambda a: np.asarray(a).sum(),
    "an element": lambda a: a[0],
    "its largest": lambda a: a.max(),
    "a sum": lambda a: (a + 1)[1],
    "another on the left": lambda a: (np.arange(2) + np.asarray(a))[1],
    "equality": lambda a: bool((a == 3).any()),
    "astype": lambda a: a.astype(np.float32)[0],
}


@pytest.mark.parametrize("name", READS)
def test_what_reads_data_depends_on_it(name):
    """The function is not answered from notes of another number."""
    read, calls = READS[name], []

    def make(numbers):
        calls.append(numbers)
        array = RecordedArray(np.arange(2) + int_of(numbers[0]), (2,), from_on, (numbers[0],))
        return np.float64(read(array if type(numbers[0]) is Recorded else array.array))

    replays = Replays(make)
    for number in (3, 5, 3, 5, 7):
        assert replays([number]) == np.float64(read(np.arange(2) + number)), number
    assert len(calls) >= 3


def int_of(number):
    return number.value if type(number) is Recorded else number


def from_on(number):
    return np.arange(2) + number


def is_large(array):
    return bool(array.sum() > 20)


def test_a_question_about_data_is_a_decision_by_its_answer():
    calls = []

    def make(numbers):
        calls.append(numbers)
        array = RecordedArray(np.arange(2) + int_of(numbers[0]), (2,), from_on, (numbers[0],))
        is_noted = type(numbers[0]) is Recorded
        return (
            "large"
            if (array.asked if is_noted else lambda q: q(array.array))(is_large)
            else "small",
        )

    replays = Replays(make)
    found = [replays([number]) for number in (3, 5, 30, 4, 31)]
    assert found == [("small",), ("small",), ("large",), ("small",), ("large",)] and len(calls) == 2


def test_elements_are_noted_one_by_one():
    tape, (a, b) = noted(5, 7)
    array = whole_numbers(items_of([a, b, 2]), np.int64)
    assert [type(n) for n in array] == [Recorded, Recorded, int]
    assert array.reshape(-1).tolist()[2] == 2
    assert not tape.statements
    assert int(array.tolist()[0]) == 5
    assert tape.statements == ["if not v0 == 5: raise Other"]


def test_plain_numbers_make_a_plain_array():
    array = whole_numbers(items_of([1, 2], (1, 2)), np.int32)
    assert type(array) is np.ndarray
    assert array.dtype == np.int32
    assert array.tolist() == [[1, 2]]
