"""A tuning run with times from a table: order, budget, resuming, interrupts, the network's word."""

from __future__ import annotations

import pytest
from small_graphs import Builder
from tune_fakes import Clock, FakeBench, FakeNetwork, described

from clnn.errors import SettingError
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.target import target_of
from clnn.tune.defaults import NONE
from clnn.tune.report import Report
from clnn.tune.store import TuningStore
from clnn.tune.tuner import BUDGETS, GAIN, LEFT_OVER, Tuner, TuneRequest, tasks_of

pytestmark = pytest.mark.usefixtures("quick_disk")


def network():
    """Two equal convolutions, one of another size, a small one; a pool between."""
    b = Builder(x=(1, 32, 12, 12))
    first = b.conv("x", 32, 1)
    second = b.conv(first, 32, 1)
    wide = b.conv(second, 64, 1)
    return b.graph(b.conv(wide, 16, 1))


GRAPH = network()


class Run:
    """A tuner on fakes. times: seconds of variants alone; inside: in the network; shares by place."""

    def __init__(
        self,
        request=None,
        times=None,
        inside=None,
        shares=(1.0, 3.0, 2.0),
        info=None,
        later=None,
        first_s=0.0,
        began=None,
        **bench,
    ):
        self.clock = Clock()
        self.bench = FakeBench(times or {}, self.clock, **bench)
        self.network = FakeNetwork(
            {}, inside or {}, later=later or {}, clock=self.clock, first_s=first_s
        )
        self.told = []
        self.tuner = Tuner(
            GRAPH,
            info or described(),
            Options(),
            request or TuneRequest(),
            on_progress=self.told.append,
            bench=self.bench,
            network=self.network,
            clock=self.clock,
            defaults=NONE,
            began=began,
        )
        self.tasks = list(self.tuner.tasks)
        self.network.keys = {t.sig.key: t.ranked.name for t in self.tasks}
        self.network.shares = {t.sig.key: s for t, s in zip(self.tasks, shares, strict=True)}
        self.report: Report = self.tuner.run()

    def built(self):
        """Output channels of each problem -> variants that were built."""
        channels = [p.outputs[0].type.shape[1] for p in self.bench.problems]
        return {c: set(names) for c, names in zip(channels, self.bench.by_problem, strict=True)}

    @property
    def states(self):
        return [layer.state for layer in self.report.layers]


def tasks():
    return tasks_of(make_plan(GRAPH, target_of(described())))


def names_of(task):
    return [v.name for v in task.step.node.spec.candidates(task.step.problem)]


def other_than_ranked(place=0, which=3):
    task = tasks()[place]
    return [n for n in names_of(task) if n != task.ranked.name][which]


def test_equal_layers_are_one_problem_and_the_largest_share_comes_first():
    run = Run()
    assert [len(t.nodes) for t in run.tasks] == [2, 1, 1]
    order = [p.outputs[0].type.shape[1] for p in run.bench.problems]
    assert order == [64, 16, 32]
    assert [round(x.share, 3) for x in run.report.layers] == [0.5, 0.333, 0.167]


def test_the_winner_is_kept_and_reported():
    name = other_than_ranked()
    run = Run(times={name: 0.5}, inside={name: 0.5})
    layer = next(x for x in run.report.layers if len(x.nodes) == 2)
    assert (layer.state, layer.after) == ("tuned", name)
    assert (layer.seconds_before, layer.seconds_after) == (1.0, 0.5)
    key = run.tasks[0].sig.key
    kept = TuningStore(described()).result(key)
    assert kept.tops[0].name == name and kept.tops[0].network == 0.5 and kept.ranked == layer.before
    assert run.report.network_before > run.report.network_after
    assert f"-> {name} (tuned)" in run.report.text()


def test_the_network_has_the_last_word():
    """Fast alone but slow in the network: the ranked one stays."""
    name = other_than_ranked()
    run = Run(times={name: 0.5}, inside={name: 1.5})
    layer = next(x for x in run.report.layers if len(x.nodes) == 2)
    assert layer.state == "kept" and layer.seconds_after == 1.0
    assert TuningStore(described()).result(run.tasks[0].sig.key).tops[0].name == layer.before


