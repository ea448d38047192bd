"""Import, passes and planning end: their work grows as the network does, their tables are bounded."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from itertools import pairwise

import numpy as np
import pytest
from common import ROOT
from onnx import helper as make
from onnx_models import INT64, ints, model, run, tensor, value
from targets import GPU

from clnn import budget
from clnn.compile import prepare
from clnn.errors import HostMemoryError, UnsupportedOpError
from clnn.importers.onnx import importer
from clnn.importers.onnx.importer import import_onnx
from clnn.ops.conv.transpose_phases import first_taps, phase_border
from clnn.ops.resize.sampling import AxisMap, Sampling, axis_taps
from clnn.ops.shared.functions import MOST_STEPS
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.target import Target

HUGE = 2**24
CPU = Target()


def node(kind, inputs, outputs, **attrs):
    return make.make_node(kind, inputs, outputs, **attrs)


def chain(kind, count, second=()):
    names = [f"v{k}" for k in range(count)] + ["y"]
    return [node(kind, [a, *second], [b]) for a, b in pairwise(names)]


def additions(count):
    return model(chain("Add", count, ["x"]), [value("x", (2,)), value("v0", (2,))])


def softmaxes(count):
    return model(chain("Softmax", count), [value("v0", (2,))])


def convolutions(count):
    weights = tensor("w", np.zeros((4, 4, 1, 1), np.float32))
    return model(chain("Conv", count, ["w"]), [value("v0", (1, 4, 4, 4))], initializers=[weights])


def long_sum(count):
    return model([node("Sum", ["x"] * count, ["y"])], [value("x", (2,))])


def long_concat(count):
    return model([node("Concat", ["x"] * count, ["y"], axis=0)], [value("x", (2,))])


def long_split(count):
    parts = [f"s{k}" for k in range(count)]
    split = node("Split", ["x"], parts, axis=0, num_outputs=count)
    return model([split, node("Concat", parts, ["y"], axis=0)], [value("x", (count,))])


def doubling(count):
    """`count` is a power of two: so many additions, by functions that call the one below twice."""
    functions, inner = [], "Add"
    for level in range(count.bit_length()):
        domain = "" if level == 0 else "own"
        inputs = ["a", "a"] if level == 0 else ["a"]
        body = [make.make_node(inner, inputs, ["t"], domain=domain)]
        if level:
            body.append(make.make_node(inner, ["t"], ["b"], domain="own"))
        else:
            body.append(make.make_node("Identity", ["t"], ["b"]))
        opsets = [make.make_opsetid("", 21), make.make_opsetid("own", 1)]
        inner = f"F{level}"
        functions.append(make.make_function("own", inner, ["a"], ["b"], body, opsets))
    call = make.make_node(inner, ["x"], ["y"], domain="own")
    return model([call], [value("x", (2,))], functions=functions, domains={"own": 1})


def planned(proto, target=CPU, options=None):
    return make_plan(prepare(import_onnx(proto), options or Options()), target)


def calls(work):
    """Return how many functions of Python and of C a piece of work calls."""
    count = 0

    def count_one(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "network",
    [additions, softmaxes, convolutions, long_sum, long_concat, long_split, doubling],
    ids=lambda make_it: make_it.__name__,
)
def test_work_grows_as_the_network_does(network, target):
    """Twice the nodes, or operands, are twice the calls, and not four times."""
    small, large = network(256), network(512)
    planned(network(8), target)  # what is done once for all
    least, most = calls(lambda: planned(small, target)), calls(lambda: planned(large, target))
    assert most < 2.2 * least, (least, most)


def test_starts_of_a_split_are_added_up_once(monkeypatch):
    """1000 of them take some thousand additions, not half a million."""
    added = 0

    class Counted(int):
        def __add__(self, other):
            nonlocal added
            added += 1
            return Counted(int(self) + int(other))

        __radd__ = __add__

    monkeypatch.setattr("clnn.ops.movement.onnx.integer", Counted)
    import_onnx(long_split(1000))
    assert 1000 <= added < 10_000


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min", "Mean"])
def test_long_sums_are_chains_of_kernels_with_few_operands(kind):
    """Devices take few arguments: 60 inputs are three nodes, added from left to right."""
    count = 60
    inputs = [f"x{k}" for k in range(count)]
    graph = import_onnx(model([node(kind, inputs, ["y"])], [value(n, (3,)) for n in inputs]))
    assert [len(n.inputs) <= MOST_STEPS + 1 for n in graph.nodes] == [True] * 3
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(3).astype(np.float32) for name in inputs}
    want = {"Sum": sum, "Mean": sum, "Max": np.maximum.reduce, "Min": np.minimum.reduce}[kind]
    total = want([feed.astype(np.float64) for feed in feeds.values()])
    expected = total / count if kind == "Mean" else total
    np.testing.assert_allclose(run(graph, **feeds)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_of_a_huge_axis_is_refused_with_the_numbers(mode):
    resize = node("Resize", ["x", "", "", "s"], ["y"], mode=mode)
    graph = import_onnx(
        model([resize], [value("x", (1, 1, 1, 7))], initializers=[ints("s", 1, 1, 1, 2 * HUGE)])
    )
    with pytest.raises(HostMemoryError, match=f"{mode} resizing of an axis from 7 to {2 * HUGE}"):
        make_plan(graph, CPU)


def test_a_wide_filter_is_refused_before_its_weights_are_made():
    how = Sampling("cubic", antialias=True)
    with pytest.raises(HostMemoryError, match="cubic resizing"):
        axis_taps(AxisMap(2**26, 3, 3 / 2**26), how)


def test_tables_of_a_plan_are_counted_together_and_each_once(monkeypatch):
    monkeypatch.setattr(budget, "TABLE_BYTES", 40_000)
    axis, other = AxisMap(7, 1000, 1000 / 7), AxisMap(9, 1000, 1000 / 9)
    with budget.counted_tables():
        first = axis_taps(axis, Sampling("linear"))
        assert axis_taps(axis, Sampling("linear")) is first
        with budget.counted_tables(), pytest.raises(HostMemoryError, match="with 32000 of others"):
            axis_taps(other, Sampling("linear"))
    axis_taps(other, Sampling("linear"))


@pytest.mark.parametrize(
    ("kind", "extra", "shape", "dtype"),
    [("Trilu", (), (2, 2**28), 1), ("OneHot", ("d", "v"), (2,), INT64)],
    ids=["trilu", "onehot"],
)
def test_tables_made_at_import_are_refused_by_the_node_s_name(kind, extra, shape, dtype):
    inits = [ints("d", 2**28), tensor("v", np.zeros(2, np.float32))]
    proto = model(
        [node(kind, ["x", *extra], ["y"], name="big")],
        [value("x", shape, dtype)],
        initializers=[i for i in inits if i.name in extra],
    )
    with pytest.raises(HostMemoryError, match=rf"'big' \({kind}\).*wants a table of"):
        import_onnx(proto)


def test_masks_and_constants_of_one_number_take_no_room():
    """A mask of 2**30 ones is one number; a convolution does not multiply such weights out."""
    graph = import_onnx(
        model([node("Dropout", ["x"], ["y", "m"])], [value("x", (2**30,))], ("y", "m"))
    )
    (mask,) = graph.consts.values()
    assert mask.shape == (2**30,) and mask.strides == (0,)
    weights = node("ConstantOfShape", ["s"], ["w"])
    nodes = [weights, node("Conv", ["x", "w"], ["t"]), node("Mul", ["t", "two"], ["y"])]
    inits = [ints("s", 2**28, 1, 1, 1), tensor("two", np.float32(2))]
    network = prepare(
        import_onnx(model(nodes, [value("x", (1, 1, 1, 1))], initializers=inits)), Options()
    )
    assert all(0 in c.strides for c in network.consts.values() if c.size > 1)


SLOW_NODES = {
    "Erf": [node("Erf", ["c"], ["y"])],
    "GatherElements": [node("GatherElements", ["c", "j"], ["y"])],
    "GatherND": [node("GatherND", ["c", "i"], ["y"])],
    "TopK": [node("TopK", ["c", "k"], ["y", "p"])],
}


@pytest.mark.parametrize("kind", SLOW_NODES)
def test_what_is_slow_to_evaluate_is_left_to_the_device(kind, monkeypatch):
    """onnx's evaluator would loop over each of 2**26 elements in Python."""
    monkeypatch.setattr(importer.onnx_fold, "evaluator", None)
    consts = [node("ConstantOfShape", ["n"], ["c"])]
    consts.append(node("ConstantOfShape", ["m"], ["i"], value=ints("", 0)))
    consts.append(node("ConstantOfShape", ["n"], ["j"], value=ints("", 0)))
    inits = [ints("n", 2**25), ints("m", 2**25, 1), ints("k", 1)]
    keep = [node("Relu", ["x"], ["z"])]
    proto = model(
        [*consts, *SLOW_NODES[kind], *keep],
        [value("x", (1,))],
        ("y", "z"),
        initializers=inits,
    )
    graph = import_onnx(proto)
    assert len(graph.nodes) > 1


