"""ONNX's backend tests as cases: a model, inputs, expected outputs and the tolerance they state.

Used by the tests in this folder and by tools/onnx_suite.py. The cases come with the onnx package;
those of kind "real" stand apart, because they are large.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from clnn.apis.onnx_backend import Backend
from clnn.errors import BuildError, UnsupportedOpError
from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.stages.build import read_program
from clnn.importers.onnx.stages.program import is_staged
from clnn.plan.schedule import make_plan
from clnn.ports import ports_of
from clnn.runtime.stages.session import StagedSession
from clnn.verification.reference import reference_values

FOLDER = Path(__file__).resolve().parent
KINDS = ("simple", "pytorch-converted", "pytorch-operator")
DIFFERS = "differs:"
CHANCE = "differs: random"  # such a test may pass, too
Arrays = Sequence[Any]


@dataclass(frozen=True)
class Case:
    """One backend test. data_sets: pairs of inputs and expected outputs, in the model's order."""

    name: str
    kind: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Arrays, Arrays]]
    rtol: float
    atol: float

    @property
    def op(self) -> str:
        """The operator that the case is about, else the kind of cases that it belongs to."""
        if self.kind != "node":
            return self.kind
        if "_expanded" in self.name:
            return "definitions"
        nodes = self.model.graph.node
        return str(nodes[0].op_type) if len(nodes) == 1 else "several"


@cache
def all_cases() -> Mapping[str, Case]:
    """Return every case by name, those of kind "real" left out."""
    found = {case.name: case for case in _node_cases()}
    for kind in KINDS:
        for test in load_model_tests(kind=kind):
            name = test.name if test.name not in found else f"{test.name}:{kind}"
            found[name] = _from_folder(test, name)
    return found


def _node_cases() -> Iterator[Case]:
    import onnx.backend.test.case.node as home

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(home.__path__):
            importlib.import_module(f"{home.__name__}.{module.name}")
    for test in home._NodeTestCases:
        sets = [(_plain(ins), _plain(outs)) for ins, outs in test.data_sets]
        yield Case(test.name, "node", test.model, sets, test.rtol, test.atol)


def _plain(values: Arrays) -> list[Any]:
    is_proto = [isinstance(v, onnx.TensorProto) for v in values]
    return [numpy_helper.to_array(v) if p else v for v, p in zip(values, is_proto, strict=True)]


