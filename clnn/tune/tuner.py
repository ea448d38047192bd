"""Tunes a network: finds its problems, measures the largest first, keeps every result at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from clnn.errors import SettingError
from clnn.graph.ir import Graph
from clnn.ops.launch import Variant
from clnn.ops.shared.tensor_core_tiles import RATES
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.records import dataclass
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import allowed, target_of
from clnn.runtime.measure.peak import Peaks, known_peaks
from clnn.tune.bench import Bench, Limits, Trial, Trials
from clnn.tune.contest import GAIN, Effort, contest, shortlist
from clnn.tune.defaults import Defaults, defaults_for
from clnn.tune.journal import Journal, left_over
from clnn.tune.network import DeviceNetwork, Network
from clnn.tune.report import Report
from clnn.tune.signature import templates_of, title
from clnn.tune.store import TOP, Result, Timed, TuningStore
from clnn.tune.task import SoFar, Task, alike, layer_of, nth, tasks_of

BUDGETS = {"quick": 30.0, "full": 250.0}
EFFORTS = {"quick": Effort(8), "full": Effort(24)}
HINTS = 3  # winners of other layers that are tried first
LIKE = 8  # candidates of a problem much like one that was measured before
LEAST_S = 2.0  # of a problem; below, the time left goes to nobody
FOR_NETWORK = 0.15  # share of the budget for comparing finalists in the network, at least
MOST_FOR_NETWORK = 0.25  # and at most, where the network takes long to build
FOR_SHARES = 0.1  # and for timing the network as ranked, its build not counted
LEFT_OVER = "was being tried when the tuner or the machine went down"


@dataclass(frozen=True)
class TuneRequest:
    """What is asked for. budget: seconds for all (0: the level's). resume: keep results that are there.

    retry: try again what failed before.
    """

    level: str = "full"
    budget: float = 0.0
    resume: bool = False
    retry: bool = False

    def __post_init__(self) -> None:
        if self.level not in BUDGETS or not self.budget >= 0:
            raise SettingError(
                f"tuning at level {self.level!r} for {self.budget} s: the level must be one of"
                f" {', '.join(BUDGETS)}, the seconds at least 0."
            )

    @property
    def seconds(self) -> float:
        """The budget in seconds."""
        return self.budget or BUDGETS[self.level]


@dataclass(frozen=True)
class Progress:
    """Where a tuning run is. done, total: problems. name: of the candidate just tried, if any.

    ranked, best: median seconds so far. left: seconds of the budget. note: what happens now.
    """

    done: int
    total: int
    title: str
    tried: int = 0
    of: int = 0
    name: str = ""
    fault: str = ""
    ranked: float = 0.0
    best: float = 0.0
    left: float = 0.0
    note: str = ""


OnProgress = Callable[[Progress], None]


class Tuner:
    """One tuning run of a graph on a device. Close it.

    began: when the budget began, by `clock` (default: now). bench, network, clock, store, defaults:
    replaced in tests.
    """

    def __init__(
        self,
        graph: Graph,
        info: DeviceInfo,
        options: Options,
        request: TuneRequest,
        *,
        on_progress: OnProgress = lambda progress: None,
        began: float | None = None,
        bench: Trials | None = None,
        network: Network | None = None,
        store: TuningStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        defaults: Defaults | None = None,
    ) -> None:
        self._begin = clock() if began is None else began
        self._end = self._begin + request.seconds
        self.info, self.request, self._on_progress, self._clock = info, request, on_progress, clock
        self.store = store or TuningStore(info)
        self.defaults = defaults_for(info) if defaults is None else defaults
        target = allowed(target_of(info), options)
        self.tasks = tasks_of(make_plan(graph, target))
        self._bench = bench or Bench(info, limits)
        self._network = network or DeviceNetwork(
            graph, info, replace(options, tune="off", states=1)
        )
        self._peaks: Peaks | None = known_peaks(info)
        self._graph = graph
        self._times = (0.0, 0.0)
        self._spent: dict[str, float] = {}
        self._build_s = self._each = 0.0  # of the network with other kernels; of a candidate

    def run(self) -> Report:
        """Tune; return the report. An interrupt ends it early, with all results kept."""
        self._recover()
        self._look_up()
        finished = True
        try:
            if any(task.state != "known" for task in self.tasks):
                with self._spending("the network as it was"):
                    self._shares()
                with self._spending("kernels"), self._journal() as journal:
                    self._contests(journal)
                with self._spending("comparing in the network"):
                    self._compare()
        except KeyboardInterrupt:
            finished = False
        self.store.compact()
        return self._report(finished)

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        """Note the seconds that the block takes."""
        begin = self._clock()
        try:
            yield
        finally:
            self._spent[what] = self._clock() - begin

    @property
    def _left(self) -> float:
        """Seconds of the budget."""
        return self._end - self._clock()

    def _recover(self) -> None:
        """Put what a tuner that is gone was trying among the failures; forget all of them where asked."""
        if not self.store.writable:
            return
        for record in left_over(self.store.lines.path):
            self.store.put_failure(record["key"], record["name"], record["templates"], LEFT_OVER)
        if self.request.retry:
            self.store.forget_failures()

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        journal = Journal(self.store.lines.path if self.store.writable else None)
        try:
            yield journal
        except BaseException:
            self._bench.close()
            raise
        finally:
            journal.close()

    def _look_up(self) -> None:
        """Find the problems whose stored results spare the measurement."""
        for task in self.tasks if self.request.resume else ():
            known = self.store.result(task.sig.key)
            if known is not None and self._is_enough(task, known):
                task.state, task.result = "known", known

    def _shares(self) -> None:
        """Run the network as ranked, for the share of each problem; largest first."""
        self._report_progress("", note="measuring the network as ranked")
        begin, most = self._clock(), FOR_SHARES * self.request.seconds
        times = self._network.profile([{}], most)[0]
        self._build_s = self._clock() - begin
        total = sum(times.values()) or 1.0
        for task in self.tasks:
            task.seconds = times.get(task.sig.key, 0.0)
            task.share = task.seconds / total
        self.tasks.sort(key=lambda task: -task.share)

    def _is_enough(self, task: Task, known: Result) -> bool:
        """Whether a stored result spares the measurement."""
        if not known.tried or (known.level, self.request.level) == ("quick", "full"):
            return False
        task.known = self._candidates(task)
        best = task.known.get(known.tops[0].name)
        return best is not None and templates_of(best) == known.tops[0].templates

    def _candidates(self, task: Task) -> dict[str, Variant]:
        candidates = task.step.node.spec.candidates(task.step.problem)
        return {task.ranked.name: task.ranked, **{v.name: v for v in candidates}}

    def _contests(self, journal: Journal) -> None:
        waiting = [task for task in self.tasks if task.state != "known"]
        whole = self.request.seconds
        until = self._end - min(
            max(FOR_NETWORK * whole, 3 * self._build_s), MOST_FOR_NETWORK * whole
        )
        for at, task in enumerate(waiting):
            left = until - self._clock()
            if left < max(LEAST_S, self._each):
                break
            rest = sum(t.share for t in waiting[at:])
            mine = self._weight(task, waiting[at + 1 :])
            slice_s = left * (mine / rest if rest else 1 / (len(waiting) - at))
            self._one(task, journal, self._clock() + min(left, max(slice_s, LEAST_S)))

    def _weight(self, task: Task, later: Sequence[Task]) -> float:
        """Return a problem's share, and half of those much like it, which learn from it."""
        like = [t.share for t in later if alike(t, task)]
        return task.share + 0.5 * sum(like)

    def _one(self, task: Task, journal: Journal, deadline: float) -> None:
        """Hold the contest of one problem and keep its result."""
        task.known = self._candidates(task)
        failed = self.store.failures(task.sig.key)
        sound = {n: v for n, v in task.known.items() if (n, templates_of(v)) not in failed}
        effort = EFFORTS[self.request.level]
        first = task.ranked if task.ranked.name in sound else next(iter(sound.values()), None)
        if first is None:
            task.state = "failed"
            return
        like = self._like(task)
        count = min(effort.candidates, LIKE) if like else effort.candidates
        entries = shortlist(first, list(sound.values()), [*like, *self._before(task)], count)
        self._report_progress(title(task.sig.parts), of=len(entries))
        self._bench.load(
            task.step.node.spec,
            task.step.problem,
            lambda v: journal.trying(task.sig.key, v.name, templates_of(v)),
        )
        so_far = SoFar(task, len(entries))

        def on_trial(name: str, trial: Trial) -> None:
            so_far.add(name, trial)
            self._report_progress(title(task.sig.parts), **so_far.fields(name, trial))

        task.outcome = contest(
            self._bench,
            entries,
            deadline,
            self._clock,
            bound=self._bound(task),
            each=self._each,
            effort=effort,
            on_trial=on_trial,
        )
        self._each = task.outcome.each
        self._keep(task)

    def _like(self, task: Task) -> list[str]:
        """Return the fastest variants of problems that differ in borders or steps only."""
        same = [t for t in self.tasks if t.outcome.times and alike(t, task)]
        return [name for t in same for name in list(t.outcome.times)[:TOP]]

    def _elsewhere(self, task: Task) -> list[str]:
        """Return variants that this problem has too and that beat the ranked one most often."""
        won = Counter(next(iter(t.outcome.times)) for t in self.tasks if t.state == "tuned")
        return [name for name, _ in won.most_common() if name in task.known][:HINTS]

    def _before(self, task: Task) -> list[str]:
        """Return the variants to try first: of earlier results, of the defaults, of other layers."""
        results = (self.store.result(task.sig.key), self.store.prior(task.sig.key))
        names = [top.name for result in results if result for top in result.tops]
        shipped = self.defaults.get(task.sig.key)
        return [*names, *([shipped] if shipped else []), *self._elsewhere(task)]

    def _bound(self, task: Task) -> float:
        """Return the seconds that the device's measured peaks allow, 0 where they are not known."""
        if self._peaks is None:
            return 0.0
        inputs, outputs = task.step.problem.inputs, task.step.problem.outputs
        operands = [o for o in (*inputs, *outputs) if o is not None]
        nbytes = sum(o.type.size * o.memory.itemsize for o in operands)
        types = [None if o is None else o.type for o in inputs]
        flops = task.step.node.spec.flops(types, [o.type for o in outputs])
        problem = task.step.problem
        rate = RATES.get(problem.target.tensor_kind(problem.input(0).memory), 1)
        return max(flops / (rate * self._peaks.flops), nbytes / self._peaks.bandwidth)

    def _keep(self, task: Task) -> None:
        for name, fault in task.outcome.faults.items():
            variant = task.known[name]
            self.store.put_failure(task.sig.key, name, templates_of(variant), fault)
        names = list(task.outcome.times)[:TOP]
        if not names:
            task.state = "failed"
            return
        self._put(task, names)
        self._bench.keep([task.known[name] for name in task.outcome.finalists])

    def _put(self, task: Task, names: Sequence[str]) -> None:
        tops = tuple(
            Timed(n, task.outcome.times[n], templates_of(task.known[n]), task.inside.get(n))
            for n in names
        )
        task.result = Result(tops, task.ranked.name, self.request.level, task.outcome.tried)
        task.state = "kept" if names[0] == task.ranked.name else "tuned"
        self.store.put(task.sig, task.result)

    def _compare(self) -> None:
        """Time finalists in the network, order those of each problem, and time before and after.

        As far as there is time: each way to run the network has to be built first.
        """
        measured = [t for t in self.tasks if t.outcome.times]
        fit = self._ways_that_fit()
        if fit > 1 and any(len(t.outcome.finalists) > 1 for t in measured):
            self._report_progress("", note="comparing the fastest in the network")
            ways = [{}, *({t.sig.key: nth(t, k) for t in measured} for k in range(TOP))]
            most = min(self._network.room, 1 + max(len(t.outcome.finalists) for t in measured), fit)
            times = self._network.profile(ways[:most], self._left / 4)
            for task in measured:
                self._order_finalists(task, ways, times)
        if measured and self._ways_that_fit():
            self._confirm([t for t in measured if t.state == "tuned"])
        best = self._best()
        if best and self._ways_that_fit():
            self._report_progress("", note="comparing the network before and after")
            before, after = self._network.latency([{}, best], self._left / 2)
            self._times = (before, after)

    def _ways_that_fit(self) -> int:
        """How many ways to run the network can be built in the time left, and one as it is."""
        if not self._build_s:
            return TOP + 1
        return max(0, int(self._left / self._build_s))

    def _best(self) -> dict[str, str]:
        return {t.sig.key: t.result.tops[0].name for t in self.tasks if t.result}

    def _confirm(self, tuned: Sequence[Task]) -> None:
        """Time what won in the network once more: whoever won by chance goes back to the ranked."""
        if not tuned:
            return
        before, after = self._network.profile([{}, self._best()], self._left / 4)
        for task in tuned:
            assert task.result is not None
            key, ranked, names = task.sig.key, task.ranked.name, [t.name for t in task.result.tops]
            task.inside |= {ranked: before[key], names[0]: after[key]}
            if after[key] >= before[key] and ranked in task.outcome.times:
                names = [ranked, *(n for n in names if n != ranked)]
            self._put(task, names)

    def _order_finalists(
        self, task: Task, ways: Sequence[Mapping[str, str]], times: Sequence[Mapping[str, float]]
    ) -> None:
        """Order a problem's finalists by their times in the network."""
        ranked, key = task.ranked.name, task.sig.key
        samples: dict[str, list[float]] = {}
        for way, seconds in zip(ways, times, strict=False):
            if key in seconds:
                samples.setdefault(way.get(key, ranked), []).append(seconds[key])
        task.inside = {name: min(times) for name, times in samples.items()}
        if len(task.inside) < 2:
            return
        kept = [n for n in task.outcome.times if n in task.inside]
        kept.sort(key=lambda n: task.inside[n] / (GAIN if n == ranked else 1.0))
        names = [*kept, *(n for n in task.outcome.times if n not in task.inside)]
        self._put(task, names[:TOP])

    def _report_progress(self, what: str, **more: object) -> None:
        done = sum(t.state != "skipped" for t in self.tasks)
        left = max(0.0, self._left)
        self._on_progress(Progress(done, len(self.tasks), what, left=left, **more))  # type: ignore[arg-type]

    def _report(self, finished: bool) -> Report:
        return Report(
            self.info.title,
            tuple(layer_of(task) for task in self.tasks),
            *self._times,
            self.request.seconds,
            self._clock() - self._begin,
            finished,
            self._spent,
        )

    def close(self) -> None:
        """End the child processes and free the device."""
        self._bench.close()
        self._network.close()

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def tune_graph(
    graph: Graph,
    info: DeviceInfo,
    options: Options,
    request: TuneRequest,
    on_progress: OnProgress = lambda progress: None,
    limits: Limits | None = None,
    began: float | None = None,
) -> Report:
    """Tune `graph` on a device and keep the results in its store. Raises as compile_model does.

    began: time.monotonic() when the budget began (default: now).
    """
    with Tuner(
        graph, info, options, request, on_progress=on_progress, limits=limits, began=began
    ) as tuner:
        return tuner.run()
