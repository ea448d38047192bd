"""Networks of ESP-DL with the numbers of chips, where the folder with vectors is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools"))
SHORT = ("v1_mnist_s16_conv", "v3_s8_gemm_esp32p4_ishap_1_31_kshap_32_31")


@pytest.fixture(scope="module")
def cases():
    place = Path(os.environ.get("CLNN_VECTORS", ROOT.parent / "shared" / "vectors")) / "espdl"
    if not place.is_dir():
        pytest.skip("no vectors: no folder espdl in CLNN_VECTORS or ../shared/vectors")
    from vectors import espdl

    found = list(espdl.cases(place))
    assert found
    return found


def check(cases, device):
    from vectors import espdl

    outcomes = {case.name: espdl.run(case, device) for case in cases}
    wrong = [
        f"{name}: {o.status} {o.reason}" for name, o in outcomes.items() if o.status != "exact"
    ]
    assert not wrong, "\n".join(wrong)


def test_some_networks_are_exact(device, cases):
    check([case for case in cases if case.name in SHORT], device)


@pytest.mark.exhaustive
def test_every_network_is_exact(device, cases):
    check(cases, device)


def test_coefficients_are_stored_in_the_order_of_the_chip(cases):
    """1.x on the ESP32-S3 has outputs of int16 in blocks of eight."""
    import numpy as np

    from clnn.importers.espdl.filters import packed, unpacked

    folder, about = next(case.data for case in cases if case.kernel == "1.x")
    seen = 0
    with np.load(folder / "v1_mnist_s16_conv.npz") as arrays:
        for name, entry in about["tensors"].items():
            if entry["kind"] != "filter" or f"{name}__esp32s3_order" not in arrays.files:
                continue
            depthwise, dims = entry["layout"] == "HWC1", tuple(entry["shape"])
            stored, plain = arrays[f"{name}__esp32s3_order"], arrays[name]
            rows = (
                plain[..., 0].transpose(2, 0, 1)[:, None]
                if depthwise
                else plain.transpose(3, 2, 0, 1)
            )
            assert (unpacked(stored, dims, "(N/8)HWC8", depthwise) == rows).all(), name
            assert (packed(rows, "(N/8)HWC8", depthwise) == stored).all(), name
            seen += 1
    assert seen > 10
