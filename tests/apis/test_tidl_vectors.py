"""Layouts of TIDL's structures, where the folder with vectors is there."""

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
    place = Path(os.environ.get("CLNN_VECTORS", ROOT.parent / "shared" / "vectors")) / "tidl"
    if not place.is_dir():
        pytest.skip("no vectors: no folder tidl in CLNN_VECTORS or ../shared/vectors")
    from vectors import tidl

    found = defaultdict(list)
    for case in tidl.cases(place):
        found[case.kernel].append(case)
    assert set(found) == set(tidl.CHECKS)
    return found


def check(cases, device):
    from vectors import tidl

    wrong = []
    for case in cases:
        outcome = tidl.run(case, device)
        if outcome.status != "exact":
            wrong.append(f"{case.kernel}/{case.name}: {outcome.reason}")
    assert not wrong, "\n".join(wrong)


def test_structures_are_as_the_vectors_say(cases):
    kinds = [kind for kind in cases if kind != "buffers"]
    check([case for kind in kinds for case in cases[kind] if "cores4" not in case.name], None)


def test_buffers_of_some_versions(device, cases):
    chosen = [
        c for c in cases["buffers"] if c.name.split("/")[1] in ("SignedChar", "SinglePrecFloat")
    ]
    check([c for c in chosen if "cores" not in c.name], device)


@pytest.mark.exhaustive
def test_every_case(device, cases):
    check([case for group in cases.values() for case in group], device)
