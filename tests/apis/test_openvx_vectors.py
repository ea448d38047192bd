"""Cases of the conformance suite, where the folder with vectors is there."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="module")
def cases():
    place = Path(os.environ.get("CLNN_VECTORS", ROOT.parent / "shared" / "vectors")) / "openvx"
    if not place.is_dir():
        pytest.skip("no vectors: no folder openvx in CLNN_VECTORS or ../shared/vectors")
    from vectors import openvx

    found = defaultdict(list)
    for case in openvx.cases(place):
        found[case.kernel].append(case)
    assert found
    return found


def check(cases, device):
    from vectors import openvx

    wrong = []
    for case in cases:
        outcome = openvx.run(case, device)
        if outcome.status != "exact":
            wrong.append(f"{case.kernel}/{case.name}: {outcome.status} {outcome.reason}")
    assert not wrong, "\n".join(wrong)


def test_some_cases_of_each_kind(device, cases):
    check([case for group in cases.values() for case in group[:2]], device)


@pytest.mark.exhaustive
def test_every_case(device, cases):
    check([case for group in cases.values() for case in group], device)
