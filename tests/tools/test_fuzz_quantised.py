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
    net, outputs = tool.draw(seed)
    if not outputs:
        return ""
    return tool.check(net.model(outputs).SerializeToString(), net.feeds, device)[0]


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
    net, outputs = tool.draw(2001)

    def off(graph, feeds):
        return {n: a + np.ones((), a.dtype) for n, a in evaluate(graph, feeds).items()}

    evaluate = tool.evaluate
    monkeypatch.setattr(tool, "evaluate", off)
    assert tool.check(net.model(outputs).SerializeToString(), net.feeds, tool.HOST)[0]
