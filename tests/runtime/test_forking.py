"""Children that are forked from a process with imports done: how they end, and that nothing stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from clnn.runtime.drivers.loader import mapped_files
from clnn.runtime.process import child, forking

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere none is forked")
BOOT = "import sys, json, os, signal, time; {}"


@pytest.fixture(autouse=True)
def own_origin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give a test a process of its own to fork from, which imports little."""
    monkeypatch.setattr(forking, "_origins", [])
    monkeypatch.setattr(forking, "MODULES", ("clnn.runtime.process.child",))
    yield
    forking.close()


def run(
    monkeypatch: pytest.MonkeyPatch, code: str, timeout_s: float = 60.0, **more: str
) -> tuple[str, str]:
    """Run code in a child; the process that it is forked from begins as it is."""
    forking._origin(os.environ)
    monkeypatch.setattr(child, "BOOT", BOOT.replace("{}", code) + "  # {}")
    return forking.run_python("none", {"a": 1}, timeout_s, {**os.environ, **more})


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("os.abort()", "the driver crashed (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the driver crashed (SIGSEGV)"),
        ("os.killpg(0, signal.SIGKILL)", "the driver crashed (SIGKILL)"),
        ("print('why', file=sys.stderr); sys.exit(7)", "ended with status 7 (why)"),
        ("raise ValueError('no')", "ended with status 1 (ValueError: no)"),
        ("pass", ""),
    ],
)
def test_how_a_child_ends(monkeypatch: pytest.MonkeyPatch, code: str, end: str) -> None:
    assert run(monkeypatch, code) == ("", end)


def test_a_child_has_its_argument_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print(json.dumps([os.environ['ASKED'], json.loads(sys.argv[2]), os.getppid()]))"
    out, end = run(monkeypatch, code, ASKED="now")
    asked, argument, parent = json.loads(out)
    assert (end, asked, argument) == ("", "now", {"a": 1})
    assert parent != os.getpid()


def test_a_hang_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '3600']); print(p.pid, flush=True); time.sleep(3600)"
    out, end = run(monkeypatch, code, 2.0)
    assert end == "did not answer within 2 s"
    assert ended(int(out))


def test_variables_of_a_process_s_start_need_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print(os.environ['LD_LIBRARY_PATH'], os.getppid())"
    out, _ = run(monkeypatch, code, LD_LIBRARY_PATH="/nowhere")
    assert out.split() == ["/nowhere", str(os.getpid())]


def test_a_process_that_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = forking._origin(os.environ)
    first.process.kill()
    assert run(monkeypatch, "print(1)") == ("1\n", "")  # in a child of either kind
    first.process.wait()
    assert run(monkeypatch, "print(2)") == ("2\n", "")


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal; from clnn.runtime.process import forking;"
        "forking.MODULES = ('json',); print(forking._origin(os.environ).process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended(int(done.stdout))


def ended(pid: int) -> bool:
    """Whether a process ends soon."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_what_a_child_runs_first_is_not_what_the_others_are_forked_from(monkeypatch):
    """A child that changes a module changes it for itself, also where it is the first."""
    with monkeypatch.context() as patched:
        patched.setattr(child, "BOOT", f"import json; json.changed = True; {child.BOOT}")
        forking.run_python("x", None, 20.0, dict(os.environ))
    code = "print(hasattr(json, 'changed'))"
    monkeypatch.setattr(child, "BOOT", BOOT.replace("{}", code) + "  # {}")
    out, end = forking.run_python("x", None, 20.0, dict(os.environ))
    assert (out.strip(), end) == ("False", "")


def test_libraries_are_open_in_children_and_broken_ones_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_text("no library")
    library = next(path for path in mapped_files() if "/libc." in path or "/libc-" in path)
    copy = tmp_path / "libcopy.so"
    copy.write_bytes(Path(library).read_bytes())
    monkeypatch.setattr(forking, "_libraries", [])
    forking.open_first([str(broken), str(copy)])
    out, end = run(monkeypatch, "print(open('/proc/self/maps').read(), os.getppid())")
    assert not end and str(copy) in out and str(broken) not in out
    assert int(out.split()[-1]) != os.getpid()


def test_a_library_that_ends_the_process_costs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "ORIGIN", "import os; os.abort()")
    assert run(monkeypatch, "print(os.getppid())") == (f"{os.getpid()}\n", "")


def test_packages_have_their_versions_behind_the_imports() -> None:
    code = (
        "from clnn.runtime.process import forking_child as f; import sys\n"
        "with f._no_versions(): import pyopencl\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "import importlib.metadata as m; print(m.version('pyopencl'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == version("pyopencl")
