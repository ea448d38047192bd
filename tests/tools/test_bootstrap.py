"""The set-up behind tools/demo and tools/test: what it does, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_bootstrap", TOOLS / "_bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("CLNN_VENV", raising=False)
    return module


@pytest.fixture
def checkout(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a stand-in for a virtual environment."""
    (tmp_path / "pyproject.toml").write_text("[project]\n", "utf-8")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.11.2\n", "utf-8")
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return path


def progress(bootstrap: ModuleType, folder: Path) -> object:
    return bootstrap.Progress(4, folder / "setup.log")


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        ([], True),
        (["-q", "tests/x.py"], True),
        (["--quick"], True),
        (["--no-header"], True),
        (["-k", "n"], True),
        (["-n", "4"], False),
        (["-n4"], False),
        (["--numprocesses=3"], False),
        (["--pdb"], False),
        (["-p", "no:xdist"], False),
    ],
)
def test_pytest_gets_two_workers_unless_told(
    bootstrap: ModuleType, arguments: list[str], workers: bool
) -> None:
    command = bootstrap.command_of("test", Path("/v/bin/python"), arguments)
    want = ["-n", "2"] if workers else []
    assert command == ["/v/bin/python", "-m", "pytest", *want, *arguments]


def test_the_demonstration_gets_its_arguments(bootstrap: ModuleType) -> None:
    command = bootstrap.command_of("demo", Path("/v/bin/python"), ["--quick"])
    assert command == ["/v/bin/python", str(TOOLS / "examples" / "demo.py"), "--quick"]


def test_a_stamp_holds_until_something_changes(bootstrap: ModuleType, checkout: Path) -> None:
    venv = checkout / ".venv"
    assert not bootstrap.is_set_up(venv, "demo")
    bootstrap.write_stamp(venv, "demo")
    assert bootstrap.is_set_up(venv, "demo")
    assert not bootstrap.is_set_up(venv, "test")
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n", "utf-8")
    assert not bootstrap.is_set_up(venv, "demo")
    bootstrap.write_stamp(venv, "test")
    assert bootstrap.is_set_up(venv, "demo")
    (venv / "pyvenv.cfg").write_text("version = 3.12.0\n", "utf-8")
    assert not bootstrap.is_set_up(venv, "test")


