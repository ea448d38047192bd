"""Drivers are loaded one by one: the one that is used, others when they are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common import usable_devices

from clnn.runtime.device import device
from clnn.runtime.drivers import driver_loading, icd, loader
from clnn.runtime.drivers.vendors import Driver

BEGIN = (
    "import json, os, numpy as np; from clnn.runtime.device.device import discover, open_context, select;"
    " from clnn.runtime.drivers.loader import cl, mapped_files\n"
    "def loaded(info): return any(info.driver.split('/')[-1] in f for f in mapped_files())\n"
    "def runs(info):\n"
    "    context, _ = open_context(info)\n"
    "    queue = cl.CommandQueue(context)\n"
    "    code = 'kernel void f(global float *a) { a[get_global_id(0)] *= 2; }'\n"
    "    kernel = cl.Program(context, code).build(cache_dir=False).f\n"
    "    x = np.arange(8, dtype=np.float32)\n"
    "    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR\n"
    "    buffer = cl.Buffer(context, flags, hostbuf=x)\n"
    "    kernel(queue, x.shape, None, buffer)\n"
    "    cl.enqueue_copy(queue, x, buffer)\n"
    "    return x.tolist()\n"
)
DOUBLED = [2.0 * k for k in range(8)]

DRIVERS = (*icd.VENDOR_VARIABLES, icd.MORE_DRIVERS)


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, without the drivers that this process chose."""
    base = {name: text for name, text in os.environ.items() if name not in DRIVERS}
    path = f"import sys; sys.path[:0] = {sys.path!r}; "
    return subprocess.run(
        [sys.executable, "-c", path + BEGIN + code],
        env={**base, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def answer(code: str, **env: str) -> list[object]:
    done = python(code, **env)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def two() -> list[str]:
    names = usable_devices()
    if len(names) < 2 or not loader.setup().on_demand:
        pytest.skip("needs two OpenCL implementations that are loaded one by one")
    return names


@pytest.mark.parametrize("turn", [1, -1])
def test_a_driver_is_loaded_when_a_device_of_it_is_asked_for(turn: int) -> None:
    first, second = two()[:2][::turn]
    code = (
        f"a = select({first!r}); all = {{d.platform: d for d in discover()}}\n"
        f"b = all[{second!r}]; before = [loaded(a), loaded(b)]\n"
        f"one = runs(a); still = loaded(b); b = select({second!r})\n"
        "print(json.dumps([before, one, still, loaded(b), runs(b), runs(a)]))"
    )
    assert answer(code) == [[True, False], DOUBLED, False, True, DOUBLED, DOUBLED]


def test_listing_devices_loads_no_driver() -> None:
    two()
    code = "print(json.dumps([loaded(d) for d in discover() if d.driver]))"
    assert set(answer(code)) == {False}


def test_all_drivers_are_loaded_where_that_is_wished() -> None:
    names = two()
    code = "print(json.dumps(sorted({p.name.strip() for d in [select()] for p in cl.get_platforms()})))"
    assert set(names) <= set(answer(code, CLNN_DRIVERS="all"))


def test_the_users_variables_stay_as_they_were() -> None:
    two()
    code = (
        "from clnn.runtime.drivers.loader import setup; s = setup(); before = os.environ.get('OCL_ICD_VENDORS')\n"
        "select(); print(json.dumps([before == os.environ.get('OCL_ICD_VENDORS')]))"
    )
    assert answer(code) == [True]


def test_a_kept_list_that_is_wrong_is_made_anew() -> None:
    """Another version of a driver was listed under the same key: it is listed again, once."""
    two()
    spoil = (
        "from clnn.runtime.drivers import driver_listing\n"
        "right = driver_listing._read\n"
        "def wrong(driver, record):\n"
        "    rows = [{**row, 'driver_version': 'old'} for row in record['listed']]\n"
        "    return right(driver, {**record, 'listed': rows if FIRST else record['listed']})\n"
        "driver_listing._read = wrong; FIRST = True; real = driver_listing.list_each\n"
        "def list_each(*a, refresh=False, **k):\n"
        "    global FIRST\n"
        "    FIRST = FIRST and not refresh\n"
        "    return real(*a, refresh=refresh, **k)\n"
        "driver_listing.list_each = list_each\n"
    )
    code = spoil + "d = select(); print(json.dumps([d.driver_version != 'old', runs(d), FIRST]))"
    assert answer(code) == [True, DOUBLED, False]
    stuck = spoil.replace("FIRST = FIRST and not refresh", "pass")
    done = python(stuck + "select()")
    assert "are listed in one process and missing in another" in done.stderr


def test_a_first_driver_that_fails_leaves_the_others_usable(tmp_path: Path) -> None:
    """The loader reads its folder once: what it found no platform in must not stay all there is."""
    name = two()[0]
    (tmp_path / "libgone.so").write_text("no library", "utf-8")
    code = (
        "from clnn.runtime.drivers import driver_loading; from clnn.runtime.drivers.loader import setup\n"
        "from clnn.runtime.drivers.vendors import Driver; from clnn.errors import DeviceError\n"
        f"bad = {str(tmp_path / 'libgone.so')!r}; real = driver_loading._registered\n"
        "driver_loading._registered = lambda name: Driver('b.icd', bad) if name == bad else real(name)\n"
        "try: driver_loading.platforms_of(bad); told = ''\n"
        "except DeviceError as err: told = str(err)\n"
        f"print(json.dumps([bad in told, runs(select({name!r}))]))"
    )
    assert answer(code) == [True, DOUBLED]


def test_children_see_the_driver_of_their_device_alone(device: str) -> None:
    info = device_of(device)
    if not info.driver:
        pytest.skip("drivers are loaded all at once")
    folder = Path(loader.child_environment(info.driver)["OCL_ICD_VENDORS"])
    (entry,) = icd.icd_files(folder)
    assert entry.library == info.driver


def device_of(name: str) -> device.DeviceInfo:
    return device.select(name)


def test_what_is_no_driver_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libno.so").write_text("no library", "utf-8")
    assert not driver_loading.loads_alone(str(tmp_path / "libno.so"), [])
    assert not driver_loading.loads_alone("libc.so.6", [])
    made = loader.Setup(on_demand=(Driver("a.icd", "/x/liba.so"),))
    monkeypatch.setattr(driver_loading, "setup", lambda: made)
    monkeypatch.setattr(driver_loading, "_loaded", {})
    monkeypatch.setattr(driver_loading, "_begun", set())
    with pytest.raises(device.DeviceError, match="is no driver of this process"):
        driver_loading.platforms_of("/x/libb.so")
    monkeypatch.setattr(driver_loading, "_begun", {"/x/libother.so"})
    with pytest.raises(device.DeviceError, match=r"/x/liba.so does not load: .*clnn doctor"):
        driver_loading.platforms_of("/x/liba.so")