def _from_folder(test: Any, name: str) -> Case:
    folder = Path(test.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = [
        (_load_all(data, "input", model.graph.input), _load_all(data, "output", model.graph.output))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return Case(name, test.kind, model, sets, test.rtol, test.atol)


def _load_all(folder: Path, what: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    count = len(list(folder.glob(f"{what}_*.pb")))
    return [_load(folder / f"{what}_{k}.pb", values[k]) for k in range(count)]


def _load(path: Path, value: onnx.ValueInfoProto) -> Any:
    if value.type.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return numpy_helper.to_list(sequence)
    if value.type.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(path.read_bytes())
        return numpy_helper.to_optional(optional)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


@dataclass(frozen=True)
class Outcome:
    """What became of a case: "passed", "refused" (an op or form that clnn does not have, said so)
    or "failed"; and why."""

    name: str
    verdict: str
    why: str = ""


Run = Callable[[Case, Arrays], Sequence[Any]]


def judge(case: Case, run: Run) -> Outcome:
    """Run a case and compare, as ONNX's own runner does, with the case's own tolerance."""
    try:
        for inputs, expected in case.data_sets:
            outputs = run(case, inputs)
            Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol, case.name)
    except UnsupportedOpError as err:
        return Outcome(case.name, "refused", str(err))
    except Exception as err:
        return Outcome(case.name, "failed", f"{type(err).__name__}: {err}")
    return Outcome(case.name, "passed")


def on_backend(case: Case, inputs: Arrays) -> Sequence[Any]:
    """Run a case through clnn's ONNX backend, on the device that CLNN_DEVICE names."""
    return Backend.run_model(case.model, list(inputs), "CPU")


def on_numpy(case: Case, inputs: Arrays) -> Sequence[Any]:
    """Run a case's imported graph by the numpy references of its ops: no device, no kernels."""
    try:
        graph, feeds = imported(case, inputs)
    except UnsupportedOpError:
        return _staged_on_numpy(case, inputs)
    with np.errstate(all="ignore"):
        made = reference_values(graph, feeds)
    return [made[v].astype(graph.types[v].dtype.numpy) for v in graph.outputs.values()]


def _staged_on_numpy(case: Case, inputs: Arrays) -> Sequence[Any]:
    """Run a case as a program whose stages are computed by the numpy references of their ops."""
    fixed = {t.name for t in case.model.graph.initializer}
    values = [v for v in case.model.graph.input if v.name not in fixed]
    feeds = {v.name: a for v, a in zip(values, inputs, strict=False)}
    shapes = {v.name: feeds[v.name].shape for v in values if v.type.HasField("tensor_type")}
    program = read_program(case.model, shapes)
    if not is_staged(program):
        raise UnsupportedOpError("values decide nothing")
    session = StagedSession(program, *ports_of(case.model, shapes), NumpyStage, "numpy")
    return session.run(None, feeds)


class NumpyStage:
    """A stage of a program, computed by the numpy references of its ops."""

    def __init__(self, model: onnx.ModelProto, close: bool) -> None:
        self.model = model  # `close` says nothing to numpy

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        graph = import_onnx(self.model, {n: a.shape for n, a in feeds.items()})
        with np.errstate(all="ignore"):
            made = reference_values(graph, feeds)
        return {n: made[v].astype(graph.types[v].dtype.numpy) for n, v in graph.outputs.items()}


def imported(case: Case, inputs: Arrays) -> tuple[Graph, dict[str, np.ndarray]]:
    """Return the graph of a case and the feeds of the inputs that it still has."""
    fixed = {t.name for t in case.model.graph.initializer}
    values = [v for v in case.model.graph.input if v.name not in fixed]
    pairs = zip(values, inputs, strict=False)
    feeds = {v.name: np.asarray(a) for v, a in pairs if v.type.HasField("tensor_type")}
    graph = import_onnx(case.model, {n: a.shape for n, a in feeds.items()}, feeds)
    return graph, {n: a for n, a in feeds.items() if n in graph.inputs}


def real_cases() -> Mapping[str, Case]:
    """Return the cases of kind "real", whose models come with the onnx package, by name."""
    home = Path(onnx.__file__).parent.parent
    found = {}
    for test in load_model_tests(kind="real"):
        path = home / str(test.url)
        if path.is_file():
            found[test.name] = _real(test, path)
    return found


def _real(test: Any, path: Path) -> Case:
    model = onnx.load(path)
    fixed = {t.name for t in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in model.graph.input if v.name not in fixed]
    outputs = [
        _load(path.with_name(f"{path.stem}_output_{k}.pb"), v)
        for k, v in enumerate(model.graph.output)
    ]
    return Case(test.name, "real", model, [(inputs, outputs)], test.rtol, test.atol)


def sample(listed: Mapping[str, str]) -> list[str]:
    """Return some names of each operator: the first, and one in eight of the others."""
    first = {op: name for name, op in sorted(listed.items(), reverse=True)}
    return [n for n, op in listed.items() if first[op] == n or zlib.crc32(n.encode()) % 8 == 0]


def build_ahead(cases: Sequence[Case], device: str) -> None:
    """Build the kernels of many cases at once, into the program cache; errors come up later."""
    from clnn.runtime.build.program import Device
    from clnn.runtime.device.device import select
    from clnn.runtime.device.target import target_of
    from clnn.runtime.run.fused_launch import sources_of

    info = select(device)
    sources: dict[str, str] = {}
    for case in cases:
        for inputs, _ in case.data_sets:
            with contextlib.suppress(Exception):
                plan = make_plan(optimise(imported(case, inputs)[0]), target_of(info))
                sources |= {
                    f"{case.name}:{title}": text for title, text in sources_of(plan).items()
                }
    with contextlib.suppress(BuildError):
        Device.open(info).build(sources)


def expected_passes() -> dict[str, str]:
    """Return name -> operator of each line of expected.txt."""
    lines = (FOLDER / "expected.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: op.strip() for name, op in rows}


def exclusions() -> list[tuple[re.Pattern[str], str]]:
    """Return (pattern of names, reason) of each line of excluded.txt."""
    rows = []
    for line in (FOLDER / "excluded.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.split(None, 1)
            rows.append((re.compile(pattern), reason.strip()))
    return rows


def exclusion(name: str, rows: Sequence[tuple[re.Pattern[str], str]]) -> str | None:
    """Return the reason why a case is excluded, or None."""
    return next((reason for pattern, reason in rows if pattern.fullmatch(name)), None)


def unexpected(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each outcome that the two lists do not foresee."""
    listed, rows = set(expected_passes()), exclusions()
    lines = []
    for outcome in outcomes:
        reason = exclusion(outcome.name, rows)
        if outcome.verdict == "passed":
            if outcome.name not in listed and not (reason or "").startswith(CHANCE):
                lines.append(f"{outcome.name} passes and is not in expected.txt")
        elif outcome.name in listed:
            lines.append(f"{outcome.name} is in expected.txt and {outcome.verdict}: {outcome.why}")
        elif reason is None:
            lines.append(f"{outcome.name} is in neither list and {outcome.verdict}: {outcome.why}")
        elif outcome.verdict == "failed" and not reason.startswith(DIFFERS):
            lines.append(
                f"{outcome.name} is excluded, but failed instead of being refused: {outcome.why}"
            )
    return lines
