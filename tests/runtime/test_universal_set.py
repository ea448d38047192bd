"""Networks on the universal set: no build but its own, results as those of kernels made for them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from common import ROOT
from harness import normal
from set_networks import attention_network, network, quantised_network

import clnn
from clnn.cache.store import Store
from clnn.cli.main import main
from clnn.errors import SettingError
from clnn.ops.universal.functions import SETS, is_universal
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.runtime.run import kept
from clnn.runtime.run.kept import KIND
from clnn.runtime.run.universal import build_set, set_source

NEVER = clnn.Options(specialise="never")
MODELS = ROOT.parent / "shared" / "models"


def feeds_of(session: clnn.Session) -> dict[str, np.ndarray]:
    return {p.name: normal(p.shape, k) for k, p in enumerate(session.inputs)}


def same(session: clnn.Session, model: object, device: str) -> None:
    feeds = feeds_of(session)
    with clnn.compile_model(model, device) as own:
        want = own(feeds)
    for name, array in session(feeds).items():
        np.testing.assert_allclose(
            array, want[name], rtol=1e-4, atol=1e-4 * np.abs(want[name]).max()
        )


def test_networks_share_one_program(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    report = tmp_path / "report.json"
    for built in (2, 0):
        assert main(["prepare", "-d", device, "--json", str(report)]) == 0
        assert json.loads(report.read_text())["built"] == built
    for model in (network(20, 33), network(7, 18)):
        with clnn.compile_model(model, device, NEVER) as session:
            assert session.build_counts == (1, 0)
            assert all(is_universal(one.launch) for one in session.plan.launches)
            same(session, model, device)


@pytest.mark.parametrize("merge", (True, False))
def test_quantised_networks_share_another_program(any_device, merge):
    options = clnn.Options(specialise="never", merge=merge)
    for model in (quantised_network(20, 33), quantised_network(7, 18)):
        with clnn.compile_model(model, any_device) as own:
            feeds = feeds_of(own)
            want = own(feeds)["y"]
        with clnn.compile_model(model, any_device, options) as session:
            assert all(is_universal(one.launch) for one in session.plan.launches)
            assert not merge or sum(session.build_counts) == 1
            assert np.array_equal(session(feeds)["y"], want)


@pytest.mark.parametrize("merge", (True, False))
def test_transformers_run_on_the_set(any_device, merge):
    model = attention_network(19, 3)
    feeds = {
        "ids": np.arange(19).reshape(1, 19) * 2,
        "mask": (np.arange(19) < 13).astype(np.int64).reshape(1, 1, 1, 19),
    }
    options = clnn.Options(specialise="never", merge=merge)
    with clnn.compile_model(model, any_device) as own:
        want = own(feeds)["y"]
    with clnn.compile_model(model, any_device, options) as session:
        assert all(is_universal(one.launch) for one in session.plan.launches)
        got = session(feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_each_launch_on_its_own(any_device):
    model = network(20, 33)
    options = clnn.Options(specialise="never", merge=False)
    with clnn.compile_model(model, any_device, options) as session:
        same(session, model, any_device)


def test_more_inputs_than_the_set_has_run_in_a_kernel_of_their_own(any_device):
    model = network(5, 12, inputs=9)
    with clnn.compile_model(model, any_device, NEVER) as session:
        same(session, model, any_device)


def test_bound_inputs_streams_and_profiles(any_device):
    with clnn.compile_model(network(12, 21, inputs=2), any_device, NEVER) as session:
        feeds = feeds_of(session)
        want = session(feeds)["y"]
        assert all((one["y"] == want).all() for one in session.stream([feeds] * 3))
        with session.profile() as profile:
            assert (session(feeds)["y"] == want).all()
        assert len(profile.rows()) > 5
        binding = session.bind_input("x1")
        binding.copy_from(feeds.pop("x1"))
        assert (session(feeds)["y"] == want).all()


BLOCKED = """
import sys
sys.modules.update(onnx=None, mako=None)
import numpy as np, clnn
with clnn.load(sys.argv[1], sys.argv[2]) as session:
    feeds = {p.name: np.zeros(p.shape, p.dtype) for p in session.inputs}
    with session.profile() as profile:
        session(feeds)
    print(len(profile.rows()))
"""


def test_a_profile_of_a_stored_network_runs_on_the_set(any_device, tmp_path, monkeypatch):
    """The set's program that notes times is built once; networks from files and the cache take it, too."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    model, path = tmp_path / "net.onnx", tmp_path / "net.clnn"
    model.write_bytes(network(20, 33))

    def rows(session: clnn.Session) -> list[str]:
        with session.profile() as profile:
            session(feeds_of(session))
        return [row.node for row in profile.rows()]

    with clnn.compile_model(model, any_device, NEVER) as session:
        want = rows(session)
        session.save(path)
    while not Store(kind=KIND).entries():  # it is written behind the first answer
        time.sleep(0.01)
    for start in (
        lambda: clnn.compile_model(model, any_device, NEVER),
        lambda: clnn.load(path, any_device),
    ):
        with start() as session:
            assert rows(session) == want
            assert session.build_counts[1] == 0
    command = [sys.executable, "-c", BLOCKED, str(path), any_device]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(want)


