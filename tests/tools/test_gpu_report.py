"""tools/gpu_report.sh on the devices at hand, with tiny sizes; tools/benchmarks/sweep_kernels.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

import gpu_report
from about import NO_PLOT, About
from gpu import families
from sweeps import measure as module
from sweeps.ahead import MOST_WORKERS, built_ahead, workers_for
from sweeps.cases import Conv, Gemm, cases, sampled
from sweeps.measure import Ceilings, Row, available, ceiling_of, fill, measure
from sweeps.report import markdown_table

from clnn.errors import BuildError, DeviceError
from clnn.runtime.device.device import select
from clnn.runtime.device.probe import Capability
from clnn.runtime.measure import peak_mma
from clnn.runtime.measure.peak import PeakBench
from clnn.runtime.measure.peak_mma import KINDS, WarpBench, product_kernels, product_rate
from clnn.runtime.run.profile import Row as Layer
from clnn.verification.reference import reference_values

pytestmark = pytest.mark.dealt  # kernels that are slow to build


def convolved(case, x):
    """The whole convolution, by windows."""
    p, ins, outs = case.k // 2, case.ic // case.group, case.oc // case.group
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (p, p), (p, p)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (case.k, case.k), (2, 3))
    windows = windows[:, :, :: case.s, :: case.s]
    parts = [
        np.einsum(
            "nchwij,ocij->nohw",
            windows[:, g * ins : (g + 1) * ins],
            case.weights()[g * outs : (g + 1) * outs].astype(np.float64),
        )
        for g in range(case.group)
    ]
    return np.concatenate(parts, 1)


@pytest.mark.parametrize(
    "case",
    [
        Conv(2, 3, 4, 7, 3),
        Conv(1, 4, 6, 8, 7, 2),
        Conv(2, 6, 6, 9, 3, 2, 6),
        Conv(1, 4, 4, 5, 1, 1, 2),
    ],
    ids=lambda c: c.label,
)
def test_expected_values_are_those_of_the_whole_convolution(case):
    x = np.random.default_rng(0).standard_normal(case.shape, np.float32)
    want = convolved(case, x)
    assert want.size == case.size()
    places = np.arange(case.size())
    np.testing.assert_allclose(case.expected(x, places), want.ravel(), rtol=1e-12, atol=1e-12)


def test_expected_values_of_a_product_and_places_that_are_sampled():
    case = Gemm(5, 7, 9)
    x = np.random.default_rng(0).standard_normal(case.shape, np.float32)
    want = x.astype(np.float64) @ case.weights().astype(np.float64)
    places = sampled(case)
    assert places[0] == 0 and places[-1] == 34 and len(places) > 10
    np.testing.assert_allclose(case.expected(x, places), want.ravel()[places])


def test_a_sweep_has_every_layer_once():
    labels = [case.label for case in cases(False)]
    assert len(set(labels)) == len(labels) > 50
    assert labels[0] == "gemm 1024x1024x1024" and {c.kind for c in cases(False)} == {
        "gemm",
        "conv",
        "depthwise",
    }


def test_kernels_are_held_to_the_ceiling_of_their_units():
    assert ceiling_of("gemm_mma_tf32_nk_float_t64", "tf32") == "tf32"
    assert ceiling_of("conv2d_mma_u8_nk_uchar_k3x3", "int8") == "s8"
    assert ceiling_of("gemm_tiled_f32_packed", "f16") == "f32"
    assert ceiling_of("conv2d_direct_q_u8", "int8") == ""
    most = Ceilings(100e9, 1e-6, {"f32": 1e12, "f16": 4e12})
    row = Row("x", "f16")
    layer = Layer(
        0, "n", "gemm", "v", "gemm_mma_f16_a", 1, (1,), (1,), 1e-3, 1.0, 1000.0, 20.0, "", True
    )
    fill(row, layer, most)
    assert (row.of_rate, row.of_bandwidth, row.of_bound) == (0.25, 0.2, 0.25)
    parts = Row("z", "f16")
    named = {"variant": "gemm_mma_f16_nk_p4", "kernel": "workgroup_sum_p4_v4"}
    fill(parts, replace(layer, **named), most)
    assert (parts.ceiling, parts.kernel) == ("f16", "workgroup_sum_p4_v4")
    assert "| x | f16 | v | 1000.0 | 1000.0 | 20.0 | f16 | 25 % | 20 % | 25 % |" in "\n".join(
        markdown_table([row, Row("y", "f32", fault="it crashed")])
    )


def test_numbers_that_clnn_lacks_are_left_out_with_the_reason(monkeypatch):
    have, lacks = available(["f32", "f16", "f8"])
    assert have == ["f32", "f16"] and "f8" in lacks["f8"]


def test_the_rate_of_tensor_cores_is_checked_or_refused(device):
    info = select(device)
    for kind in KINDS:
        WarpBench(PeakBench(info)).check(next(product_kernels(kind, "emulated")))
    if not info.caps.ptx_mma:
        with pytest.raises(DeviceError, match=r"runs no mma\.sync"):
            product_rate(info, "f16")


def test_a_shape_that_does_not_run_is_passed_over_and_a_wrong_sum_is_not(monkeypatch, any_device):
    from clnn.runtime.drivers.loader import load

    info = select(any_device)
    able = replace(info, caps=replace(info.caps, ptx_mma=Capability(True)))
    faults = {"2x8": load().RuntimeError("OUT_OF_RESOURCES"), "4x4_w8": BuildError("no")}

    def rate(self, kernel):
        for name, fault in faults.items():
            if name in kernel.name:
                raise fault
        return float(kernel.params["mi"] * kernel.params["ni"])

    monkeypatch.setattr(peak_mma.WarpBench, "rate", rate)
    assert product_rate(able, "f16") == 32
    faults["4x8"] = DeviceError("gives 7 for sums of 8")
    with pytest.raises(DeviceError, match="gives 7"):
        product_rate(able, "f16")
    faults.clear()
    faults["peak_mma"] = load().RuntimeError("OUT_OF_RESOURCES")
    with pytest.raises(DeviceError, match=r"does not run on .*OUT_OF_RESOURCES"):
        product_rate(able, "f16")


def test_wrong_values_are_a_fault(monkeypatch, any_device):
    case, info = Gemm(1, 100, 64), select(any_device)
    right = module.measure(case, "f32", info, Ceilings(), "off")
    assert not right.fault and right.error < 1e-5 and right.seconds > 0
    monkeypatch.setattr(Gemm, "expected", lambda self, x, places: np.ones(len(places)))
    assert "wrong values" in module.measure(case, "f32", info, Ceilings(), "off").fault


def run(*args, script="sweep_kernels.py"):
    command = [sys.executable, str(ROOT / "tools" / "benchmarks" / script), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=590)


def test_kernels_are_built_ahead_of_a_layer(tmp_path, any_device, monkeypatch):
    """A layer that is no layer costs a process nothing, and what is built is found in the cache."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    info, good, bad = select(any_device), Gemm(8, 24, 16), Gemm(0, 1, 1)
    with built_ahead([(bad, "f32"), (good, "f32")], info.index, "off", 1) as wait:
        for layer in (bad, good, good, Gemm(1, 2, 3)):
            wait(layer, "f32", 60.0)
    assert list(tmp_path.rglob("programs/*/*.clbin"))
    assert workers_for(False) == 0 < workers_for(True) <= MOST_WORKERS
    row = measure(good, "f32", info, Ceilings(), "off")
    assert row.fault == "" and row.seconds > 0


