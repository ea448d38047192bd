"""Networks on the universal set: no build but its own, results as those of kernels made for them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from common import ROOT
from harness import normal
from set_networks import network

import clnn
from clnn.cli.main import main
from clnn.errors import SettingError
from clnn.ops.universal.functions import is_universal
from clnn.runtime.device.device import select
from clnn.runtime.run.universal import build_set

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
    for built in (1, 0):
        assert main(["prepare", "-d", device, "--json", str(report)]) == 0
        assert json.loads(report.read_text())["built"] == built
    for model in (network(20, 33), network(7, 18)):
        with clnn.compile_model(model, device, NEVER) as session:
            assert session.build_counts == (1, 0)
            assert all(is_universal(one.launch) for one in session.plan.launches)
            same(session, model, device)


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


def test_a_saved_network_keeps_its_rows(any_device, tmp_path):
    path = tmp_path / "net.clnn"
    with clnn.compile_model(network(20, 33), any_device, NEVER) as session:
        feeds = feeds_of(session)
        want = session(feeds)["y"]
        session.save(path)
    with clnn.load(path, any_device) as loaded:
        assert (loaded(feeds)["y"] == want).all()


def test_the_second_start_is_kept(any_device, tmp_path, monkeypatch):
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "net.onnx"
    path.write_bytes(network(20, 33))
    found = []
    for _ in range(2):
        with clnn.compile_model(path, any_device, NEVER) as session:
            found.append(session(feeds_of(session))["y"])
            counts = session.build_counts
    assert counts == (1, 0) and (found[0] == found[1]).all()


def test_the_set_is_for_cpus(any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE_KIND", "gpu")
    with pytest.raises(SettingError, match="for CPUs"):
        build_set(select(any_device))


@pytest.mark.parametrize("name", ("mnist_opt", "super_resolution_espcn_x3_d2s", "mlperf_vww_float"))
def test_shared_networks_build_nothing(any_device, tmp_path, monkeypatch, name):
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip(f"no {path}")
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    assert main(["prepare", "-d", any_device]) == 0
    with clnn.compile_model(path, any_device, NEVER) as session:
        assert session.build_counts == (1, 0)
        same(session, path, any_device)
