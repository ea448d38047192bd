"""Doctor's checks of OpenCL: pyopencl, the loader, the drivers and how they are registered."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from clnn.errors import NoDeviceError
from clnn.runtime.doctor.checks import FAIL, OK, WARN, Check
from clnn.runtime.doctor.checks_system import INTEL_COMMAND
from clnn.runtime.drivers import icd
from clnn.runtime.drivers.loader import child_environment, load, loader_library, setup
from clnn.runtime.process.child import run_python
from clnn.settings import GIVEN

CHILD_TIMEOUT_S = 60.0
# Variables that change which drivers the loader lists, or what they offer.
LOADER_VARIABLES = (
    *icd.VENDOR_VARIABLES,
    icd.MORE_DRIVERS,
    "OCL_ICD_PLATFORM_SORT",
    "OCL_ICD_DEFAULT_PLATFORM",
    "OPENCL_LAYERS",
    "OCL_ICD_ENABLE_TRACE",
)
OTHER_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "POCL_DEVICES",
    "POCL_CACHE_DIR",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "CL_CONFIG_DEVICES",
    "CL_CONFIG_CPU_VECTORIZER_MODE",
    "POCL_WORK_GROUP_SPECIALIZATION",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
# Driver libraries by the start of their names -> name of the .icd file to write.
DRIVERS = {
    "libnvidia-opencl.so.1": "nvidia.icd",
    "libamdocl64.so": "amdocl64.icd",
    "libigdrcl.so": "intel.icd",
    "libpocl.so.2": "pocl.icd",
    "libMesaOpenCL.so.1": "mesa.icd",
    "libRusticlOpenCL.so.1": "rusticl.icd",
}
DRIVER_FOLDERS = (
    "/opt/rocm/lib",
    "/opt/amdgpu-pro/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/intel-opencl",
    "/usr/lib64/intel-opencl",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)


def pyopencl_module() -> Check:
    """Import of pyopencl, its version and origin."""
    try:
        module: Any = load()
    except NoDeviceError as err:
        what, _, fix = str(err).partition(" Run: ")
        return Check("pyopencl", FAIL, what, fix)
    header = ".".join(map(str, module.get_cl_header_version()))
    origin = "wheel" if _bundled_loader(Path(module.__file__)) else "built for this system"
    detail = f"{module.VERSION_TEXT} ({origin}), OpenCL headers {header}"
    if icd.is_conda() and origin == "wheel":
        fix = "conda install -c conda-forge pyopencl (a wheel's loader ignores conda's drivers)"
        return Check("pyopencl", WARN, f"{detail}, in a conda environment", fix)
    if setup().late:
        detail += "; imported before clnn"
    return Check("pyopencl", OK, detail)


def _bundled_loader(module_file: Path) -> bool:
    return any((module_file.parent / ".libs").glob("libOpenCL*"))


def loader() -> Check:
    """The OpenCL loader in use: whose it is and what it reads."""
    path = loader_library()
    if path is None:
        if _load_failed():
            return Check("loader", FAIL, "not loaded, since pyopencl is not")
        return Check("loader", WARN, "cannot be told: /proc/self/maps lists no libOpenCL")
    kind = "ocl-icd" if honours(path, "OCL_ICD_PLATFORM_SORT") else "not ocl-icd"
    if honours(path, "OCL_ICD_FILENAMES"):
        kind = "Khronos"
    return Check("loader", OK, f"{path} ({kind})", "", {"path": str(path), "kind": kind})


def _load_failed() -> bool:
    try:
        load()
    except NoDeviceError:
        return True
    return False


def honours(library: Path, variable: str) -> bool:
    """Tell whether a loader reads an environment variable: its file then holds the name."""
    try:
        return variable.encode() in library.read_bytes()
    except OSError:
        return False


def variables() -> Check:
    """Variables that decide which devices appear, and whether this loader reads them."""
    path, arranged = loader_library(), setup()
    own = {"OCL_ICD_VENDORS"} if arranged.folder else set()
    names = [name for name in LOADER_VARIABLES if os.environ.get(name) and name not in own]
    ignored = [name for name in names if path is not None and not honours(path, name)]

    def note(name: str) -> str:
        if name in ignored:
            besides = "; clnn registers what it names" if name == icd.MORE_DRIVERS else ""
            return f" (ignored by this loader{besides})"
        return " (as clnn sets it)" if os.environ[name] == GIVEN.get(name, ("",))[0] else ""

    texts = [
        f"{name}={os.environ[name]}{note(name)}"
        for name in (*names, *(name for name in OTHER_VARIABLES if name in os.environ))
    ]
    if arranged.folder:
        texts.append(f"clnn set OCL_ICD_VENDORS={arranged.folder}")
    detail = "\n".join(texts) or "none is set"
    useless = [name for name in ignored if name != icd.MORE_DRIVERS or arranged.override]
    fixes = [f"unset {name}, use OCL_ICD_VENDORS" for name in useless]
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        fixes.append("unset CUDA_VISIBLE_DEVICES: it hides all NVIDIA GPUs")
    capabilities = os.environ.get("NVIDIA_DRIVER_CAPABILITIES", "all")
    if not {"all", "compute"} & set(capabilities.split(",")):
        fixes.append("start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    if "oclgrind" in os.environ.get("LD_PRELOAD", ""):
        fixes.append("run without Oclgrind: it hides all devices but its simulator")
    return Check("variables", WARN if fixes else OK, detail, "; ".join(fixes))


def registered() -> list[icd.IcdFile]:
    """Return the .icd files in use; where clnn made a folder of links, those they stand for."""
    arranged, path = setup(), loader_library()
    bundled = path.parent if path and path.parent.name == ".libs" else None
    if arranged.folder is None:
        return icd.files_in_use(os.environ, bundled)
    ours = [entry for entry in icd.icd_files(arranged.folder) if not entry.path.is_symlink()]
    linked = {os.path.realpath(p) for p in arranged.folder.iterdir() if p.is_symlink()}
    prefix = [e for e in icd.icd_files(icd.prefix_vendors()) if os.path.realpath(e.path) in linked]
    extra = icd.icd_files(bundled) if bundled else []
    return [*icd.icd_files(icd.SYSTEM_VENDORS), *prefix, *ours, *extra]


def drivers() -> Check:
    """Every .icd file: readable, its library loads, and it offers platforms."""
    entries = registered()
    rows = [(entry, _try_driver(entry)) for entry in entries]
    lines = [f"{entry.path}: {entry.library or '-'}: {text}" for entry, (_, text) in rows]
    data = {
        "files": [
            {"path": str(e.path), "library": e.library, "works": works, "state": text}
            for e, (works, text) in rows
        ]
    }
    if not entries:
        place = os.environ.get("OCL_ICD_VENDORS") or str(icd.SYSTEM_VENDORS)
        detail = f"no .icd file in {place}: no OpenCL driver is registered"
        return Check("drivers", FAIL, detail, _vendors_fix(), data)
    bad = [entry for entry, (works, _) in rows if not works]
    fixes = [_driver_fix(entry, text) for entry, (works, text) in rows if not works]
    status = OK if not bad else FAIL if len(bad) == len(rows) else WARN
    return Check("drivers", status, "\n".join(lines), "\n".join(fixes), data)


def _vendors_fix() -> str:
    override = setup().override
    return f"unset {override}, or point it at a folder that holds .icd files" if override else ""


def _try_driver(entry: icd.IcdFile) -> tuple[bool, str]:
    """Return (whether the driver of an .icd file loads and offers platforms, what came out)."""
    if entry.error:
        return False, f"cannot be read: {entry.error}"
    reason = dict(setup().excluded).get(entry.library)
    if reason:
        return False, f"left out by clnn, since listing its devices fails: {reason}"
    answer = ask_child("driver", entry.library)
    if "error" in answer:
        return False, str(answer["error"])
    count = int(answer["platforms"])
    return count > 0, f"loads, {count} platform{'' if count == 1 else 's'}"


def ask_child(task: str, path: str = "", without: Collection[str] = ()) -> dict[str, Any]:
    """Have a child process do an `icd_child` task; return its answer, {"error": ...} if it died."""
    env = {name: text for name, text in child_environment().items() if name not in without}
    out, end = run_python("device.icd_child", {"task": task, "path": path}, CHILD_TIMEOUT_S, env)
    answers = out.splitlines()[1:]
    if not answers:
        return {"error": end or "the process ended early"}
    answer: dict[str, Any] = json.loads(answers[0])
    return answer


def _driver_fix(entry: icd.IcdFile, text: str) -> str:
    if setup().override and not entry.path.is_file():
        return _vendors_fix()
    if entry.error:
        return f"sudo chmod a+r {entry.path}" if os.path.exists(entry.path) else ""
    if "libintelocl" in entry.library and icd.intel_library():
        return f"{INTEL_COMMAND} (its libraries are incomplete)"
    if text.endswith("0 platforms"):
        return f"{entry.library} finds no hardware: see the line `GPU files`"
    return f"reinstall the driver, or remove {entry.path}"


def unregistered() -> Check:
    """Driver libraries that no .icd file names."""
    stems = {entry.stem for entry in registered() if entry.present}
    listed = icd.ldconfig_libraries()
    located = {name: _locate(name, listed) for name in DRIVERS if name.split(".so")[0] not in stems}
    missing = {name: path for name, path in located.items() if path}
    if not missing:
        return Check("unregistered", OK, "no driver library lacks an .icd file")
    lines = [f"{path} is installed, but no .icd file names it" for path in missing.values()]
    return Check(
        "unregistered",
        WARN,
        "\n".join(lines),
        "\n".join(register_command(path, DRIVERS[name]) for name, path in missing.items()),
        {"libraries": [str(path) for path in missing.values()]},
    )


def _locate(name: str, listed: dict[str, Path]) -> Path | None:
    places = (Path(folder) / name for folder in DRIVER_FOLDERS)
    return next((path for path in places if path.exists()), None) or listed.get(name)


def register_command(library: Path, name: str) -> str:
    """Return the commands that write the one-line .icd file for `library`."""
    home = "$HOME/.opencl-vendors"
    return (
        f"sudo sh -c 'echo {library} > {icd.SYSTEM_VENDORS}/{name}'; without root: mkdir -p {home}"
        f" && cp {icd.SYSTEM_VENDORS}/*.icd {home}/; echo {library} > {home}/{name};"
        f" export OCL_ICD_VENDORS={home}"
    )


def system_loader() -> Check:
    """The system's own libOpenCL, which clinfo uses: does it list what pyopencl's loader lists?"""
    path, own = icd.find_library("libOpenCL.so.1"), loader_library()
    if path is None:
        return Check("system loader", OK, "none installed (clnn does not need one)")
    if own is not None and os.path.realpath(path) == os.path.realpath(own):
        return Check("system loader", OK, f"{path}: the one that clnn uses")
    ours = ["OCL_ICD_VENDORS"] if setup().folder else []
    answer = ask_child("loader", str(path), ours)
    if "error" in answer:
        return Check("system loader", WARN, f"{path}: {answer['error']}", "reinstall it")
    names = ", ".join(answer["names"]) or "no platform"
    return Check("system loader", OK, f"{path}: {names}", "", {"platforms": answer["names"]})


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Return package name -> version of those of `names` that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
