"""tools/fuzz/models.py: hostile models are refused with an error of clnn's, or run right."""

from __future__ import annotations

import importlib
import json
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
        patch.setenv("CLNN_MAX_BYTES", str(64 * 2**20))
        before = set(sys.modules)
        yield importlib.import_module("models")
        for name in set(sys.modules) - before:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def tried(tool, first, count, folder):
    rows = list(tool.run(first, count, folder))
    assert [row["seed"] for row in rows] == list(range(first, first + count))
    assert not [row for row in rows if row["wrong"]]
    return [fate for row in rows for fate in row["ops"]]


def test_hostile_models_are_refused_or_run_right(tool, tmp_path):
    fates = tried(tool, 1, 200, tmp_path)
    assert fates.count("refused") > 80
    assert fates.count("compared") + fates.count("accepted") + fates.count("staged") > 10


def test_hostile_models_of_a_new_seed(tool, tmp_path):
    first = int(time.time()) * 1000
    print(f"tools/fuzz/models.py --seed {first} --count 100")
    tried(tool, first, 100, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(6 * 3600)
def test_a_hundred_thousand_hostile_models(tool, tmp_path):
    tried(tool, 1_000_000, tool.LONG, tmp_path)


def test_a_seed_always_makes_the_same_model_and_others_make_others(tool):
    sound = [sys.modules["model_seeds"]._shapes(), sys.modules["model_seeds"]._external()]
    made = [tool.Mutator(seed).mutated(sound) for seed in (5, 5, *range(6, 60))]
    assert made[0] == made[1] and len(set(made)) > 40


def test_sound_models_are_accepted_and_compared(tool, tmp_path):
    inside = tool.surroundings(tmp_path)
    hand = sys.modules["model_seeds"]
    fates = [
        tool.attempt(make().SerializeToString(), inside)
        for make in (hand._shapes, hand._choice, hand._function, hand._external, hand._sparse)
    ]
    assert fates == [("compared", ""), *[("staged", "")] * 2, ("compared", ""), ("compared", "")]


@pytest.mark.parametrize(
    "location", ["../secret.bin", "link.bin", "links/secret.bin", "pipe", "sub"]
)
def test_data_outside_of_the_folder_is_not_read(tool, tmp_path, location):
    proto = sys.modules["model_seeds"]._external()
    proto.graph.initializer[0].external_data[0].value = location
    assert tool.attempt(proto.SerializeToString(), tool.surroundings(tmp_path)) == ("refused", "")


def test_data_from_outside_would_be_noticed(tool):
    from clnn.graph.builder import GraphBuilder

    build = GraphBuilder()
    build.const(np.frombuffer(tool.SECRET * 4, np.float32), "w")
    with pytest.raises(RuntimeError, match="data from outside"):
        tool._inside(build.graph({}))


def test_other_results_and_raw_errors_are_findings(tool, tmp_path, monkeypatch, capsys):
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    hand = sys.modules["model_seeds"]
    data = hand.model([relu], [hand.value("x", (2, 3))]).SerializeToString()
    inside = tool.surroundings(tmp_path)
    right = tool.reference_values
    monkeypatch.setattr(
        tool, "reference_values", lambda g, f: {n: a + 1 for n, a in right(g, f).items()}
    )
    assert "differs by 1.0" in tool.attempt(data, inside)[1]

    def broken(graph):
        raise ValueError("no")

    monkeypatch.setattr(tool, "optimise", broken)
    monkeypatch.setattr(tool, "seeds", lambda: [hand.model([relu], [hand.value("x", (2, 3))])])
    monkeypatch.setattr(tool.Mutator, "mutated", lambda self, seeds: data)
    monkeypatch.setattr(tool.os, "chdir", lambda folder: None)
    tool.worker(7, 1, tmp_path / "kept")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (
        rows[-1]["wrong"].startswith("ValueError: no") and (tmp_path / "kept" / "7.onnx").exists()
    )