def test_a_sweep_goes_on_past_a_layer_in_which_it_ended(tmp_path, any_device):
    path, page = tmp_path / "sweep.json", tmp_path / "sweep.md"
    before = {
        "about": {},
        "ceilings": {"bandwidth": 1e9, "rates": {"f32": 1e10}},
        "lacks": {},
        "current": ["gemm 64x64x64", "f32"],
        "cut": [],
        "rows": [],
    }
    path.write_text(json.dumps(before))
    options = ("--small", "--only", "gemm", "--dtypes", "f32", "--json", path, "--markdown", page)
    done = run(*options, "--resume", "--device", any_device)
    assert done.returncode == 1, done.stderr[-2000:]
    data = json.loads(path.read_text())
    ended, right = data["rows"]
    assert "ended in this layer" in ended["fault"] and right["label"] == "gemm 1x100x64"
    assert right["of_bound"] > 0 and right["error"] < 1e-5 and data["current"] is None
    assert "ended in this layer" in page.read_text()


def report(tmp_path, *options):
    env = {**os.environ, "PYTHON": sys.executable}
    command = [
        "sh",
        str(ROOT / "tools" / "gpu_report.sh"),
        "--small",
        "--out",
        str(tmp_path),
        *map(str, options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=590)
    written = sorted(tmp_path.glob("*.json"))
    return done, json.loads(written[0].read_text()) if written else None


def test_a_report_of_one_step_and_then_of_another(tmp_path, any_device):
    done, found = report(tmp_path, "--device", any_device, "--steps", "sweep", "--seconds", 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [s["status"] for s in found["steps"]] == ["done"] and found["data"]["sweep"]["rows"]
    (page,) = tmp_path.glob("*.md")
    text = page.read_text()
    assert "## Layers" in text and "tools/gpu_report.sh --small --out OUT" in text
    assert str(tmp_path) not in text and str(ROOT) not in text
    pictures = sorted(p.name for p in tmp_path.glob("*.png"))
    assert (pictures and pictures[0] in text) or NO_PLOT in text
    done, found = report(tmp_path, "--device", any_device, "--steps", "details", "--seconds", 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [s["name"] for s in found["steps"]] == ["sweep", "details"]
    assert found["data"]["details"]["local memory, KiB"]["declared"] >= 16
    assert found["data"]["details"]["grids"] == {f"dimension {k}": True for k in range(3)}
    assert [command.split()[-3] for command in found["about"]["commands"]] == ["sweep", "details"]


def test_the_first_stage_with_the_kernels_of_gpus(tmp_path, any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE_KIND", "gpu")
    done, found = report(tmp_path, "--device", any_device, "--stage", 1, "--seconds", 500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(s["name"], s["status"]) for s in found["steps"]] == [
        ("facts", "done"),
        ("families", "done"),
    ]
    assert found["data"]["facts"]["launches"]["alone_us"] > 0
    rows = {
        row["family"]: row for row in found["data"]["families"]["rows"] if row["dtype"] == "f32"
    }
    assert set(rows) == {"products", "rows", "movement"} and all(r["passed"] for r in rows.values())
    assert "gemm_workgroup" in rows["products"]["variants"][0]
    (page,) = tmp_path.glob("*.md")
    assert "3 of 3 families are right in f32" in page.read_text()
    about = found["about"]
    assert about["device"] and about["driver"] and about["date"]
    assert "--stage 1" in about["commands"][0]


@pytest.mark.parametrize("name", families.NETWORKS)
def test_each_family_has_a_network_of_one_input(name):
    made = families.model(name)
    assert [given.name for given in made.graph.input] == ["x"]
    onnx.checker.check_model(made, full_check=True)


@pytest.mark.exhaustive
def test_every_family_is_right(tmp_path, any_device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE_KIND", "gpu")
    path = tmp_path / "families.json"
    done = run("--device", any_device, "--json", path, script="gpu/families.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(path.read_text())["rows"]) > len(families.NETWORKS)


def test_a_family_with_wrong_values_is_named(monkeypatch, any_device):
    info = select(any_device)
    monkeypatch.setattr(families, "reference_values", lambda graph, feeds: wrong(graph, feeds))
    row = families.check("movement", "f32", info)
    assert not row.passed and "wrong values" in row.fault and row.error > row.allowed
    monkeypatch.setattr(families, "compile_fixed", lambda *a, **k: 1 / 0)
    assert "ZeroDivisionError" in families.check("movement", "f32", info).fault


def wrong(graph, feeds):
    return {name: value + 1 for name, value in reference_values(graph, feeds).items()}


def test_families_go_on_past_one_in_which_the_process_ended(tmp_path):
    path = tmp_path / "families.json"
    families.save(path, [families.Row("rows", "f32", True)], [], ["products", "f32"])
    rows = families.resumed(path)
    assert [(r.family, r.passed, r.fault) for r in rows] == [
        ("rows", True, ""),
        ("products", False, families.ENDED),
    ]
    assert families.resumed(tmp_path / "none.json") == []
    jobs = list(families.jobs(("products", "rows"), ("f16", "f32")))
    assert jobs == [("products", "f32"), ("rows", "f32"), ("products", "f16")]


def test_a_report_that_is_told_to_end_keeps_what_it_has(tmp_path, any_device):
    command = ["sh", str(ROOT / "tools" / "gpu_report.sh"), "--device", any_device]
    command += ["--out", str(tmp_path), "--steps", "sweep", "--seconds", "500", "--small"]
    env = {**os.environ, "PYTHON": sys.executable}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    next(text for text in child.stdout if "layers as shares" in text)
    child.terminate()
    said = child.communicate(timeout=120)[0]
    (path,) = tmp_path.glob("*.json")
    (step,) = json.loads(path.read_text())["steps"]
    assert child.returncode == 1 and "interrupted" in said
    assert (step["name"], step["status"]) == ("sweep", "under way")


@pytest.mark.exhaustive
def test_a_whole_report(tmp_path, any_device):
    done, found = report(tmp_path, "--device", any_device, "--seconds", 550)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {step["name"]: step["status"] for step in found["steps"]}
    assert names.pop("compiled") == names.pop("engines") == "skipped"
    assert list(names) == [
        "facts",
        "families",
        "sweep",
        "details",
        "networks",
        "doctor",
        "tests",
        "tune_digits",
    ]
    assert set(names.values()) == {"done"}
    assert found["data"]["tests"]["passed"] > 0 and not found["data"]["tests"]["failed"]
    assert found["data"]["networks"]["results"][0]["rows"][0]["error"] < 1e-4


def test_a_device_is_chosen_by_index_type_or_name():
    """A number is an index, though it be part of a name."""
    devices = [
        {"index": 0, "type": "cpu", "platform": "PoCL", "name": "Xeon 6981"},
        {"index": 1, "type": "gpu", "platform": "NVIDIA CUDA", "name": "H100"},
    ]
    chosen = [
        gpu_report.choose(devices, w) for w in (None, "cpu", "h100", "1", "pocl", "amd", "100")
    ]
    assert [c and c["index"] for c in chosen] == [1, 0, 1, 1, 0, None, None]
    assert gpu_report.choose(devices[:1], None) is devices[0]
    assert gpu_report.choose([], None) is None


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_a_python_that_was_named_is_that_one_or_none(python):
    command = ["sh", str(ROOT / "tools" / "gpu_report.sh"), "--help"]
    env = {**os.environ, "PYTHON": python}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 2 and f"PYTHON is {python}," in done.stderr and not done.stdout
    env = {**os.environ, "PYTHON": "", "CLNN_VENV": sys.prefix}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0 and "--steps LIST" in done.stdout


def test_no_device_and_wrong_use_end_at_once(tmp_path):
    done, found = report(tmp_path, "--device", "no such device", "--steps", "sweep")
    assert done.returncode == 3 and "no usable OpenCL device" in done.stderr and found is None
    done, _ = report(tmp_path, "--steps", "sweep,other")
    assert done.returncode == 2 and "other is none of" in done.stderr
    done, _ = report(tmp_path, "--stage", "1,5")
    assert done.returncode == 2 and "5 is none of 1, 2, 3, 4" in done.stderr
    done, _ = report(tmp_path, "--minutes", "0.3")
    assert done.returncode == 2 and "0.3 minutes are too few" in done.stderr


def test_a_caption_says_what_a_picture_is_of():
    about = About("H100", "550", "today", ("tools/gpu_report.sh --steps " + "x" * 90,))
    assert about.caption(100).startswith("H100, driver 550, today\ntools/gpu_report.sh")
    assert max(map(len, about.caption(60).splitlines())) <= 60
