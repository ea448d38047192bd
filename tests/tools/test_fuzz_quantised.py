"""tools/fuzz/quantised.py: random quantised networks give onnxruntime's bytes; a fault is found."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from common import ROOT

FOLDER = ROOT / "tools" / "fuzz"


@pytest.fixture(scope="module")
def tool():
    """The tool as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        before = set(sys.modules)
        yield importlib.import_module("quantised")
        for name in set(sys.modules) - before:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def wrong(tool, seed, device):
    """Return what is wrong with the network of a seed."""
    case = tool.Case(*tool.draw(seed))
    return tool.check(case, device)[0] if case.outputs else ""


@pytest.mark.parametrize("first", range(2000, 2100, 25))
def test_networks_as_the_passes_leave_them_give_the_bytes_of_onnxruntime(tool, first):
    pytest.importorskip("onnxruntime")
    said = {seed: wrong(tool, seed, tool.HOST) for seed in range(first, first + 25)}
    assert not any(said.values()), said


def checked(tool, first, count, device, folder):
    rows = list(tool.run(first, count, device, folder))
    assert [row["seed"] for row in rows] == list(range(first, first + count))
    return {row["seed"]: row["wrong"] for row in rows if row["wrong"]}


def test_kernels_give_the_bytes_of_onnxruntime(tool, any_device, tmp_path):
    pytest.importorskip("onnxruntime")
    assert not checked(tool, 2000, 16, any_device, tmp_path)


def test_the_tool_needs_no_device_for_what_the_passes_leave(tool, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    assert not checked(tool, 2000, 3, tool.HOST, tmp_path)


def test_drawn_networks_reach_the_operators(tool):
    drawn = [tool.draw(seed)[0] for seed in range(150)]
    met = {node.op_type for net in drawn for node in net.nodes}
    wanted = "Conv ConvTranspose MatMul Gemm Resize Concat Softmax Sigmoid AveragePool MaxPool Add Mul Pad"
    wanted += " QLinearConv QLinearMatMul QLinearAdd QLinearConcat DynamicQuantizeLinear ConvInteger MatMulInteger"
    assert set(wanted.split()) <= met, set(wanted.split()) - met


def test_a_seed_always_draws_the_same_network(tool):
    one, two = (tool.draw(7)[0].model([]).SerializeToString() for _ in range(2))
    assert one == two


def test_a_byte_that_is_off_is_found(tool, monkeypatch):
    case = tool.Case(*tool.draw(2001))

    def off(graph, feeds):
        return {n: a + np.ones((), a.dtype) for n, a in evaluate(graph, feeds).items()}

    evaluate = tool.evaluate
    monkeypatch.setattr(tool, "evaluate", off)
    assert tool.check(case, tool.HOST)[0]


@pytest.mark.parametrize("first", range(100, 160, 20))
def test_networks_of_open_axes_as_the_passes_leave_them(tool, first):
    pytest.importorskip("onnxruntime")
    said = {s: tool.check(tool.draw_open(s), tool.HOST)[0] for s in range(first, first + 20)}
    assert not any(said.values()), said


def test_sessions_give_the_bytes_of_onnxruntime_shape_after_shape(tool, any_device, tmp_path):
    pytest.importorskip("onnxruntime")
    rows = list(tool.run(500, 16, any_device, tmp_path, shapes=True))
    assert not [row for row in rows if row["wrong"]]


def test_extents_grow_shrink_to_one_and_vanish(tool):
    pytest.importorskip("onnxruntime")
    drawn = [case for case in map(tool.draw_open, range(40)) if case.more]
    assert len(drawn) > 25
    extents = [[max(a.shape[0] for a in f.values()) for f in case.feeds] for case in drawn]
    assert sum(rows[0] < max(rows) and 0 in rows and 1 in rows for rows in extents) > 10
    names = [list(case.dims.values()) for case in drawn]
    assert sum(len(set(row)) < len(row) for row in names) > 3
    for case in drawn:
        assert all(case.feeds[-1][name] is array for name, array in case.feeds[0].items())
        dims = [d for v in case.model.graph.input for d in v.type.tensor_type.shape.dim]
        assert {d.dim_param for d in dims} - {""} == set(case.dims.values())


def test_a_later_shape_that_is_off_is_found(tool, monkeypatch):
    pytest.importorskip("onnxruntime")
    case = next(case for case in map(tool.draw_open, range(40)) if len(case.more) == 4)
    calls, right = [], tool.evaluate

    def off(graph, feeds):
        calls.append(1)
        wrong = len(calls) == 2
        return {n: a + np.full((), wrong, a.dtype) for n, a in right(graph, feeds).items()}

    monkeypatch.setattr(tool, "evaluate", off)
    said = tool.check(case, tool.HOST)[0]
    assert "in call 1" in said and "in call 2" not in said
