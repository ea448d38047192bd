"""A device that builds many kernels as one program: a program costs a driver more than a small kernel of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clnn.codegen.fused_kernel import parts
from clnn.errors import BuildError, TemplateError
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load

_KERNEL = re.compile(r"__attribute__\(\(reqd_work_group_size\([^)]*\)\)\)\s*__kernel void (\w+)\(")
_WHOLE = re.compile(r"^#pragma", re.M)  # what holds for the sources behind it too


class JoinedDevice(Device):
    """Builds the sources that are asked for together as one program, each with names of its own."""

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

    names: dict[tuple[str, str], str]  # (source, kernel) -> its name in the program

    def beside(self) -> JoinedDevice:
        """Return the same context for programs of another session."""
        return JoinedDevice.like(self)

    def build(self, sources: Mapping[str, str]) -> None:
        """Build what is not there yet."""
        missing = {s: title for title, s in sources.items() if s not in self.programs}
        fit = [source for source in missing if _can_join(source)]
        if len(fit) > 1:
            texts = [_renamed(source, number) for number, source in enumerate(fit)]
            whole = "\n".join(text for text, _ in texts)
            try:
                super().build({"joined": whole})
            except BuildError:  # that of one alone says which it is
                fit = []
            for source, (_, kernel) in zip(fit, texts, strict=False):
                self.programs[source] = self.programs[whole]
                self.names[source, kernel[0]] = kernel[1]
        super().build(sources)

    def kernel(self, source: str, name: str) -> Any:
        """Return a new kernel object of a built program."""
        return load().Kernel(self.programs[source], self.names.get((source, name), name))


def _can_join(source: str) -> bool:
    if _WHOLE.search(source) or len(_KERNEL.findall(source)) != 1:
        return False
    try:
        parts(source)
    except TemplateError:
        return False
    return True


def _renamed(source: str, number: int) -> tuple[str, tuple[str, str]]:
    """Return a source whose names end with a number, and its kernel's name before and after."""
    (kernel,) = _KERNEL.findall(source)
    names = "|".join({kernel, *(re.escape(name) for name, _ in parts(source)[0])})
    return re.sub(rf"\b({names})\b", rf"\g<1>_{number}", source), (kernel, f"{kernel}_{number}")