def test_work_of_folding_is_counted_over_all_nodes(monkeypatch):
    monkeypatch.setattr("clnn.importers.onnx.limits.FOLD_WORK", 100_000)
    monkeypatch.setattr("clnn.importers.onnx.limits.WORK_GROWTH", 0)
    sums = [node("ReduceSum", ["c"], [f"r{k}"], keepdims=0) for k in range(4)]
    last = node("Sum", ["x", *(f"r{k}" for k in range(4))], ["y"])
    const = tensor("c", np.ones(4000, np.float32))
    graph = import_onnx(model([*sums, last], [value("x", ())], initializers=[const]))
    kinds = [n.spec.kind for n in graph.nodes]
    assert kinds == ["reduce", "eltwise"]  # three were folded, 32000 bytes each


def test_a_node_that_the_evaluator_does_not_take_runs_on_the_device():
    """onnx's GatherElements of more than 64 indices ends in numpy's limit of `choose`."""
    x = np.arange(100, dtype=np.float32)
    proto = model(
        [node("GatherElements", ["c", "i"], ["t"]), node("Add", ["x", "t"], ["y"])],
        [value("x", (100,))],
        initializers=[tensor("c", x), ints("i", *range(99, -1, -1))],
    )
    np.testing.assert_array_equal(run(import_onnx(proto), x=x)["y"], x + x[::-1])