@pytest.mark.parametrize("gain,state", [(GAIN + 0.01, "tuned"), (GAIN - 0.01, "kept")])
def test_a_gain_within_the_noise_is_none(gain, state):
    name = other_than_ranked()
    run = Run(times={name: 0.5}, inside={name: 1 / gain})
    assert next(x for x in run.report.layers if len(x.nodes) == 2).state == state


def test_who_wins_by_chance_goes_back():
    name = other_than_ranked()
    run = Run(times={name: 0.5}, inside={name: 0.5}, later={name: 1.01})
    layer = next(x for x in run.report.layers if len(x.nodes) == 2)
    assert (layer.state, layer.after, layer.seconds_after) == ("kept", layer.before, 1.0)
    kept = TuningStore(described()).result(run.tasks[0].sig.key)
    assert [t.name for t in kept.tops][:2] == [layer.before, name]
    again = Run(times={name: 0.5}, inside={name: 0.5}, later={name: 0.9})
    assert next(x for x in again.report.layers if len(x.nodes) == 2).seconds_after == 0.9


def test_finalists_meet_in_the_network_at_once():
    names = [other_than_ranked(which=k) for k in (2, 5)]
    run = Run(times={names[0]: 0.5, names[1]: 0.6})
    key = run.tasks[0].sig.key
    ways = [w.get(key) for w in run.network.ran[1:5]]
    assert ways == [None, names[0], names[1], run.tasks[0].ranked.name]


def test_the_budget_bounds_the_work_and_what_is_left_is_said():
    run = Run(TuneRequest("full", budget=4.0))
    assert run.states == ["kept", "skipped", "skipped"] and 2 <= run.clock.now <= 4
    assert "2 skipped" in run.report.closing()
    more = Run(TuneRequest("full", budget=200.0))
    assert more.states == ["kept"] * 3 and len(more.bench.built) > len(run.bench.built)


@pytest.mark.parametrize("budget", [6.0, 12.0, 40.0, 100.0])
@pytest.mark.parametrize("build_s", [0.3, 1.0, 2.5])
def test_the_budget_holds_whatever_things_take(budget, build_s):
    """Building the network, as it is and with other kernels, is part of it."""
    names = [other_than_ranked(which=k) for k in (2, 5)]
    run = Run(
        TuneRequest("full", budget=budget),
        times={names[0]: 0.5, names[1]: 0.6},
        first_s=2.0,
        build_s=build_s,
    )
    assert run.clock.now <= budget + 2 * build_s and run.report.spent == run.clock.now
    assert sum(run.report.spent_on.values()) == pytest.approx(run.clock.now)
    assert run.clock.now > budget / 2 or run.states == ["kept"] * 3
    assert "the network as it was 2, kernels" in run.report.closing()


def test_a_budget_that_the_network_takes_for_itself():
    run = Run(TuneRequest("full", budget=8.0), first_s=100.0)
    assert run.states == ["skipped"] * 3 and not run.bench.built
    assert "before any kernel was tried: give it more" in run.report.closing()


def test_what_came_before_is_part_of_the_budget():
    late, early = (Run(TuneRequest("full", budget=40.0), began=began) for began in (-30.0, 0.0))
    assert len(late.bench.built) < len(early.bench.built) and "skipped" in late.states
    assert 30 < late.report.spent <= 41


def test_a_larger_share_gets_more_candidates():
    run = Run(TuneRequest("full", budget=60.0), shares=(1.0, 8.0, 1.0))
    tried = {x.share: x.tried for x in run.report.layers}
    assert tried[0.8] > tried[0.1]


def test_quick_tries_fewer_than_full():
    quick, full = Run(TuneRequest("quick", budget=1e4)), Run(TuneRequest("full", budget=1e4))
    assert [x.tried for x in quick.report.layers] == [8, 8, 8]
    assert [x.tried for x in full.report.layers] == [24, len(names_of(tasks()[2])), 24]
    assert TuneRequest("quick").seconds == BUDGETS["quick"] < TuneRequest("full").seconds <= 300


def test_resuming_measures_only_what_is_missing():
    first = Run(TuneRequest("full", budget=7.0))
    again = Run(TuneRequest("full", budget=1e4, resume=True))
    assert sorted(again.states) == ["kept", "known", "known"] and len(again.bench.problems) == 1
    done = Run(TuneRequest("full", resume=True))
    assert done.states == ["known"] * 3 and not done.bench.built and not done.network.ran
    assert (
        Run(TuneRequest("full", budget=1e4)).states == ["kept"] * 3 and first.states[2] == "skipped"
    )


