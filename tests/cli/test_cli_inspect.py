from __future__ import annotations

import re

import pytest

from clnn.cli import inspect as command
from clnn.cli.inspect import layout_text
from clnn.layout import TensorLayout
from clnn.runtime.device import device as devices


def test_operators_of_a_model_that_runs(clnn, files):
    result = clnn("inspect", files["network"])
    assert result.code == 0
    assert "input    x float32 [1, 3, 6, 7]" in result.out
    assert "output   y float32 [1, 3, 6, 7]" in result.out
    assert re.search(r"^Conv +2  yes$", result.out, re.MULTILINE)
    assert "4 nodes, 248 weights" in result.out


def test_operators_of_a_model_that_does_not_run(clnn, files):
    result = clnn("inspect", files["unsupported"])
    assert result.code == 1
    assert re.search(
        r"^ImageDecoder +2  NO  2 of them: decoding of image files",
        result.out,
        re.MULTILINE,
    )
    assert re.search(r"^org\.example::Frobnicate +1  NO  1 of them: ", result.out, re.MULTILINE)
    assert re.search(r"^Relu +1  yes$", result.out, re.MULTILINE)
    assert "3 nodes cannot run: text_1, text_2, frob" in result.out
    data = clnn("inspect", files["unsupported"], "--json").data
    assert [p["node"] for p in data["unsupported"]] == ["text_1", "text_2", "frob"]
    refused = clnn("inspect", files["unsupported"], "--plan")
    assert refused.code == 2
    assert refused.err.startswith("UnsupportedOpError: 3 node(s)")


def test_open_shapes_leave_support_open(clnn, files):
    result = clnn("inspect", files["doubler"])
    assert result.code == 0
    assert "input    image float32 [batch, 3, height, width]" in result.out
    assert re.search(r"^Conv +1  \?$", result.out, re.MULTILINE)
    assert "height" in result.out.splitlines()[-1]
    fixed = clnn("inspect", files["doubler"], "--shape", "image:1,3,4,5")
    assert re.search(r"^Conv +1  yes$", fixed.out, re.MULTILINE)
    assert clnn("inspect", files["doubler"], "--plan").code == 2


def test_stages_of_a_model_that_data_shapes(clnn, files):
    result = clnn("inspect", files["staged"])
    assert result.code == 0
    assert re.search(r"^NonZero +1  yes$", result.out, re.MULTILINE)
    listed = result.out[result.out.index("stages ") :].splitlines()
    assert listed[0].startswith("stages   1 on the device")
    assert listed[1] == "  device  stage 1: 2 nodes"
    assert listed[2] == "          reads back 1 values, 32 bytes"
    assert "NonZero 1" in listed[3]
    assert "NonZero: its output's shape depends on data" in listed[3]
    assert listed[4].startswith("  If      branch  (its condition is a value)")
    rows = clnn("inspect", files["staged"], "--json").data["stages"]
    assert rows[0]["nodes"] == ["convolve", "rectify"]
    assert rows[0]["bytes_read_back"] == 2 * 2 * 2 * 4
    refused = clnn("inspect", files["staged"], "--plan")
    assert refused.code == 2
    assert "runs in stages" in refused.err


def test_plan_and_arena(clnn, files):
    result = clnn("inspect", files["network"], "--plan", "--arena", "--json")
    assert result.code == 0, result.err
    steps = {step["node"]: step for step in result.data["steps"]}
    assert steps["first"]["variant"].startswith("conv2d")
    assert "rectify" in steps["first"]["origin"]
    assert steps["first"]["kernels"]
    for block in result.data["arena"]:
        assert block["offset"] + block["bytes"] <= result.data["arena_bytes"]
        assert 0 <= block["first"] <= block["last"] <= len(steps)
    text = clnn("inspect", files["network"], "--plan", "--arena").out
    assert re.search(r"plan +\d+ steps, \d+ launches, arena \d+ bytes", text)
    assert re.search(r"^ +0 [A-Z.]+$", text, re.MULTILINE)


def test_arena_map_shows_each_block_where_and_when_it_lives(clnn, files):
    """Every block's mark fills its rectangle unless a later block's rounding covers it."""
    data = clnn("inspect", files["network"], "--arena", "--json").data
    text = clnn("inspect", files["network"], "--arena").out
    marks = {m[1]: m[2] for m in re.finditer(r"^  (\S) +\d+ \+\d+ +steps \S+  (.+)$", text, re.M)}
    assert sorted(marks.values()) == sorted(block["key"] for block in data["arena"])
    rows = re.findall(r"^ +\d+ ([A-Z.]+)$", text, re.MULTILINE)
    for mark, key in marks.items():
        block = next(b for b in data["arena"] if b["key"] == key)
        columns = {at for row in rows for at, seen in enumerate(row) if seen == mark}
        assert columns <= set(range(block["first"], block["last"] + 1))


@pytest.mark.parametrize("pattern", ["first", "f*st", "conv2d*k3x3*"])
def test_source_of_a_node_by_name_glob_or_kernel(clnn, files, pattern):
    result = clnn("inspect", files["network"], "--source", pattern)
    assert result.code == 0, result.err
    assert result.out.startswith("// ")
    assert "__kernel void conv2d" in result.out
    assert "// nodes: first" in result.out
    assert clnn("inspect", files["network"], "--source", pattern, "--json").data["sources"]


def test_source_of_nothing_lists_the_nodes(clnn, files):
    result = clnn("inspect", files["network"], "--source", "frist")
    assert result.code == 2
    assert "no node, variant or kernel is named 'frist'" in result.err
    assert "first" in result.err


def test_works_without_a_device_but_not_with_a_wrong_one(clnn, files, monkeypatch):
    monkeypatch.setattr(devices, "list_unprobed", lambda: ())
    result = clnn("inspect", files["network"], "--source", "first")
    assert result.code == 0
    assert "__kernel" in result.out
    assert "no OpenCL device here" in result.err
    assert clnn("inspect", files["network"], "--plan", "-d", "gpu").code == 3


def test_layouts_in_short():
    plain = TensorLayout.make((1, 3, 4, 5))
    assert layout_text(plain) == "NCHW"
    padded = TensorLayout.make((2, 3, 4, 5), (0, 2, 3, 1), (0, 0, 1, 2), (0, 0, 1, 0))
    assert layout_text(padded) == "NHWC H+1+1 W+2+0"
    assert layout_text(TensorLayout.make((2, 3), (1, 0))) == "ba"
    assert layout_text(TensorLayout.make(())) == "scalar"


def test_every_step_of_the_plan_has_a_row(clnn, files):
    data = clnn("inspect", files["network"], "--plan", "--json").data
    text = clnn("inspect", files["network"], "--plan").out
    for step in data["steps"]:
        assert re.search(
            rf"^ +{step['number']} {re.escape(step['node'][-28:])} ", text, re.MULTILINE
        )
    assert command.MOST_NAMES > 0
