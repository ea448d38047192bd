"""`clnn doctor`: ordered checks from Python down to a kernel, each with the exact fix.

Whatever loads a driver runs in a child process with a time limit, so that a driver that crashes
or hangs is a line of the report and not its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clnn._version import __version__
from clnn.errors import ClnnError
from clnn.runtime.device.device import DeviceInfo, discover, probe_target, select
from clnn.runtime.device.probe import CAPABILITY_NAMES, run_steps
from clnn.runtime.doctor import checks_opencl, checks_system
from clnn.runtime.doctor.checks import FAIL, OK, WARN, Check

__all__ = ["Check", "doctor_report", "exit_code", "no_device", "render", "report_data"]

EXIT_OK, EXIT_FAILED, EXIT_NO_DEVICE = 0, 1, 3
SMOKE_STEPS = ("saxpy",)
PACKAGES = (
    "clnn",
    "pyopencl",
    "numpy",
    "mako",
    "onnx",
    "intel-opencl-rt",
    "intel-cmplr-lib-rt",
    "tbb",
    "pocl-binary-distribution",
    "onnxruntime",
)


def packages() -> Check:
    """Versions of clnn and of the packages that matter to it."""
    versions = {"clnn": __version__, **checks_opencl.package_versions(PACKAGES[1:])}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Check("packages", OK, text, "", versions)


def devices() -> Check:
    """All devices with what their probes found; probes run anew."""
    answer = checks_opencl.ask_child("devices")
    if "error" in answer:
        fix = "see `drivers` above, remove the .icd file of the driver that fails"
        return Check("devices", FAIL, f"listing the devices failed: {answer['error']}", fix)
    infos = discover(refresh=True)
    if not infos:
        detail = "OpenCL offers no device"
        return Check("devices", FAIL, detail, checks_system.suggestion(), {"devices": []})
    usable = [info for info in infos if info.usable]
    detail = "\n".join(line for info in infos for line in describe(info))
    status = FAIL if not usable else OK if len(usable) == len(infos) else WARN
    fix = "" if status == OK else f"update the driver; or get another: {checks_system.suggestion()}"
    data = {
        "devices": [{"title": i.title, "usable": i.usable, "why_not": i.why_not} for i in infos]
    }
    return Check("devices", status, detail, fix, data)


def describe(info: DeviceInfo) -> list[str]:
    """Return the lines of a report on one device."""
    head = f"{info.title} ({info.type}, driver {info.driver_version}, {info.opencl_c_version})"
    if not info.usable:
        return [head, f"    unusable: {info.why_not}"]
    able = [name for name in CAPABILITY_NAMES if getattr(info.caps, name)]
    lacks = {name: getattr(info.caps, name).reason for name in CAPABILITY_NAMES if name not in able}
    sizes = f"{info.compute_units} units, {info.global_mem / 2**30:.1f} GiB"
    return [
        head,
        f"    {sizes}, local {info.usable_local_mem >> 10} KiB, checked: {', '.join(able) or '-'}",
        *(f"    no {name}: {reason}" for name, reason in lacks.items()),
    ]


def smoke_test() -> Check:
    """One kernel, built, run and checked in a child process on the device that clnn would take."""
    answer = checks_opencl.ask_child("devices")
    if "error" in answer:
        return Check(
            "smoke test", FAIL, f"not tried: listing the devices failed: {answer['error']}"
        )
    try:
        info = select(None)
    except ClnnError as err:
        return Check("smoke test", FAIL, str(err).splitlines()[0], checks_system.suggestion())
    results = run_steps(probe_target(info), SMOKE_STEPS)
    failed = [
        f"{name}: {result.reason}" for name, result in results.items() if not result.available
    ]
    if failed:
        fix = "name another device by CLNN_DEVICE, or update this one's driver"
        return Check("smoke test", FAIL, f"{info.title}: {'; '.join(failed)}", fix)
    detail = f"{info.title}: a kernel was built, run and gave the right result"
    return Check("smoke test", OK, detail, "", {"device": info.title})


CHECKS: tuple[tuple[str, Callable[[], Check]], ...] = (
    ("python", checks_system.environment),
    ("packages", packages),
    ("settings", checks_system.settings_check),
    ("pyopencl", checks_opencl.pyopencl_module),
    ("loader", checks_opencl.loader),
    ("variables", checks_opencl.variables),
    ("drivers", checks_opencl.drivers),
    ("unregistered", checks_opencl.unregistered),
    ("GPU files", checks_system.device_files),
    ("system loader", checks_opencl.system_loader),
    ("cache", checks_system.cache_folder),
    ("devices", devices),
    ("smoke test", smoke_test),
)
# The checks that explain why there is no device, none of which builds a kernel.
SHORT = ("pyopencl", "variables", "drivers", "unregistered", "GPU files")


def doctor_report(
    names: Sequence[str] | None = None, on_check: Callable[[Check], None] | None = None
) -> list[Check]:
    """Run all checks, or those named, in order; `on_check` is called with each as it is done."""
    report = []
    for name, check in CHECKS:
        if names is not None and name not in names:
            continue
        try:
            done = check()
        except Exception as err:
            text = f"{type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}"
            done = Check(name, FAIL, f"the check did not run: {text}")
        report.append(done)
        if on_check is not None:
            on_check(done)
    return report


def no_device() -> str:
    """Return what is said where there is no device: the causes found, and what to do."""
    causes = [line for check in doctor_report(SHORT) for line in _causes(check)]
    return "\n".join(
        [
            "No OpenCL device was found on this machine.",
            *causes,
            f"To get a driver: {checks_system.suggestion()}",
            "Run `clnn doctor` for all checks.",
        ]
    )


def _causes(check: Check) -> list[str]:
    if check.status == OK and check.name != "GPU files":
        return []
    return render_check(check).splitlines()


def render_check(check: Check) -> str:
    """Return one check as text: status, name, detail, and the fix on lines of its own."""
    detail = check.detail.splitlines() or [""]
    lines = [f"{check.status:<4}  {check.name:<13}  {detail[0]}"]
    lines += [f"{'':21}{line}" for line in detail[1:]]
    lines += [f"{'':21}fix: {line}" for line in check.fix.splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def render(report: Sequence[Check]) -> str:
    """Return a whole report as text, with a closing line."""
    return "\n".join([*(render_check(check) for check in report), conclusion(report)])


def conclusion(report: Sequence[Check]) -> str:
    """Return the closing line of a report."""
    code = exit_code(report)
    warned = sum(check.status == WARN for check in report)
    failed = sum(check.status == FAIL for check in report)
    verdict = {EXIT_OK: "clnn can run here", EXIT_NO_DEVICE: "no usable OpenCL device"}
    return f"{verdict.get(code, 'not all is well')}: {failed} failed, {warned} warned"


def exit_code(report: Sequence[Check]) -> int:
    """Return 0 when all is well, 3 when no device is usable, 1 when something else failed."""
    by_name = {check.name: check for check in report}
    no_device = Check("", FAIL, "")
    listed = by_name.get("devices", no_device).data.get("devices", [])
    smoke = by_name.get("smoke test", no_device).status
    if smoke == FAIL and not any(device["usable"] for device in listed):
        return EXIT_NO_DEVICE
    return EXIT_FAILED if any(check.status == FAIL for check in report) else EXIT_OK


def report_data(report: Sequence[Check]) -> dict[str, Any]:
    """Return a report as JSON data fit for a bug report: the home folder is written as ~."""
    home = str(Path.home()) if os.environ.get("HOME", "/") != "/" else ""
    checks = [
        {"name": c.name, "status": c.status, "detail": c.detail, "fix": c.fix, "data": dict(c.data)}
        for c in report
    ]
    return {
        "checks": _without_home(checks, home),
        "conclusion": conclusion(report),
        "exit": exit_code(report),
    }


def _without_home(value: Any, home: str) -> Any:
    if isinstance(value, str):
        return value.replace(home + os.sep, "~" + os.sep) if home else value
    if isinstance(value, dict):
        return {key: _without_home(item, home) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item, home) for item in value]
    return value