def test_a_quick_result_does_not_spare_a_full_search():
    Run(TuneRequest("quick", budget=1e4))
    assert Run(TuneRequest("quick", resume=True)).states == ["known"] * 3
    assert Run(TuneRequest("full", budget=1e4, resume=True)).states == ["kept"] * 3


def test_an_interrupt_keeps_what_was_measured():
    first, second = (names_of(task) for task in tasks()[:2])  # by share
    only = next(name for name in second if name not in first)
    run = Run(interrupt_at=only, shares=(3.0, 2.0, 1.0))
    assert not run.report.finished and "interrupted" in run.report.closing()
    assert run.states == ["kept", "skipped", "skipped"]
    assert TuningStore(described()).result(run.tasks[0].sig.key) is not None
    folder = TuningStore(described()).lines.path.parent
    assert not list(folder.glob("*.trying"))
    assert sorted(Run(TuneRequest("full", resume=True)).states) == ["kept", "kept", "known"]


def test_what_a_dead_tuner_was_trying_is_not_tried():
    from clnn.tune.journal import Journal
    from clnn.tune.signature import templates_of

    task = tasks()[1]
    found = task.step.node.spec.candidates(task.step.problem)
    guilty = next(v for v in found if v.name != task.ranked.name)
    base = TuningStore(described()).lines.path
    journal = Journal(base)
    note = journal.trying(task.sig.key, guilty.name, templates_of(guilty))
    note.__enter__()
    journal._lock.release()
    again = Run(TuneRequest("full", budget=1e4))
    assert guilty.name not in again.bench.by_problem[0] and len(again.bench.by_problem[0]) == 24
    assert guilty.name in Run(TuneRequest(budget=1e4, retry=True)).bench.by_problem[0]
    del note
    records = TuningStore(described()).lines.read()
    assert [r["name"] for r in records if r.get("reason") == LEFT_OVER] == [guilty.name]


def test_all_that_fail_are_told_and_the_next_run_tries_none_of_them():
    some = Run(
        TuneRequest("full", budget=1e5), times={n: None for t in tasks() for n in names_of(t)}
    )
    assert some.states == ["failed"] * 3
    assert "wrong values" in some.report.text()
    again = Run(TuneRequest("full", budget=1e5))
    before, after = some.built(), again.built()
    assert len(before) == 3 and len(after) == 2  # one problem has no candidate left
    assert not any(before[channels] & after[channels] for channels in after)


def test_results_of_another_driver_are_tried_first():
    name = other_than_ranked(which=20)
    Run(times={name: 0.5}, inside={name: 0.5})
    newer = Run(TuneRequest("quick", budget=1e4), info=described(driver_version="2"))
    at = [p.outputs[0].type.shape[1] for p in newer.bench.problems].index(32)
    mine = newer.bench.built[8 * at : 8 * at + 8]
    assert mine[1] == name


def test_progress_tells_problems_candidates_and_gain():
    name = other_than_ranked()
    run = Run(times={name: 0.5}, inside={name: 0.5})
    steps = [p for p in run.told if p.name == name]
    assert steps and steps[0].ranked == 1.0 and steps[0].best == 0.5
    assert {p.total for p in run.told} == {3} and run.told[-1].done == 3
    lefts = [p.left for p in run.told]
    assert lefts == sorted(lefts, reverse=True)


@pytest.mark.parametrize("wrong", [{"level": "huge"}, {"budget": -1.0}, {"budget": float("nan")}])
def test_a_wish_that_is_not_allowed(wrong):
    with pytest.raises(SettingError, match="must be one of quick, full"):
        TuneRequest(**wrong)


def test_what_won_elsewhere_is_tried_first():
    request, shares = TuneRequest("full", budget=1e4), (8.0, 2.0, 1.0)
    first = Run(request, shares=shares)
    name = next(n for n in reversed(first.bench.by_problem[0]) if n in names_of(tasks()[1]))
    again = Run(request, times={name: 0.5}, inside={name: 0.5}, shares=shares)
    assert name not in first.bench.by_problem[1][:6] and name in again.bench.by_problem[1][:6]
