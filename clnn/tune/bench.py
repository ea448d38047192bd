"""Builds, checks and times variants of one problem at a time, in child processes.

The parent makes the data, the expected results (the op's numpy reference in double precision) and
the sources; children of clnn.runtime.run.trial_child touch the driver. A variant counts only when it
built, ended in time, computed the right thing twice and touched nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.quantised import limits_of
from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.cache.templates import use_cache
from clnn.codegen.render import render
from clnn.errors import TemplateError
from clnn.layout import TensorLayout, view_of
from clnn.ops.launch import Const, In, Out, Scratch, Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.runtime.build.program import key_of, options_of
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import child_environment
from clnn.runtime.process.temporary import folder_for_a_while
from clnn.runtime.process.worker import Worker, WorkerError
from clnn.runtime.run.state import POISON
from clnn.runtime.run.trial_child import GUARD, values
from clnn.settings import setting
from clnn.types import I8, U8, Array, narrow, widen

use_cache()
# Of an element stored in 16 bits, relative to it; a bias may be rounded to that besides.
ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
ROUNDED = 2
BYTES = (I8, U8)

SPILLS = "lacks registers"


@dataclass(frozen=True)
class Limits:
    """Seconds that a variant has to build and to run; jobs: builds at once (0: as the setting)."""

    build_s: float = 60.0
    run_s: float = 30.0
    slack: float = 50.0
    jobs: int = 0


@dataclass(frozen=True)
class Trial:
    """What a trial gave: '' or what is wrong with the variant, its error, seconds of each batch.

    spills: what a build told of too few registers.
    """

    fault: str
    error: float = 0.0
    seconds: tuple[float, ...] = ()
    spills: str = ""

    @property
    def median(self) -> float:
        """The median time in seconds."""
        return float(np.median(self.seconds))


class Measurer(Protocol):
    """What a contest measures with."""

    def build(self, variants: Sequence[Variant]) -> dict[str, str]:
        """Build variants; return name -> '' or what is wrong."""

    def trial(self, variant: Variant, batches: int) -> Trial:
        """Check a variant and time it over `batches`."""


class Trials(Measurer, Protocol):
    """A Measurer that can be given one problem after the other."""

    def load(self, spec: OpSpec, problem: Problem, note: Note = ...) -> None:
        """Make the data of a problem; what follows is about this one."""

    def keep(self, variants: Sequence[Variant]) -> None:
        """Put the binaries of built variants in the program cache."""

    def close(self) -> None:
        """Free what measuring holds."""


class Note(Protocol):
    """Marks that a variant is about to be tried, for as long as the context lasts."""

    def __call__(self, variant: Variant) -> AbstractContextManager[None]:
        """Return the context."""


def _no_note(variant: Variant) -> AbstractContextManager[None]:
    return nullcontext()


class Bench:
    """Children of one device and the files that they share with this process. Close it."""

    def __init__(self, info: DeviceInfo, limits: Limits | None = None) -> None:
        self.info, self.limits = info, limits or Limits()
        argument = {
            "platform": info.platform_index,
            "device": info.device_index,
            "options": options_of(info),
            "large": bool(info.caps.large_registers),
        }
        jobs = self.limits.jobs or int(setting("CLNN_BUILD_JOBS")) or min(os.cpu_count() or 1, 8)
        env = child_environment(info.driver)
        self._runner = Worker("run.trial_child", argument, env)
        self._builders = [Worker("run.trial_child", argument, env) for _ in range(jobs)]
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="clnn-tune")
        self._store = Store()
        self._held = ExitStack()
        self._root = self._held.enter_context(folder_for_a_while("clnn-tune-"))
        self._folder = self._root
        self._count = 0
        self.note: Note = _no_note

    def load(self, spec: OpSpec, problem: Problem, note: Note = _no_note) -> None:
        """Make the data of a problem; what follows is about this one."""
        if self._folder != self._root:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._count += 1
        self._folder = self._root / str(self._count)
        self._folder.mkdir()
        self.note, self._spec, self._problem = note, spec, problem
        self._usual, self._prepared = 0.0, ""
        self._requests: dict[str, dict[str, Any]] = {}
        types = [None if o is None else o.type for o in problem.inputs]
        self._limit, self._rounding = spec.tolerance(types), 0.0
        self._tensors = [*_inputs(problem), *_outputs(problem)]

    def build(self, variants: Sequence[Variant]) -> dict[str, str]:
        """Build variants in children at once; return name -> '' or what is wrong with it."""
        jobs = [
            self._pool.submit(self._build_all, worker, variants[n :: len(self._builders)])
            for n, worker in enumerate(self._builders)
        ]
        self._prepare()
        return {name: fault for job in jobs for name, fault in job.result().items()}

    def _build_all(self, worker: Worker, variants: Sequence[Variant]) -> dict[str, str]:
        return {variant.name: self._build(worker, variant) for variant in variants}

    def _build(self, worker: Worker, variant: Variant) -> str:
        try:
            sources = self.sources(variant)
        except TemplateError as err:
            return str(err)
        for source in sources:
            path = self._source(source)
            binary = path.with_suffix(".bin")
            path.write_text(source, encoding="utf-8")
            entry = None if binary.exists() else self._store.get(key_of(self.info, source))
            if entry is not None and not entry.meta.get("spills"):
                binary.write_bytes(entry.payload)
            if binary.exists():
                continue
            if entry is not None:
                return f"{SPILLS}: {entry.meta['spills']}"
            request = {"build": str(path), "binary": str(binary)}
            with self.note(variant):
                built = _ask(worker, request, self.limits.build_s)
            if built.fault:
                return f"does not build: {built.fault}"
            if built.spills:
                return f"{SPILLS}: {built.spills}"
        return ""

    def sources(self, variant: Variant) -> list[str]:
        """Return the source of each launch of a variant."""
        return [render(launch.template, launch.params) for launch in variant.launches]

    def keep(self, variants: Sequence[Variant]) -> None:
        """Put the binaries of built variants in the program cache."""
        for variant in variants:
            for launch, source in zip(variant.launches, self.sources(variant), strict=True):
                path = self._source(source).with_suffix(".bin")
                binary = path.read_bytes() if path.exists() else b""
                about = {"title": str(launch.params["name"]), "device": self.info.name}
                if binary:
                    self._store.put(key_of(self.info, source), binary, dict(about))

    def _source(self, source: str) -> Path:
        return self._folder / f"{fields_key('source', [source])[:24]}.cl"

    def trial(self, variant: Variant, batches: int) -> Trial:
        """Run a built variant, compare it with the reference, time it, compare again."""
        self._prepare()
        if variant.name not in self._requests:
            self._requests[variant.name] = self._request(variant)
        request = {**self._requests[variant.name], "batches": batches}
        seconds = self.limits.run_s + self.limits.slack * self._usual * (batches + 1)
        with self.note(variant):
            trial = _ask(self._runner, request, seconds)
        if trial.fault:
            return trial
        limit = max(self._limit, variant.error) + self._rounding
        if trial.error > limit:
            return Trial(f"wrong values: error {trial.error:.3g}, allowed {limit:.3g}", trial.error)
        if trial.seconds and not self._usual:
            self._usual = trial.median
        return trial

    def _prepare(self) -> None:
        """Write the tensors and expected outputs of the problem, once."""
        if self._prepared:
            return
        problem, data = self._problem, list[Array | None]()
        for k, operand in enumerate(problem.inputs):
            if operand is None or operand.const is not None:
                data.append(None if operand is None else _as_stored(operand))
                continue
            raw = guarded(operand, _random(operand, k))
            np.save(self._folder / f"in{k}.npy", raw)
            data.append(values(raw, _tensor(f"in{k}", operand, False)).copy())
        with np.errstate(all="ignore"):
            wanted = self._spec.reference(*[_wide(a) for a in data])
        for k, (operand, want) in enumerate(zip(problem.outputs, wanted, strict=False)):
            np.save(self._folder / f"out{k}.npy", guarded(operand, None))
            np.save(self._folder / f"out{k}.want.npy", want)
            self._rounding = max(self._rounding, rounding_of(operand))
        self._prepared = str(self._folder)

    def _request(self, variant: Variant) -> dict[str, Any]:
        launches: list[dict[str, Any]] = []
        for launch, source in zip(variant.launches, self.sources(variant), strict=True):
            path = self._source(source)
            launches.append(
                {
                    "source": str(path),
                    "binary": str(path.with_suffix(".bin")),
                    "kernel": str(launch.params["name"]),
                    "global": list(launch.global_size),
                    "local": list(launch.local_size),
                    "args": [self._arg(arg) for arg in launch.args],
                }
            )
        used = {name for launch in launches for kind, name, _ in launch["args"] if kind == "tensor"}
        tensors = [t for t in self._tensors if t["written"] or t["name"] in used]
        return {
            "trial": variant.name,
            "folder": self._prepared,
            "tensors": tensors,
            "launches": launches,
        }

    def _arg(self, arg: In | Out | Const | Scratch) -> tuple[str, str, int]:
        if isinstance(arg, Const):
            return "const", self._const(np.ascontiguousarray(arg.make())), 0
        if isinstance(arg, Scratch):
            return "scratch", arg.name, max(arg.nbytes, 4)
        operands = self._problem.inputs if isinstance(arg, In) else self._problem.outputs
        operand = operands[arg.index]
        assert operand is not None
        path = self._folder / f"in{arg.index}.npy"
        if isinstance(arg, In) and operand.const is not None and not path.exists():
            np.save(path, guarded(operand, operand.const))
        start = GUARD // operand.memory.itemsize + operand.layout.offset + arg.shift
        return "tensor", f"{'in' if isinstance(arg, In) else 'out'}{arg.index}", start

    def _const(self, array: Array) -> str:
        key = fields_key(f"{array.dtype} {array.shape}", [array.tobytes()])[:24]
        path = self._folder / f"{key}.npy"
        if not path.exists():
            np.save(path, array)
        return str(path)

    def close(self) -> None:
        """Kill the children and remove the files."""
        for worker in (self._runner, *self._builders):
            worker.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._held.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def measurable(spec: OpSpec, problem: Problem) -> bool:
    """Whether random data suits a problem: what is not constant holds floats, or bytes of products."""
    moving = [o for o in problem.inputs if o is not None and o.const is None]
    products = getattr(spec, "arith", FLOAT) is not FLOAT
    fit = all(o.type.dtype.is_float or (products and o.type.dtype in BYTES) for o in moving)
    return fit and all(o.type.size for o in problem.outputs)


def rounding_of(operand: Operand) -> float:
    """Return the error that storing an output adds, relative to its largest value."""
    return ROUNDED * ROUNDING.get(operand.stored.name if operand.stored else "", 0.0)


def _ask(worker: Worker, request: dict[str, Any], timeout_s: float) -> Trial:
    try:
        reply = worker.ask(request, timeout_s)
    except WorkerError as err:
        return Trial(str(err))
    return Trial(
        str(reply["fault"]),
        float(reply.get("error", 0.0)),
        tuple(reply.get("seconds", ())),
        str(reply.get("spills", "")),
    )


def _inputs(problem: Problem) -> list[dict[str, Any]]:
    return [_tensor(f"in{k}", o, False) for k, o in enumerate(problem.inputs) if o is not None]


def _outputs(problem: Problem) -> list[dict[str, Any]]:
    return [_tensor(f"out{k}", o, True) for k, o in enumerate(problem.outputs)]


def _tensor(name: str, operand: Operand, written: bool) -> dict[str, Any]:
    return {
        "name": name,
        "written": written,
        "dtype": operand.memory.numpy.name,
        "stored": operand.stored.name if operand.stored else "",
        "layout": astuple(operand.layout),
    }


def _random(operand: Operand, seed: int) -> Array:
    """Return normally distributed numbers, or any bytes."""
    random, kind = np.random.default_rng(seed), operand.type.dtype
    if kind in BYTES:
        low, high = limits_of(kind)
        return random.integers(low, high, operand.type.shape, kind.numpy, endpoint=True)
    return random.standard_normal(operand.type.shape).astype(kind.numpy)


def _as_stored(operand: Operand) -> Array | None:
    """Return a constant with the values that are left of it where it is stored."""
    if operand.const is None or operand.stored is None:
        return operand.const
    return widen(narrow(operand.const, operand.stored), operand.stored)


def _wide(array: Array | None) -> Array | None:
    return array if array is None or array.dtype.kind != "f" else array.astype(np.float64)


def guarded(operand: Operand, array: Array | None) -> Array:
    """Return a tensor's memory as bytes between guards: border, and elements (None: poison)."""
    layout, dtype = operand.layout, operand.memory
    raw = np.full(2 * GUARD + max(layout.size, 1) * dtype.itemsize, POISON, np.uint8)
    flat = raw[GUARD:-GUARD].view(dtype.numpy)
    inside = view_of(flat, layout).copy() if array is None else array
    if array is not None and operand.stored is not None:
        inside = narrow(array, operand.stored)
    if layout.has_padding and operand.fill is not None:
        fill = operand.fill if operand.stored is None else narrow(np.array(operand.fill), dtype)
        view_of(flat, with_border(layout))[...] = fill
    view_of(flat, layout)[...] = inside
    return raw


def with_border(layout: TensorLayout) -> TensorLayout:
    """Return the layout whose elements are those of a tensor and its border."""
    shape = tuple(
        b + d + a for b, d, a in zip(layout.before, layout.shape, layout.after, strict=True)
    )
    zero = (0,) * layout.rank
    return TensorLayout(
        shape, layout.pitches, zero, zero, layout.element_offset(layout.before), layout.size
    )
