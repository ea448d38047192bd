"""The problems of a network: each once, with its nodes, its share of the time and what was found."""

from __future__ import annotations

from dataclasses import field

from clnn.ops.launch import Variant
from clnn.plan.plan import Plan, ScheduledNode
from clnn.records import dataclass
from clnn.tune.bench import Trial, measurable
from clnn.tune.contest import Outcome
from clnn.tune.report import TunedLayer
from clnn.tune.signature import Signature, signature, title
from clnn.tune.store import Result


@dataclass
class Task:
    """One problem: where it occurs and what is known of it."""

    sig: Signature
    step: ScheduledNode
    nodes: list[str]
    seconds: float = 0.0
    share: float = 0.0
    state: str = "skipped"
    outcome: Outcome = field(default_factory=Outcome)
    known: dict[str, Variant] = field(default_factory=dict)
    result: Result | None = None
    inside: dict[str, float] = field(default_factory=dict)

    @property
    def ranked(self) -> Variant:
        """What the estimate chose."""
        return self.step.variant


def tasks_of(plan: Plan) -> list[Task]:
    """Return the problems of a plan that have several candidates, each once."""
    tasks: dict[str, Task] = {}
    for step in plan.scheduled:
        if not step.launches or not measurable(step.node.spec, step.problem):
            continue
        sig = signature(step.node.spec, step.problem)
        if sig.key in tasks:
            tasks[sig.key].nodes.append(step.node.layer)
        elif len(step.node.spec.candidates(step.problem)) > 1:
            tasks[sig.key] = Task(sig, step, [step.node.layer])
    return list(tasks.values())


class SoFar:
    """Counts what a contest has tried, for the progress."""

    def __init__(self, task: Task, of: int) -> None:
        self._ranked, self._of = task.ranked.name, of
        self._seen: set[str] = set()
        self._times: dict[str, float] = {}

    def add(self, name: str, trial: Trial) -> None:
        """Take note of a trial."""
        self._seen.add(name)
        if trial.seconds and not trial.fault:
            self._times[name] = trial.median

    def fields(self, name: str, trial: Trial) -> dict[str, object]:
        """Return what a Progress says after this trial."""
        return {
            "tried": len(self._seen),
            "of": self._of,
            "name": name,
            "fault": trial.fault,
            "ranked": self._times.get(self._ranked, 0.0),
            "best": min(self._times.values(), default=0.0),
        }


def alike(one: Task, other: Task) -> bool:
    """Whether two problems differ in borders or steps only."""
    same = (one.sig.bucket, one.sig.size) == (other.sig.bucket, other.sig.size)
    return same and one is not other


def nth(task: Task, place: int) -> str:
    """Return the finalist at `place`, the best one where there are not so many."""
    names = task.outcome.finalists or list(task.outcome.times)
    return names[place] if place < len(names) else names[0]


def layer_of(task: Task) -> TunedLayer:
    """Return a problem as the report shows it."""
    before, after = task.ranked.name, task.result.tops[0].name if task.result else task.ranked.name
    times = task.inside if {before, after} <= task.inside.keys() else task.outcome.times
    return TunedLayer(
        title(task.sig.parts),
        tuple(task.nodes),
        task.share,
        before,
        after,
        times.get(before, 0.0),
        times.get(after, 0.0),
        task.outcome.tried,
        task.state,
        dict(task.outcome.faults),
    )
