"""check_vectors.py: counts, reasons and exit statuses."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import check_vectors
import numpy as np
from vectors import Case, Outcome
from vectors._moves import found_move

OUTCOMES = {
    "fine": Outcome("exact"),
    "off": Outcome("failed", "3 of 9 differ"),
    "left": Outcome("skipped", "no such mode"),
}


def system(*names):
    def run(case, device):
        return OUTCOMES[case.name]

    cases = [Case("kernel_of_" + n, n) for n in names]
    return SimpleNamespace(cases=lambda folder: iter(cases), run=run)


def main(monkeypatch, tmp_path, *names, extra=()):
    monkeypatch.setattr(check_vectors.importlib, "import_module", lambda name: system(*names))
    return check_vectors.main(["mli", str(tmp_path), *extra])


def test_a_failure_is_told_and_counted(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "fine", "off", "left") == check_vectors.EXIT_FAILED
    told = capsys.readouterr().out
    assert "kernel_of_off off: failed 3 of 9 differ" in told
    assert "kernel_of_left left: skipped no such mode" in told
    assert told.splitlines()[-1].split() == ["total", "3", "1", "1", "1"]


def test_an_exception_is_a_failure(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "unheard") == check_vectors.EXIT_FAILED
    assert "failed KeyError: 'unheard'" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", ["kernel_of_f*", "kernel_of_fine/fine"])
def test_only_what_is_wanted_runs(monkeypatch, tmp_path, pattern):
    given = main(monkeypatch, tmp_path, "fine", "off", extra=("--only", pattern))
    assert given == check_vectors.EXIT_OK


def test_nothing_checked_is_wrong_use(monkeypatch, tmp_path, capsys):
    assert main(monkeypatch, tmp_path, "fine", extra=("--only", "x")) == check_vectors.EXIT_USAGE
    assert "nothing was checked" in capsys.readouterr().err
    assert main(monkeypatch, tmp_path / "gone", "fine") == check_vectors.EXIT_USAGE


X = np.random.default_rng(0).permutation(np.arange(1, 4 * 8 * 4 + 1)).reshape(4, 8, 4)


def moved(offset=(0, 0, 0), size=(0, 0, 0), step=(1, 1, 1), order=(0, 1, 2), pads=((0, 0),) * 3):
    ends = [s and o + s for o, s in zip(offset, size, strict=True)]
    part = X[tuple(slice(o, e or None, s) for o, e, s in zip(offset, ends, step, strict=True))]
    return np.transpose(np.pad(part, pads), order)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"offset": (1, 2, 2), "size": (3, 6, 2)},
        {"pads": ((2, 1), (3, 3), (0, 0))},
        {"order": (1, 0, 2)},
        {
            "step": (2, 3, 1),
            "offset": (1, 1, 0),
            "order": (2, 0, 1),
            "pads": ((1, 0), (0, 2), (3, 0)),
        },
    ],
)
def test_a_movement_is_found_from_its_result(about):
    y = moved(**about)
    found = found_move(X, y)
    pads = tuple(zip(found["padding_pre"], found["padding_post"], strict=True))
    again = moved(found["offset"], found["size"], found["sub_sample_step"], found["perm_dim"], pads)
    np.testing.assert_array_equal(again, y)


def test_the_place_of_a_joined_tensor_is_found():
    y = np.random.default_rng(1).integers(200, 999, (9, 9, 5))
    y[3:7, 1:9, 1:5] = X
    assert found_move(X, y) == {"dst_offset": (3, 1, 1)}
    with pytest.raises(ValueError, match="no movement"):
        found_move(X, y[:6, :8, :4] + 0)


@pytest.mark.parametrize(
    "strides, rounding", [((2, 2), "FLOOR"), ((3, 3), "CEILING"), ((3, 1), "FLOOR")]
)
def test_a_pooling_is_called_with_the_rounding_that_its_strides_tell(strides, rounding):
    from vectors import openvx

    about = {
        "input": {"dims": [4, 3, 1]},
        "output": {"dims": [2, 2, 1]},
        "size_x": 3,
        "size_y": 4,
        "pad_x": 1,
        "pad_y": 2,
        "stride_x": strides[0],
        "stride_y": strides[1],
    }
    assert openvx.pooling_rounding(about) == getattr(openvx, rounding)
