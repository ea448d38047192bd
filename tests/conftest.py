"""Shared by all tests: devices, the options --quick and --long, caches, third-party data."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from common import ROOT, usable_devices
from dealing import NOT_QUICK, ON_QUICK, deal, has_no_device, needs_device, quick_one

TYPES = "char|uchar|short|ushort|int|uint|long|ulong|half|float|double"
VECTORS_OF_ONE = re.compile(rf"\b(?:(?:convert_|as_)?(?:{TYPES})1|v(?:load|store)a?(?:_half)?1)\b")

_CACHE = ROOT / ".cache" / "tests"
os.environ.setdefault("CLNN_BUILD_JOBS", "1")  # the test workers are the parallelism
os.environ.setdefault("CLNN_SPECIALISE", "never")  # but where a test is about it
os.environ.setdefault("CLNN_CALLING_THREAD", "never")  # the same
os.environ.setdefault("CLNN_CACHE_DIR", str(_CACHE / "clnn"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run what needs no OpenCL device only")
    parser.addoption("--long", action="store_true", help="run the long forms of suites too")
    parser.addoption("--device", default=None, help="run device tests on this device only")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):  # a test that asks for a device all the same finds none
        os.environ["OCL_ICD_VENDORS"] = _no_drivers()


def _no_drivers() -> str:
    """Return a folder that registers no driver."""
    nothing = _CACHE / "no-drivers"
    nothing.mkdir(parents=True, exist_ok=True)
    return str(nothing)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = config.getoption("--quick") and collection_path.name in NOT_QUICK
    return True if left_out and collection_path.parent == ROOT / "tests" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=[item for item in items if needs_device(item)])
        items[:] = [item for item in items if not needs_device(item)]
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long form: pass --long")
    for item in items:
        if "exhaustive" in item.keywords:
            item.add_marker(skip)
    if not config.getoption("--device"):
        deal(items)


def pytest_collection_finish() -> None:
    """Keep the tests themselves, which are many, from every search for garbage: those that ask for one do so often."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("--device")
    names = [wanted] if wanted else usable_devices()
    if not names:
        names = [pytest.param("none", marks=pytest.mark.skip(reason="no usable OpenCL device"))]
    metafunc.parametrize("device", names, ids=[_short(n) for n in names])


def _short(name: object) -> str:
    text = str(name).lower()
    for key, short in (
        ("portable", "pocl"),
        ("intel", "intel"),
        ("nvidia", "nvidia"),
        ("oclgrind", "oclgrind"),
    ):
        if key in text:
            return short
    return text.replace(" ", "-")[:16]


@pytest.fixture(scope="module")
def any_device(request: pytest.FixtureRequest) -> str:
    """One usable device, the one named by --device if any."""
    names = usable_devices()
    if not names:
        pytest.skip("no usable OpenCL device")
    if wanted := request.config.getoption("--device"):
        return str(wanted)
    quick = request.path.name in ON_QUICK and not request.config.getoption("--long")
    return quick_one(names) if quick else names[-1]


@pytest.fixture(autouse=True)
def _no_device_unless_asked_for(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the quick form, and its children, find no device in the whole form either."""
    if has_no_device(request.node):
        from clnn.runtime.device import device
        from clnn.runtime.drivers.loader import setup

        setup()  # as this process has its drivers for all tests
        monkeypatch.setattr(device, "list_unprobed", lambda: ())
        monkeypatch.setenv("OCL_ICD_VENDORS", _no_drivers())


@pytest.fixture(autouse=True)
def _one_context_stays_open(request: pytest.FixtureRequest) -> None:
    """PoCL lets go of its compiler's library with the last context, and reads it anew for the next build."""
    for name in {"device", "any_device"}.intersection(request.fixturenames):
        _held(request.getfixturevalue(name))


@cache
def _held(device: str) -> Any:
    from clnn.runtime.device.device import open_context, select

    return open_context(select(device))


@pytest.fixture(autouse=True, scope="module")
def _no_search_of_what_others_left() -> None:
    """Keep what is there when a module begins, too: caches of tests before it grow for an hour."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _names_of_opencl_alone() -> Iterator[None]:
    """No kernel has names that the specification lacks, which some compilers let pass: vectors of one element."""
    from clnn.runtime.build.program import Device

    build = Device.build

    def checked(self: Device, sources: Any, *args: Any, **named: Any) -> Any:
        for title, source in sources.items():
            found = VECTORS_OF_ONE.search(source)
            assert found is None, f"{title}: {found and found[0]} is no name of OpenCL C"
        return build(self, sources, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "build", checked)
        yield


@pytest.fixture
def joined_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each session build its kernels as one program, as check_op does; not where builds are what is tested."""
    from joined import JoinedDevice

    from clnn.runtime.build.program import Device

    opened = Device.open
    monkeypatch.setattr(Device, "open", staticmethod(lambda info: JoinedDevice.like(opened(info))))


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sessions generate the code that they would for a GPU."""
    from targets import GPU, generate_for

    generate_for(monkeypatch, GPU)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder beside the checkout with third-party models and vectors."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            f"third-party test data is not there: no folder {folder.name} beside the checkout"
        )
    return folder


@pytest.fixture
def no_unrolling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops stay loops however few turns they have."""
    from clnn.importers.onnx import loops

    monkeypatch.setattr(loops, "MOST", 0)
