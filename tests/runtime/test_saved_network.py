"""Compiled networks in files: they run as they did, elsewhere too, and damage is told."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_graphs
from common import ROOT, usable_devices

import clnn
from clnn.cache.sections import PAGE, VERSION, read_sections, write_sections
from clnn.errors import DeviceError, ModelError, ModelFileError, SettingError
from clnn.runtime.device.target import target_of
from clnn.runtime.doctor import selection
from clnn.runtime.run import saved as saved_networks
from clnn.runtime.run.loaded import require_fit

KINDS = ("classifier", "decoder", "rows", "sequence")
NEEDED = ("numpy", "pyopencl", "ml_dtypes", "platformdirs", "filelock")
USE = """
import json, sys
{before}
import numpy as np, clnn
with clnn.load(sys.argv[1], sys.argv[2]) as session:
    feeds = {{p.name: np.load(sys.argv[3]) for p in session.inputs}}
    outputs = session(feeds)
    with session.profile() as profile:
        session(feeds)
    assert profile.rows()
np.savez(sys.argv[4], **outputs)
print([m for m in ("onnx", "mako") if sys.modules.get(m)])
"""
BLOCKED = "sys.modules.update(onnx=None, mako=None)"
# What makes plans and kernels, and what few runs need.
HEAVY = (
    *("onnx", "mako", "filelock", "difflib", "clnn.compile", "clnn.cache.claims", "clnn.recorded"),
    *(
        "clnn.arith",
        "clnn.graph.passes",
        "clnn.importers",
        "clnn.tune",
        "clnn.runtime.drivers.assembly",
    ),
    *(f"clnn.runtime.run.{m}" for m in ("planning", "fusing", "spills", "stream", "lent_arena")),
)
RECORDS = {
    *("clnn.codegen", "clnn.codegen.kernels", "clnn.graph", "clnn.graph.ir", "clnn.graph.mapped"),
    *("clnn.ops", "clnn.ops.launch", "clnn.ops.problem", "clnn.ops.spec"),
    *("clnn.plan", "clnn.plan.plan", "clnn.plan.describe"),
}
START = """
import sys
import numpy as np, clnn
with clnn.load(sys.argv[1], sys.argv[2]) as session:
    session({p.name: np.zeros(p.shape, p.dtype) for p in session.inputs})
    print(*sorted(sys.modules))
"""


def feeds_of(session: clnn.Session) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {p.name: random.standard_normal(p.shape).astype(p.dtype) for p in session.inputs}


@pytest.fixture(scope="module")
def saved(any_device, tmp_path_factory) -> Path:
    """The file of a small network, for one device."""
    path = tmp_path_factory.mktemp("saved") / "net.clnn"
    with clnn.compile_model(small_graphs.classifier(), any_device) as session:
        feeds = feeds_of(session)
        np.save(path.with_suffix(".npy"), feeds["x"])
        np.savez(path.with_suffix(".npz"), **session(feeds))
        session.save(path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merge", [True, False])
def test_a_loaded_session_does_what_the_saved_one_did(kind, merge, device, tmp_path):
    path = tmp_path / "net.clnn"
    with clnn.compile_model(
        getattr(small_graphs, kind)(), device, clnn.Options(merge=merge)
    ) as session:
        feeds = feeds_of(session)
        want = session(feeds)
        session.save(path)
        with session.profile() as profile:
            session(feeds)
        work, nodes = dict(profile.work), session.placement.nodes
        copied = session.placement.copied_bytes
        inputs, outputs = session.inputs, session.outputs
    with clnn.load(path, device, states=2) as again:
        assert again.build_counts[1] == 0
        assert (again.inputs, again.outputs) == (inputs, outputs)
        assert again.placement.nodes == nodes and again.placement.copied_bytes == copied
        for outs in (again(feeds), *again.stream([feeds] * 3)):
            assert {n: a.tobytes() for n, a in outs.items()} == {
                n: a.tobytes() for n, a in want.items()
            }
        with again.profile() as profile:
            again(feeds)
        assert dict(profile.work) == work and profile.rows()
        name = inputs[0].name
        again.bind_input(name).copy_from(feeds[name])
        rest = {n: a for n, a in feeds.items() if n != name}
        assert all((again(rest)[n] == a).all() for n, a in want.items())
        again.save(tmp_path / "copy.clnn")
    with pytest.raises(clnn.ClnnError):
        again(feeds)
    with clnn.load(tmp_path / "copy.clnn", device) as copy:
        assert all((copy(feeds)[n] == a).all() for n, a in want.items())


def test_a_first_run_imports_nothing_that_makes_plans_and_kernels(saved, any_device):
    """Of the rooms that do, only records; each other module would cost every start from a file."""
    command = [sys.executable, "-c", START, os.fspath(saved), any_device]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    rooms = {
        m for m in modules if m.startswith(("clnn.codegen", "clnn.graph", "clnn.ops", "clnn.plan"))
    }
    assert rooms == RECORDS
    assert not [m for m in modules if m in HEAVY or m.startswith(tuple(f"{h}." for h in HEAVY))]


def test_models_are_named_by_their_files_wherever_one_is_taken(saved, any_device):
    with clnn.compile_model(saved, any_device, clnn.Options(states=2)) as session:
        assert isinstance(session, clnn.Session)
    with pytest.raises(SettingError, match=r"shapes.*cannot be changed"):
        clnn.compile_model(saved, any_device, shapes={"x": (1, 3, 7, 7)})
    with pytest.raises(SettingError, match="options other than"):
        clnn.compile_model(saved, any_device, clnn.Options(dtype="f16"))
    with pytest.raises(ModelError, match="model is needed"):
        clnn.verify(os.fspath(saved), against="reference", device=any_device)


def test_what_is_not_saved_is_told(any_device, tmp_path):
    graph = small_graphs.classifier()
    with (
        clnn.compile_model(graph, any_device, clnn.Options(guard=64)) as session,
        pytest.raises(SettingError, match="guards"),
    ):
        session.save(tmp_path / "net.clnn")
    assert not list(tmp_path.iterdir())


def run_child(python: object, code: str, *arguments: object, **env: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-c", code, *map(str, arguments)],
        env=kept | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def check_outputs(saved: Path, made: Path) -> None:
    want, got = (dict(np.load(path)) for path in (saved.with_suffix(".npz"), made))
    assert want.keys() == got.keys()
    assert all((want[name] == got[name]).all() for name in want)


def test_neither_onnx_nor_mako_is_imported(saved, any_device, tmp_path):
    arguments = saved, any_device, saved.with_suffix(".npy"), tmp_path / "out.npz"
    code = USE.format(before=BLOCKED)
    assert run_child(sys.executable, code, *arguments, PYTHONPATH=str(ROOT)) == "[]"
    check_outputs(saved, tmp_path / "out.npz")


def requirements(names: tuple[str, ...]) -> set[str]:
    """Return distributions, and all that they need."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            wanted = importlib.metadata.requires(name) or []
            plain = [w for w in wanted if "extra ==" not in w and "python_version" not in w]
            waiting += [re.split(r"[^\w.-]", w)[0] for w in plain]
    return found


