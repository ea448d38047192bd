"""The loader: forgotten drivers are registered, crashing ones left out, the user's choice kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clnn.runtime.drivers import driver_listing, icd, loader, vendors
from clnn.runtime.drivers.vendors import Driver
from clnn.runtime.process import child

SHOW_SETUP = (
    "import json; from clnn.runtime.drivers.loader import setup; s = setup(); import os;"
    " print(json.dumps([s.override, str(s.folder), [str(a) for a in s.added],"
    " dict(s.excluded), os.environ.get('OCL_ICD_VENDORS', '')]))"
)

DRIVERS = (*icd.VENDOR_VARIABLES, icd.MORE_DRIVERS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CLNN_CACHE", "rw")
    return tmp_path / "cache"


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, without the drivers that this process chose."""
    base = {name: text for name, text in os.environ.items() if name not in DRIVERS}
    path = f"import sys; sys.path[:0] = {sys.path!r}; "
    return subprocess.run(
        [sys.executable, "-c", path + code],
        env={**base, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.icd").write_text(text, "utf-8")
    return folder


@pytest.mark.parametrize("variable", icd.VENDOR_VARIABLES)
def test_a_users_choice_is_kept(variable: str, tmp_path: Path) -> None:
    done = python(SHOW_SETUP, **{variable: str(tmp_path)})
    override, folder, added, excluded, vendors_text = json.loads(done.stdout)
    assert (override, folder, added, excluded) == (variable, "None", [], {})
    assert vendors_text == (str(tmp_path) if variable == "OCL_ICD_VENDORS" else "")


def test_intels_runtime_is_registered_beside_the_others(tmp_path: Path) -> None:
    library = icd.intel_library()
    if library is None:
        assert "libintelocl" not in python(SHOW_SETUP).stdout
        return
    folder = Path(json.loads(python(SHOW_SETUP).stdout)[4])
    assert folder.parent == tmp_path / "cache" / "vendors"
    assert (folder / "clnn-intel-cpu.icd").read_text("utf-8").strip() == str(library)
    listed = [entry.path.name for entry in icd.icd_files(icd.SYSTEM_VENDORS)]
    assert {path.name for path in folder.iterdir()} == {"clnn-intel-cpu.icd", *listed}


def test_load_gives_pyopencl_without_its_cache() -> None:
    done = python(
        "from clnn.runtime.drivers.loader import cl, load; import pyopencl, warnings;"
        " assert cl is load() is pyopencl and pyopencl._PYOPENCL_NO_CACHE;"
        " warnings.simplefilter('error', append=True);"
        " warnings.warn('noise', pyopencl.CompilerWarning)"
    )
    assert done.returncode == 0, done.stderr


def test_without_pyopencl_there_is_an_error_that_says_so() -> None:
    done = python(
        "sys.modules['pyopencl'] = None\nfrom clnn.errors import NoDeviceError\n"
        "from clnn.runtime.drivers.loader import load\n"
        "try: load()\nexcept NoDeviceError as err: print(err)"
    )
    assert "pyopencl cannot be imported" in done.stdout
    assert "-m pip install --force-reinstall pyopencl" in done.stdout


def test_a_late_start_is_told_once_it_matters() -> None:
    if icd.intel_library() is None:
        pytest.skip("needs a driver that only clnn registers: pip install intel-opencl-rt")
    use = "from clnn.runtime.device.device import list_unprobed; print(len(list_unprobed()))"
    early = "import pyopencl;"
    listed = early + "\ntry: pyopencl.get_platforms()\nexcept pyopencl.Error: pass\n"
    assert "stay hidden" not in python(use).stderr
    assert "stay hidden" not in python(early + use).stderr
    assert "libintelocl.so. Use clnn first" in python(listed + use).stderr


def test_a_removed_folder_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drivers = (Driver("a.icd", "/lib/liba.so"),)
    folder = vendors.vendors_folder(drivers)
    arranged = loader.Setup(folder=folder, drivers=drivers)
    monkeypatch.setattr(loader, "setup", lambda: arranged)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(folder))
    monkeypatch.setenv("OCLGRIND_LOG", "log")
    (folder / "a.icd").unlink()
    folder.rmdir()
    env = loader.child_environment()
    assert (Path(env["OCL_ICD_VENDORS"]) / "a.icd").read_text("utf-8") == "/lib/liba.so\n"
    assert "OCLGRIND_LOG" not in env


def test_the_folder_is_written_whole_and_once(tmp_path: Path, own_cache: Path) -> None:
    source = write(tmp_path / "etc", system="libsystem.so\n") / "system.icd"
    drivers = [Driver("system.icd", "libsystem.so", source), Driver("new.icd", "/x/libnew.so")]
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: vendors.vendors_folder(drivers), range(64)))
    (folder,) = folders
    assert sorted(path.name for path in folder.iterdir()) == ["new.icd", "system.icd"]
    assert icd.read_icd(folder / "system.icd").library == "libsystem.so"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert vendors.vendors_folder(drivers[:1]) != folder