@pytest.mark.parametrize("stride", [2**14, 2**24, 2**30])
def test_phases_of_a_huge_stride_are_not_counted_one_by_one(stride):
    window = Window((3,), (stride,), (1,), (0,), (0,))
    spent = calls(lambda: phase_border(window, (1, 1, 2), (stride,), 0.0))
    assert spent < 200
    weights = tensor("w", np.zeros((1, 1, 3), np.float32))
    up = node("ConvTranspose", ["x", "w"], ["y"], strides=[stride])
    plan = planned(model([up], [value("x", (1, 1, 1))], initializers=[weights]))
    assert plan.scheduled[-1].variant.name.endswith("reference")


def test_borders_and_first_taps_of_phases_are_those_of_a_search():
    for s, d, k, before in np.ndindex(7, 7, 5, 5):
        s, d, k = s + 1, d + 1, k + 1
        window = Window((k,), (s,), (d,), (before,), (0,))
        hits = [[t for t in range(k) if (p + before - t * d) % s == 0] for p in range(s)]
        assert first_taps(window, 0) == tuple(min(h, default=k) for h in hits)
        shifts = [(p + before - t * d) // s for p in range(s) for t in hits[p]]
        size = extent = 40
        border = phase_border(window, (1, 1, size), (extent,), 0.0)
        if border is not None:
            assert border.before == (0, 0, max(0, -min(shifts)))
            assert border.after == (0, 0, max(0, -(-extent // s) + max(shifts) - size))


def test_neighbourhoods_of_lrn_are_not_unrolled_without_end():
    lrn = node("LRN", ["x"], ["y"], size=2**20 + 1)
    plan = planned(model([lrn], [value("x", (1, 2**22, 1, 1))]))
    from clnn.codegen.render import render

    (launch,) = [step.launch for step in plan.launches if "lrn" in step.launch.template]
    assert len(render(launch.template, launch.params)) < 20_000


def test_memory_that_is_not_there_is_an_error_of_clnn(monkeypatch):
    def gone(*args):
        raise MemoryError("Unable to allocate 16.0 GiB")

    monkeypatch.setattr("clnn.importers.onnx.nodes.onnx_importers", lambda: {"Relu": gone})
    proto = model([node("Relu", ["x"], ["y"])], [value("x", (2,))])
    message = r"the import of the model got no memory of the host: Unable to allocate 16.0 GiB\."
    with pytest.raises(HostMemoryError, match=message):
        import_onnx(proto)
    monkeypatch.undo()
    graph = import_onnx(proto)
    monkeypatch.setattr("clnn.plan.schedule.place", gone)
    with pytest.raises(HostMemoryError, match="the plan of the network got no memory"):
        make_plan(graph, CPU)


def test_a_process_with_little_memory_gets_the_error_and_not_a_raw_one():
    """The folded constants of 2**24 numbers do not fit into what the process may still take."""
    code = textwrap.dedent(
        """
        import resource, sys
        sys.path.insert(0, "tests/support")
        import numpy as np
        from onnx import helper as make
        from onnx_models import ints, model, value
        from clnn.errors import HostMemoryError
        from clnn.importers.onnx.importer import import_onnx
        import onnx.reference
        nodes = [make.make_node("ConstantOfShape", ["s"], ["c"])]
        nodes += [make.make_node("Exp", ["c"], ["e"]), make.make_node("Add", ["x", "e"], ["y"])]
        proto = model(nodes, [value("x", (2**24,))], initializers=[ints("s", 2**24)])
        small = model(nodes, [value("x", (2,))], initializers=[ints("s", 2)])
        import_onnx(small)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, used + 2**25))
        try:
            import_onnx(proto)
        except HostMemoryError as err:
            print(err.code, err)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert "CLNN-E012 the import of the model got no memory of the host" in done.stdout, done.stderr


def test_limits_are_refused_for_operators_that_only_the_import_computes():
    nodes = [node("ConstantOfShape", ["s"], ["c"]), node("NonZero", ["c"], ["y"])]
    with pytest.raises(UnsupportedOpError, match=r"counts as \d+ bytes of work"):
        import_onnx(model(nodes, [value("x", (1,))], initializers=[ints("s", 2**24)]))
