"""Small models run in the thread that calls, on PoCL: the same results, on what is the same device to all callers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from common import usable_devices
from recurrent_layers import onnx_layer

import clnn
from clnn.compile import load_graph, prepare
from clnn.errors import DeviceError
from clnn.graph.ir import Graph
from clnn.ops.gemm.spec import Gemm
from clnn.options import Options
from clnn.runtime.build.program import key_of
from clnn.runtime.device.device import open_context, select
from clnn.runtime.device.target import target_of
from clnn.runtime.drivers import calling_thread, driver_listing, icd, loader
from clnn.runtime.drivers.vendors import Driver
from clnn.runtime.run import small
from clnn.runtime.run.small import MOST_NS, estimate_ns
from clnn.types import U8, TensorType

POCL = "Portable"
BEGIN = f"""
import hashlib, json, os, sys, threading
import numpy as np, clnn
from clnn.options import Options
from recurrent_layers import onnx_layer
def names(): return [device.name for device in clnn.devices()]
def shown():
    import pyopencl
    return sorted(d.name.split("-")[0] for p in pyopencl.get_platforms() for d in p.get_devices())
def compiled(op="LSTM", options=None, **sizes):
    model, feeds = onnx_layer(op, **sizes)
    return clnn.compile_model(model, {POCL!r}, options or Options()), feeds
def digest(outputs): return hashlib.sha256(b"".join(outputs[n].tobytes() for n in sorted(outputs))).hexdigest()
def where(session): return session._device.handle.name.split("-")[0], session.device.in_caller
LARGE = dict(steps=300, batch=2, width=64, hidden=64)
"""
CALLER, THREADED = ["basic", True], ["pthread", False]


def answer(code: str, begin: str = BEGIN, **env: str) -> list[object]:
    """Return what code in a Python of its own prints last, as JSON."""
    chosen = {calling_thread.VARIABLE, *icd.VENDOR_VARIABLES, icd.MORE_DRIVERS}  # by this process
    base = {name: text for name, text in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{begin}{code}"],
        env={**base, "CLNN_CALLING_THREAD": "auto", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ended early" not in done.stderr, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module", autouse=True)
def _pocl() -> None:
    listed = [d for d in loader.setup().on_demand if "pocl" in d.library]
    if not any(POCL in name for name in usable_devices()) or not listed:
        pytest.skip("needs PoCL, loaded by itself")
    if not driver_listing.list_each(listed)[0].can_call:
        pytest.skip("this PoCL has no device for the thread that calls")


def test_results_names_and_devices_are_the_same() -> None:
    code = """
found = []
for op, sizes in (
    ("LSTM", {}), ("GRU", {}), ("RNN", dict(direction="bidirectional")),
    ("GRU", dict(steps=16, batch=1, hidden=256)), ("RNN", dict(batch=8, hidden=100)), ("LSTM", LARGE),
):
    session, feeds = compiled(op, **sizes)
    found += [digest(session(feeds)), session.device.name, session.device.index]
last, _ = compiled()
print(json.dumps([found, names(), *where(session), *where(last), last.placement.device]))
"""
    found = {way: answer(code, CLNN_CALLING_THREAD=way) for way in ("auto", "never", "always")}
    assert found["auto"][:2] == found["never"][:2] == found["always"][:2]
    assert found["auto"][2:6] == [*THREADED, *CALLER]
    assert found["always"][2:6] == [*CALLER, *CALLER]
    assert found["never"][2:6] == [*THREADED, *THREADED]
    titles = [str(found[way][6]) for way in ("auto", "never")]
    assert titles[0] == f"{titles[1]}, in the thread that calls"


def test_whoever_chose_devices_or_came_first_is_left_alone() -> None:
    code = "print(json.dumps([*where(compiled()[0]), shown(), os.environ.get('POCL_DEVICES')]))"
    assert answer(code, POCL_DEVICES="pthread")[:2] == THREADED
    assert answer(code, POCL_DEVICES="pthread")[3] == "pthread"
    assert answer(code)[3] is None
    assert answer("import pyopencl\n" + code)[:3] == [*THREADED, shown_without()]
    assert (
        answer("\n" + code, BEGIN.replace("import hashlib", "import pyopencl, hashlib"))[:2]
        == THREADED
    )
    assert answer(code, CLNN_CALLING_THREAD="never")[2] == ["pthread"]


def shown_without() -> list[str]:
    """Return the beginnings of the names of devices of a process that is left alone."""
    found = answer("import pyopencl\ncompiled(); print(json.dumps(shown()))")
    return [str(name) for name in found]


def test_what_wants_threads_gets_them() -> None:
    code = """