def test_a_saved_network_keeps_its_rows(any_device, tmp_path):
    path = tmp_path / "net.clnn"
    with clnn.compile_model(network(20, 33), any_device, NEVER) as session:
        feeds = feeds_of(session)
        want = session(feeds)["y"]
        session.save(path)
    with clnn.load(path, any_device) as loaded:
        assert (loaded(feeds)["y"] == want).all()


FIRST_ANSWER = """
import sys, numpy as np, clnn
from clnn.cache.store import Store
from clnn.runtime.run.kept import KIND
path, device, then = sys.argv[1:]
session = clnn.compile_model(path, device, clnn.Options(specialise="never"))
answer = session({p.name: np.ones(p.shape, np.float32) for p in session.inputs})
print(len(Store(kind=KIND).entries()), session.placement.seconds["plan"] > 0, session.build_counts[1])
print(sum(float(a.sum()) for a in answer.values()))
sys.stdout.flush()
exec(then)
"""


def first_answer(path, device: str, then: str = "") -> tuple[int, list[str]]:
    """Return the status of a process that starts a network and then does more, and what it says of that."""
    command = [sys.executable, "-c", FIRST_ANSWER, str(path), device, then]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_a_network_is_kept_behind_its_first_answer(any_device, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "net.onnx"
    path.write_bytes(network(20, 33))
    entries = Store(kind=KIND).entries
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    status, (before, was_killed) = first_answer(path, any_device, killed)
    assert status == -9 and before == "0 True 1" and not entries()
    assert first_answer(path, any_device) == (0, ["0 True 0", was_killed])
    assert len(entries()) == 1
    assert first_answer(path, any_device) == (0, ["1 False 0", was_killed])


def test_a_network_is_kept_while_calls_go_on(any_device, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "net.onnx"
    path.write_bytes(network(20, 33))
    monkeypatch.setattr(kept, "BEHIND_S", 0.0)
    store = Store(kind=KIND)
    with clnn.compile_model(path, any_device, NEVER) as session:
        feeds = feeds_of(session)
        want = session(feeds)["y"]
        monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "another"))  # asked for too late
        end = time.monotonic() + 60
        while not store.entries() and time.monotonic() < end:
            assert (session(feeds)["y"] == want).all()
    assert len(store.entries()) == 1


def test_the_set_is_for_cpus(any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE_KIND", "gpu")
    with pytest.raises(SettingError, match="for CPUs"):
        build_set(select(any_device))


FLOAT = (
    "deeplabv3_mnv2_257_float",
    "fastestdet_352",
    "mediapipe_blazeface_128",
    "mlperf_resnet8_float",
    "mlperf_vww_float",
    "mnist_opt",
    "mobilenet_v1_025_128_float",
    "mobilenet_v2_100_224_float",
    "super_resolution_espcn_x3_d2s",
    "tbefn_lowlight_180x320",
    "ultraface_rfb_320",
)


QUANTISED = (
    "mlperf_kws_dscnn_qdq",
    "mlperf_resnet8_qdq",
    "mlperf_resnet8_qoperator",
    "mobilenet_v1_025_128_qdq",
    "mobilenet_v1_025_128_qoperator",
    "mobilenet_v2_100_224_ptq_perchannel_qdq",
    "tflm_person_detect_qdq",
)


def only_the_set(device: str, folder: Path) -> Path:
    """Return a cache with the set's programs, which another one has, and nothing else but what is known of devices."""
    opened = Device.open(select(device))
    keys = [opened.key(set_source(target_of(opened.info), program)) for program in SETS]
    entries = {key: Store().get(key) for key in keys}
    for kind in ("probes", "drivers"):
        shutil.copytree(Store(kind=kind).folder, folder / "v1" / kind)
    folder.chmod(0o700)
    for key, entry in entries.items():
        assert entry is not None
        assert Store(folder).put(key, entry.payload, entry.meta)
    return folder


@pytest.mark.parametrize("name", FLOAT)
def test_shared_networks_build_nothing(any_device, tmp_path, monkeypatch, name):
    """All float32 networks of the folder, with a cache that has nothing but the set."""
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip(f"no {path}")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["prepare", "-d", any_device]) == 0
    monkeypatch.setenv("CLNN_CACHE_DIR", str(only_the_set(any_device, tmp_path)))
    with clnn.compile_model(path, any_device, NEVER) as session:
        assert session.build_counts == (1, 0)
        feeds = feeds_of(session)
        found = session(feeds)
    other = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in other.get_outputs()]
    for name, want in zip(names, other.run(names, feeds), strict=True):
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("name", QUANTISED)
def test_shared_quantised_networks_build_nothing(any_device, tmp_path, monkeypatch, name):
    """All quantised networks of the folder: what the set gives is what their own kernels give, to the bit."""
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip(f"no {path}")
    assert main(["prepare", "-d", any_device]) == 0
    with clnn.compile_model(path, any_device, clnn.Options(specialise="always")) as own:
        feeds = feeds_of(own)
        want = own(feeds)
    monkeypatch.setenv("CLNN_CACHE_DIR", str(only_the_set(any_device, tmp_path)))
    with clnn.compile_model(path, any_device, NEVER) as session:
        assert session.build_counts[1] == 0
        assert all(is_universal(one.launch) for one in session.plan.launches)
        for output, array in session(feeds).items():
            np.testing.assert_array_equal(array, want[output])