def test_it_runs_where_neither_is_installed(saved, any_device, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    for name in requirements(NEEDED):
        files = importlib.metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            source = importlib.metadata.distribution(name).locate_file(top)
            if not (packages / top).exists():
                (packages / top).symlink_to(str(source))
    (packages / "clnn").symlink_to(ROOT / "clnn")
    python = tmp_path / "venv" / "bin" / "python"
    gone = "[m for m in ('onnx', 'mako') if importlib.util.find_spec(m)]"
    assert run_child(python, f"import importlib.util; print({gone})") == "[]"
    arguments = saved, any_device, saved.with_suffix(".npy"), tmp_path / "out.npz"
    run_child(python, USE.format(before=""), *arguments)
    check_outputs(saved, tmp_path / "out.npz")


def refused(path: Path) -> str:
    """Return why a file is refused, which nothing else may come of."""
    with pytest.raises(ModelFileError) as told:
        saved_networks.read_network(path)
    assert "Copy it again" in str(told.value)
    return str(told.value)


def test_files_that_were_cut_off_are_refused(saved, tmp_path):
    blob, path = saved.read_bytes(), tmp_path / "net.clnn"
    for length in [*range(0, len(blob), PAGE), 1, 31, len(blob) - 1]:
        path.write_bytes(blob[:length])
        refused(path)
    path.write_bytes(blob + b"\0")
    assert "its header says" in refused(path)


def test_a_flipped_bit_is_told_wherever_it_is(saved, tmp_path):
    blob, path = saved.read_bytes(), tmp_path / "net.clnn"
    places = [*range(64), *np.random.default_rng(0).integers(64, len(blob), 300).tolist()]
    for at in [*places, len(blob) - 1]:
        changed = bytearray(blob)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        refused(path)


def test_other_files_and_versions_are_refused(saved, tmp_path):
    path = tmp_path / "net.clnn"
    blob = bytearray(saved.read_bytes())
    blob[8] += 1
    path.write_bytes(blob)
    assert f"format version {VERSION + 1}" in refused(path)
    path.write_bytes(b"something else")
    refused(path)
    with pytest.raises(ModelFileError, match="no file"):
        clnn.load(tmp_path / "nothing.clnn")
    refused(tmp_path)


def spoilt(saved: Path, path: Path, change) -> Path:
    """Write a file whose plan was changed, with checksums that are right."""
    sections = read_sections(saved)
    plan = json.loads(sections["plan"].tobytes())
    change(plan)
    sections["plan"] = np.frombuffer(json.dumps(plan).encode(), np.uint8)
    write_sections(path, sections)
    return path


def _set(*keys, to):
    def change(plan):
        for key in keys[:-1]:
            plan = plan[key]
        plan[keys[-1]] = to

    return change


SPOILT = {
    "an arena that is too small": _set("plan", "bytes", 0, to=64),
    "negative memory": _set("plan", "bytes", 0, to=-1),
    "no steps": _set("plan", "steps", to=None),
    "text for a number": _set("plan", "bytes", 0, to="many"),
    "an input beyond its memory": _set("plan", "inputs", 0, 3, to=[1, 3, 7, 1 << 30]),
    "an element type that is none": _set("plan", "inputs", 0, 4, to="float33"),
    "constants that are not there": _set("constants", 0, to=[1 << 40, 4096]),
    "constants of which one is missing": lambda plan: plan["constants"].pop(),
    "other binaries": lambda plan: plan["programs"].pop(),
    "no target": _set("plan", "target", to=[]),
    "a deep list": _set("plan", "steps", to=[[[[[]]]]]),
    "an infinite number": _set("plan", "bytes", 0, to=float("inf")),
    "launches without kernels": _set("fused", to=[[], []]),
}


@pytest.mark.parametrize("what", SPOILT)
def test_numbers_that_cannot_be_are_refused(saved, tmp_path, what):
    refused(spoilt(saved, tmp_path / "net.clnn", SPOILT[what]))


def test_every_number_of_a_layout_is_compared_with_its_memory(saved, tmp_path):
    """Whatever is changed in where values lie: it is refused, or the session reads what is its own."""
    plan = json.loads(read_sections(saved)["plan"].tobytes())["plan"]
    name = plan["inputs"][0][1]
    for axis in range(1, 4):  # whatever the pitch of the one image is
        for field, to in ((0, 1 << 20), (1, 1 << 20), (1, -1000), (4, 1 << 24), (5, 1)):
            keys = ["plan", "placed", name, 1, field] + ([axis] if field < 2 else [])
            refused(spoilt(saved, tmp_path / "net.clnn", _set(*keys, to=to)))


def test_sources_that_grow_without_end_are_refused(saved, tmp_path):
    sections = read_sections(saved)
    bomb = zlib.compress(b'["' + b" " * (1 << 20) + b'"]')
    limits = pytest.MonkeyPatch()
    limits.setattr("clnn.runtime.run.saved.MOST_TEXT", 1 << 16)
    sections["programs"] = np.frombuffer(bomb, np.uint8)
    write_sections(tmp_path / "net.clnn", sections)
    try:
        assert "sources" in refused(tmp_path / "net.clnn")
    finally:
        limits.undo()


@pytest.mark.skipif(len(usable_devices()) < 2, reason="one device only")
def test_another_device_builds_from_the_sources(saved, any_device, tmp_path):
    other = next(name for name in usable_devices() if name != any_device)
    with clnn.load(saved, other) as session:
        outputs = session({"x": np.load(saved.with_suffix(".npy"))})
        for name, want in np.load(saved.with_suffix(".npz")).items():
            np.testing.assert_allclose(outputs[name], want, rtol=1e-5, atol=1e-6)


def test_another_number_of_cores_gets_kernels_for_it(saved, any_device, monkeypatch):
    info = replace(selection.select_device(any_device), compute_units=3)
    monkeypatch.setattr(selection, "select_device", lambda device: info)
    with clnn.load(saved) as session:
        outputs = session({"x": np.load(saved.with_suffix(".npy"))})
        for name, want in np.load(saved.with_suffix(".npz")).items():
            assert (outputs[name] == want).all()


def test_a_device_that_lacks_something_is_told_what(saved, any_device, monkeypatch):
    network = saved_networks.read_network(saved)
    monkeypatch.setattr(saved_networks, "read_network", lambda path: network)
    network = replace(network, needs=frozenset({"holograms"}), local_bytes=1 << 40)
    with pytest.raises(DeviceError, match=r"no holograms; .*bytes of local memory.*clnn compile"):
        clnn.load(saved, any_device)
    target = replace(network.plan.target, kind="gpu")
    network = replace(network, plan=replace(network.plan, target=target))
    with pytest.raises(DeviceError, match="compiled for a gpu"):
        clnn.load(saved, any_device)


@pytest.mark.parametrize("made_for, fits", [(0, False), (70000, False), (65535, True), (900, True)])
def test_a_device_that_ends_loops_runs_networks_made_for_that(
    saved, any_device, made_for, fits
) -> None:
    network = saved_networks.read_network(saved)
    info = replace(selection.select_device(any_device), max_rounds=65535)
    plan, kind = network.plan, target_of(info).kind
    network = replace(
        network, plan=replace(plan, target=replace(plan.target, max_rounds=made_for, kind=kind))
    )
    told = (
        contextlib.nullcontext()
        if fits
        else pytest.raises(DeviceError, match="ends the loops of a work-item after 65535")
    )
    with told:
        require_fit(str(saved), network, info)
