"""Every call of a driver fails once, in compilation, runs and close: one clear error, nothing leaked or wrong."""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver_faults import HOST, POINTS, Faults
from harness import normal
from onnx_models import make, model, tensor, value
from small_graphs import Builder

import clnn
from clnn import errors
from clnn.errors import ClnnError, DeviceLostError
from clnn.runtime.build import program
from clnn.runtime.run.stream import Stream

SHAPE = (1, 8, 12, 12)
# What an error of the driver may be to a caller.
MEANS: dict[str, tuple[type[ClnnError], ...]] = {
    HOST: (errors.HostMemoryError, errors.OutOfDeviceMemoryError),
    "OUT_OF_HOST_MEMORY": (errors.HostMemoryError, errors.OutOfDeviceMemoryError),
    "MEM_OBJECT_ALLOCATION_FAILURE": (errors.OutOfDeviceMemoryError,),
    "INVALID_BUFFER_SIZE": (errors.OutOfDeviceMemoryError,),
    "OUT_OF_RESOURCES": (errors.OutOfDeviceMemoryError, DeviceLostError),
    "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST": (DeviceLostError,),
    "DEVICE_NOT_AVAILABLE": (DeviceLostError,),
    "INVALID_COMMAND_QUEUE": (DeviceLostError,),
    "INVALID_CONTEXT": (DeviceLostError,),
    "BUILD_PROGRAM_FAILURE": (errors.BuildError,),
}
STICKY = ("DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE", "INVALID_CONTEXT", "OUT_OF_RESOURCES")


def conv_net():
    b = Builder(x=SHAPE)
    left = b.post_ops("relu", b.conv("x", 8))
    return b.graph(b.post_ops("add", b.conv(left, 8), left))


def transformer():
    """One head of attention with its normalisation, and the layer behind it."""
    at = np.random.default_rng(1)
    weights = {n: at.standard_normal((16, 16), np.float32) / 4 for n in ("q", "k", "v", "f")}
    nodes = [make.make_node("MatMul", ["x", n], [f"{n}y"], name=n) for n in ("q", "k", "v")]
    nodes += [
        make.make_node("Transpose", ["ky"], ["kt"], perm=[0, 2, 1]),
        make.make_node("MatMul", ["qy", "kt"], ["s"], name="scores"),
        make.make_node("Softmax", ["s"], ["p"], name="softmax"),
        make.make_node("MatMul", ["p", "vy"], ["a"], name="mix"),
        make.make_node("Add", ["a", "x"], ["r"], name="residual"),
        make.make_node("LayerNormalization", ["r", "scale"], ["n"], name="norm"),
        make.make_node("MatMul", ["n", "f"], ["g"], name="layer"),
        make.make_node("Relu", ["g"], ["y"], name="relu"),
    ]
    consts = [tensor(n, w) for n, w in weights.items()]
    return model(
        nodes, [value("x", (1, 10, 16))], ["y"], [*consts, tensor("scale", np.ones(16, np.float32))]
    )