@pytest.mark.parametrize("loss", ["python", "pyvenv.cfg", "VERSION"])
def test_a_stamp_without_its_environment(
    bootstrap: ModuleType, checkout: Path, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = checkout / ".venv"
    bootstrap.write_stamp(venv, "demo")
    if loss == "VERSION":
        monkeypatch.setattr(bootstrap, "VERSION", "next")
    else:
        next(venv.rglob(loss)).unlink()
    assert not bootstrap.is_set_up(venv, "demo")


def test_a_set_up_that_is_done_starts_at_once(
    bootstrap: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    bootstrap.write_stamp(checkout / ".venv", "test")
    monkeypatch.setattr(bootstrap, "set_up", lambda *_: pytest.fail("set up again"))
    monkeypatch.setattr(bootstrap, "start", lambda *arguments: started.append(arguments))
    bootstrap.main(["test", "-q"])
    assert started == [(checkout / ".venv", "test", ["-q"])]


def test_quick_tests_need_no_driver(
    bootstrap: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    for step in ("make_venv", "install_packages"):
        monkeypatch.setattr(bootstrap, step, lambda *_: None)
    monkeypatch.setattr(bootstrap, "set_up_devices", lambda *_: pytest.fail("looked for drivers"))
    monkeypatch.setattr(bootstrap, "start", lambda *arguments: started.append(arguments))
    bootstrap.main(["test", "--quick", "-x"])
    assert started == [(checkout / ".venv", "test", ["--quick", "-x"])]
    assert bootstrap.is_set_up(checkout / ".venv", "quick")
    assert not bootstrap.is_set_up(checkout / ".venv", "test")


def test_quick_tests_are_those_without_a_device() -> None:
    files = ["tests/plan/test_batch_split.py", "tests/test_messages.py"]
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--collect-only", "-q", *files]
    names = {}
    for option in ("--quick", "--long"):
        done = subprocess.run(
            [*command, option], cwd=TOOLS.parent, capture_output=True, text=True, timeout=300
        )
        names[option] = {line for line in done.stdout.splitlines() if "::" in line}
    quick, every = names["--quick"], names["--long"]
    assert quick and quick < every
    assert any("test_garbage_file" in name for name in quick)
    assert not any("[" in name and "none" in name for name in quick)
    for needing_a_device in ("test_equal_to_the_bit", "test_wrong_extent"):
        assert not any(needing_a_device in name for name in quick)
        assert any(needing_a_device in name for name in every)


def test_a_folder_in_the_way_is_not_touched(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("precious", "utf-8")
    with pytest.raises(bootstrap.Trouble, match="is in the way"):
        bootstrap.make_venv(tmp_path)
    (tmp_path / "pyvenv.cfg").write_text("", "utf-8")
    monkeypatch.setenv("CLNN_VENV", str(tmp_path))
    with pytest.raises(bootstrap.Trouble, match="set CLNN_VENV to another folder"):
        bootstrap.make_venv(tmp_path)
    assert (tmp_path / "data").read_text("utf-8") == "precious"


def test_a_checkout_that_cannot_be_written(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap.os, "access", lambda *_: False)
    with pytest.raises(bootstrap.Trouble, match="Set CLNN_VENV to a folder that you may write"):
        bootstrap.make_venv(tmp_path / "deep" / ".venv")


def test_debian_without_venv(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bootstrap, "apt_install", lambda _, names: asked.extend(names) or "no root")
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    with pytest.raises(bootstrap.Trouble, match=f"Run: sudo apt-get install {package}"):
        bootstrap.make_venv(tmp_path / ".venv")
    assert asked == [package]


def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    log = tmp_path / "apt.log"
    script(tmp_path / "bin" / "apt-get", f'echo "$*" >> {log}\n{text}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return log


def test_apt_updates_its_lists_when_it_must(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "root_prefix", list)
    mark = tmp_path / "updated"
    text = f'case "$*" in *update*) touch {mark};; *) [ -e {mark} ];; esac'
    log = fake_apt(tmp_path, monkeypatch, text)
    assert bootstrap.apt_install(progress(bootstrap, tmp_path), ["pocl-opencl-icd"]) == ""
    verbs = [line.split()[2] for line in log.read_text("utf-8").splitlines()]
    assert verbs == ["install", "update", "install"]
    assert bootstrap.apt_install(None, ["oclgrind"]) == ""
    assert len(log.read_text("utf-8").splitlines()) == 4


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("E: Temporary failure resolving 'mirror'", "no network"),
        ("E: Unable to locate package oclgrind", "E: Unable to locate package oclgrind"),
    ],
)
def test_apt_that_fails(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    monkeypatch.setattr(bootstrap, "root_prefix", list)
    fake_apt(tmp_path, monkeypatch, f'echo "{output}"; exit 100')
    told = bootstrap.apt_install(progress(bootstrap, tmp_path), ["oclgrind"])
    assert told == f"oclgrind not installed: apt-get failed ({reason})"


def test_apt_without_root(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake_apt(tmp_path, monkeypatch, "exit 0")
    script(tmp_path / "bin" / "sudo", "exit 1")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    told = bootstrap.apt_install(None, ["oclgrind"])
    assert told.endswith("no root. Run: sudo apt-get install oclgrind")
    assert not log.exists()
    script(tmp_path / "bin" / "sudo", '[ "$2" = true ] && exit 0; shift; exec "$@"')
    assert bootstrap.apt_install(None, ["oclgrind"]) == ""
    assert log.exists()


def test_a_system_without_apt(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.apt_install(None, ["oclgrind"]).endswith("this system has no apt-get")


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("... NewConnectionError(...): Failed", "pip could not reach its package index"),
        ("ERROR: No space left on device", "No space left on device"),
    ],
)
def test_pip_that_fails(
    bootstrap: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch, output: str, told: str
) -> None:
    script(checkout / ".venv" / "bin" / "python", f'echo "{output}"; exit 1')
    with pytest.raises(bootstrap.Trouble, match=told) as caught:
        bootstrap.pip_install(checkout / ".venv", ["x"], progress(bootstrap, checkout))
    assert "setup.log" in str(caught.value)


@pytest.fixture
def installs(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record what would be installed; each driver then works."""
    done: list[str] = []

    def apt(_: object, names: list[str]) -> str:
        done.extend(names)
        return ""

    def platforms(_: Path) -> list[str]:
        return [name for package, name in drivers.items() if package in done]

    drivers = {"pocl-opencl-icd": bootstrap.POCL, "intel": bootstrap.INTEL}
    monkeypatch.setattr(bootstrap, "apt_install", apt)
    monkeypatch.setattr(bootstrap, "usable_platforms", platforms)
    monkeypatch.setattr(bootstrap, "intel_runtime", lambda *_: done.append("intel") or "")
    monkeypatch.setattr(bootstrap, "rusticl", lambda *_: done.append("rusticl") or "")
    monkeypatch.setattr(bootstrap, "offline_compilers", lambda *_: done.append("compilers") or "")
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    return done


def test_a_demonstration_takes_the_first_driver_that_works(
    bootstrap: ModuleType, installs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bootstrap.driver_for_demo(Path("v"), None) == [""]
    assert installs == ["pocl-opencl-icd"]
    assert bootstrap.driver_for_demo(Path("v"), None) == []
    installs.clear()
    monkeypatch.setattr(bootstrap, "apt_install", lambda *_: "no root")
    assert bootstrap.driver_for_demo(Path("v"), None) == ["no root", ""]
    assert installs == ["intel"]


def test_tests_take_every_driver(
    bootstrap: ModuleType, installs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.drivers_for_test(Path("v"), None)
    assert installs == ["pocl-opencl-icd", "oclgrind", "intel", "rusticl", "compilers"]
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    bootstrap.drivers_for_test(Path("v"), None)
    assert installs[5:] == ["rusticl", "compilers"]


def test_mesa_is_unpacked_where_no_loader_looks(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = tmp_path / "cache" / "rusticl", []
    monkeypatch.setattr(bootstrap, "RUSTICL", folder)
    monkeypatch.setattr(bootstrap, "apt_install", lambda _, names: asked.extend(names) or "")
    fake_apt(tmp_path, monkeypatch, '[ "$1" = download ] && : > "$2_1_amd64.deb"')
    script(tmp_path / "bin" / "apt-cache", 'echo "  Depends: libclc-15"')
    assert "apt knows no mesa-opencl-icd that has it" in bootstrap.rusticl(None)
    both = 'echo "  Depends: libclc-15"; echo "  Depends: libllvmspirvlib15"'
    script(tmp_path / "bin" / "apt-cache", both)
    script(tmp_path / "bin" / "dpkg", 'mkdir -p "$3" && echo "$2" >> "$3/from"')
    assert bootstrap.rusticl(None) == "" and asked == ["libclc-15"]
    unpacked = (folder / "from").read_text("utf-8").split()
    assert unpacked == ["mesa-opencl-icd_1_amd64.deb", "libllvmspirvlib15_1_amd64.deb"]
    assert bootstrap.rusticl(None) == "" and len(asked) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["rusticl"]


def test_compilers_for_other_gpus_are_unpacked_with_what_they_need(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "offline"
    monkeypatch.setattr(bootstrap, "OFFLINE", folder)
    fake_apt(tmp_path, monkeypatch, '[ "$1" = download ] && : > "$2_1_amd64.deb"')
    script(tmp_path / "bin" / "apt-cache", "exit 100")
    assert "apt does not know intel-opencl-icd" in bootstrap.offline_compilers(None)
    needs = (
        "printf '%s\\n' intel-opencl-icd '  Depends: libc6' libc6 libigc1 libllvm19 libclang-cpp19"
    )
    script(tmp_path / "bin" / "apt-cache", needs)
    script(tmp_path / "bin" / "dpkg", "echo broken; exit 1")
    assert bootstrap.offline_compilers(None).endswith("not unpacked: broken")
    script(tmp_path / "bin" / "dpkg", 'mkdir -p "$3" && echo "$2" >> "$3/from"')
    assert bootstrap.offline_compilers(None) == "" and bootstrap.offline_compilers(None) == ""
    names = [line.split("_")[0] for line in (folder / "from").read_text("utf-8").split()]
    assert names == [*bootstrap.COMPILERS, "libigc1", "libllvm19", "libclang-cpp19"]
    assert [path.name for path in folder.parent.iterdir()] == ["offline"]


def test_without_any_device_the_set_up_fails_with_the_diagnosis(
    bootstrap: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: object
) -> None:
    for step in ("make_venv", "install_packages"):
        monkeypatch.setattr(bootstrap, step, lambda *_: None)
    monkeypatch.setattr(bootstrap, "driver_for_demo", lambda *_: ["PoCL not installed: no root"])
    monkeypatch.setattr(bootstrap, "usable_platforms", lambda _: [])
    monkeypatch.setattr(bootstrap, "plain_run", lambda _: (3, "FAIL  drivers  none"))
    assert bootstrap.main(["demo"]) == bootstrap.EXIT_NO_DEVICE
    printed = capsys.readouterr()
    assert "note: PoCL not installed: no root" in printed.out
    assert "[4/4] checking devices ... 0 s" in printed.out
    assert "FAIL  drivers  none" in printed.err
    assert not list((checkout / ".venv").glob("*.stamp"))


@pytest.mark.parametrize("arguments", [[], ["deploy"]])
def test_wrong_use(bootstrap: ModuleType, arguments: list[str]) -> None:
    assert bootstrap.main(arguments) == bootstrap.EXIT_SETUP


@pytest.mark.parametrize("name", ["demo", "test"])
def test_entry_points_look_for_a_python(name: str, tmp_path: Path) -> None:
    for tool in ("sh", "dirname"):
        real = subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True, text=True)
        (tmp_path / tool).symlink_to(real.stdout.strip())
    script(tmp_path / "python3", "exit 1")
    command = [str(TOOLS / name), "--flag"]

    def run() -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(tmp_path)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    assert run().returncode == 2
    assert "Python 3.10 or newer is needed" in run().stderr
    script(tmp_path / "python3.11", 'case "$1" in -c) exit 0;; esac; echo "$@"')
    assert run().stdout.split() == [str(TOOLS / "_bootstrap.py"), name, "--flag"]
