"""The child process of the tuner: builds kernels, runs a variant, checks what it wrote, times it.

Requests: {"build": source file, "binary": file} builds, and keeps no binary of a kernel that lacks
registers; {"trial": ...} runs. A trial names the files
of its memory: every tensor lies between guards, outputs are poisoned, and after a run all that is
not an element of an output must be as it was. See clnn.tune.bench for the other side.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from clnn.layout import TensorLayout, view_of
from clnn.runtime.build import registers
from clnn.runtime.build.program import program_binary
from clnn.runtime.device.processor import may_use_tiles
from clnn.runtime.drivers.assembly import taken_by
from clnn.runtime.drivers.eventless import launch_on
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.worker import serve
from clnn.runtime.run.arguments import Place, in_order
from clnn.runtime.run.state import POISON
from clnn.types import STORAGE, widen

GUARD = 256  # bytes of poison on both sides of every tensor
BATCH_S = 1e-3  # what one time is taken over
MOST_LAUNCHES = 64
COLD_BYTES = 1 << 25  # constants in turns, so that they come from where they lie in a network
MOST_COPIES = 8
KEPT = 4  # variants that stay loaded


def main(argument: Mapping[str, Any]) -> None:
    """Serve one device until the parent is gone."""
    bench = _TrialBench(argument)
    serve(bench.answer)


class _TrialBench:
    def __init__(self, argument: Mapping[str, Any]) -> None:
        cl = load()
        device = cl.get_platforms()[argument["platform"]].get_devices()[argument["device"]]
        self.cl, self.device = cl, device
        self.options, self.large = list(argument["options"]), bool(argument.get("large"))
        may_use_tiles()  # asks for what kernels that the parent chose may need
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.memory: _Tensors | None = None
        self.loaded: OrderedDict[str, _LoadedVariant] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return self.build(request) if "build" in request else self.trial(request)
        except (self.cl.Error, MemoryError) as err:
            return {"fault": " ".join(str(err).split())[:500]}

    def build(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        source = Path(request["build"]).read_text(encoding="utf-8")
        options = registers.options_with(self.options, source, self.large)
        taken = taken_by(self.device, source)
        program = self.cl.Program(self.context, taken).build(options, cache_dir=False)
        if told := registers.spills_of(registers.build_log(program, self.device)):
            return {"fault": "", "spills": told}
        target = Path(request["binary"])
        part = target.with_suffix(f".{os.getpid()}")
        part.write_bytes(program_binary(program) or b"")
        os.replace(part, target)
        return {"fault": ""}

    def trial(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        folder = request["folder"]
        if self.memory is None or self.memory.folder != folder:
            self.loaded.clear()
            self.memory = _Tensors(self, folder)
        self.memory.need(request["tensors"])
        ready = self.loaded.pop(request["trial"], None) or _LoadedVariant(
            self, self.memory, request
        )
        self.loaded[request["trial"]] = ready
        while len(self.loaded) > KEPT:
            self.loaded.popitem(last=False)
        fault, error = self._check(ready)
        seconds = [] if fault else ready.times(int(request["batches"]))
        if not fault and seconds:
            fault, again = self._check(ready)
            error = max(error, again)
        if fault:  # what else it changed is not known: the next variant gets fresh memory
            self.memory = None
        return {"fault": fault, "error": error, "seconds": seconds}

    def _check(self, ready: _LoadedVariant) -> tuple[str, float]:
        """Run once in memory as it was given; return what is wrong with it and the error."""
        assert self.memory is not None
        self.memory.restore()
        ready.run(0)
        self.queue.finish()
        return self.memory.compare()

    def program(self, binary: str, source: str) -> Any:
        """Return the program of a binary, built from source where the driver gave none."""
        data = Path(binary).read_bytes()
        text = Path(source).read_text(encoding="utf-8")
        if data:
            program = self.cl.Program(self.context, [self.device], [data])
        else:
            program = self.cl.Program(self.context, taken_by(self.device, text))
        options = registers.options_with(self.options, text, self.large)
        return program.build(options, cache_dir=False)

    def buffer(self, data: np.ndarray[Any, Any]) -> Any:
        flags = self.cl.mem_flags
        return self.cl.Buffer(
            self.context,
            flags.READ_WRITE | flags.COPY_HOST_PTR,
            hostbuf=data if data.size else np.zeros(4, np.uint8),
        )


class _Tensors:
    """The tensors of one problem on the device, and what they must hold after a run."""

    def __init__(self, bench: _TrialBench, folder: str) -> None:
        self.bench, self.folder = bench, folder
        self.tensors: dict[str, Mapping[str, Any]] = {}
        self.bytes: dict[str, np.ndarray[Any, Any]] = {}
        self.buffers: dict[str, Any] = {}
        self.wanted: dict[str, np.ndarray[Any, Any]] = {}

    def need(self, tensors: Sequence[Mapping[str, Any]]) -> None:
        for tensor in tensors:
            name = tensor["name"]
            if name in self.tensors:
                continue
            self.bytes[name] = np.load(Path(self.folder, f"{name}.npy"))
            self.buffers[name] = self.bench.buffer(self.bytes[name])
            if tensor["written"]:
                self.wanted[name] = np.load(Path(self.folder, f"{name}.want.npy"))
            self.tensors[name] = tensor

    def restore(self) -> None:
        for name in self.wanted:
            self.bench.cl.enqueue_copy(self.bench.queue, self.buffers[name], self.bytes[name])

    def compare(self) -> tuple[str, float]:
        worst = 0.0
        for name, tensor in self.tensors.items():
            before = self.bytes[name]
            after = np.empty_like(before)
            self.bench.cl.enqueue_copy(self.bench.queue, after, self.buffers[name])
            if not tensor["written"]:
                if not np.array_equal(after, before):
                    return f"changed its input {name}", math.inf
                continue
            got, old = elements(after, tensor), elements(before, tensor)
            worst = max(worst, error_of(values(after, tensor), self.wanted[name]))
            got[...] = old
            if not np.array_equal(after, before):
                return f"wrote outside of its output {name}", math.inf
        return ("" if math.isfinite(worst) else "wrong values"), worst if math.isfinite(
            worst
        ) else -1.0


class _LoadedVariant:
    """A variant ready to run: kernels with arguments set, one set for each copy of its constants."""

    def __init__(self, bench: _TrialBench, memory: _Tensors, request: Mapping[str, Any]) -> None:
        cl, self.bench, launches = bench.cl, bench, request["launches"]
        consts = {
            c: np.load(c) for launch in launches for k, c, *_ in launch["args"] if k == "const"
        }
        nbytes = sum(c.nbytes for c in consts.values())
        copies = max(1, min(MOST_COPIES, -(-COLD_BYTES // nbytes) if nbytes else 1))
        programs = [bench.program(launch["binary"], launch["source"]) for launch in launches]
        scratch = {
            key: bench.buffer(np.full(size + GUARD, POISON, np.uint8))
            for launch in launches
            for k, key, size in launch["args"]
            if k == "scratch"
        }
        kind = "gpu" if bench.device.type & cl.device_type.GPU else ""
        self.keep = [scratch, programs]
        self.sets = []
        for _ in range(copies):
            held = {path: bench.buffer(array) for path, array in consts.items()}
            self.keep.append(held)
            self.sets.append(
                [
                    launch_on(
                        kind,
                        bench.queue,
                        _kernel(cl, program, launch, memory, held, scratch),
                        launch["global"],
                        launch["local"],
                    )
                    for program, launch in zip(programs, launches, strict=True)
                ]
            )

    def run(self, turn: int) -> None:
        for launch in self.sets[turn % len(self.sets)]:
            launch()

    def times(self, batches: int) -> list[float]:
        """Return seconds per run, each over a batch of runs back to back."""
        if not batches:
            return []
        once = self._batch(1)
        count = max(1, min(MOST_LAUNCHES, math.ceil(BATCH_S / max(once, 1e-9))))
        return [self._batch(count) for _ in range(batches)]

    def _batch(self, count: int) -> float:
        begin = perf_counter()
        for turn in range(count):
            self.run(turn)
        self.bench.queue.finish()
        return (perf_counter() - begin) / count


def _kernel(
    cl: Any,
    program: Any,
    launch: Mapping[str, Any],
    memory: _Tensors,
    consts: Mapping[str, Any],
    scratch: Mapping[str, Any],
) -> Any:
    places: list[Place] = []
    for kind, name, number in launch["args"]:
        if kind == "tensor":
            places.append((memory.buffers[name], number))
        else:
            places.append((consts[name], None) if kind == "const" else (scratch[name], 0))
    kernel = cl.Kernel(program, launch["kernel"])
    kernel.set_args(*in_order(places, np.int32))
    return kernel


def elements(raw: np.ndarray[Any, Any], tensor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the real elements of a tensor as a view of its guarded bytes."""
    parts: list[Any] = [tuple(v) if isinstance(v, list) else v for v in tensor["layout"]]
    layout = TensorLayout(*parts)
    return view_of(raw[GUARD : raw.size - GUARD].view(tensor["dtype"]), layout)


def values(raw: np.ndarray[Any, Any], tensor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the real elements of a tensor as numbers: of 16-bit storage as float32."""
    stored = elements(raw, tensor)
    return widen(stored, STORAGE[tensor["stored"]]) if tensor["stored"] else stored


def error_of(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> float:
    """Return the largest error relative to the largest value; integers must be equal.

    Infinite where NaN or infinity stand in other places.
    """
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want.astype(got.dtype)) else math.inf
    same = (np.isnan(got) & np.isnan(want)) | (got == want)
    finite = np.isfinite(want)
    if not (same | (finite & np.isfinite(got))).all():
        return math.inf
    scale = max(float(np.abs(want[finite]).max(initial=0.0)), 1e-30)
    return (
        float(
            np.abs(np.where(same, 0.0, got.astype(np.float64) - np.where(finite, want, 0.0))).max(
                initial=0.0
            )
        )
        / scale
    )
