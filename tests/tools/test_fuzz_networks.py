"""tools/fuzz/networks.py: random networks agree with onnxruntime; a fault is found and made small."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time

import numpy as np
import onnx
import pytest
from common import ROOT

FOLDER = ROOT / "tools" / "fuzz"


@pytest.fixture(scope="module")
def tool():
    """The tool as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        before = set(sys.modules)
        yield importlib.import_module("networks")
        for name in set(sys.modules) - before:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.fixture(scope="module")
def cases(tool):
    """What draws and checks networks."""
    return sys.modules["cases"]


def findings(tool, first, count, device, folder):
    rows = list(tool.run(first, count, device, folder))
    assert [row["seed"] for row in rows] == list(range(first, first + count))
    return [row for row in rows if row["wrong"]]


@pytest.mark.parametrize("first", range(1, 241, 40))
def test_random_networks_agree_with_onnxruntime(tool, device, tmp_path, first):
    assert not findings(tool, first, 40, device, tmp_path)


def test_networks_of_a_new_seed_agree(tool, any_device, tmp_path):
    first = int(time.time()) * 1000
    print(f"tools/fuzz/networks.py --seed {first} --count 20")
    assert not findings(tool, first, 20, any_device, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(12 * 3600)
def test_twenty_thousand_networks_agree(tool, any_device, tmp_path):
    assert not findings(tool, 1_000_000, tool.LONG, any_device, tmp_path)


def test_a_seed_always_draws_the_same_network_and_others_draw_others(tool):
    drawn = [tool.draw(seed).net.model([]).SerializeToString() for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_drawn_networks_reach_most_operators(tool):
    drawn = [tool.draw(seed) for seed in range(500)]
    met = {node.op_type for case in drawn for node in case.net.nodes}
    assert len(met) > 120, sorted(met)
    assert {"LSTM", "GRU", "RNN", "If", "Loop", "Scan", "NonZero", "Unique"} <= met
    opened = [case for case in drawn if case.dims]
    assert len(opened) > 20
    for least in (0, 1):  # an extent that shrinks to it
        fed = [{min(a.shape, default=9) for a in case.feeds[-1].values()} for case in opened]
        fed += [{min(a.shape, default=9) for a in case.feeds[-2].values()} for case in opened]
        assert sum(least in extents for extents in fed) > 5
    assert sum(bool(case.more) for case in drawn) > 200


def small_case(cases, dtype="f32"):
    """Relu, and of its results tanh and softmax."""
    drawer = cases.Drawer(3)
    x = drawer.array((2, 3, 4, 5))
    drawer.net.inputs.append(x)
    (y,) = drawer.node("Relu", [x])
    drawer.node("Tanh", [y])
    drawer.node("Softmax", [y], axis=1)
    options = {**cases.draw(3).options, "guard": 64, "dtype": dtype}
    return cases.Case(drawer.net, tuple(drawer.net.made), options)


@pytest.fixture
def wrong_tanh(cases, monkeypatch):
    """An engine whose hyperbolic tangent is off by a thousandth, in the last call of each session."""
    right = cases.on_clnn

    def wrong(case, device):
        found = right(case, device)
        by_name = {name: node for node in case.net.nodes for name in node.output}
        off = {n for n in found[0] if n in by_name and by_name[n].op_type == "Tanh"}
        place = len(case.feeds) - 1
        found[place] = {n: a + np.float32(1e-3) * (n in off) for n, a in found[place].items()}
        return found

    monkeypatch.setattr(cases, "on_clnn", wrong)


def test_a_wrong_kernel_is_found_made_small_and_replayed(
    tool, cases, any_device, tmp_path, monkeypatch, wrong_tanh
):
    """The finding is that node alone."""
    case = small_case(cases)
    assert case.outputs[1] in cases.check(case, any_device)
    small = tool.minimise(case, lambda one: cases.check(one, any_device))
    assert [node.op_type for node in small.net.nodes] == ["Tanh"]
    assert small.outputs == (case.outputs[1],)
    assert small.options["guard"] == 0 and small.options["dtype"] == "f32"
    tool.keep(small, tmp_path / "3")
    monkeypatch.undo()
    assert tool.replay(tmp_path / "3", any_device) == ""


def test_a_later_call_that_is_wrong_is_found_and_becomes_the_only_one(
    tool, cases, any_device, tmp_path, wrong_tanh
):
    case = small_case(cases)
    shapes = {name: (1, *a.shape[1:]) for name, a in case.net.feeds.items()}
    more = tuple({n: np.ones(s, np.float32) for n, s in shapes.items()} for _ in range(2))
    case = dataclasses.replace(case, dims={2: "n"}, more=more)
    assert "in call 2" in cases.check(case, any_device)
    small = tool.minimise(case, lambda one: cases.check(one, any_device))
    assert small.dims is None and not small.more
    assert [node.op_type for node in small.net.nodes] == ["Tanh"]


def test_bits_that_change_from_call_to_call_are_found(cases, any_device, monkeypatch):
    right = cases.on_clnn

    def unsteady(case, device):
        found = right(case, device)
        found[-1] = {n: np.nextafter(a, np.float32(9)) for n, a in found[-1].items()}
        return found

    monkeypatch.setattr(cases, "on_clnn", unsteady)
    assert "give other bits" in cases.check(small_case(cases), any_device)


def test_shapes_types_and_nan_count_as_differences_and_unsteady_results_do_not(cases):
    drawer = cases.Drawer(1)
    x = drawer.array((3, 4))
    drawer.net.inputs.append(x)
    (y,) = drawer.node("Relu", [x])
    (f,) = drawer.node("Floor", [x])  # a step at each whole number, of which x has some
    case = cases.Case(drawer.net, (y, f), {"dtype": "f32"})
    good = {y: drawer.of(y), f: drawer.of(f)}

    def differences(**changed):
        return cases.differences(case, case.net.feeds, {**good, **changed})

    assert not differences()
    assert "for float32" in differences(**{y: good[y].astype(np.float64)})[y]
    assert "for float32(3, 4)" in differences(**{y: good[y][:2]})[y]
    bad = good[y].copy()
    bad[1, 2] = np.nan
    assert "at (1, 2)" in differences(**{y: bad})[y]
    assert not differences(**{f: good[f] - 1})


def test_numbers_of_unique_values_hang_on_tiny_ones(cases):
    """Of sigmoids of large negative numbers one engine has zeros, another has different tiny ones."""
    drawer = cases.Drawer(1)
    x = drawer.array((4,))
    drawer.net.values[x] = np.array([-90, -95, 0, 1], np.float32)
    drawer.net.inputs.append(x)
    (s,) = drawer.node("Sigmoid", [x])
    (u,) = drawer.node("Unique", [s], sorted=1)
    case = cases.Case(drawer.net, (u,), {"dtype": "f32"})
    want = drawer.of(u)
    assert not cases.differences(case, case.net.feeds, {u: np.append(want, want[:1])})
    assert cases.differences(case, case.net.feeds, {u: want.astype(np.float64)})
    exact = cases.Drawer(1)
    exact.net.values[y := exact.array((4,))] = np.array([1, 2, 2, 3])
    exact.net.inputs.append(y)
    (v,) = exact.node("Unique", [y], sorted=1)
    case = cases.Case(exact.net, (v,), {"dtype": "f32"})
    assert "for int64(3,)" in cases.differences(case, case.net.feeds, {v: exact.of(y)})[v]


def test_what_subgraphs_read_belongs_to_their_node(cases):
    inner = onnx.helper.make_node("Add", ["a", "outer"], ["b"])
    made = onnx.helper.make_tensor_value_info("b", 1, None)
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["far"], ["a"]), inner], "g", [], [made]
    )
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert cases.reads(node) == ["c", "far", "outer"]


