"""Stored results, then shipped defaults, then the estimate; and what a problem is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tune_fakes import described

from clnn.api import compile_model
from clnn.cache.keys import is_key
from clnn.codegen import render
from clnn.errors import SettingError
from clnn.graph.ir import Node
from clnn.layout import TensorLayout
from clnn.ops.conv.spec import Conv2d
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.probe import Capabilities, Capability
from clnn.target import Target
from clnn.tune.choose import Chosen, chooser
from clnn.tune.defaults import NONE, defaults_for, export_lines
from clnn.tune.signature import canonical, signature, templates_of
from clnn.tune.store import Result, Timed, TuningStore
from clnn.types import F32, TensorType

pytestmark = pytest.mark.usefixtures("quick_disk")
SPEC = Conv2d(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
CPU = Target("cpu", 16, 2, 256, 1 << 20)


def image(shape, border=0, const=False, fill=0.0):
    pads = (0, 0, border, border)
    layout = TensorLayout.make(shape, (0, 2, 3, 1), pads, pads)
    return Operand(TensorType(shape, F32), layout, fill)


def problem(size=12, channels=32, border=1, target=CPU, out=32):
    weights = np.zeros((out, channels, 3, 3), np.float32)
    fixed = Operand(TensorType(weights.shape), TensorLayout.make(weights.shape), const=weights)
    return Problem(
        (image((1, channels, size, size), border), fixed, None),
        (image((1, out, size, size)),),
        target,
    )


NODE = Node("n", SPEC, ("x", "w", None), ("y",))
PROBLEM = problem()
RANKED = SPEC.variants(PROBLEM)[0]
OTHER = SPEC.candidates(PROBLEM)[9]


def stored(info, variant=OTHER, key=None, **changes):
    store = TuningStore(info)
    sig = signature(SPEC, PROBLEM)
    top = replace(Timed(variant.name, 0.1, templates_of(variant)), **changes)
    store.put(sig if key is None else replace(sig, key=key), Result((top,), RANKED.name, "full", 3))


def pick(info, defaults=NONE, check=None, given=PROBLEM):
    with Chosen(TuningStore(info), defaults, check) as choose:
        chosen = choose(NODE, given, SPEC.variants(given))
    return chosen.name, chosen.why


def test_a_kernel_is_found_by_its_name_without_making_families_of_other_names(monkeypatch):
    small = problem(5, 3, 1, Target("gpu", 4, 16, 256, 32768))
    for given in (PROBLEM, problem(7, 48, 0), small):
        for variant in (*SPEC.candidates(given), *SPEC.variants(given)):
            found = SPEC.named(given, variant.name)
            assert found is not None and found.name == variant.name
            assert [one.params for one in found.launches] == [
                one.params for one in variant.launches
            ]
    assert SPEC.named(PROBLEM, "winograd_of_none") is None
    name = next(v.name for v in SPEC.candidates(PROBLEM) if v.name.startswith("conv2d_direct"))
    monkeypatch.setattr("clnn.ops.conv.winograd_cpu.plan", None)
    assert SPEC.named(PROBLEM, name) is not None


def test_candidates_tell_their_tunables_and_hold_the_ranked_one():
    for given in (PROBLEM, problem(7, 48, 0), problem(5, 3, 1, Target("gpu", 4, 16, 256, 32768))):
        names = [v.name for v in SPEC.candidates(given)]
        assert len(names) == len(set(names)) > 10
        assert SPEC.variants(given)[0].name in names
        assert not any("reference" in name for name in names)
        sources = {
            tuple((one.template, str(sorted(one.params.items(), key=str))) for one in v.launches)
            for v in SPEC.candidates(given)
        }
        assert len(sources) == len(names)


def test_a_stored_result_is_chosen(info):
    assert pick(info) == (RANKED.name, "ranked") and OTHER.name != RANKED.name
    stored(info)
    assert pick(info) == (OTHER.name, "tuned")


def test_a_result_for_another_problem_is_not(info):
    stored(info, key="0" * 64)
    assert pick(info) == (RANKED.name, "ranked")


def test_a_variant_that_is_no_more_falls_back(info):
    stored(info, name="conv2d_from_before")
    assert pick(info) == (RANKED.name, "ranked")


def test_a_changed_template_undoes_a_result(info):
    stored(info, templates="0" * 16)
    assert pick(info) == (RANKED.name, "ranked")


def test_what_failed_since_is_not_chosen(info):
    stored(info)
    TuningStore(info).put_failure(
        signature(SPEC, PROBLEM).key, OTHER.name, templates_of(OTHER), "hung"
    )
    assert pick(info) == (RANKED.name, "ranked")


def test_under_a_new_driver_a_result_is_checked_once_and_then_holds(info):
    stored(info)
    newer, asked = described(driver_version="2.0"), []

    def check(spec, given, variant):
        asked.append(variant.name)
        return ""

    assert pick(newer, check=check) == (OTHER.name, "tuned")
    assert pick(newer, check=check) == (OTHER.name, "tuned")
    assert asked == [OTHER.name] and pick(info) == (OTHER.name, "tuned")


def test_under_a_new_driver_a_wrong_result_is_never_used(info):
    stored(info)
    newer, asked = described(driver_version="2.0"), []

    def check(spec, given, variant):
        asked.append(variant.name)
        return "wrong values"

    assert pick(newer, check=check) == pick(newer, check=check) == (RANKED.name, "ranked")
    assert asked == [OTHER.name]


def test_under_a_new_driver_nothing_is_checked_where_nothing_can_be_kept(info, monkeypatch):
    stored(info)
    monkeypatch.setenv("CLNN_CACHE", "ro")
    newer = described(driver_version="2.0")
    assert pick(newer, check=lambda *a: pytest.fail("asked")) == (RANKED.name, "ranked")


def test_off_ranks_whatever_is_stored(info):
    stored(info)
    with chooser(info, "off") as choose:
        assert choose(NODE, PROBLEM, SPEC.variants(PROBLEM)).name == RANKED.name


# Shipped defaults


def shipped(tmp_path, info, given=PROBLEM, variant=OTHER, **changes):
    sig = signature(SPEC, given)
    tops = [{"name": variant.name, "network": 1.0}, {"name": RANKED.name, "network": 1.5}]
    rows = [{"problem": sig.parts, "tops": tops, "ranked": RANKED.name, "key": sig.key, **changes}]
    (tmp_path / "some.jsonl").write_text(export_lines(info, rows))
    return defaults_for(info, tmp_path)


def test_defaults_serve_devices_of_that_name_and_size(info, tmp_path):
    found = shipped(tmp_path, info)
    assert pick(info, found) == (OTHER.name, "default")
    assert pick(info, found, given=problem(13)) == (SPEC.variants(problem(13))[0].name, "ranked")
    slower = Capabilities(half_rate=Capability(True))
    for other in (
        *({"platform": "Other"}, {"type": "gpu"}, {"name": "Other"}),
        *({"compute_units": 8}, {"caps": slower}),
    ):
        assert defaults_for(described(**other), tmp_path) is NONE
    stored(info, SPEC.candidates(PROBLEM)[5])
    assert pick(info, found) == (SPEC.candidates(PROBLEM)[5].name, "tuned")


def test_a_default_that_is_gone_or_failed_here_is_passed_over(info, tmp_path):
    gone = shipped(tmp_path, info, variant=replace(OTHER, name="gone"))
    assert pick(info, gone) == (RANKED.name, "ranked")
    key = signature(SPEC, PROBLEM).key
    TuningStore(info).put_failure(key, OTHER.name, templates_of(OTHER), "wrong")
    assert pick(info, {key: OTHER.name}) == (RANKED.name, "ranked")


@pytest.mark.parametrize(
    "tops",
    [
        [("best", 1.0), (RANKED.name, 1.01)],  # within what measurements scatter by
        [("best", 1.0), (RANKED.name, None)],
        [("best", None), (RANKED.name, 1.5)],
        [("best", 1.0)],
        [(RANKED.name, 1.0), ("other", 1.5)],
    ],
)
def test_only_what_was_faster_in_the_network_is_shipped(info, tmp_path, tops):
    listed = [{"name": name, **({"network": t} if t else {})} for name, t in tops]
    assert not shipped(tmp_path, info, tops=listed)


def test_the_file_of_defaults_is_one_line_per_problem_for_people(info, tmp_path):
    shipped(tmp_path, info)
    head, row = [json.loads(x) for x in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert head["devices"] == {
        "platform": "Portable Computing Language",
        "type": "cpu",
        "name": info.name,
        "compute_units": info.compute_units,
        "half_rate": False,
    }
    assert row["about"] == "conv2d 1x32x12x12, 32x32x3x3 -> 1x32x12x12"
    assert (row["variant"], row["gain"]) == (OTHER.name, 1.5)


def test_every_shipped_file_can_be_read():
    from clnn.tune.defaults import FOLDER, _load

    assert FOLDER.is_dir()
    for kind, found in _load(FOLDER):
        assert set(kind) == {"platform", "type", "name", "compute_units", "half_rate"}
        assert found
        assert all(is_key(key) for key in found)


# Signatures


def test_equal_problems_have_one_key_and_names_do_not_count():
    assert signature(SPEC, problem()).key == signature(SPEC, problem()).key
    moved = replace(
        PROBLEM,
        inputs=(
            replace(PROBLEM.inputs[0], layout=PROBLEM.inputs[0].layout.moved(64, 10**6)),
            *PROBLEM.inputs[1:],
        ),
    )
    assert signature(SPEC, moved).key == signature(SPEC, PROBLEM).key


@pytest.mark.parametrize(
    "spec,given",
    [
        (SPEC, problem(13)),
        (SPEC, problem(border=2)),
        (SPEC, problem(channels=33)),
        (SPEC, problem(target=replace(CPU, winograd=False))),
        (SPEC, problem(target=replace(CPU, kind="gpu"))),
        (replace(SPEC, post_ops=(PostOp("relu"),)), problem()),
        (replace(SPEC, window=replace(SPEC.window, dilations=(2, 2))), problem()),
    ],
)
def test_whatever_decides_a_kernel_is_in_the_key(spec, given):
    assert signature(spec, given).key != signature(SPEC, PROBLEM).key


def test_a_new_field_that_holds_its_default_changes_no_key():
    assert "group" not in canonical(SPEC)["Conv2d"] and "post_ops" not in canonical(SPEC)["Conv2d"]
    assert canonical(replace(SPEC, group=2))["Conv2d"]["group"] == 2


@pytest.mark.parametrize(
    "used", ["_common/epilogue", "_common/pixels", "_common/dot", "_arith/mli"]
)
def test_the_hash_of_templates_covers_what_they_use(tmp_path, monkeypatch, used):
    """Used by itself, by what it uses, and by what parameters may choose."""
    whole = next(p for p in render.template_folders() if p.endswith("kernels_cl"))
    shutil.copytree(whole, tmp_path / "kernels")
    monkeypatch.setenv("CLNN_KERNEL_PATH", str(tmp_path / "kernels"))
    names = ("conv/direct.cl.mako", "movement/copy_flat.cl.mako")
    before = {name: render.template_hash(name) for name in names}
    path = tmp_path / "kernels" / f"{used}.cl.mako"
    path.write_text(path.read_text() + "\n")
    render._template_hash.cache_clear()
    assert render.template_hash(names[0]) != before[names[0]]
    assert render.template_hash(names[1]) == before[names[1]]


def test_only_four_ways_to_choose():
    for tune in ("off", "cached", "quick", "full"):
        assert Options(tune=tune).tune == tune
    with pytest.raises(SettingError, match="Use one of off, cached, quick, full"):
        Options(tune="always")


def test_a_session_says_why(device):
    from small_graphs import classifier

    from clnn.api import prepare
    from clnn.plan.schedule import make_plan
    from clnn.runtime.device.device import select
    from clnn.runtime.device.target import target_of

    info = select(device)
    plan = make_plan(prepare(classifier(), Options()), target_of(info))
    step = next(s for s in plan.scheduled if s.node.spec.kind == "conv2d")
    sig, slow = signature(step.node.spec, step.problem), step.node.spec.variants(step.problem)[-1]
    top = Timed(slow.name, 1.0, templates_of(slow))
    TuningStore(info).put(sig, Result((top,), step.variant.name, "quick", 1))
    with compile_model(classifier(), device) as session:
        rows = {r["node"]: r for r in session.placement.nodes}
    assert (rows[step.node.name]["variant"], rows[step.node.name]["why"]) == (slow.name, "tuned")
