"""compile: a file that the other commands take in place of its model."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="module")
def stored(files, any_device, tmp_path_factory):
    from clnn.cli.main import main

    target = tmp_path_factory.mktemp("compiled") / "net.clnn"
    assert main(["compile", str(files["network"]), "-o", str(target), "-d", any_device]) == 0
    return target


def test_every_command_takes_it(clnn, files, stored, any_device, tmp_path):
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 126, dtype=np.float32).reshape(1, 3, 6, 7))
    for name, model in (("model", files["network"]), ("stored", stored)):
        out = tmp_path / f"{name}.npz"
        words = "--input", f"x={tmp_path / 'x.npy'}", "--output-npz", out
        done = clnn("run", model, "-d", any_device, *words)
        assert done.code == 0, done.err
    made = [dict(np.load(tmp_path / f"{name}.npz")) for name in ("model", "stored")]
    assert made[0].keys() == made[1].keys()
    assert all((made[0][name] == made[1][name]).all() for name in made[0])
    fast = ("--runs", 3, "--warmup", 1)
    assert clnn("bench", stored, "-d", any_device, *fast, "--json").data["programs"][0] > 0
    start = clnn("bench", stored, "-d", any_device, "--start", "--runs", 1, "--json").data
    assert "file" in [step["step"] for step in start["steps"]]
    assert clnn("profile", stored, "-d", any_device, "--json").code == 0


def test_inspect_shows_what_it_holds(clnn, stored):
    told = clnn("inspect", stored, "--plan", "--json").data
    assert told["inputs"] == {"x": "float32[1x3x6x7]"} and told["constant_bytes"] > 0
    assert len(told["plan"]) == sum(told["ops"].values())
    assert "compiled for" in clnn("inspect", stored).out
    assert clnn("inspect", stored, "--source", "x").code == 2


def test_what_needs_the_model_says_so(clnn, files, stored, any_device):
    for words in (["compile"], ["verify"], ["tune", "--budget", "1"]):
        done = clnn(words[0], stored, *words[1:], "-d", any_device)
        assert done.code == 2 and "compiled network" in done.err, done.err
    wrong = clnn("run", stored, "-d", any_device, "--shape", "x:1,3,6,7")
    assert wrong.code == 2 and "cannot be changed" in wrong.err
    same = clnn("compile", files["network"], "-o", files["network"], "-d", any_device)
    assert same.code == 2 and "the model itself" in same.err


def test_a_damaged_file_is_refused(clnn, stored, any_device, tmp_path):
    cut = tmp_path / "cut.clnn"
    cut.write_bytes(stored.read_bytes()[:-4096])
    done = clnn("run", cut, "-d", any_device)
    assert done.code == 2 and "no sound .clnn file" in done.err
