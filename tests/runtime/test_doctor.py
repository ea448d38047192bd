"""Doctor: each fault gets its status, its cause and its fix."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.doctor import checks_opencl, checks_system, doctor
from clnn.runtime.doctor.checks import FAIL, OK, WARN, Check
from clnn.runtime.drivers import icd, loader
from clnn.runtime.drivers.loader import Setup

MATHS = ctypes.util.find_library("m") or "libm.so.6"


def clnn(tmp_path: Path, *arguments: str, before: str = "", **env: str) -> tuple[int, str]:
    """Run the command in a process of its own; return its exit status and output."""
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{before}\n"
    code += f"from clnn.cli.main import main; sys.exit(main({list(arguments)!r}))"
    base = {
        n: t
        for n, t in os.environ.items()
        if n not in (*icd.VENDOR_VARIABLES, icd.MORE_DRIVERS, "CLNN_DEVICE")
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=tmp_path,
        env={**base, "CLNN_CACHE_DIR": str(tmp_path / "cache"), **env},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def diagnosis(tmp_path: Path, before: str = "", **env: str) -> tuple[int, dict[str, Any]]:
    """Run `clnn doctor --json`; return its exit status and check name -> check."""
    status, out = clnn(tmp_path, "doctor", "--json", before=before, **env)
    report = json.loads(out)
    assert report["exit"] == status
    return status, {check["name"]: check for check in report["checks"]}


def vendors(tmp_path: Path, **files: str) -> str:
    folder = tmp_path / "vendors"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.icd").write_text(text, "utf-8")
    return str(folder)


def a_working_library() -> str:
    """The library of a driver that works here."""
    listed = [entry.library for entry in checks_opencl.registered() if entry.present]
    return next(name for name in listed if checks_opencl.ask_child("driver", name).get("platforms"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """What doctor says of this machine as it is."""
    return diagnosis(tmp_path_factory.mktemp("healthy"))


def test_a_machine_that_works(device: str, healthy: tuple[int, dict[str, Any]]) -> None:
    status, checks = healthy
    assert status == 0
    assert list(checks) == [name for name, _ in doctor.CHECKS]
    assert checks["smoke test"]["status"] == checks["devices"]["status"] == OK
    assert device in checks["devices"]["detail"]
    assert any(d["usable"] for d in checks["devices"]["data"]["devices"])
    assert "local_memory" in checks["devices"]["detail"]
    assert all(f["works"] for f in checks["drivers"]["data"]["files"] if "clnn-" in f["path"])
    assert Path(checks["loader"]["data"]["path"]).name.startswith("libOpenCL")


def test_no_driver_is_registered(tmp_path: Path) -> None:
    folder = vendors(tmp_path)
    status, checks = diagnosis(tmp_path, OCL_ICD_VENDORS=folder)
    assert status == 3
    assert checks["drivers"]["status"] == checks["devices"]["status"] == FAIL
    assert f"no .icd file in {folder}" in checks["drivers"]["detail"]
    assert "unset OCL_ICD_VENDORS" in checks["drivers"]["fix"]
    assert checks["smoke test"]["status"] == FAIL
    assert f"OCL_ICD_VENDORS={folder}" in checks["variables"]["detail"]


def test_devices_without_a_device_says_why(tmp_path: Path) -> None:
    folder = vendors(tmp_path, lost="/gone/libdriver.so\n")
    status, out = clnn(tmp_path, "devices", OCL_ICD_VENDORS=folder)
    assert status == 3
    assert "No OpenCL device was found" in out
    assert "/gone/libdriver.so: cannot open shared object file" in out
    assert "To get a driver:" in out
    assert clnn(tmp_path, "devices", "--json", OCL_ICD_VENDORS=folder) == (3, "[]\n")


def test_the_error_of_select_says_why(tmp_path: Path) -> None:
    folder = vendors(tmp_path)
    before = (
        "from clnn.runtime.doctor.selection import select_device as select\n"
        "from clnn.errors import NoDeviceError\n"
        "try: select('auto')\nexcept NoDeviceError as err: print(err)"
    )
    _, out = clnn(tmp_path, "devices", before=before, OCL_ICD_VENDORS=folder)
    assert out.startswith("No OpenCL device was found on this machine.\n")
    assert f"FAIL  drivers        no .icd file in {folder}" in out
    assert out.count("Run `clnn doctor` for all checks.") == 2


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("/gone/libdriver.so\n", "/gone/libdriver.so: cannot open shared object file"),
        ("libno-such-driver.so\n", "libno-such-driver.so: cannot open shared object file"),
        ("", "cannot be read: the file is empty"),
        (MATHS, "no OpenCL driver: it lacks clGetExtensionFunctionAddress"),
    ],
)
def test_a_broken_driver_file(text: str, cause: str, tmp_path: Path) -> None:
    status, checks = diagnosis(tmp_path, OCL_ICD_VENDORS=vendors(tmp_path, broken=text))
    assert status == 3
    assert checks["drivers"]["status"] == FAIL
    assert cause in checks["drivers"]["detail"]
    assert "broken.icd" in checks["drivers"]["fix"]


def test_one_broken_driver_among_others(tmp_path: Path) -> None:
    folder = vendors(tmp_path, broken="/gone/libdriver.so", works=a_working_library())
    status, checks = diagnosis(tmp_path, OCL_ICD_VENDORS=folder)
    assert status == 0
    assert checks["drivers"]["status"] == WARN
    assert "works.icd" not in checks["drivers"]["fix"]
    assert checks["smoke test"]["status"] == OK


@pytest.mark.parametrize("override", ["", "OCL_ICD_VENDORS"])
@pytest.mark.parametrize(
    ("content", "ignored"), [(b"OCL_ICD_VENDORS", True), (b"OCL_ICD_FILENAMES", False)]
)
def test_a_variable_that_this_loader_ignores(
    content: bytes, ignored: bool, override: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it names is registered all the same, unless the user chose drivers by another."""
    library = tmp_path / "libOpenCL.so.1"
    library.write_bytes(b"\x7fELF\0" + content + b"\0")
    for variable in (*checks_opencl.LOADER_VARIABLES, *checks_opencl.OTHER_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OCL_ICD_FILENAMES", "/gone/libdriver.so")
    monkeypatch.setattr(checks_opencl, "loader_library", lambda: library)
    monkeypatch.setattr(checks_opencl, "setup", lambda: Setup(override))
    check = checks_opencl.variables()
    assert (check.status == WARN) == (ignored and override != "")
    assert ("ignored by this loader" in check.detail) == ignored


def test_pyopencls_own_loader_is_known_for_what_it_is(device: str) -> None:
    library = loader.loader_library()
    assert library is not None
    assert checks_opencl.honours(library, "OCL_ICD_VENDORS")
    if library.parent.name == ".libs":
        assert not checks_opencl.honours(library, "OCL_ICD_FILENAMES")
        assert checks_opencl.loader().data["kind"] == "ocl-icd"


def test_pyopencl_is_missing(tmp_path: Path) -> None:
    status, checks = diagnosis(tmp_path, before="sys.modules['pyopencl'] = None")
    assert status == 3
    assert checks["pyopencl"]["status"] == FAIL
    assert "pip install --force-reinstall pyopencl" in checks["pyopencl"]["fix"]
    assert checks["loader"]["status"] == FAIL


def test_a_named_device_that_is_not_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLNN_DEVICE", "abacus")
    (check,) = doctor.doctor_report(["smoke test"])
    assert check.status == FAIL
    assert "'abacus' (from CLNN_DEVICE)" in check.detail
    monkeypatch.setenv("CLNN_DEVICE", device)
    (check,) = doctor.doctor_report(["smoke test"])
    assert (check.status, device in check.detail) == (OK, True)


def test_listing_that_crashes_is_not_tried_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = {"error": "the driver crashed (SIGSEGV)"}
    monkeypatch.setattr(checks_opencl, "ask_child", lambda *_: crash)
    monkeypatch.setattr(doctor, "discover", lambda **_: pytest.fail("listed all the same"))
    monkeypatch.setattr(doctor, "select", lambda _: pytest.fail("listed all the same"))
    report = doctor.doctor_report(["devices", "smoke test"])
    assert [check.status for check in report] == [FAIL, FAIL]
    assert all("SIGSEGV" in check.detail for check in report)
    assert doctor.exit_code(report) == 3


def test_a_driver_that_was_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors(tmp_path, bad="/x/libbad.so")
    reason = "the driver crashed (SIGABRT)"
    arranged = Setup(folder=tmp_path, excluded=(("/x/libbad.so", reason),))
    monkeypatch.setattr(checks_opencl, "setup", lambda: arranged)
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", tmp_path / "vendors")
    check = checks_opencl.drivers()
    assert check.status == FAIL
    assert f"left out by clnn, since listing its devices fails: {reason}" in check.detail


def test_a_check_that_fails_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad() -> Check:
        raise OSError("disk on fire\nsecond line")

    monkeypatch.setattr(doctor, "CHECKS", (("bad", bad), ("good", lambda: Check("good", OK, ""))))
    told: list[Check] = []
    report = doctor.doctor_report(on_check=told.append)
    assert report == told
    assert report[0] == Check("bad", FAIL, "the check did not run: OSError: disk on fire")
    assert report[1].status == OK


@pytest.mark.parametrize(
    ("usable", "smoke", "other", "code"),
    [
        ([True], OK, OK, 0),
        ([True], OK, WARN, 0),
        ([True], OK, FAIL, 1),
        ([True], FAIL, OK, 1),
        ([False, False], FAIL, OK, 3),
        ([], FAIL, OK, 3),
        ([False, True], FAIL, OK, 1),
    ],
)
def test_exit_status(usable: list[bool], smoke: str, other: str, code: int) -> None:
    devices = {"devices": [{"usable": flag} for flag in usable]}
    report = [Check("cache", other, ""), Check("devices", OK, "", "", devices)]
    report.append(Check("smoke test", smoke, ""))
    assert doctor.exit_code(report) == code
    text = doctor.render(report)
    assert ("no usable OpenCL device" in text) == (code == 3)
    assert ("clnn can run here" in text) == (code == 0)


def test_text_puts_fixes_on_lines_of_their_own() -> None:
    text = doctor.render_check(Check("drivers", WARN, "first\nsecond", "do this\nor that"))
    assert text.splitlines() == [
        "warn  drivers        first",
        "                     second",
        "                     fix: do this",
        "                     fix: or that",
    ]


def test_the_home_folder_stays_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    report = [Check("x", OK, "in /home/someone/a", "", {"p": ["/home/someone/b", 3]})]
    text = json.dumps(doctor.report_data(report))
    assert "someone" not in text
    assert "~/a" in text
    assert "~/b" in text


def test_a_driver_library_without_an_icd_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnvidia-opencl.so.1"
    library.write_text("", "utf-8")
    monkeypatch.setattr(checks_opencl, "DRIVER_FOLDERS", ())
    monkeypatch.setattr(icd, "ldconfig_libraries", lambda: {library.name: library})
    monkeypatch.setattr(checks_opencl, "registered", list)
    check = checks_opencl.unregistered()
    assert check.status == WARN
    assert str(library) in check.detail
    assert f"echo {library} > /etc/OpenCL/vendors/nvidia.icd" in check.fix
    assert "export OCL_ICD_VENDORS=" in check.fix
    named = icd.IcdFile(Path("nvidia.icd"), "libnvidia-opencl.so.1")
    monkeypatch.setattr(checks_opencl, "registered", lambda: [named])
    assert checks_opencl.unregistered().status == OK


def test_device_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    node = tmp_path / "renderD128"
    monkeypatch.setattr(checks_system, "GPU_FILES", (str(tmp_path / "renderD*"),))
    monkeypatch.setattr(checks_system, "in_container", lambda: False)
    assert checks_system.device_files().detail == "none: this machine offers its CPU only"
    node.write_text("", "utf-8")
    assert checks_system.device_files().status == OK
    monkeypatch.setattr(checks_system.os, "access", lambda *_: False)
    monkeypatch.setattr(checks_system, "owning_group", lambda _: "render")
    check = checks_system.device_files()
    assert check.status == WARN
    assert "usermod -aG render" in check.fix
    monkeypatch.setattr(checks_system, "in_container", lambda: True)
    assert checks_system.device_files().fix.endswith(f"--device {node} --group-add render")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("CLNN_CACHE_DIR", str(root))
    monkeypatch.setenv("CLNN_CACHE", "rw")
    assert checks_system.cache_folder().status == OK
    stale = root / "v1" / ".new-1-x"
    stale.parent.mkdir()
    stale.write_text("", "utf-8")
    assert checks_system.cache_folder().status == OK
    os.utime(stale, (0, 0))
    check = checks_system.cache_folder()
    assert (check.status, check.data["stale_files"]) == (WARN, 1)
    subprocess.run(["sh", "-c", check.fix], check=True)
    assert not stale.exists()
    root.chmod(0o777)
    check = checks_system.cache_folder()
    assert check.status == WARN and "can be written by all users (mode 0777)" in check.detail
    assert f"chmod 700 {root}" in check.fix
    root.chmod(0o700)
    monkeypatch.setattr(checks_system, "LOW_DISK_BYTES", 1 << 62)
    assert "free some disk space" in checks_system.cache_folder().fix
    monkeypatch.setenv("CLNN_CACHE", "off")
    assert checks_system.cache_folder().fix == "unset CLNN_CACHE"
    monkeypatch.setenv("CLNN_CACHE", "rw")
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "cannot be written" in checks_system.cache_folder().detail


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLNN_")]:
        monkeypatch.delenv(name)
    assert checks_system.settings_check().status == OK
    monkeypatch.setenv("CLNN_DEVISE", "gpu")
    check = checks_system.settings_check()
    assert (check.status, check.fix) == (WARN, "unset CLNN_DEVISE")
    assert "Did you mean CLNN_DEVICE?" in check.detail
    monkeypatch.setenv("CLNN_CACHE", "sometimes")
    assert checks_system.settings_check().status == FAIL


@pytest.mark.parametrize(
    ("name", "text", "fix"),
    [
        ("CUDA_VISIBLE_DEVICES", "", "unset CUDA_VISIBLE_DEVICES"),
        ("CUDA_VISIBLE_DEVICES", "-1", "unset CUDA_VISIBLE_DEVICES"),
        ("NVIDIA_DRIVER_CAPABILITIES", "graphics,utility", "compute,utility"),
        ("LD_PRELOAD", "/usr/lib/liboclgrind-rt.so", "without Oclgrind"),
    ],
)
def test_variables_that_hide_devices(
    name: str, text: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")
    for variable in checks_opencl.LOADER_VARIABLES:
        monkeypatch.setenv(variable, "")
    assert checks_opencl.variables().status == OK
    monkeypatch.setenv(name, text)
    check = checks_opencl.variables()
    assert check.status == WARN
    assert fix in check.fix


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "debian"}, "apt-get install pocl-opencl-icd"),
        ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, "apt-get install pocl-opencl-icd"),
        ({"ID": "fedora"}, "dnf install pocl"),
        ({"ID": "plan9"}, ""),
    ],
)
def test_suggestions(
    release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_system, "os_release", lambda: release)
    monkeypatch.setattr(checks_system.platform, "system", lambda: "Linux")
    monkeypatch.setattr(checks_system.platform, "machine", lambda: "x86_64")
    assert command in checks_system.suggestion()
    assert "pip install intel-opencl-rt intel-cmplr-lib-rt" in checks_system.suggestion()
    monkeypatch.setattr(checks_system.platform, "machine", lambda: "aarch64")
    assert "intel" not in checks_system.suggestion()
    assert checks_system.suggestion()


def test_devices_command_lists_every_device(tmp_path: Path) -> None:
    status, out = clnn(tmp_path, "devices", "--json")
    assert status == 0
    listed = json.loads(out)
    fields = set(DeviceInfo.__dataclass_fields__) | {"usable", "cl_std", "peaks"}
    assert all(set(entry) == fields for entry in listed)
    assert all(set(entry["caps"]["fp16"]) == {"available", "reason"} for entry in listed)
    status, text = clnn(tmp_path, "devices")
    assert status == 0
    for entry in listed:
        assert f"[{entry['index']}] {entry['name']}" in text
        assert entry["opencl_c_version"] in text
    assert "state     usable" in text