@pytest.mark.parametrize("damage", ["content", "extra", "missing", "link", "file"])
def test_a_changed_folder_is_replaced(damage: str, tmp_path: Path) -> None:
    drivers = [Driver("new.icd", "/x/libnew.so")]
    folder = vendors.vendors_folder(drivers)
    new = folder / "new.icd"
    if damage == "content":
        new.write_text("/evil.so\n", "utf-8")
    elif damage == "extra":
        write(folder, other="/evil.so\n")
    elif damage == "missing":
        new.unlink()
    elif damage == "link":
        new.unlink()
        new.symlink_to(write(tmp_path / "x", new="/x/libnew.so\n") / "new.icd")
    else:
        new.unlink()
        folder.rmdir()
        folder.write_text("a file", "utf-8")
    assert vendors.vendors_folder(drivers) == folder
    assert [path.name for path in folder.iterdir()] == ["new.icd"]
    assert new.read_text("utf-8") == "/x/libnew.so\n"
    assert not new.is_symlink()


@pytest.mark.parametrize("why", ["open to others", "no folder", "off", "ro"])
def test_an_unfit_cache_is_not_used(
    why: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "open to others":
        (own_cache / "vendors").mkdir(parents=True)
        (own_cache / "vendors").chmod(0o777)
    elif why == "no folder":
        own_cache.write_text("a file", "utf-8")
    else:
        monkeypatch.setenv("CLNN_CACHE", why)
    folder = vendors.vendors_folder([Driver("new.icd", "/x/libnew.so")])
    assert own_cache not in folder.parents
    assert (folder / "new.icd").read_text("utf-8") == "/x/libnew.so\n"
    assert folder.stat().st_mode & 0o077 == 0


def crashing(drivers: list[Driver]) -> dict[str, str]:
    """Return library -> how the process ended, for each driver that ends it."""
    listings = driver_listing.list_each(drivers)
    return {one.driver.library: one.end for one in listings if one.end}


def boot_that_dies(monkeypatch: pytest.MonkeyPatch, when: str, how: str) -> None:
    """Have each child end by `how` in the driver whose vendors folder holds the file `when`."""
    monkeypatch.setattr(
        child,
        "BOOT",
        (
            "import sys; sys.path[:] = sys.argv[1].split(chr(10)); import json, os, time;"
            " import clnn.runtime.device.icd_child as c; from clnn.runtime.{} import main;"
            f" bad = {when!r} in os.listdir(os.environ['OCL_ICD_VENDORS']);"
            f" c.devices = (lambda _: {how}) if bad else (lambda _: dict(names=[]));"
            " main(json.loads(sys.argv[2]))"
        ),
    )


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("os.abort()", "the driver crashed (SIGABRT)"),
        ("os._exit(3)", "ended with status 3"),
        ("os._exit(0)", "it ended early"),
    ],
)
def test_a_driver_that_ends_the_process_is_found(
    how: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_that_dies(monkeypatch, "bad.icd", how)
    drivers = [Driver("good.icd", "/x/libgood.so"), Driver("bad.icd", "/x/libbad.so")]
    assert crashing(drivers) == {"/x/libbad.so": reason}
    # What is known is not tried again...
    monkeypatch.setattr(child, "BOOT", "this is no Python {}")
    assert crashing(drivers) == {"/x/libbad.so": reason}
    # ... until bad news are old.
    late = time.time() + driver_listing.BAD_NEWS_S
    monkeypatch.setattr(driver_listing.time, "time", lambda: late)
    assert crashing(drivers) == {}


def test_a_driver_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = "did not answer within 60 s"
    monkeypatch.setattr(driver_listing, "run_python", lambda *_: ('{"start": "devices"}\n', hang))
    assert crashing([Driver("bad.icd", "/x/libbad.so")]) == {"/x/libbad.so": hang}


def test_a_child_that_does_not_start_blames_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is that kept: the next one may start."""
    driver = Driver("good.icd", "/x/libgood.so")
    with monkeypatch.context() as patch:
        patch.setattr(driver_listing, "run_python", lambda *_: ("", "cannot start a child process"))
        assert driver_listing.list_each([driver]) == [driver_listing.DriverListing(driver)]
    boot_that_dies(monkeypatch, "good.icd", "dict(listed=[dict(name='a')], alone=True)")
    assert driver_listing.list_each([driver]) == [
        driver_listing.DriverListing(driver, "", ({"name": "a"},), True)
    ]


def test_a_driver_that_only_fails_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacked then it may have later."""
    driver = Driver("bad.icd", "/x/libbad.so")
    boot_that_dies(monkeypatch, "bad.icd", "1 / 0")
    assert crashing([driver]) == {}
    boot_that_dies(monkeypatch, "bad.icd", "dict(listed=[dict(name='a')], alone=True)")
    assert not driver_listing.list_each([driver])[0].loads_alone
    late = time.time() + driver_listing.BAD_NEWS_S
    monkeypatch.setattr(driver_listing.time, "time", lambda: late)
    assert driver_listing.list_each([driver])[0].loads_alone


def test_half_an_answer_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    half = '{"start": "devices"}\n{"listed": [{"na'
    monkeypatch.setattr(
        driver_listing, "run_python", lambda *_: (half, "the driver crashed (SIGSEGV)")
    )
    crashed = crashing([Driver("bad.icd", "/x/libbad.so")])
    assert crashed == {"/x/libbad.so": "the driver crashed (SIGSEGV)"}


def test_a_new_library_is_listed_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "libbad.so"
    library.write_text("one", "utf-8")
    drivers = [Driver("bad.icd", str(library))]
    boot_that_dies(monkeypatch, "bad.icd", "os.abort()")
    assert crashing(drivers)
    library.write_text("another", "utf-8")
    boot_that_dies(monkeypatch, "nothing", "os.abort()")
    assert crashing(drivers) == {}


def test_a_crashing_driver_is_left_out_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system = write(tmp_path / "etc", good="libgood.so\n", bad="libbad.so\n")
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", system)
    monkeypatch.setattr(icd, "intel_library", lambda: None)
    monkeypatch.setattr(icd, "nvidia_library", lambda: None)
    for name in DRIVERS:
        monkeypatch.setenv(name, "")
    boot_that_dies(monkeypatch, "bad.icd", "os.abort()")
    arranged = loader.setup.__wrapped__()
    assert [driver.library for driver in arranged.drivers] == ["libgood.so"]
    assert dict(arranged.excluded) == {"libbad.so": "the driver crashed (SIGABRT)"}
    assert os.environ["OCL_ICD_VENDORS"] == str(arranged.folder)
    assert os.listdir(str(arranged.folder)) == ["good.icd"]


def test_drivers_that_only_the_khronos_loader_is_told_of_are_registered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name without a folder is searched; what is registered already, or is not there, changes nothing."""
    here, there, bare = (tmp_path / n for n in ("libhere.so", "libgood.so.1", "libbare.so.1"))
    for path in (here, there, bare):
        path.write_text("", "utf-8")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", write(tmp_path / "etc", good="libgood.so\n"))
    monkeypatch.setattr(icd, "intel_library", lambda: None)
    monkeypatch.setattr(icd, "nvidia_library", lambda: tmp_path / "libnvidia-opencl.so.1")
    for name in DRIVERS:
        monkeypatch.setenv(name, "")
    named = (
        "libnvidia-opencl.so.1",
        str(there),
        str(here),
        bare.name,
        "libno.so",
        "/gone/libno.so",
    )
    monkeypatch.setenv(icd.MORE_DRIVERS, os.pathsep.join(named))
    boot_that_dies(monkeypatch, "nothing", "os.abort()")
    arranged = loader.setup.__wrapped__()
    libraries = [driver.library for driver in arranged.drivers]
    assert libraries[0] == "libgood.so" and arranged.override == ""
    assert libraries[1:] == [str(tmp_path / "libnvidia-opencl.so.1"), str(here), str(bare)]


def test_nothing_is_arranged_where_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(icd, "SYSTEM_VENDORS", write(tmp_path / "etc", good="libgood.so\n"))
    monkeypatch.setattr(icd, "intel_library", lambda: None)
    monkeypatch.setattr(icd, "nvidia_library", lambda: None)
    for name in DRIVERS:
        monkeypatch.setenv(name, "")
    boot_that_dies(monkeypatch, "nothing", "os.abort()")
    assert loader.setup.__wrapped__().folder is None
    assert os.environ["OCL_ICD_VENDORS"] == ""


def test_nvidias_driver_without_an_icd_file_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnvidia-opencl.so.1"
    library.write_text("", "utf-8")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    monkeypatch.setattr(icd, "intel_library", lambda: None)
    exists = os.path.exists
    assert icd.unregistered([]) == {} or exists("/dev/nvidiactl") or exists("/dev/dxg")
    monkeypatch.setattr(icd.os.path, "exists", lambda p: p == "/dev/nvidiactl" or exists(p))
    assert icd.unregistered([]) == {"clnn-nvidia.icd": library}
    named = icd.IcdFile(Path("nvidia.icd"), "libnvidia-opencl.so.1")
    assert icd.unregistered([named]) == {}
    gone = icd.IcdFile(Path("nvidia.icd"), "/gone/libnvidia-opencl.so.1")
    assert icd.unregistered([gone]) == {"clnn-nvidia.icd": library}


def test_intels_placeholder_counts_as_absent(tmp_path: Path) -> None:
    folder = write(tmp_path / "v", intel="/opt/placeholder/lib/libintelocl.so\n", bare="libx.so")
    absent, present = sorted(icd.icd_files(folder), key=lambda entry: entry.present)
    assert (absent.stem, present.stem) == ("libintelocl", "libx")
    assert not absent.present


def test_companions_in_other_folders_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("libintelocl.so", "libimf.so", "libsvml.so", "libirng.so"):
        (tmp_path / name).write_text("", "utf-8")
    other = tmp_path / "other"
    other.mkdir()
    (other / "libtbb.so.12").write_text("", "utf-8")
    monkeypatch.setattr(
        icd,
        "_package_files",
        lambda package, names: [other / "libtbb.so.12"] if package == "tbb" else [],
    )
    found = icd.intel_companions(tmp_path / "libintelocl.so")
    assert found == ([other / "libtbb.so.12"], ["libintlc.so.5"])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: p.write_text("", "utf-8"), "the file is empty"),
        (Path.mkdir, "Is a directory"),
        (lambda p: p.symlink_to("gone"), "No such file or directory"),
    ],
)
def test_unreadable_icd_files(make: object, error: str, tmp_path: Path) -> None:
    make(tmp_path / "x.icd")
    (entry,) = icd.icd_files(tmp_path)
    assert entry.error == error
    assert not entry.present


def test_files_in_use_follow_the_variables(tmp_path: Path) -> None:
    first = write(tmp_path / "one", a="liba.so\n", b="libb.so\nrest\n")
    second = write(tmp_path / "two", c="libc.so\n")
    bundled = write(tmp_path / "bundled", d="libd.so\n")

    def names(**env: str) -> list[str]:
        return [entry.library for entry in icd.files_in_use(env, bundled)]

    assert names(OCL_ICD_VENDORS=str(first)) == ["liba.so", "libb.so", "libd.so"]
    assert names(OPENCL_VENDOR_PATH=str(second)) == ["libc.so", "libd.so"]
    both = {"OCL_ICD_VENDORS": str(first), "OPENCL_VENDOR_PATH": str(second)}
    assert names(**both) == names(OCL_ICD_VENDORS=str(first))
    assert names(OCL_ICD_VENDORS=str(first / "b.icd")) == ["libb.so", "libd.so"]
    assert icd.files_in_use({"OCL_ICD_VENDORS": "/nowhere"})[0].error == "no such folder"
    system = [entry.library for entry in icd.icd_files(icd.SYSTEM_VENDORS)]
    assert names()[: len(system)] == system
