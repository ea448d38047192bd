"""tools/fuzz/networks.py: random networks agree with onnxruntime; a fault is found and made small."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

import numpy as np
import pytest
from common import ROOT

FOLDER = ROOT / "tools" / "fuzz"


@pytest.fixture(scope="module")
def tool():
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_networks", FOLDER / "networks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_networks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fuzz_networks"]


def findings(tool, first, count, device, folder):
    rows = list(tool.run(first, count, device, folder))
    assert [row["seed"] for row in rows] == list(range(first, first + count))
    return [row for row in rows if row["wrong"]]


@pytest.mark.parametrize("first", range(1, 241, 40))
def test_random_networks_agree_with_onnxruntime(tool, any_device, tmp_path, first):
    assert not findings(tool, first, 40, any_device, tmp_path)


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
    met = {node.op_type for seed in range(300) for node in tool.draw(seed).net.nodes}
    assert len(met) > 85, sorted(met)


def test_a_wrong_kernel_is_found_made_small_and_replayed(tool, any_device, tmp_path, monkeypatch):
    """An engine whose hyperbolic tangent is off by a thousandth; the finding is that node alone."""
    right = tool.on_clnn

    def wrong(case, device):
        found = right(case, device)
        by_name = {name: node for node in case.net.nodes for name in node.output}
        off = {n for n in found if n in by_name and by_name[n].op_type == "Tanh"}
        return {n: a + np.float32(1e-3) if n in off else a for n, a in found.items()}

    drawer = tool.Drawer(3)
    x = drawer.array((2, 3, 4, 5))
    drawer.net.inputs.append(x)
    (y,) = drawer.node("Relu", [x])
    (z,) = drawer.node("Tanh", [y])
    drawer.node("Softmax", [y], axis=1)
    case = tool.Case(drawer.net, tuple(drawer.net.made), tool.draw(3).options)
    monkeypatch.setattr(tool, "on_clnn", wrong)
    assert z in tool.check(case, any_device)
    small = tool.minimise(case, any_device)
    assert [node.op_type for node in small.net.nodes] == ["Tanh"] and small.outputs == (z,)
    assert small.options["guard"] == 0 and small.options["dtype"] == "f32"
    tool.keep(small, tmp_path / "3")
    assert tool.replay(tmp_path / "3", any_device) == ""


def test_shapes_types_and_nan_count_as_differences_and_unsteady_results_do_not(tool):
    drawer = tool.Drawer(1)
    x = drawer.array((3, 4))
    drawer.net.inputs.append(x)
    (y,) = drawer.node("Relu", [x])
    (f,) = drawer.node("Floor", [x])  # a step at each whole number, of which x has some
    options = {"dtype": "f32"}
    case = tool.Case(drawer.net, (y, f), options)
    good = {y: drawer.of(y), f: drawer.of(f)}
    assert not tool.differences(case, good)
    assert "for float32" in tool.differences(case, {**good, y: good[y].astype(np.float64)})[y]
    bad = good[y].copy()
    bad[1, 2] = np.nan
    assert "at (1, 2)" in tool.differences(case, {**good, y: bad})[y]
    assert not tool.differences(case, {**good, f: good[f] - 1})


def test_a_crash_is_a_finding_and_the_rest_goes_on(tool, any_device, tmp_path, monkeypatch):
    ended = []
    start = subprocess.Popen

    def broken(command, **named):
        ended.append(int(command[3]))
        if len(ended) == 1:
            row = '{"seed": 50}'
            command = [sys.executable, "-c", f"import os; print('{row}', flush=True); os.abort()"]
        return start(command, **named)

    monkeypatch.setattr(tool.subprocess, "Popen", broken)
    rows = list(tool.run(50, 2, any_device, tmp_path))
    assert "ended with status -6" in rows[0]["wrong"] and not rows[1]["wrong"]
    assert [row["seed"] for row in rows] == [50, 51] and ended == [50, 51]
