"""Sets up what tools/demo and tools/test need, then becomes the program that they start.

    tools/demo [arguments for the demonstration]
    tools/test [arguments for pytest]
    tools/test --quick   tests that need no OpenCL device, in under a minute; sets up no driver

Standard library only. Makes a virtual environment (.venv in the checkout, or $CLNN_VENV),
installs the package there, and sees to an OpenCL driver that passes clnn's own probe. A stamp in
the environment makes later runs start at once; remove the environment to begin anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

VERSION = "1"
ROOT = Path(__file__).resolve().parent.parent
RUSTICL, OFFLINE, MESA = ROOT / ".cache/rusticl", ROOT / ".cache/offline", "mesa-opencl-icd"
COMPILERS = ("intel-opencl-icd", "clang-19", "libclc-19")  # for Intel's and AMD's GPUs, without one
COMPILERS_NEED = r"^(lib(?:igc|igdfcl|igdgmm|opencl-clang|llvmspirvlib|llvm|clang-c)[\w.+-]*)$"
MIN_PYTHON = (3, 10)
EXTRAS = {"demo": "demo", "test": "dev", "quick": "dev"}
# A set-up whose stamp serves as well.
ALSO_SERVES = {"demo": ("demo", "test"), "test": ("test",), "quick": ("quick", "test")}
POCL, INTEL = "Portable Computing Language", "Intel(R) OpenCL"
INTEL_PACKAGES = ("intel-opencl-rt", "intel-cmplr-lib-rt")
LOG_TAIL_LINES = 15
QUIET_SECONDS = 30
EXIT_SETUP, EXIT_NO_DEVICE = 2, 3
NO_NETWORK = re.compile(
    "NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError"
    "|Network is unreachable|ConnectTimeout|Max retries exceeded|Failed to establish"
    "|Temporary failure resolving|Could not resolve"
)
LIST_DEVICES = (
    "import json, pathlib, sys; from clnn.runtime.device.device import discover;"
    " listed = [[d.platform, d.why_not] for d in discover()];"
    " pathlib.Path(sys.argv[1]).write_text(json.dumps(listed), 'utf-8')"
)


class Trouble(Exception):
    """The set-up cannot go on; the message says why and what to do."""

    def __init__(self, message: str, status: int = EXIT_SETUP) -> None:
        super().__init__(message)
        self.status = status


class Progress:
    """Prints `[2/4] installing packages ... 34 s`, counting up in place on a terminal."""

    def __init__(self, total: int, log: Path) -> None:
        self.total, self.log = total, log
        self.step = 0
        self.label = ""
        self.start = self.told = 0.0

    @contextlib.contextmanager
    def __call__(self, label: str) -> Iterator[None]:
        self.step += 1
        self.label = f"[{self.step}/{self.total}] {label} ..."
        self.start = self.told = time.monotonic()
        print(self.label, end="" if sys.stdout.isatty() else "\n", flush=True)
        try:
            yield
        except BaseException:
            if sys.stdout.isatty():
                print()
            raise
        self._line("\n")

    def tick(self) -> None:
        """Show the time gone by: at once on a terminal, else now and then."""
        if sys.stdout.isatty():
            self._line("")
        elif time.monotonic() - self.told >= QUIET_SECONDS:
            self.told = time.monotonic()
            self._line("\n")

    def _line(self, end: str) -> None:
        lead = "\r" if sys.stdout.isatty() else ""
        print(f"{lead}{self.label} {time.monotonic() - self.start:.0f} s", end=end, flush=True)

    def run(self, command: Sequence[str], env: dict[str, str] | None = None) -> tuple[int, str]:
        """Run a command, its output to the log; return its exit status and output."""
        with self.log.open("a+", encoding="utf-8", errors="replace") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
            )
            try:
                while child.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(0.5)
                    self.tick()
            except BaseException:
                child.kill()
                child.wait()
                raise
            log.seek(begin)
            return child.returncode, log.read()


def venv_folder() -> Path:
    """Return where the virtual environment is, or shall be."""
    named = os.environ.get("CLNN_VENV")
    return Path(named).expanduser().absolute() if named else ROOT / ".venv"


def venv_python(venv: Path) -> Path:
    return venv / "bin" / "python"


def stamp_key(venv: Path) -> str:
    """Return what a stamp must hold: a digest of all that decides what is installed."""
    parts = [VERSION, os.path.realpath(venv_python(venv)), str(ROOT), str(venv)]
    parts += [path.read_text("utf-8") for path in (venv / "pyvenv.cfg", ROOT / "pyproject.toml")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_set_up(venv: Path, kind: str) -> bool:
    """Tell whether an earlier run has set up `kind`, and nothing it depends on has changed."""
    if not os.access(venv_python(venv), os.X_OK) or not (venv / "pyvenv.cfg").exists():
        return False
    key = stamp_key(venv)
    for name in ALSO_SERVES[kind]:
        with contextlib.suppress(OSError):
            if (venv / f"clnn-{name}.stamp").read_text(encoding="utf-8") == key:
                return True
    return False


def write_stamp(venv: Path, kind: str) -> None:
    temp = venv / f"clnn-{kind}.stamp.{os.getpid()}"
    temp.write_text(stamp_key(venv), encoding="utf-8")
    temp.replace(venv / f"clnn-{kind}.stamp")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold the checkout's set-up lock: two runs must not install into one environment."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # a file system without locks
            pass
        yield


def root_prefix() -> list[str] | None:
    """Return what to put before a command that needs root; None when root is out of reach."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
        if asked.returncode == 0:
            return ["sudo", "-n"]
    return None


