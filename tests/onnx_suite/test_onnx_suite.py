"""ONNX's backend tests: what passes is listed, what does not is listed with a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
import suite
from meeting import Meeting
from suite import Outcome

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

CHUNK = 40
LISTED = suite.expected_passes()


def chunks(names):
    """Split names into parts of about CHUNK, in the order of their operators."""
    ordered = sorted(names, key=lambda name: (LISTED[name], name))
    parts = [ordered[k : k + CHUNK] for k in range(0, len(ordered), CHUNK)]
    return [pytest.param(p, id=f"{LISTED[p[0]]}..{LISTED[p[-1]]}".replace(" ", "")) for p in parts]


def no_failures(outcomes):
    wrong = [o for o in outcomes if o.verdict != "passed"]
    assert not wrong, "\n".join(f"{o.name} {o.verdict}: {o.why}" for o in wrong)


@pytest.mark.parametrize("names", chunks(suite.sample(LISTED)))
def test_some_of_each_operator(names, device, monkeypatch):
    """The cases run side by side, and their programs are built together."""
    monkeypatch.setenv("CLNN_DEVICE", device)
    cases = [suite.all_cases()[name] for name in names]
    with Meeting(len(cases)) as meeting:
        no_failures(meeting.map(lambda case: suite.judge(case, suite.on_backend), cases))


@pytest.mark.exhaustive
@pytest.mark.parametrize("names", chunks(LISTED))
def test_all_on_every_device(names, device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE", device)
    cases = [suite.all_cases()[name] for name in names]
    suite.build_ahead(cases, device)
    no_failures([suite.judge(case, suite.on_backend) for case in cases])


def test_every_case_is_as_listed_by_the_references_of_the_ops():
    """Every case is imported and computed with numpy: forms, attributes, shapes, refusals."""
    outcomes = [suite.judge(case, suite.on_numpy) for case in suite.all_cases().values()]
    wrong = suite.unexpected(outcomes)
    assert not wrong, "\n".join(wrong)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(suite.real_cases()))
def test_real_network_on_every_device(name, device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE", device)
    outcome = suite.judge(suite.real_cases()[name], suite.on_backend)
    assert outcome.verdict == "passed", outcome.why


def test_lists_name_what_there_is():
    cases = suite.all_cases()
    rows = suite.exclusions()
    assert sorted(set(LISTED) - set(cases)) == []
    assert list(LISTED) == sorted(LISTED)
    assert {n: cases[n].op for n in LISTED} == LISTED
    both = [n for n in LISTED if suite.exclusion(n, rows)]
    assert not both, f"listed as expected and as excluded: {both}"
    left = set(cases) - set(LISTED)
    idle = [p.pattern for p, _ in rows if not any(p.fullmatch(n) for n in left)]
    assert not idle, f"exclusions that match nothing: {idle}"
    assert all(len(reason) > 10 for _, reason in rows)


def test_sample_has_every_operator():
    chosen = suite.sample(LISTED)
    assert {LISTED[n] for n in chosen} == set(LISTED.values())
    assert len(chosen) < len(LISTED) / 3


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome("test_abs", "passed"), ""),
        (Outcome("test_abs", "failed", "wrong numbers"), "test_abs is in expected.txt and failed"),
        (Outcome("test_abs", "refused", "no"), "test_abs is in expected.txt and refused"),
        (Outcome("test_image_decoder_decode_bmp_rgb", "refused", "loops"), ""),
        (
            Outcome("test_image_decoder_decode_bmp_rgb", "passed"),
            "test_image_decoder_decode_bmp_rgb passes and is not in expected.txt",
        ),
        (Outcome("test_image_decoder_decode_bmp_rgb", "failed"), "failed instead of being refused"),
        (Outcome("test_resize_downsample_scales_cubic_align_corners", "failed"), ""),
        (Outcome("test_of_tomorrow", "refused", "new"), "test_of_tomorrow is in neither list"),
        (Outcome("test_of_tomorrow", "passed"), "passes and is not in expected.txt"),
    ],
)
def test_lists_are_held_against_outcomes(outcome, words):
    lines = suite.unexpected([outcome])
    assert len(lines) == bool(words)
    assert words in "".join(lines)


def test_judge_sees_wrong_numbers_shapes_and_types():
    case = suite.all_cases()["test_abs"]
    right = case.data_sets[0][1]
    for change, verdict in (
        (lambda a: a, "passed"),
        (lambda a: a + 1e-2, "failed"),
        (lambda a: a[None], "failed"),
        (lambda a: a.astype("float64"), "failed"),
    ):
        made = [change(a) for a in right]
        assert suite.judge(case, lambda case, inputs, made=made: made).verdict == verdict
    assert suite.judge(case, lambda case, inputs: []).verdict == "failed"


def test_operator_table_is_current():
    import gen_op_table

    assert gen_op_table.PATH.read_text(encoding="utf-8") == gen_op_table.text(), (
        "docs/operators.md is not current: run python tools/gen_op_table.py"
    )


def test_lists_are_of_the_installed_onnx():
    """Other releases of onnx bring other tests; the lists hold for one."""
    head = (suite.FOLDER / "expected.txt").read_text(encoding="utf-8").splitlines()[0]
    assert f"(onnx {onnx.__version__})" in head