CHILD = "import json, os, time; print(json.dumps({'seed': 50}), flush=True); "


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("os.abort()", "ended with status -6"),
        ("time.sleep(60)", "nothing came for 2 s"),
        ("bytes(2**33)", "ended with status 1"),
    ],
    ids=["crash", "hang", "memory"],
)
def test_the_end_of_a_child_is_a_finding_and_the_rest_goes_on(tool, fate, words):
    children, begun = sys.modules["children"], []

    def command(first, count, _):
        begun.append((first, count))
        rows = "[print(json.dumps({'seed': s, 'wrong': ''})) for s in range(%d, %d)]"
        code = CHILD + (fate if first == 50 else rows % (first, first + count))
        return [sys.executable, "-c", code]

    limits = children.Limits(batch=2, seconds=2, memory=2**32)
    rows = list(children.rows(50, 4, command, limits))
    assert words in rows[0]["wrong"] and not any(row["wrong"] for row in rows[1:])
    assert [row["seed"] for row in rows] == [50, 51, 52, 53] and begun == [
        (50, 2),
        (51, 2),
        (53, 1),
    ]


CHILD_OF_GROUPS = """
import json, os, sys
first, count, at_once = map(int, sys.argv[1:])
for start in range(first, first + count, at_once):
    group = range(start, min(start + at_once, first + count))
    print(json.dumps({"seed": start}), flush=True)
    if 6 in group:
        os.abort()
    for seed in group:
        print(json.dumps({"seed": seed, "wrong": ""}), flush=True)
"""