ways = (dict(timeout=60.0), dict(guard=64), dict(arena="separate"), dict(specialise="never"), dict(states=3), {})
print(json.dumps([where(compiled(options=Options(**way))[0])[1] for way in ways]))
"""
    assert answer(code) == [False, False, False, False, True, True]
    assert answer(code, CLNN_TIMEOUT="60") == [False] * 6
    assert answer(code, CLNN_ARENA="separate") == [False] * 6


def test_kept_and_saved_networks_run_as_they_were_compiled(tmp_path: Path) -> None:
    code = f"""
import onnx
model, feeds = onnx_layer("GRU")
path = {str(tmp_path / "net.onnx")!r}
onnx.save(model, path)
found = []
for options in (Options(), Options(), Options(timeout=60.0), Options(timeout=60.0), Options()):
    with clnn.compile_model(path, {POCL!r}, options) as session:
        found += [digest(session(feeds)), where(session), sum(session.build_counts) > 0]
        if options.timeout is None: session.save(path + ".clnn")
with clnn.load(path + ".clnn", {POCL!r}) as session:
    print(json.dumps([found, digest(session(feeds)), where(session)]))
"""
    env = {"CLNN_CACHE_DIR": str(tmp_path / "cache")}
    rows, loaded, at = answer(code, **env)
    assert isinstance(rows, list)
    assert set(rows[::3]) == {loaded}
    assert rows[1::3] == [CALLER, CALLER, THREADED, THREADED, CALLER] and at == CALLER
    load = f"""
with clnn.load({str(tmp_path / "net.onnx.clnn")!r}, {POCL!r}) as session:
    print(json.dumps([digest(session(onnx_layer("GRU")[1])), where(session)]))
"""
    assert answer(load, **env, CLNN_CALLING_THREAD="never") == [loaded, THREADED]


def test_children_build_for_it() -> None:
    """Binaries of the one are refused by the other, so that their keys differ too."""
    code = f"""
from dataclasses import replace
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.drivers.loader import load
info = select({POCL!r})
sources = ["__kernel void k(__global float *x) {{ x[0] = %d; }}" % n for n in (3, 5)]
found = []
for in_caller in (True, False):
    device = Device.open(replace(info, in_caller=in_caller))
    made = device._build_in_children(sources, 2)
    for source in sources:
        assert device._load(source, made[source])
        x, cl = np.zeros(1, np.float32), load()
        queue, kernel = cl.CommandQueue(device.context), device.kernel(source, "k")
        buffer = cl.Buffer(device.context, cl.mem_flags.USE_HOST_PTR, hostbuf=x)
        kernel.set_args(buffer)
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, x, buffer)
        found.append(float(x[0]))
    found.append(device.key(source))
