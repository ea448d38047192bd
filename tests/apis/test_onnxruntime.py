"""clnn.onnxruntime: what the table cannot show: whole programs, fallback, threads, device buffers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from common import ROOT
from onnx import TensorProto, helper
from onnxruntime_rows import P, X, foreign, model, node_of, session, value

import clnn.onnxruntime as ort
from clnn.errors import ClnnError
from clnn.importers.onnx.type_names import NAMES
from clnn.onnxruntime import fallback, options, process

PROGRAM = """\
import sys
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.capi import _pybind_state as C
import numpy as np
assert isinstance(onnxruntime.SessionOptions(), C.SessionOptions)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
try:
    session.run(None, {"x": np.ones((1, 3))})
except InvalidArgument:
    print("refused", end=" ")
print(session.run(None, {"x": np.float32([[-1, 2, 3]])})[0].tolist(), onnxruntime.get_build_info()[:4])
try:
    import onnxruntime.quantization
except ImportError as err:
    print(err.name)
"""


def unfold(dims, unfolded):
    """An operator of onnxruntime that clnn does not have."""
    domain = {"domain": "com.microsoft", "version": 1}
    attrs = {"dim": 0, "size": 1, "step": 1}
    return foreign("UnfoldTensor", value("x", dims), value("y", unfolded), **domain, **attrs)


REFUSED = unfold((2,), (2, 1))


@pytest.fixture(autouse=True)
def _on_device(any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE", any_device)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "m.onnx").write_bytes(model())
    (tmp_path / "use.py").write_text(PROGRAM, "utf-8")
    return tmp_path


@pytest.mark.parametrize("how", [["use.py"], ["-m", "use"]])
def test_a_program_runs_unchanged(program, how):
    command = [sys.executable, "-m", "clnn.onnxruntime", *how, "m.onnx"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=program,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    want = "refused [[0.0, 2.0, 3.0]] clnn\nonnxruntime.quantization\n"
    assert done.stdout == want


@pytest.mark.parametrize("arguments,status", [([], 2), (["-m"], 2), (["gone.py"], 2), (["-h"], 0)])
def test_the_command_says_what_it_wants(arguments, status):
    command = [sys.executable, "-m", "clnn.onnxruntime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status
    assert "gone.py" in done.stdout if arguments == ["gone.py"] else "MODULE" in done.stdout


@pytest.fixture
def real_modules():
    """Every module of onnxruntime is afterwards the one that it was: classes are pickled by these names."""
    before = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "onnxruntime"}
    yield before
    for name in [n for n in sys.modules if n.partition(".")[0] == "onnxruntime"]:
        del sys.modules[name]
    sys.modules.update(before)


def test_installed_and_removed_again(real_modules):
    ort.install()
    try:
        import onnxruntime

        assert onnxruntime is ort
        with pytest.raises(ModuleNotFoundError, match="stands for onnxruntime"):
            __import__("onnxruntime.transformers")
    finally:
        ort.uninstall()
    assert "onnxruntime" not in sys.modules or sys.modules["onnxruntime"] is not ort


def test_a_refused_model_is_not_implemented():
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented) as caught:
        session(ort, REFUSED)
    assert "UnfoldTensor" in str(caught.value)
    assert str(caught.value).startswith("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ")
    assert isinstance(caught.value, ClnnError)


def test_an_open_model_with_an_operator_that_is_not_there_is_refused_at_once():
    data = unfold(("N",), None)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        session(ort, data)


@pytest.mark.parametrize("way", ["setting", "entry", "option"])
def test_onnxruntime_runs_what_is_refused_where_it_was_asked_for(way, monkeypatch, caplog):
    pytest.importorskip("onnxruntime")
    wanted, providers = ort.SessionOptions(), ["ClnnExecutionProvider"]
    if way == "setting":
        monkeypatch.setenv("CLNN_ORT_FALLBACK", "onnxruntime")
    elif way == "entry":
        wanted.add_session_config_entry("clnn.fallback", "onnxruntime")
    else:
        providers = [("ClnnExecutionProvider", {"fallback": "onnxruntime"})]
    with caplog.at_level(logging.WARNING, "clnn"):
        made = ort.InferenceSession(REFUSED, wanted, providers=providers)
    assert made.run(None, {"x": X[0, :2]})[0].tolist() == X[0, :2, None].tolist()
    assert [p.type for p in made.get_inputs()] == ["tensor(float)"]
    assert "onnxruntime runs it" in caplog.text and "UnfoldTensor" in caplog.text


def test_the_real_module_is_found_behind_an_installed_one(real_modules):
    pytest.importorskip("onnxruntime")
    ort.install()
    try:
        module = fallback.real_module()
        assert module.__name__ == "onnxruntime"
        assert sys.modules["onnxruntime"] is ort
    finally:
        ort.uninstall()


def test_wrong_options_of_clnns_own_provider_are_errors():
    for given in ({"dtyp": "f32"}, {"dtype": "f99"}, {"fuse": "perhaps"}, {"fallback": "x"}):
        with pytest.raises(ValueError, match=r"option|Options"):
            ort.InferenceSession(model(), providers=[("ClnnExecutionProvider", given)])


def test_options_of_clnns_own_provider_reach_the_session():
    given = {"dtype": "bf16", "fuse": "false"}
    made = ort.InferenceSession(
        node_of("Relu", dims=(2, 3)), providers=[("ClnnExecutionProvider", given)]
    )
    chosen = made.clnn_session._options
    assert (chosen.dtype, chosen.fuse) == ("bf16", False)


def test_equal_models_share_a_session():
    one, two = (session(ort, node_of("Abs", dims=(2, 3))) for _ in range(2))
    assert one.clnn_session is two.clnn_session
    other = ort.SessionOptions()
    other.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert session(ort, node_of("Abs", dims=(2, 3)), other).clnn_session is not one.clnn_session


def test_threads_and_asyncio():
    made = session(ort)

    def turn(k):
        return made.run(None, {"x": X[: 1 + k % 2] - k})[0]

    with ThreadPoolExecutor(8) as pool:
        for k, got in enumerate(pool.map(turn, range(40))):
            np.testing.assert_array_equal(got, np.maximum(X[: 1 + k % 2] - k, 0))

    async def one(k):
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def done(outputs, number, error):
            loop.call_soon_threadsafe(future.set_result, (outputs[0], number, error))

        made.run_async(None, {"x": X - k}, done, k)
        return await future

    async def all_of_them():
        return await asyncio.gather(*(one(k) for k in range(20)))

    for got, number, error in asyncio.run(all_of_them()):
        assert not error
        np.testing.assert_array_equal(got, np.maximum(X - number, 0))


def test_inputs_in_device_memory():
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"])]
    made = session(ort, model(nodes, [value("a", (2, 3)), value("b", (2, 3))]))
    held = made.device_input("a")
    assert (held.device_name(), held.shape(), held.data_type()) == ("clnn", [2, 3], "tensor(float)")
    binding = made.io_binding()
    for turn in (1, 5):
        held.update_inplace(X * turn)
        np.testing.assert_array_equal(held.numpy(), X * turn)
        binding.bind_ortvalue_input("a", held)
        binding.bind_cpu_input("b", X)
        binding.bind_output("y")
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X * turn - X)
        np.testing.assert_array_equal(made.run(None, {"a": X, "b": X})[0], 0 * X)


def test_what_has_no_effect_is_told_once(caplog):
    options._told.clear()
    with caplog.at_level(logging.INFO, "clnn"):
        for _ in range(3):
            ort.SessionOptions().enable_mem_pattern = False
    assert caplog.text.count("enable_mem_pattern") == 1


def test_thread_counts_go_to_a_driver_that_is_not_loaded(monkeypatch):
    monkeypatch.delenv(process.THREADS, raising=False)
    monkeypatch.setattr(process.os, "cpu_count", lambda: 8)
    process.use_threads(2)
    loaded = "pyopencl" in sys.modules
    assert os.environ.get(process.THREADS) == (None if loaded else "2")
    code = (
        "import os; from clnn.onnxruntime import process; os.cpu_count = lambda: 8;"
        "process.use_threads(0); process.use_threads(8); print(os.environ.get(process.THREADS));"
        "process.use_threads(1); process.use_threads(3); print(os.environ[process.THREADS])"
    )
    env = {k: v for k, v in os.environ.items() if k != process.THREADS}
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    assert out.stdout.decode().split() == ["None", "1"], out.stderr
    code = (
        "import os; os.cpu_count = lambda: 8; import clnn.onnxruntime as ort;"
        "ort.SessionOptions().intra_op_num_threads = 2; ort.get_available_providers();"
        f"print(os.environ.get({process.THREADS!r}))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    assert out.stdout.decode().split() == ["2"], out.stderr


def test_a_profile_names_the_layers(tmp_path, any_device):
    wanted = ort.SessionOptions()
    wanted.enable_profiling = True
    wanted.profile_file_prefix = str(tmp_path / "trace")
    made = ort.InferenceSession(node_of("Relu", dims=(2, 3)), wanted, providers=P)
    np.testing.assert_array_equal(made.run(None, {"x": -X})[0], 0 * X)
    events = json.loads(Path(made.end_profiling()).read_text("utf-8"))
    assert {e["name"] for e in events if e["cat"] == "Session"} >= {
        "session_initialization",
        "model_run",
    }
    assert [e["args"]["provider"] for e in events if e["cat"] == "Node"] == [
        "ClnnExecutionProvider"
    ]
    assert made.end_profiling() == ""


def test_a_session_outlives_the_file_that_it_was_made_from(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    made = session(ort, str(path))
    onnx.save(onnx.load_from_string(node_of("Neg")), path)
    other = session(ort, str(path))
    np.testing.assert_array_equal(other.run(None, {"x": X})[0], -X)
    assert made.clnn_session is not other.clnn_session


def test_runs_end_when_other_threads_make_sessions():
    found = []

    def make(k):
        found.append(
            session(ort, node_of("Neg", dims=(k, 3))).run(None, {"x": np.ones((k, 3), "f4")})
        )

    threads = [threading.Thread(target=make, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(f[0]) for f in found) == [1, 2, 3, 4]


STARTED = """\
import sys
import numpy as np
import clnn.onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
print(session.run(None, {"x": np.float32([[-1, 2, 3]])})[0].tolist(), "clnn.compile" in sys.modules)
"""


def test_a_file_that_was_compiled_before_is_not_compiled_again(program, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(program / "cache"))
    fixed = model(inputs=[value("x", (1, 3))], outputs=[value("y", (1, 3))])
    (program / "fixed.onnx").write_bytes(fixed)
    said = []
    for _ in range(2):
        command = [sys.executable, "-c", STARTED, str(program / "fixed.onnx")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        said.append(done.stdout.split()[-1])
    assert said == ["True", "False"]


def test_names_of_element_types_are_those_of_onnx():
    assert all(TensorProto.DataType.Name(k) == name.upper() for k, name in NAMES.items())
