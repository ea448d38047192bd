"""Mesa's Rusticl, whose front end many drivers of GPUs share: what it is taken for, that it is right, its faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rusticl
from common import ROOT, usable_devices
from harness import normal
from small_graphs import GRAPHS

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

from gpu import families

from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session

TIMEOUT_S = 600
MODELS = ROOT.parent / "shared" / "models"
LONG = pytest.mark.exhaustive
SIX = (
    "mnist_opt",
    "mlperf_resnet8_float",
    "mlperf_vww_float",
    "mobilenet_v1_025_128_float",
    "mediapipe_blazeface_128",
    "ultraface_rfb_320",
)
# Families of tools/benchmarks/gpu/families.py; those whose kernels take its compiler longest have the long form.
QUICK_FAMILIES = (
    "rows,few rows,elementwise,pooling,attention,movement,resizing,recurrent,choices,products"
)
SLOW_FAMILIES = "convolution,strided convolution,separable convolution,transposed convolution"
# Tests of kernels for GPUs alone; others want kernels that only CPUs get.
FILES = (
    "tests/ops/shared/test_workgroups.py",
    "tests/ops/conv/test_separable_workgroup.py",
    "tests/ops/conv/test_winograd_gpu.py",
)

pytestmark = pytest.mark.skipif(
    rusticl.library() is None,
    reason="Mesa's Rusticl is not there: tools/test unpacks Debian's mesa-opencl-icd where it may use apt",
)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of processes that see Rusticl alone, with a cache of their own."""
    folder = tmp_path_factory.mktemp("rusticl")
    (folder / "vendors").mkdir()
    found = rusticl.environment(folder / "vendors")
    return {**found, "CLNN_CACHE_DIR": str(folder / "cache"), "CLNN_CACHE": "rw"}


def run(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
    )


def test_what_it_is_taken_for(env: dict[str, str]) -> None:
    code = (
        "import json, clnn; from clnn.runtime.device.target import target_of; d = clnn.devices()[0];"
        " t = target_of(d); print(json.dumps([d.type, d.why_not, t.kind, t.max_rounds]))"
    )
    assert json.loads(run(env, "-c", code).stdout) == ["cpu", "", "gpu", 65535]


@pytest.mark.parametrize("name", rusticl.FAULTS)
def test_its_known_faults_are_there(env: dict[str, str], name: str) -> None:
    """Where one is gone, take it out of tests/support/rusticl.py."""
    fault = rusticl.FAULTS[name]
    done = run(env, "-c", rusticl.RUN, fault.source, str(rusticl.N))
    assert done.stdout.strip() != str(fault.right), f"{name}: gone"
    if fault.wrong is None:
        assert done.returncode
    else:
        assert done.stdout.strip() == str(fault.wrong)


@pytest.mark.skipif(not MODELS.is_dir(), reason="needs the models of the folder shared")
@pytest.mark.parametrize("name", [*SIX[:2], *(pytest.param(n, marks=LONG) for n in SIX[2:])])
def test_networks_are_right(env: dict[str, str], name: str) -> None:
    done = run(env, "tools/check_models.py", str(MODELS), "--only", name)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


def test_no_family_is_left_out() -> None:
    names = {*QUICK_FAMILIES.split(","), *SLOW_FAMILIES.split(",")}
    assert names == set(families.NETWORKS)


@pytest.mark.parametrize("names", [QUICK_FAMILIES, pytest.param(SLOW_FAMILIES, marks=LONG)])
def test_every_family_is_right(env: dict[str, str], names: str, tmp_path: Path) -> None:
    told = tmp_path / "families.json"
    where = ["--only", names, "--dtypes", "f32", "--json", str(told)]
    done = run(env, "tools/benchmarks/gpu/families.py", *where)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = json.loads(told.read_text("utf-8"))["rows"]
    assert [row["family"] for row in rows if row["passed"]] == names.split(",")


SMALL = """
import sys, numpy as np
from small_graphs import GRAPHS
from harness import normal
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
session = Session(GRAPHS[sys.argv[1]](), select(None), Options())
np.savez(sys.argv[2], **session({i.name: normal(i.shape, 0) for i in session.inputs}))
"""


@pytest.mark.parametrize(
    "name, kind",
    [
        ("classifier", "auto"),
        ("decoder", "auto"),
        ("sequence", "cpu"),
        pytest.param("decoder", "cpu", marks=LONG),
    ],
)
def test_small_networks_agree_with_another_driver(
    env: dict[str, str], name: str, kind: str, tmp_path: Path
) -> None:
    """Kernels for CPUs, too: none of them waits in a loop, which the driver would end."""
    others = usable_devices()
    if not others:
        pytest.skip("no other device to compare with")
    env = {**env, "CLNN_DEVICE_KIND": kind}
    done = run(env, "-c", SMALL, name, str(tmp_path / "here.npz"))
    assert done.returncode == 0, done.stderr[-2000:]
    session = Session(GRAPHS[name](), select(others[0]), Options())
    found = np.load(tmp_path / "here.npz")
    for key, array in session({i.name: normal(i.shape, 0) for i in session.inputs}).items():
        np.testing.assert_allclose(found[key], array, rtol=1e-4, atol=1e-5)


@LONG
@pytest.mark.parametrize("file", FILES)
def test_kernels_of_work_groups(env: dict[str, str], file: str) -> None:
    how = ["--device", "rusticl", "-p", "no:cacheprovider", "-q"]
    done = run(env, "-m", "pytest", *how, file)
    assert done.returncode == 0, done.stdout[-3000:]
