"""What the steps of a probe share: a context on one device, and how results are compared with NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clnn.runtime.device import probe_merged

# PoCL compiles a kernel for each size of its groups, in a probe's child: one for all that are merged.
POCL = "Portable Computing Language"


class RefusedError(Exception):
    """The device cannot do what a step asks, for the reason given."""


class SlowError(RefusedError):
    """The device can do it right, but not fast enough to use it."""


class ProbeBench:
    """A context and queue on one device, with what the steps need to run a kernel."""

    def __init__(self, cl: Any, device: Any, options: Sequence[str]) -> None:
        self.cl, self.device, self.options = cl, device, list(options)
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.programs: dict[str, Any] = {}
        self.merged: probe_merged.Merged | None = None
        self.merged_asked = 0

    def kernel(self, file: str, name: str) -> Any:
        """Return the kernel `name` of `kernels_cl/_probe/<file>.cl`, built before or now."""
        if self.merged is not None and name in self.merged.numbers:
            self.merged_asked += 1
            return partial(self.merged.launch, self.merged.numbers[name])
        return self.cl.Kernel(self.programs.get(file) or self.build([file]), name)

    def build_together(self, files: Sequence[str], merge: bool = False) -> bool:
        """Build several files as one program, which takes a fraction of the time of one each.

        merge: and have one kernel call those of `probe_merged`. Returns whether they built; nothing has
        changed where they did not.
        """
        try:
            program = self.build(files, text=probe_merged.text(files) if merge else "")
            merged = self._merged(program, files) if merge else None
        except (self.cl.Error, OSError):
            return False
        self.programs |= dict.fromkeys(files, program)
        self.merged = merged
        return True

    def _merged(self, program: Any, files: Sequence[str]) -> probe_merged.Merged:
        """Return the kernel that calls others, compiled: drivers do that when it is launched."""
        kernel, nothing = self.cl.Kernel(program, probe_merged.NAME), self.buffer(np.zeros(16))
        group = (1,) if self.device.platform.name.strip() == POCL else None
        merged = probe_merged.Merged(kernel, files, nothing, group)
        merged.launch(probe_merged.NONE, self.queue, (1,), None)
        self.queue.finish()
        return merged

    def build(self, files: Sequence[str], more: Sequence[str] = (), text: str = "") -> Any:
        """Return the program of some files, with a text behind them; more: build options besides its own."""
        from clnn.runtime.drivers.assembly import taken_by
        from clnn.runtime.drivers.in_turn import built

        texts = [(kernel_folder() / f"{file}.cl").read_text(encoding="utf-8") for file in files]
        program = self.cl.Program(self.context, taken_by(self.device, "\n".join([*texts, text])))
        return built(program, [*self.options, *more], self.device.platform.name)

    def lists(self, *extensions: str) -> bool:
        """Whether the device states one of these extensions."""
        return not set(extensions).isdisjoint(self.device.extensions.split())

    def buffer(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a device buffer with a copy of `array`."""
        flags = self.cl.mem_flags
        return self.cl.Buffer(
            self.context,
            flags.READ_WRITE | flags.COPY_HOST_PTR,
            hostbuf=np.ascontiguousarray(array),
        )

    def run(self, kernel: Any, size: int, local: int | None, args: Sequence[Any], out: Any) -> Any:
        """Run `kernel` over `size` items; arrays become buffers; return what `out` then holds."""
        held = [self.buffer(a) if isinstance(a, np.ndarray) else a for a in args]
        position = next(i for i, a in enumerate(args) if a is out)
        kernel(self.queue, (size,), None if local is None else (local,), *held)
        result = np.empty_like(out)
        self.cl.enqueue_copy(self.queue, result, held[position])
        self.queue.finish()
        return result

    def group_size(self, kernel: Any, most: int = 64) -> int:
        """Return the largest power of two, at most `most`, that `kernel` takes as group size."""
        info = self.cl.kernel_work_group_info.WORK_GROUP_SIZE
        limit = min(most, kernel.get_work_group_info(info, self.device))
        return int(1 << (int(limit).bit_length() - 1))


def kernel_folder() -> Path:
    """Return the folder of the probe kernels: of the checkout, else of the installed package."""
    package = Path(__file__).resolve().parents[2]
    places = (package.parent / "kernels_cl" / "_probe", package / "_kernels_cl" / "_probe")
    return next((p for p in places if p.is_dir()), places[-1])


def expect(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Raise RefusedError with the first difference unless both arrays are equal."""
    wrong = np.flatnonzero(np.asarray(got).ravel() != np.asarray(want).ravel())
    if wrong.size:
        i = int(wrong[0])
        raise RefusedError(
            f"wrong result: element {i} is {got.ravel()[i]}, must be {want.ravel()[i]}"
            f" ({wrong.size} of {got.size} wrong)"
        )