def apt_install(progress: Progress | None, packages: Sequence[str]) -> str:
    """Install Debian packages; return '' or why that could not be done."""
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None:
        return f"{wanted} not installed: this system has no apt-get"
    prefix = root_prefix()
    if prefix is None:
        return f"{wanted} not installed: no root. Run: sudo apt-get install {wanted}"
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    apt += ["-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    run = progress.run if progress else plain_run
    for command in (install, [*apt, "update"], install):
        status, output = run(command)
        if status == 0 and command is install:
            return ""
    reason = (
        "no network" if NO_NETWORK.search(output) else (output.strip().splitlines() or [""])[-1]
    )
    return f"{wanted} not installed: apt-get failed ({reason})"


def plain_run(command: Sequence[str]) -> tuple[int, str]:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def make_venv(venv: Path) -> None:
    """Make the virtual environment unless a working one is there. Raises Trouble."""
    if works(venv, "import sys; sys.exit(sys.version_info < (3, 10))"):
        return
    in_the_way = venv.exists() and any(venv.iterdir())
    if in_the_way and ("CLNN_VENV" in os.environ or not (venv / "pyvenv.cfg").exists()):
        raise Trouble(
            f"{venv} is in the way: it is no working environment of Python 3.10 or newer."
            " Remove it, or set CLNN_VENV to another folder."
        )
    require_writable(venv)
    require_venv_module()
    command = [sys.executable, "-m", "venv", *(["--clear"] if in_the_way else []), str(venv)]
    status, output = plain_run(command)
    if status:
        raise Trouble(f"{' '.join(command)} failed:\n{output.strip()}")


def works(venv: Path, code: str) -> bool:
    """Tell whether the environment's Python runs `code` without an error."""
    try:
        command = [str(venv_python(venv)), "-c", code]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def require_writable(venv: Path) -> None:
    parent = venv
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        raise Trouble(
            f"{parent} cannot be written, so there is no place for the virtual environment."
            " Set CLNN_VENV to a folder that you may write."
        )


def require_venv_module() -> None:
    """See to Python's venv module with pip in it, which Debian packs separately."""
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    refused = apt_install(None, [package])
    if refused:
        raise Trouble(
            f"{sys.executable} cannot make virtual environments: its venv or ensurepip module is"
            f" missing. Run: sudo apt-get install {package} (elsewhere: install Python with venv)"
        )


def install_packages(venv: Path, kind: str, progress: Progress) -> None:
    """Install the checkout, editable, with what `kind` needs. Raises Trouble."""
    if not works(venv, "import pip"):
        progress.run([str(venv_python(venv)), "-m", "ensurepip", "--upgrade"])
    pip_install(venv, ["--editable", f"{ROOT}[{EXTRAS[kind]}]"], progress)


def pip_install(venv: Path, what: Sequence[str], progress: Progress) -> None:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
    command = [str(venv_python(venv)), "-m", "pip", "install", "--no-input", *what]
    status, output = progress.run(command, env)
    if status == 0:
        return
    if NO_NETWORK.search(output):
        raise Trouble(
            f"pip could not reach its package index (log: {progress.log}). Check the network or the"
            " proxy, or set PIP_INDEX_URL to an index within reach, and run this again."
        )
    tail = "\n".join(output.strip().splitlines()[-LOG_TAIL_LINES:])
    raise Trouble(f"{' '.join(command)} failed (log: {progress.log}):\n{tail}")


def usable_platforms(venv: Path) -> list[str]:
    """Return the platforms that have a device which passes clnn's probe."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "devices.json"
        plain_run([str(venv_python(venv)), "-c", LIST_DEVICES, str(answer)])
        listed = json.loads(answer.read_text("utf-8")) if answer.exists() else []
    return [name for name, why_not in listed if not why_not]


def driver_for_demo(venv: Path, progress: Progress) -> list[str]:
    """See to one usable device; return notes."""
    if usable_platforms(venv):
        return []
    notes = [apt_install(progress, ["pocl-opencl-icd"])]
    if not usable_platforms(venv):
        notes.append(intel_runtime(venv, progress))
    return notes


def drivers_for_test(venv: Path, progress: Progress) -> list[str]:
    """See to all drivers and compilers that tests use, as far as they can be had; return notes."""
    there = usable_platforms(venv)
    notes = []
    missing = [] if POCL in there else ["pocl-opencl-icd"]
    missing += [] if shutil.which("oclgrind") else ["oclgrind"]
    for package in missing:
        notes.append(apt_install(progress, [package]))
    if INTEL not in there:
        notes.append(intel_runtime(venv, progress))
    return [*notes, rusticl(progress), offline_compilers(progress)]


def rusticl(progress: Progress | None) -> str:
    """Unpack Mesa's OpenCL into a folder that no loader looks in; return '' or why that failed.

    Installed, it would be one more driver for every program of the machine.
    """
    if RUSTICL.exists():
        return ""
    if shutil.which("apt-get") is None:
        return "Rusticl not unpacked: this system has no apt-get"
    run = progress.run if progress else plain_run
    needed = re.findall(r"^  Depends: (lib[\w.+-]+)", run(["apt-cache", "depends", MESA])[1], re.M)
    apart = [MESA, *(name for name in needed if name.startswith("libllvmspirvlib"))]
    if len(apart) < 2:
        return f"Rusticl not unpacked: apt knows no {MESA} that has it"
    if refused := apt_install(progress, [name for name in needed if name not in apart]):
        return f"Rusticl not unpacked: {refused}"
    refused = unpack(RUSTICL, apart, run)
    return f"Rusticl not unpacked: {refused}" if refused else ""


def offline_compilers(progress: Progress | None) -> str:
    """Unpack compilers for Intel's and AMD's GPUs; return '' or why that failed."""
    if OFFLINE.exists():
        return ""
    said = "compilers for Intel's and AMD's GPUs not unpacked"
    if shutil.which("apt-get") is None:
        return f"{said}: this system has no apt-get"
    run = progress.run if progress else plain_run
    status, listed = run(["apt-cache", "depends", "--recurse", "-i", *COMPILERS])
    if status:
        return f"{said}: apt does not know {', '.join(COMPILERS)}"
    refused = unpack(OFFLINE, [*COMPILERS, *re.findall(COMPILERS_NEED, listed, re.M)], run)
    return f"{said}: {refused}" if refused else ""


def unpack(
    place: Path, packages: Sequence[str], run: Callable[[Sequence[str]], tuple[int, str]]
) -> str:
    """Unpack Debian packages into a folder of their own; return '' or why that failed."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        for package in packages:
            fetch = f'cd "$1" && apt-get download {package} && dpkg -x {package}_*.deb unpacked'
            status, output = run(["sh", "-c", f"{fetch} && rm {package}_*.deb", "sh", name])
            if status:
                return (output.strip().splitlines() or [""])[-1]
        (Path(name) / "unpacked").rename(place)
    return ""


def intel_runtime(venv: Path, progress: Progress) -> str:
    """Install Intel's CPU runtime into the environment; return '' or why that failed."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"{INTEL}'s CPU runtime not installed: it is for x86-64 only"
    try:
        pip_install(venv, INTEL_PACKAGES, progress)
    except Trouble as trouble:
        return f"{INTEL}'s CPU runtime not installed: {str(trouble).splitlines()[0]}"
    return ""


def set_up(venv: Path, kind: str) -> None:
    """Do everything that is missing for `kind`. Raises Trouble."""
    print(f"Setting up {venv} (once; later runs start at once)", flush=True)
    progress = Progress(2 if kind == "quick" else 4, venv / "clnn-setup.log")
    with progress("virtual environment"):
        make_venv(venv)
    with progress("installing packages"):
        install_packages(venv, kind, progress)
    if kind != "quick":
        set_up_devices(venv, kind, progress)
    write_stamp(venv, kind)


def set_up_devices(venv: Path, kind: str, progress: Progress) -> None:
    """See to the drivers that `kind` needs. Raises Trouble where no device is usable."""
    see_to: Callable[[Path, Progress], list[str]] = (
        driver_for_demo if kind == "demo" else drivers_for_test
    )
    with progress("OpenCL drivers"):
        notes = [note for note in see_to(venv, progress) if note]
    with progress("checking devices"):
        there = usable_platforms(venv)
    for note in notes:
        print(f"note: {note}", flush=True)
    if not there:
        doctor = ["env", "-u", "CLNN_VENV", str(venv_python(venv)), "-m", "clnn.cli.main", "doctor"]
        raise Trouble(f"no usable OpenCL device.\n{plain_run(doctor)[1]}", EXIT_NO_DEVICE)
    print(f"usable: {', '.join(there)}", flush=True)


def command_of(kind: str, python: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command line that `kind` ends in."""
    if kind == "demo":
        return [str(python), str(ROOT / "tools" / "examples" / "demo.py"), *arguments]
    alone = re.compile(r"-n.*|--numprocesses.*|--pdb|no:xdist|-pno:xdist|--dist.*")
    workers = [] if any(alone.fullmatch(text) for text in arguments) else ["-n", "2"]
    return [str(python), "-m", "pytest", *workers, *arguments]


def start(venv: Path, kind: str, arguments: Sequence[str]) -> NoReturn:
    """Become the demonstration or pytest."""
    command = command_of(kind, venv_python(venv), arguments)
    env = {name: text for name, text in os.environ.items() if name != "CLNN_VENV"}
    env["PATH"] = os.pathsep.join([str(venv / "bin"), env.get("PATH", os.defpath)])
    env["VIRTUAL_ENV"] = str(venv)
    if kind == "test":
        os.chdir(ROOT)
    sys.stdout.flush()
    os.execve(command[0], command, env)


def main(arguments: Sequence[str]) -> int:
    if sys.version_info < MIN_PYTHON:
        print(f"Python 3.10 or newer is needed; this is {platform.python_version()}.")
        return EXIT_SETUP
    if not arguments or arguments[0] not in ("demo", "test"):
        print(__doc__)
        return EXIT_SETUP
    kind, venv = arguments[0], venv_folder()
    needed = "quick" if kind == "test" and "--quick" in arguments else kind
    try:
        if not is_set_up(venv, needed):
            with one_at_a_time():
                if not is_set_up(venv, needed):
                    set_up(venv, needed)
    except Trouble as trouble:
        print(f"tools/{kind}: {trouble}", file=sys.stderr)
        return trouble.status
    except KeyboardInterrupt:
        print(f"\ntools/{kind}: interrupted; run it again to go on", file=sys.stderr)
        return 130
    start(venv, kind, arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
