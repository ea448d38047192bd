"""The wheel: what is in it, and that it works where no checkout is."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from common import ROOT, usable_devices

MISSING = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (extra: dev)"),
    pytest.mark.timeout(1800),
]
SCRIPT = """
import json, sys
import numpy as np, onnx
from onnx import TensorProto, helper
import clnn
from clnn.codegen.render import template_folders

w = np.linspace(-1, 1, 5 * 3 * 3 * 3, dtype=np.float32).reshape(5, 3, 3, 3)
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", (1, 3, 6, 7)), ("y", (1, 5, 6, 7))))
nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])]
graph = helper.make_graph(nodes, "tiny", [x], [y], [onnx.numpy_helper.from_array(w, "w")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
feed = np.sin(np.arange(126, dtype=np.float32)).reshape(1, 3, 6, 7)
with clnn.compile_model(model.SerializeToString(), sys.argv[1]) as session:
    got = session({"x": feed})["y"]
padded = np.pad(feed, ((0, 0), (0, 0), (1, 1), (1, 1)))
taps = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
want = np.maximum(np.einsum("nchwij,ocij->nohw", taps, w), 0)
print(json.dumps({"package": clnn.__file__, "kernels": template_folders(),
                  "error": float(np.abs(got - want).max() / want.max())}))
"""


def run(*command: object, cwd: Path, allowed: tuple[int, ...] = (0,)) -> str:
    """Run a command away from the checkout; return what it prints. Fails on other exit statuses."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CLNN_", "COV_"))}
    env = kept | {"CLNN_CACHE_DIR": str(cwd / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env=env,
        timeout=900,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode in allowed, f"{' '.join(map(str, command))}: {done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, and this environment's packages behind it."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=folder,
    )
    packages = next(folder.glob("lib/python*/site-packages"))
    behind = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "behind.pth").write_text("".join(f"{path}\n" for path in sorted(behind)))
    return folder


def kernel_files() -> set[str]:
    folder = ROOT / "kernels_cl"
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kernels = {f"clnn/_kernels_cl/{name}" for name in kernel_files()}
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "clnn").rglob("*.py")}
    info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    data = {p.relative_to(ROOT).as_posix() for p in (ROOT / "clnn/tune/defaults").iterdir()}
    data.add("clnn/py.typed")
    assert len(kernels) > 20 and len(modules) > 50 and len(data) > 1
    assert not (kernels | modules | data) - names, "left out of the wheel"
    assert not names - kernels - modules - info - data, "should not be in the wheel"
    assert any(name.endswith("/licenses/LICENSE") for name in info)


def check_use(python: Path, folder: Path, device: str) -> None:
    """Compile and run a model with an installed clnn, from an empty folder."""
    script = folder / "tiny.py"
    script.write_text(SCRIPT)
    told = json.loads(run(python, script, device, cwd=folder).splitlines()[-1])
    assert ROOT not in Path(told["package"]).parents
    assert [Path(k).name for k in told["kernels"]] == ["_kernels_cl"]
    assert Path(told["kernels"][0]).parent == Path(told["package"]).parent
    assert told["error"] < 1e-5


def test_the_wheel_holds_the_package_and_all_kernels_and_nothing_else(wheel):
    check_contents(wheel)


def test_the_installed_wheel_runs_a_model_with_its_own_kernels(venv, any_device, tmp_path):
    check_use(venv / "bin" / "python", tmp_path, any_device)


def test_the_installed_commands_work(venv, tmp_path):
    listed = run(venv / "bin" / "clnn", "devices", cwd=tmp_path, allowed=(0, 3))
    assert all(name in listed for name in usable_devices())
    told = run(
        venv / "bin" / "python", "-m", "clnn.cli.main", "doctor", cwd=tmp_path, allowed=(0, 1, 3)
    )
    assert "pyopencl" in told and str(ROOT / "clnn") not in told


@pytest.mark.exhaustive
def test_a_wheel_made_from_the_sdist_installs_with_its_dependencies(a_device, tmp_path):
    """What a user gets: the archives that are published, and pip's own choice of dependencies."""
    archives, target = tmp_path / "dist", tmp_path / "venv"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", archives, ROOT, cwd=tmp_path)
    wheel = next(archives.glob("*.whl"))
    assert list(archives.glob("*.tar.gz"))
    check_contents(wheel)
    run(sys.executable, "-m", "venv", target, cwd=tmp_path)
    python = target / "bin" / "python"
    run(python, "-m", "pip", "install", wheel, cwd=tmp_path)
    away = tmp_path / "away"
    away.mkdir()
    run(target / "bin" / "clnn", "devices", cwd=away)
    check_use(python, away, a_device)
