"""Turns this process into one that plans for a made-up device and runs on Oclgrind's simulator.

Call `install` before anything that selects a device is imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clnn.target import Target

DEVICE = "oclgrind"
FEATURES = frozenset({"fp64"})
AHEAD = FEATURES | {"prefetch"}
TARGETS = {
    "cpu": Target("cpu", vector=16, compute_units=1, max_work_group=256, features=AHEAD),
    "gpu": Target("gpu", vector=4, compute_units=1, max_work_group=256, features=FEATURES),
}
# Oclgrind takes the upper half of a vector of 16 for uninitialised when it is moved on its own.
TRACKED = {"cpu": replace(TARGETS["cpu"], vector=8), "gpu": TARGETS["gpu"]}
POISON = 0xFF


class NothingNew(BaseException):
    """Kernels are not built: what they consist of has been run before."""


class Simulator:
    """What is planned for (`target`), and which templates and lines of them were rendered.

    sparing: programs are built only where a rendering went through a line of a template that no
    rendering at `place` went through before; else NothingNew is raised.
    """

    def __init__(self) -> None:
        self.target = TARGETS["cpu"]
        self.sparing = False
        self.place = ""
        self.rendered: set[str] = set()
        self.sources: set[str] = set()
        self.lines: dict[str, set[int]] = {}
        self._met: set[tuple[str, str, int]] = set()
        self._new = False

    def render(self, plain: Callable[..., str], template: str, params: Mapping[str, Any]) -> str:
        """Render, and note the template and the lines of all templates that took part.

        Oclgrind does not know of reads ahead: only their addresses are left.
        """
        lines: dict[str, set[int]] = {}
        with _watched(lines):
            text = plain(template, params).replace("__builtin_prefetch", "(void)")
        self.rendered.add(template)
        for module, numbers in lines.items():
            self.lines.setdefault(module, set()).update(numbers)
            met = {(self.place, module, number) for number in numbers}
            self._new |= not met <= self._met
            self._met |= met
        return text

    def build(self, plain: Callable[..., None], device: Any, sources: Mapping[str, str]) -> None:
        """Build programs and note them. Raises NothingNew."""
        if self.sparing and not self._new:
            raise NothingNew
        self._new = False
        self.sources.update(sources.values())
        plain(device, sources)


def install(fill: bool) -> Simulator:
    """Make sessions of this process run on the simulator; return what is known of them.

    fill: new device memory holds poison; otherwise nothing, so that reads of it are uninitialised.
    """
    simulator = Simulator()
    from clnn.codegen import render as room

    room.render = functools.partial(simulator.render, room.render)  # type: ignore[assignment]
    _skip_the_probe()
    _poison(fill)
    _keep_buffers()
    from clnn.runtime.build import program
    from clnn.runtime.run import planning

    planning.target_of = lambda info: simulator.target
    # Sessions share one context, and so the programs that are built already.
    program.Device.open = staticmethod(functools.cache(program.Device.open))  # type: ignore[method-assign]
    program.Device.build = functools.partialmethod(  # type: ignore[assignment, method-assign]
        _build, simulator, program.Device.build
    )
    return simulator


def _build(device: Any, simulator: Simulator, plain: Callable[..., None], sources: Any) -> None:
    simulator.build(plain, device, sources)


def _skip_the_probe() -> None:
    """Describe the simulator as a probe would find it."""
    from clnn.runtime.device import device
    from clnn.runtime.device.probe import Capabilities, Capability

    found = next(d for d in device.list_unprobed() if d.platform.lower() == DEVICE)
    yes = Capability(True)
    info = replace(
        found,
        why_not="",
        usable_local_mem=found.local_mem,
        caps=Capabilities(local_memory=yes, fp64=yes),
    )
    device.select = lambda spec=None: info


def _poison(fill: bool) -> None:
    """Let fills from the host write poison, or nothing at all."""
    import pyopencl as cl

    plain = cl.enqueue_fill_buffer

    def replaced(queue: Any, memory: Any, pattern: Any, offset: int, size: int) -> Any:
        return plain(queue, memory, np.uint8(POISON), offset, size) if fill else None

    cl.enqueue_fill_buffer = replaced


def _keep_buffers() -> None:
    """Never free device memory: Oclgrind takes what lies at a used address for uninitialised."""
    from clnn.runtime.run import constants, state

    plain, kept = state.allocate, []

    def replaced(make: Callable[[], Any], nbytes: int, device: Any) -> Any:
        kept.append(plain(make, nbytes, device))
        return kept[-1]

    state.allocate = constants.allocate = replaced


# Lines of templates: Mako compiles each into Python functions, whose lines it can map back.


@contextmanager
def _watched(lines: dict[str, set[int]]) -> Iterator[None]:
    """Add the module lines that compiled templates execute to `lines`, by module."""

    def local(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def enter(frame: Any, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.endswith("_cl_mako"):
            return None
        lines.setdefault(name, set())
        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def templates_below(folder: str | os.PathLike[str]) -> list[str]:
    """Return the templates of kernels, by their names within `folder`, helpers included."""
    root = Path(folder)
    names = (p.relative_to(root).as_posix() for p in root.rglob("*.cl.mako"))
    return sorted(name for name in names if not name.startswith(("_arith/", "_probe/")))


def unused_lines(simulator: Simulator) -> dict[str, list[str]]:
    """Return template -> its lines that no rendering went through, as "number: text"."""
    from clnn.codegen.render import _lookup, template_folders

    folders = template_folders(os.environ.get("CLNN_KERNEL_PATH", ""))
    found = {}
    for name in templates_below(folders[0]):
        template = _lookup(folders).get_template(name)
        ran = [simulator.lines.get(_module(uri), set()) for uri in (name, f"/{name}")]
        possible, used = _mapped(template.code, set().union(*ran))
        text = template.source.splitlines()
        missed = sorted(n for n in possible - used if n and _prints(text[n - 1]))
        if missed:
            found[name] = [f"{n}: {text[n - 1].strip()}" for n in missed]
    return found


def _prints(line: str) -> bool:
    """Whether a line does something, rather than begin or end a part of the template."""
    return bool(line.strip()) and not line.strip().startswith(
        ("</%", "%>", "<%namespace", "<%def", "<%!")
    )


def _module(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def _mapped(code: str, executed: set[int]) -> tuple[set[int], set[int]]:
    """Return the template lines that can run, and those that did."""
    from mako.template import ModuleInfo

    mapping = ModuleInfo.get_module_source_metadata(code, full_line_map=True)["full_line_map"]
    functions = [c for c in compile(code, "t", "exec").co_consts if hasattr(c, "co_lines")]
    possible: set[int] = set()
    while functions:
        one = functions.pop()
        functions += [c for c in one.co_consts if hasattr(c, "co_lines")]
        if one.co_name.startswith(("_mako", "<")) or one.co_name == "_mako_inherit":
            continue
        possible |= {line for *_, line in one.co_lines() if line and line > one.co_firstlineno}
    return {mapping[n - 1] for n in possible}, {mapping[n - 1] for n in executed if n in possible}
