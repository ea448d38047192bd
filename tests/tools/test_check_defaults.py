"""tools/benchmarks/check_defaults.py: gains in turns, what is kept, and a network of a device."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from clnn.errors import SettingError
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.tune.defaults import device_class
from clnn.tune.network import DeviceNetwork
from clnn.tune.signature import signature

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "benchmarks" / "check_defaults.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_defaults", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_defaults"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_defaults"]


TIMES = {"": {"a": 3.0, "b": 1.0}, "x": {"a": 2.0, "b": 2.0}}


class Drifting:
    """A network on a machine that gets slower: whoever comes second takes twice as long."""

    def profile(self, choices):
        return [
            {k: t * (1 + at) for k, t in TIMES[c.get("a", "")].items()}
            for at, c in enumerate(choices)
        ]

    def latency(self, choices):
        return [sum(times.values()) for times in self.profile(choices)]


def test_each_comes_first_in_turn(tool):
    layers, whole = tool.gains(Drifting(), {"a": "x", "b": "x"}, 2)
    assert layers == {"a": (3 / 4 + 6 / 2) / 2, "b": (1 / 4 + 2 / 2) / 2} and whole == (0.5 + 2) / 2


def test_what_is_kept(tool):
    rows = [{"key": k, "gain": 1.5} for k in "abc"]
    lines = ['{"devices": 1}', *map(json.dumps, rows)]
    assert tool.kept(lines, {"a": 1.054, "b": 1.01}) == [lines[0], '{"key": "a", "gain": 1.05}']


@pytest.fixture
def model(tmp_path):
    """A 3x3 convolution of 16 to 32 channels."""
    weights = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    info = {
        n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 8, 9])
        for n, c in (("x", 16), ("y", 32))
    }
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    consts = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "one", [info["x"]], [info["y"]], consts)
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def other_choice(model, info):
    """Return the convolution's key, and the name of a variant that is not the estimate's choice."""
    network = DeviceNetwork(optimise(import_onnx(model)), info, Options(tune="off", states=1))
    for step in network.session({}).plan.scheduled:
        names = [v.name for v in step.node.spec.candidates(step.problem)]
        others = [n for n in names if n != step.variant.name]
        if others:
            network.close()
            return signature(step.node.spec, step.problem).key, others[0]
    raise AssertionError("no problem has two variants")


def test_a_network_is_checked(any_device, model, tmp_path):
    info = select(any_device)
    key, name = other_choice(model, info)
    given, kept = tmp_path / "given.jsonl", tmp_path / "kept.jsonl"
    rows = [{"devices": device_class(info)}, {"about": "", "variant": name, "gain": 9, "key": key}]
    given.write_text("\n".join(map(json.dumps, rows)))
    words = [model, "-d", any_device, "--file", given, "--repeats", "1", "--keep", kept]
    done = subprocess.run(
        [sys.executable, TOOL, *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "one: 1 defaults" in done.stdout and name in done.stdout
    assert "of 1 defaults" in done.stdout
    assert json.loads(kept.read_text().splitlines()[0]) == rows[0]


def test_files_that_cannot_be_used(tool, any_device, tmp_path):
    info, file = select(any_device), tmp_path / "given.jsonl"
    for text in ("", "[]", '{"a": 1}', '{"devices": {}}\n{"key": 1}'):
        file.write_text(text)
        with pytest.raises(SettingError, match="is no file of defaults"):
            tool.given(file, info)
    file.write_text(json.dumps({"devices": device_class(info) | {"name": "Other"}}))
    with pytest.raises(SettingError, match=r"Other.*, the device is"):
        tool.given(file, info)


def test_a_kernel_that_is_gone_is_told_of(tool, any_device, model, capsys):
    info = select(any_device)
    key, _ = other_choice(model, info)
    assert tool.check(model, info, {key: "gone"}, 1) == {}
    assert (
        "one: conv2d 1x16x8x9, 32x16x3x3 -> 1x32x8x9 has no kernel gone" in capsys.readouterr().out
    )


def test_no_device_and_wrong_use(model):
    def code(*words):
        return subprocess.run(
            [sys.executable, TOOL, *words], capture_output=True, timeout=300
        ).returncode

    assert code(model, "-d", "no such device") == 3
    assert code(model, "--keep", "x") == 2
    assert code(model, "--file", "no such file") == 2
