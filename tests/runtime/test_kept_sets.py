"""What sets of kernels were learned to be is taken by the next session, and is never trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from open_images import segmentation

import clnn
from clnn.cache.store import Store
from clnn.runtime.run import kernel_set
from clnn.runtime.run.kept_sets import KIND

FIRST, NEAR, SMALL, FAR = (1, 3, 96, 96), (1, 3, 80, 104), (1, 3, 12, 8), (1, 3, 40, 32)
OPTIONS = clnn.Options(specialise="background")


@pytest.fixture
def learned(monkeypatch, tmp_path):
    """How often kernels were chosen for all shapes; the cache folder is empty."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    calls, learn = [], kernel_set.KernelSet.learn

    def counted(self, *arguments):
        calls.append(self)
        return learn(self, *arguments)

    monkeypatch.setattr(kernel_set.KernelSet, "learn", counted)
    return calls


def results(device, shapes, small=True, options=OPTIONS):
    """Return outputs at shapes, and how many programs were built for them."""
    rng = np.random.default_rng(1)
    with clnn.compile_model(segmentation(), device, options) as session:
        found = []
        for k, shape in enumerate(shapes):
            feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
            found.append(next(iter(session(feeds).values())))
            if small and not k:
                assert session._gears.wait(600)
        return found, session.build_counts[1]


def entries():
    return [entry.key for entry in Store(kind=KIND).entries()]


def test_the_next_session_learns_nothing(device, learned):
    shapes = (FIRST, SMALL, NEAR, FAR)
    want, built = results(device, shapes)
    assert len(learned) == 2 and built and len(entries()) == 1
    got, built = results(device, shapes)
    assert len(learned) == 2 and not built
    assert all(np.array_equal(*pair) for pair in zip(got, want, strict=True))
    # Another first shape of the same size takes the same kernels.
    got, built = results(device, (NEAR, FIRST), small=False)
    assert len(learned) == 2 and not built and len(entries()) == 1
    # Other sizes and options are other sets.
    results(device, (FAR,), small=False)
    results(device, (FIRST,), small=False, options=clnn.Options(specialise="never"))
    assert len(learned) == 4 and len(entries()) == 3


def test_small_images_are_left_to_sessions_that_live_or_meet_other_shapes(device, learned):
    results(device, (FIRST,), small=False)
    kept = json.loads(Store(kind=KIND).get(entries()[0]).payload)
    assert len(learned) == 1 and kept["small"] is False and len(kept["sets"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.clear(),
        lambda kept: kept.update(sets=7),
        lambda kept: kept["sets"][0].update(names=[["v0", "conv2d", "no kernel's name", ""]]),
        lambda kept: kept["sets"][0].update(names=[["v0"]]),
        lambda kept: kept["sets"][0].update(known={"0": ["1"]}),
        lambda kept: kept["sets"][0].update(shapes={"x": [1, 3, -5, 8]}),
        lambda kept: kept["sets"][0].update(shapes={"x": [1, 3, 1000000, 1000000]}),
        lambda kept: kept["sets"][0].update(shapes={"y": [1, 3, 96, 96]}),
        lambda kept: kept.update(many=[{}]),
        lambda kept: kept.pop("many"),
    ],
)
def test_what_is_kept_may_be_anything(device, learned, change):
    want, _ = results(device, (FIRST,), small=False)
    key, store = entries()[0], Store(kind=KIND)
    kept = json.loads(store.get(key).payload)
    change(kept)
    store.put(key, json.dumps(kept).encode(), {})
    got, _ = results(device, (FIRST,), small=False)
    assert len(learned) == 2 and np.array_equal(got[0], want[0])


def test_wrong_positions_cost_only_time(device, learned):
    want, _ = results(device, (FIRST, NEAR), small=False)
    key, store = entries()[0], Store(kind=KIND)
    kept = json.loads(store.get(key).payload)
    known = kept["sets"][0]["known"]
    kept["sets"][0]["known"] = dict(
        zip(known, [[0, 10**9], [], *[[3, 1]] * len(known)], strict=False)
    )
    store.put(key, json.dumps(kept).encode(), {})
    got, _ = results(device, (FIRST, NEAR), small=False)
    assert all(np.array_equal(*pair) for pair in zip(got, want, strict=True))
