from __future__ import annotations

import json

import numpy as np
import pytest


def samples(path, *shapes):
    """Write samples of an input of the network."""
    random = np.random.default_rng(0)
    arrays = {f"x{k}" if k else "x": random.standard_normal(s) for k, s in enumerate(shapes)}
    np.savez(path, **{name: a.astype(np.float32) for name, a in arrays.items()})
    return path


def test_ranges_go_to_a_file_that_other_commands_take(clnn, files, any_device, tmp_path):
    given = samples(tmp_path / "x.npz", (3, 1, 3, 6, 7))
    out = tmp_path / "ranges.json"
    result = clnn("calibrate", files["network"], "-d", any_device, "--samples", given, "--out", out)
    assert result.code == 0, result.err
    ranges = json.loads(out.read_text())
    assert ranges and all(low <= 0 < high for low, high in ranges.values())
    assert result.out.startswith(f"{len(ranges)} ranges from 3 samples")
    result = clnn(
        "verify",
        files["network"],
        "-d",
        any_device,
        "-o",
        "dtype=int8",
        "-o",
        f"calibration={out}",
        "--against",
        "reference",
        "--json",
    )
    assert result.code == 0, result.err
    for way in (given, out):
        result = clnn(
            "verify",
            files["network"],
            "-d",
            any_device,
            "--dtype",
            "int8",
            "--calibrate",
            way,
            "--against",
            "reference",
        )
        assert result.code == 0, result.err


@pytest.mark.parametrize("shapes", [((),), ((2, 4), (3, 4))])
def test_samples_that_are_none(clnn, files, any_device, tmp_path, shapes):
    given = samples(tmp_path / "x.npz", *shapes)
    result = clnn("calibrate", files["network"], "-d", any_device, "--samples", given, "--out", "x")
    assert result.code == 2 and "first axis must be samples" in result.err