def test_a_group_in_which_a_child_dies_is_checked_again_one_by_one(tool):
    children, begun = sys.modules["children"], []

    def command(*of):
        begun.append(of)
        return [sys.executable, "-c", CHILD_OF_GROUPS, *map(str, of)]

    rows = list(children.rows(0, 12, command, children.Limits(batch=12, group=4)))
    assert [row["seed"] for row in rows] == list(range(12))
    assert [row["seed"] for row in rows if row["wrong"]] == [6]
    assert begun == [(0, 12, 4), (4, 4, 1), (7, 1, 1), (8, 4, 4)]


def test_the_end_of_the_other_engine_is_no_finding(tool):
    children = sys.modules["children"]
    code = CHILD + "print(json.dumps({'now': 'other'}), flush=True); os.abort()"
    limits = children.Limits(batch=1)
    (row,) = children.rows(50, 1, lambda *_: [sys.executable, "-c", code], limits)
    assert not row["wrong"] and row["peer"] == "in other, the process ended with status -6"
    progress = children.Progress.of(None, 50)
    progress.take(row)
    assert progress.done == 1 and list(progress.peer) == ["50"] and not progress.wrong


def test_a_call_of_the_other_engine_that_returns_leaves_crashes_findings(tool):
    children = sys.modules["children"]
    now = "print(json.dumps({'now': %r}), flush=True); "
    code = CHILD + now % "other" + now % "" + "os.abort()"
    limits = children.Limits(batch=1)
    (row,) = children.rows(50, 1, lambda *_: [sys.executable, "-c", code], limits)
    assert "ended with status -6" in row["wrong"] and "peer" not in row


@pytest.mark.parametrize("group", [1, 2])
def test_a_call_of_the_other_engine_that_hangs_ends_the_child_and_is_no_finding(tool, group):
    """In a group, too, whose seeds are then checked one by one."""
    children = sys.modules["children"]
    code = (
        f"import json, sys, time; sys.path.insert(0, {str(FOLDER)!r}); from children import calls_of\n"
        "first, count, at_once = map(int, sys.argv[1:])\n"
        "for seed in range(first, first + count):\n"
        "    print(json.dumps({'seed': seed}), flush=True)\n"
        "    with calls_of('other', at_once == 1, 0.2 if seed == 51 else 60.0):\n"
        "        time.sleep(300 * (seed == 51))\n"
        "    print(json.dumps({'seed': seed, 'wrong': ''}), flush=True)\n"
    )

    def command(first, count, at_once):
        return [sys.executable, "-c", code, *map(str, (first, count, at_once))]

    rows = list(children.rows(50, 4, command, children.Limits(group=group)))
    assert [row["seed"] for row in rows] == [50, 51, 52, 53]
    assert not any(row["wrong"] for row in rows)
    told = [row.get("peer", "") for row in rows]
    assert told == ["", "in other, a call does not come back", "", ""]


def test_a_finding_says_what_came_before_its_exception(tool):
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as err:
        assert (
            sys.modules["children"].said_of(err) == "ValueError: second (after KeyError: 'first')"
        )


def test_no_convolution_is_fed_that_onnxruntime_never_ends(cases, monkeypatch):
    """Of weights without elements onnxruntime 1.32 does not come back, so it is not asked."""
    drawer = cases.Drawer(1)
    drawer.net.inputs += [drawer.array((1, 2, 7)), drawer.array((3, 2, 4))]
    drawer.node("Conv", drawer.net.inputs)
    case = cases.Case(drawer.net, tuple(drawer.net.made), {"dtype": "f32"})
    open_4 = case, {4: "d4"}
    assert cases._of_others(*open_4, {4: 5}, drawer.chance) is not None
    asked = []
    monkeypatch.setattr(cases, "evaluate", lambda *call: asked.append(call) or {})
    assert cases._of_others(*open_4, {4: 0}, drawer.chance) is None and not asked


def test_noise_of_sums_is_a_share_of_the_largest(cases):
    """Terms that cancel leave a zero off by a share of the others, before a step up or down."""
    exact, chance = np.array([0.0, 9.0], np.float32), np.random.default_rng(1)
    assert 0 < abs(cases._noise(exact, chance, 1e-3, True)[0]) <= 9e-3
    assert cases._noise(exact, chance, 1e-3, False)[0] == 0
