"""clnn inside other programs: coroutines, processes that are spawned, many models at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from common import ROOT
from onnx import helper
from onnx_models import FLOAT, INT64, model, tensor, value

import clnn
from clnn.errors import InputNameError

UNITS, MIB = 1024, 1 << 20
CHILD = ROOT / "tests" / "support" / "embedding_child.py"
KINDS = ("Session", "OpenSession", "StagedSession", "ValuedSession")


def doubled(kind: str) -> bytes:
    """A model that gives 2 x, such that its session is of a kind."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    inputs, dims, outs = [], ("n", 3) if kind == "OpenSession" else (4, 3), ["y"]
    if kind == "StagedSession":
        nodes.append(helper.make_node("NonZero", ["y"], ["places"]))
        outs.append("places")
    if kind == "ValuedSession":
        inputs, nodes = [value("which", (), INT64)], _decided()
    made = model([*nodes], [value("x", dims, FLOAT), *inputs], outs, [], opset=17)
    return made.SerializeToString()


def _decided():
    """An If on the input `which`, with a loop of two turns in its branch."""

    def branch(turns):
        body = helper.make_graph(
            [
                helper.make_node("Add", ["held", "x"], ["more"]),
                helper.make_node("Identity", ["go"], ["on"]),
            ],
            "body",
            [value("k", (), INT64), value("go", (), 9), value("held", None, FLOAT)],
            [value("on", (), 9), value("more", None, FLOAT)],
        )
        nodes = [
            helper.make_node("Constant", [], ["turns"], value=tensor("t", np.array(turns))),
            helper.make_node("Sub", ["x", "x"], ["none"]),
            helper.make_node("Loop", ["turns", "", "none"], ["out"], body=body),
        ]
        return helper.make_graph(nodes, f"turns{turns}", [], [value("out", None, FLOAT)])

    one = helper.make_node("Constant", [], ["one"], value=tensor("o", np.array(1)))
    asked = helper.make_node("Equal", ["which", "one"], ["is_one"])
    parted = helper.make_node("If", ["is_one"], ["y"], then_branch=branch(2), else_branch=branch(3))
    return [one, asked, parted]


@pytest.mark.parametrize("kind", KINDS)
def test_a_coroutine_awaits_a_call(kind):
    more = {"which": np.array(1)} if kind == "ValuedSession" else {}

    async def all_of_them(session):
        async def one(k):
            return (await session.call_async({"x": np.full((4, 3), k, np.float32), **more}))["y"]

        return await asyncio.gather(*map(one, range(12)))

    with clnn.compile_model(doubled(kind)) as session:
        assert type(session).__name__ == kind
        for k, got in enumerate(asyncio.run(all_of_them(session))):
            np.testing.assert_array_equal(got, np.full((4, 3), 2 * k, np.float32))


def test_the_loop_goes_on_and_errors_arrive():
    async def main(session):
        turns = 0
        call = asyncio.create_task(session.call_async({"x": np.ones((4, 3), np.float32)}))
        while not call.done():
            turns += 1
            await asyncio.sleep(0)
        with pytest.raises(InputNameError, match="nothing"):
            await session.call_async({"nothing": 1})
        dropped = asyncio.create_task(session.call_async({"x": np.ones((4, 3), np.float32)}))
        await asyncio.sleep(0)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        after = await session.call_async({"x": np.full((4, 3), 5, np.float32)})
        return turns, call.result()["y"], after["y"]

    with clnn.compile_model(doubled("Session")) as session:
        turns, first, after = asyncio.run(main(session))
    assert turns > 0
    np.testing.assert_array_equal(first, np.full((4, 3), 2, np.float32))
    np.testing.assert_array_equal(after, np.full((4, 3), 10, np.float32))


def rows(folder, count):
    """Models of one product with weights of their own, as files; what each sums up to."""
    wanted = []
    for k in range(count):
        weights = np.random.default_rng(k).integers(-2, 3, (UNITS, UNITS)).astype(np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        made = model(nodes, [value("x", (1, UNITS), FLOAT)], ["y"], [tensor("w", weights)])
        (folder / f"{k}.onnx").write_bytes(made.SerializeToString())
        wanted.append(float(weights.sum()))
    return wanted


def child(*args):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(CHILD), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ten_models_keep_to_a_bound_of_memory(tmp_path):
    """Each further model takes its weights twice at most, as the file has them and packed, and 2 MiB."""
    wanted = rows(tmp_path, 10)
    told = child("models", tmp_path)
    assert told["sums"] == told["again"] == wanted
    further = told["held"][-1] - told["held"][0]
    assert further <= 9 * (2 * 4 * UNITS * UNITS + 2 * MIB), further / MIB


def test_spawned_processes_compile_for_themselves(tmp_path):
    wanted = rows(tmp_path, 1)
    told = child("spawn", tmp_path / "0.onnx")
    assert [told["own"], *told["children"]] == wanted * 4