def open_net():
    weights = tensor("w", np.random.default_rng(2).standard_normal((6, 3, 3, 3), np.float32))
    nodes = [
        make.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    return model(nodes, [value("x", (1, 3, "h", "w_"))], ["y"], [weights])


def staged_net():
    nodes = [
        make.make_node("Relu", ["x"], ["r"], name="relu"),
        make.make_node("NonZero", ["r"], ["where"], name="where"),
        make.make_node("Cast", ["where"], ["f"], name="cast", to=1),
        make.make_node("Exp", ["f"], ["y"], name="exp"),
    ]
    return model(nodes, [value("x", (4, 5))])


Outs = list[np.ndarray]


@dataclass
class Case:
    """A network, its inputs, and what is done with its session. use: -> outputs. cache: CLNN_CACHE."""

    net: Callable[[], Any]
    feeds: Sequence[np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    use: Callable[[Any, Sequence[np.ndarray]], Outs] | None = None
    only: tuple[str, ...] = ()  # points; all where empty
    cache: str = "rw"

    def compile(self, device: str) -> Any:
        """Return a new session."""
        return clnn.compile_model(self.net(), device, clnn.Options(tune="off", **self.options))

    def run(self, session: Any) -> Outs:
        """Return the outputs of each feed."""
        return [next(iter(session({"x": x}).values())) for x in self.feeds]

    def used(self, session: Any) -> Outs:
        """Return what this case is about."""
        return self.run(session) if self.use is None else self.use(session, self.feeds)


def bind(session: Any, feeds: Sequence[np.ndarray]) -> Outs:
    outs = []
    binding = session.bind_input("x")
    try:
        for x in feeds:
            binding.copy_from(x)
            outs.append(next(iter(session({}).values())))
    finally:
        session.unbind_input("x")
    return outs


def stream(session: Any, feeds: Sequence[np.ndarray]) -> Outs:
    items = Stream(session, ({"x": x} for x in feeds), 2, pinned=True)()
    return [next(iter(outs.values())) for outs in items]


def profile(session: Any, feeds: Sequence[np.ndarray]) -> Outs:
    with session.profile():
        return [next(iter(session({"x": x}).values())) for x in feeds]


IMAGES = [normal(SHAPE, seed) for seed in range(2)]
CASES = {
    "conv": Case(conv_net, IMAGES),
    "conv-built": Case(conv_net, IMAGES, only=("program", "build", "binary"), cache="off"),
    "conv-launches": Case(conv_net, IMAGES, {"merge": False, "guard": 64, "states": 2}),
    "conv-separate": Case(conv_net, IMAGES, {"arena": "separate"}),
    "conv-timeout": Case(conv_net, IMAGES, {"timeout": 100.0}),
    "transformer": Case(transformer, [normal((1, 10, 16), k) for k in range(2)]),
    "open": Case(open_net, [normal((1, 3, n, n + 1), n) for n in (9, 14)]),
    "staged": Case(staged_net, [normal((4, 5), k) for k in range(2)]),
    "bound": Case(conv_net, IMAGES, use=bind),
    "stream": Case(conv_net, [*IMAGES, *IMAGES], use=stream),
    "profile": Case(conv_net, IMAGES, use=profile),
}


class Walk:
    """One fault after the other; `findings` says what was wrong, `counts` what became of them."""

    def __init__(self, case: Case, device: str, folder: Path) -> None:
        self.case, self.device, self.folder = case, device, folder
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        with case.compile(device):  # whose programs are in the cache from now on
            pass
        with Faults() as calm:
            session = case.compile(device)
            self.wanted = [a.tobytes() for a in case.used(session)]
            session.close()
            del session
            gc.collect()
        self.points = list(calm.seen)
        with case.compile(device) as session:
            self.plain = [a.tobytes() for a in case.run(session)]
        assert not any(calm.alive()), f"leaks without faults: {calm.alive()}"

    def faults(self) -> list[tuple[int, int, bool]]:
        """Return all (point, error, whether it stays)."""
        found = []
        for at, name in enumerate(self.points):
            if self.case.only and name not in self.case.only:
                continue
            for k, error in enumerate(POINTS[name][1]):
                found.append((at, k, False))
                if error in STICKY and POINTS[name][0]:
                    found.append((at, k, True))
        return found

    def __call__(self, at: int, error: int, sticky: bool) -> None:
        """Let one point fail."""
        before = set(os.listdir(self.folder))
        ignored: list[str] = []
        sys.unraisablehook = lambda info: ignored.append(f"{info.exc_value!r} in {info.object!r}")
        try:
            with Faults(at, error, sticky) as faults, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                about, lost = self._one(faults)
        finally:
            sys.unraisablehook = sys.__unraisablehook__
        where = f"point {at} ({faults.fired}, sticky={sticky})"
        for text in about:
            self.findings.append(f"{where}: {text}")
        if not lost and any(staying := faults.alive()):  # of a lost device nothing is freed
            self.findings.append(f"{where}: {staying} objects of the driver stay")
        left = set(os.listdir(self.folder)) - before
        if self._raised is errors.BuildError:  # whose message names the source
            left = {name for name in left if not re.fullmatch(r"clnn-\w+\.cl", name)}
        if left:
            self.findings.append(f"{where}: temporary files {left}")
        # Of a state that goes, where nobody has seen yet that the device is lost.
        if ignored and not all("finish" in text for text in ignored[: 3 if sticky else 1]):
            self.findings.append(f"{where}: unraisable {ignored[:2]}")
        self.counts["lost" if lost else "error" if self._raised else "absorbed"] += 1

    def _one(self, faults: Faults) -> tuple[list[str], bool]:
        """Return what was wrong, and whether the session said that it is lost."""
        self._raised, session, about = None, None, []
        try:
            session = self.case.compile(self.device)
            got = self.case.used(session)
            if [a.tobytes() for a in got] != self.wanted:
                about.append("wrong results, and no error")
        except Exception as err:
            self._raised = type(err)
            about += _wrong_error(err, faults)
            was_lost = isinstance(err, DeviceLostError)
        else:
            was_lost = False
        if session is None:
            return about, was_lost
        if faults.fired is None:  # what fails is in close
            session.close()
            return about, was_lost
        faults.over = not faults.sticky  # a dead context stays dead
        about += self._afterwards(session, was_lost, faults)
        was_lost = bool(session.lost)
        faults.over = True
        try:
            session.close()
        except Exception as err:
            about.append(f"close raised {err!r}")
        return about, was_lost

    def _afterwards(self, session: Any, was_lost: bool, faults: Faults) -> list[str]:
        """Return what is wrong with a session after a fault."""
        try:
            got = self.case.run(session)
        except DeviceLostError as err:
            if not was_lost and not faults.sticky:
                return [f"lost only afterwards: {err}"]
            return [] if session.lost else ["lost, but session.lost does not say so"]
        except Exception as err:
            return _wrong_error(err, faults) if faults.sticky else [f"the next run raised {err!r}"]
        if was_lost:
            return ["lost, but the next run went on"]
        return [] if [a.tobytes() for a in got] == self.plain else ["wrong results in the next run"]


def _wrong_error(err: Exception, faults: Faults) -> list[str]:
    """Return what is wrong with an error that a caller got."""
    if not isinstance(err, ClnnError):
        return [f"raised {type(err).__name__}: {err}"]
    if faults.fired is None:
        return [f"raised without a fault: {err!r}"]
    point, name = faults.fired
    means = MEANS.get(name, (errors.DeviceError,))
    if point == "context":
        means = (errors.DeviceError, errors.HostMemoryError)
    if not isinstance(err, means):
        return [f"is {type(err).__name__}, must be {[m.__name__ for m in means]}: {err}"]
    text = str(err)
    return (
        [] if len(text) > 60 and text.endswith((".", "doctor", "both.")) else [f"unclear: {text}"]
    )


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """An own folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", ["conv", "conv-separate", "open", "staged", "bound"])
def test_close_frees_what_lies_on_the_device(any_device, name):
    """Weights too, while the session is still held; programs and kernels go with it."""
    with Faults() as calm:
        session = CASES[name].compile(any_device)
        CASES[name].used(session)
        session.close()
        gc.collect()
        assert not [b for b in calm.buffers if b() is not None]
        with pytest.raises(DeviceLostError, match="is closed"):
            CASES[name].run(session)


def report(walks: dict[str, Walk]) -> str:
    lines = [
        f"{name}: {len(walk.points)} points, {walk.counts.total()} faults: {dict(walk.counts)}"
        for name, walk in walks.items()
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("name", CASES)
def test_some_calls_fail(any_device, temporary, monkeypatch, name):
    monkeypatch.setenv("CLNN_CACHE", CASES[name].cache)
    walk = Walk(CASES[name], any_device, temporary)
    faults = walk.faults()
    step = max(1, len(faults) // 24) | 1
    for fault in faults[::step]:
        walk(*fault)
    assert not walk.findings, "\n".join(walk.findings[:20])
    assert walk.counts["error"] + walk.counts["lost"] > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
@pytest.mark.timeout(3000)
def test_every_call_fails(any_device, temporary, monkeypatch, name, capsys):
    monkeypatch.setenv("CLNN_CACHE", CASES[name].cache)
    walk = Walk(CASES[name], any_device, temporary)
    for fault in walk.faults():
        walk(*fault)
    with capsys.disabled():
        print("\n" + report({name: walk}))
    assert not walk.findings, "\n".join(walk.findings[:40])


def test_no_room_for_temporary_files(any_device, tmp_path, monkeypatch):
    """Kernels are built without child processes, and a build that fails is a BuildError all the same."""
    monkeypatch.setenv("CLNN_CACHE", "off")
    monkeypatch.setenv("CLNN_BUILD_JOBS", "2")
    monkeypatch.setattr(program, "CHILDREN_FROM", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    case = CASES["conv-launches"]
    with case.compile(any_device) as session:
        assert session.build_counts[1] > 0
        assert all(np.isfinite(out).all() for out in case.run(session))
    with Faults() as calm:
        case.compile(any_device).close()
    at = calm.seen.index("build")
    with Faults(at), pytest.raises(errors.BuildError, match="no file"):
        case.compile(any_device)
