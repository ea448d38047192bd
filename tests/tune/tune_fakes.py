"""A device that is only described, a clock, a measurer and a network that obey a table of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from clnn.ops.launch import Launch, Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.runtime.device.device import DeviceInfo
from clnn.tune.bench import Trial


def described(**changes: Any) -> DeviceInfo:
    """A CPU device of the name "Tester" with driver "1.0"."""
    made = DeviceInfo(
        0,
        "Portable Computing Language",
        "OpenCL 3.0 test",
        "Tester",
        "clnn",
        "cpu",
        "1.0",
        "OpenCL 3.0",
        "OpenCL C 3.0",
        2,
        1 << 32,
        1 << 20,
        1 << 30,
        4096,
        1024,
        True,
        (),
        None,
        0,
        0,
        why_not="",
        usable_local_mem=1 << 20,
    )
    return replace(made, **changes)


def variant(name: str, cost: float = 0.0, template: str = "movement/copy_flat.cl.mako") -> Variant:
    """A variant of one launch that is never rendered."""
    return Variant(name, (Launch(template, {"name": name}, (), (1,), (1,)),), cost)


@dataclass
class Clock:
    """Seconds that pass only when something says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeBench:
    """Times by variant, None for the fault "wrong values"; a build and a batch take seconds too."""

    times: Mapping[str, float | None]
    clock: Clock = field(default_factory=Clock)
    build_s: float = 1.0
    built: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    by_problem: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    interrupt_at: str = ""
    otherwise: float = 1.0
    note: Any = None

    def load(self, spec: OpSpec, problem: Problem, note: Any = None) -> None:
        self.problems.append(problem)
        self.by_problem.append([])
        self.note = note

    def build(self, variants: Any) -> dict[str, str]:
        self.clock.now += self.build_s * len(variants)
        self.built += [v.name for v in variants]
        if self.by_problem:
            self.by_problem[-1] += [v.name for v in variants]
        return {
            v.name: "does not build: no" if v.name.startswith("broken") else "" for v in variants
        }

    def trial(self, made: Variant, batches: int) -> Trial:
        self.tried.append(made.name)
        if self.interrupt_at and self.interrupt_at in made.name:
            raise KeyboardInterrupt
        seconds = self.times.get(made.name, self.otherwise)
        if seconds is None:
            return Trial("wrong values: error 1, allowed 1e-05", 1.0)
        return Trial("", 0.0, (seconds,) * max(batches, 1) if batches else ())

    def keep(self, variants: Any) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class FakeNetwork:
    """Seconds inside the network by variant name; others take `otherwise`."""

    keys: Mapping[str, str]  # problem key -> the ranked variant
    times: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    otherwise: float = 1.0
    room: int = 4
    later: Mapping[str, float] = field(default_factory=dict)  # of the last comparison
    calls: int = 0
    clock: Clock = field(default_factory=Clock)
    first_s: float = 0.0  # to build the network with some choice
    ran: list[dict[str, str]] = field(default_factory=list)
    built: list[Mapping[str, str]] = field(default_factory=list)

    def _of(self, key: str, choice: Mapping[str, str]) -> float:
        name = choice.get(key, self.keys[key])
        return self.shares.get(key, 1.0) * self.times.get(name, self.otherwise)

    def profile(self, choices: Any, seconds: float = 0.0) -> list[dict[str, float]]:
        self.ran += [dict(c) for c in choices]
        self.calls += 1
        new = 1 if self.calls == 1 else sum(c not in self.built for c in choices)
        self.clock.now += self.first_s * new
        self.built += list(choices)
        if self.calls == 3:
            self.times = {**self.times, **self.later}
        return [{key: self._of(key, choice) for key in self.keys} for choice in choices]

    def latency(self, choices: Any, seconds: float = 0.0) -> list[float]:
        return [sum(self._of(key, choice) for key in self.keys) for choice in choices]

    def close(self) -> None:
        pass
