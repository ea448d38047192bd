"""Recorded calls of embARC MLI, where they lie beside the checkout (see CLNN_VECTORS)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools"))

FOLDER = Path(os.environ.get("CLNN_VECTORS") or ROOT.parent / "shared" / "vectors") / "mli"
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recorded calls in a folder {FOLDER.name}"),
]


@pytest.mark.timeout(3600)
def test_every_recorded_call_is_exact(device, capsys):
    import check_vectors

    assert check_vectors.main(["mli", str(FOLDER), "--device", device]) == 0, (
        capsys.readouterr().out
    )