print(json.dumps(found))
"""
    found = answer(code)
    assert [*found[:2], *found[3:5]] == [3.0, 5.0, 3.0, 5.0] and found[2] != found[5]


OPEN = """
import onnx
from onnx import helper, numpy_helper
rng = np.random.default_rng(3)
def drawn(*shape): return rng.standard_normal(shape).astype(np.float32)
def open_model():
    made = helper.make_tensor_value_info
    w, v = (numpy_helper.from_array(drawn(*s), n) for n, s in (("w", (24, 40)), ("v", (40, 9))))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["b"]),
             helper.make_node("MatMul", ["b", "v"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [made("x", 1, ["n", 24])], [made("y", 1, ["n", 9])], [w, v])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
def rows(n): return np.random.default_rng(n).standard_normal((n, 24)).astype(np.float32)
def in_caller(session, n):
    for _ in range(6): session({"x": rows(n)})  # a larger arena may have come since the last ones
    run = session.at({"x": (n, 24)})._states.idle[0].thing._enqueues[0]
    return getattr(run, "_enqueues", None) is not None
"""


def test_small_shapes_of_open_models_run_there_with_the_kernels_of_all() -> None:
    code = f"""
session, sizes, digests = clnn.compile_model(open_model(), {POCL!r}), (5000, 1, 7, 300, 1, 5000), []
for n in sizes:
    for _ in range(6): outputs = session({{"x": rows(n)}})
    digests.append(digest(outputs))
built = session.build_counts
threaded = []
def calls(n):
    for _ in range(30): threaded.append(digest(session({{"x": rows(n)}})) == digests[sizes.index(n)])
threads = [threading.Thread(target=calls, args=(n,)) for n in (1, 7, 5000, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([digests, [in_caller(session, n) for n in (1, 7, 5000)], all(threaded), len(threaded)]))
"""
    found = {way: answer(code, BEGIN + OPEN, CLNN_CALLING_THREAD=way) for way in ("auto", "never")}
    assert found["auto"][0] == found["never"][0]
    assert found["auto"][1] == [True, True, False] and found["never"][1] == [False] * 3
    assert found["auto"][2:] == found["never"][2:] == [True, 120]


@pytest.mark.parametrize("calls", [1, 2])
def test_small_shapes_whose_launches_are_several_kernels(calls: int) -> None:
    """Networks of more launches than a kernel holds have several programs."""
    code = f"""
from clnn.runtime.run import fusing
fusing.MOST_CALLS = {calls}
session, found = clnn.compile_model(open_model(), {POCL!r}), []
session({{"x": rows(5000)}})
for n in (3, 1):
    for _ in range(8): found.append([n, digest(session({{"x": rows(n)}}))])
print(json.dumps([found, [in_caller(session, n) for n in (3, 1)]]))
"""
    found = {way: answer(code, BEGIN + OPEN, CLNN_CALLING_THREAD=way) for way in ("auto", "never")}
    assert found["auto"][0] == found["never"][0]
    assert found["auto"][1] == [True, True] and found["never"][1] == [False, False]


def test_kept_shapes_run_there(tmp_path: Path) -> None:
    code = f"""
import clnn.onnxruntime as ort, time
path = {str(tmp_path / "net.onnx")!r}
if not os.path.exists(path): onnx.save(open_model(), path)
session = ort.InferenceSession(path)
for _ in range(6): outputs = session.run(None, {{"x": rows(3)}})
inner = session._engine.session
print(json.dumps([digest(dict(enumerate(outputs))), in_caller(inner, 3), inner.build_counts[1]]))
"""
    env = {"CLNN_CACHE_DIR": str(tmp_path / "cache"), "CLNN_DEVICE": POCL}
    first, second = (answer(code, BEGIN + OPEN, **env) for _ in range(2))
    assert first[:2] == second[:2] and first[1] is True and second[2] == 0
    never = answer(code, BEGIN + OPEN, **env, CLNN_CALLING_THREAD="never")
    assert never == [first[0], False, 0]


def test_a_profile_streams_and_threads() -> None:
    code = f"""
session, feeds = compiled()
other, _ = compiled(options=Options(timeout=60.0))
want = digest(other(feeds))
with session.profile(trace={os.devnull!r}) as profile:
    profiled = digest(session(feeds))
streamed = [digest(outputs) for outputs in session.stream([feeds] * 5, depth=2)]
threaded = []
def calls():
    for _ in range(50): threaded.append(digest(session(feeds)))
threads = [threading.Thread(target=calls) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
rows = [row.seconds >= 0 for row in profile.rows()]
print(json.dumps([{{profiled, *streamed, *threaded}} == {{want}}, len(threaded), all(rows), len(rows) > 0]))
"""
    assert answer(code) == [True, 200, True, True]


def test_the_plan_that_is_shown_and_the_peaks_are_those_of_its_way(tmp_path: Path) -> None:
    code = f"""
import contextlib, io, onnx
from clnn.cli.main import main
from clnn.runtime.device.device import select
from clnn.runtime.measure import peak
session, feeds = compiled()
onnx.save(onnx_layer("LSTM")[0], {str(tmp_path / "net.onnx")!r})
def said(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out: assert main([*words, "-d", {POCL!r}, "--json"]) == 0
    return json.loads(out.getvalue())
steps = [step["variant"] for step in said("inspect", {str(tmp_path / "net.onnx")!r}, "--plan")["steps"]]
peak.REPEATS = 1
said("profile", {str(tmp_path / "net.onnx")!r}, "--measure", "--runs", "1")
known = [peak.known_peaks(info) is not None for info in (session.device, select({POCL!r}))]
print(json.dumps([steps == [row["variant"] for row in session.placement.nodes], known]))
"""
    assert answer(code, CLNN_CACHE_DIR=str(tmp_path / "cache")) == [True, [True, False]]


def test_a_device_that_has_no_such_way_is_refused() -> None:
    info = replace(select(POCL), in_caller=True)  # this process has never asked for it
    with pytest.raises(DeviceError, match="in the thread that calls is gone"):
        open_context(info)


def test_it_is_one_unit_and_has_keys_of_its_own() -> None:
    info = select(POCL)
    other = replace(info, in_caller=True)
    assert target_of(other).compute_units == 1 and other.compute_units == info.compute_units
    assert key_of(info, "kernel") != key_of(other, "kernel")
    assert other.name == info.name and other.driver_name.startswith("basic-")


ROW = {
    "name": "pthread-zen",
    "platform_index": 0,
    "opencl_c_version": "OpenCL C 1.2",
    "extensions": ["cl_khr_fp64"],
    "local_mem": 1 << 20,
    "max_work_group_size": 4096,
    "max_alloc": 1 << 30,
}
BASIC = {**ROW, "name": "basic-zen"}


@pytest.mark.parametrize(
    ("listed", "both"),
    [
        ([BASIC, ROW], True),
        ([ROW, BASIC], True),
        ([ROW], False),
        ([BASIC], False),
        ([], False),
        ([ROW, {**BASIC, "local_mem": 1}], False),
        ([ROW, {**BASIC, "name": "basic-other"}], False),
        ([ROW, BASIC, {**ROW, "name": "cuda"}], False),
        ([{**ROW, "max_alloc": 1}, BASIC], False),
        ([ROW, {"name": "basic-zen"}], False),
    ],
)
def test_both_are_listed_and_alike(listed: list[dict[str, object]], both: bool) -> None:
    assert calling_thread.lists_both([ROW], listed) == both


def test_only_the_one_with_threads_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(calling_thread.VARIABLE, raising=False)
    assert calling_thread.may_list_both([ROW])
    for rows in ([], [BASIC], [ROW, ROW], [{**ROW, "name": "AMD EPYC"}]):
        assert not calling_thread.may_list_both(rows)
    monkeypatch.setenv(calling_thread.VARIABLE, "pthread")
    assert not calling_thread.may_list_both([ROW])


@pytest.mark.parametrize("second", [("", "SIGABRT"), ('{"start": "devices"}\n', "crashed")])
def test_a_driver_that_cannot_list_both_is_used_as_it_was(
    second: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(calling_thread.VARIABLE, raising=False)
    lines = [json.dumps({"start": "devices"}), json.dumps({"listed": [ROW], "alone": True})]

    def run(module: str, want: object, timeout_s: float, env: dict[str, str]) -> tuple[str, str]:
        return second if calling_thread.VARIABLE in env else ("\n".join(lines), "")

    monkeypatch.setattr(driver_listing, "run_python", run)
    (listing,) = driver_listing.list_each([Driver("pocl.icd", "/x/libpocl.so")])
    assert listing.devices == (ROW,) and not listing.end and not listing.can_call


def graph_of(op: str, **sizes: object) -> Graph:
    return prepare(load_graph(onnx_layer(op, **sizes)[0]), Options())


def test_the_estimate_follows_the_work() -> None:
    """A layer of 128 units takes some 10 us, one of 300 steps of 64 units and two sequences more than MOST_NS."""
    one = estimate_ns(graph_of("LSTM", steps=1, batch=1, width=128, hidden=128))
    assert 2_000 < one < 20_000
    assert estimate_ns(graph_of("LSTM", steps=300, batch=2, width=64, hidden=64)) > MOST_NS
    more = estimate_ns(graph_of("LSTM", steps=1, batch=64, width=128, hidden=128))
    assert more > 2 * one


def test_products_of_bytes_count_less() -> None:
    graph = graph_of("LSTM", steps=1, batch=1, width=128, hidden=128)
    node = next(node for node in graph.nodes if isinstance(node.spec, Gemm))
    first = node.inputs[0]
    assert first is not None
    kind = TensorType(graph.types[first].shape, U8)
    narrow = replace(graph, types={**graph.types, first: kind}, nodes=(node,))
    flops = node.spec.flops(graph.input_types(node), graph.output_types(node))
    saved = small._node_ns(graph, node) - small._node_ns(narrow, node)
    assert saved == pytest.approx(flops / small.FLOPS / 2 + 3 * kind.size / small.BYTES)


def test_sessions_say_where_they_run() -> None:
    info = select(POCL)
    assert replace(info, in_caller=True).title == f"{info.title}, in the thread that calls"
    assert clnn.devices()[info.index].title == info.title and np.isfinite(info.index)
