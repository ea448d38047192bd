"""Many kernels built as one program: a program costs a driver more than a small kernel of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from clnn.errors import BuildError
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load

_KERNEL = re.compile(r"__kernel void (\w+)\(")
_PRAGMA = re.compile(r"^#pragma.*\n", re.M)  # what holds for the sources behind it too
_DEFINED = re.compile(
    r"^#define (\w+)|^__constant [\w ]+ (\w+)\[|^typedef .*?(\w+);"
    r"|^(?:__attribute__\(\(\w+\)\)[ \t]+)?(?!__)\w[\w \t]*?[ \t*]+(\w+)\s*\("
    r"|^}\s*(\w+);|^struct (\w+)|\b__kernel void (\w+)\(",
    re.M,
)
Names = dict[tuple[str, str], str]  # (source, kernel) -> its name in a program of many


def build_joined(device: Device, sources: Mapping[str, str]) -> Names:
    """Build sources (title -> source) as few programs, and put these into `device.programs`.

    Returns the names of their kernels. Those of a program that does not build are left out.
    """
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for source in dict.fromkeys(sources.values()):
        groups[frozenset(_PRAGMA.findall(source))].append(source)
    names: Names = {}
    for pragmas, group in groups.items():
        texts = [_renamed(source, number) for number, source in enumerate(group)]
        whole = "".join([*sorted(pragmas), *(text for text, _ in texts)])
        try:
            Device.build(device, {"joined": whole})
        except BuildError:  # that of one alone says which it is
            continue
        program = device.programs.pop(whole)
        for source, (_, kernels) in zip(group, texts, strict=True):
            device.programs[source] = program
            names |= {(source, kernel): name for kernel, name in kernels.items()}
    return names


def _renamed(source: str, number: int) -> tuple[str, dict[str, str]]:
    """Return a source whose names end with a number, and its kernels' names before and after."""
    text = _PRAGMA.sub("", source)
    kernels = _KERNEL.findall(text)
    names = {name for found in _DEFINED.findall(text) for name in found if name} | {*kernels}
    words = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    text = words.sub(rf"\1_{number}", text)
    return text, {kernel: f"{kernel}_{number}" for kernel in kernels}


class JoinedDevice(Device):
    """Builds the sources that are asked for together as one program, each with names of its own."""

    names: Names

    @staticmethod
    def of(info: DeviceInfo) -> JoinedDevice:
        """Open a context on `info`."""
        return JoinedDevice.like(Device.open(info))

    @staticmethod
    def like(opened: Device) -> JoinedDevice:
        """Return a device with the context of `opened`."""
        made = JoinedDevice(opened.info, opened.context, opened.handle)
        made.names = {}
        return made

    def beside(self) -> JoinedDevice:
        """Return the same context for programs of another session."""
        return JoinedDevice.like(self)

    def build(self, sources: Mapping[str, str]) -> None:
        """Build what is not there yet."""
        missing = missing_of(self, sources.items())
        if len(missing) > 1:
            self.names |= build_joined(self, missing)
        super().build(sources)

    def kernel(self, source: str, name: str) -> Any:
        """Return a new kernel object of a built program."""
        return load().Kernel(self.programs[source], self.names.get((source, name), name))


def missing_of(device: Device, sources: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return those of (title, source) that a device has to build."""
    return {title: source for title, source in sources if not device.has(source)}
