"""Batches that other kernels are better for: a set of their own, made ahead, taken by what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from open_images import Net

import clnn
from clnn.graph.variations import FEW, SMALL, other_counts
from clnn.plan import repeat
from clnn.runtime.run import family, gears, kernel_set

# Images as large as the first, so that kernels of each set fit them on any processor.
FIRST, SHAPES = (1, 3, 64, 64), ((4, 3, 64, 64), (2, 3, 64, 80), (7, 3, 80, 64))
OPTIONS = clnn.Options(specialise="background")


def model():
    """Layers of many channels and few pixels, of which batches of one want other kernels than larger ones."""
    net = Net()
    x = net.conv("x", 3, 32, 3, 4)
    x = net.conv(x, 32, 256, 3, 2)
    return net.model(net.conv(net.conv(x, 256, 256), 256, 256, relu=False))


@pytest.fixture
def learned(monkeypatch, tmp_path):
    """How often kernels were chosen for all shapes; the cache folder is empty, and any gain is worth a set."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(family, "WORTH", 1.0)
    calls, learn = [], kernel_set.KernelSet.learn

    def counted(self, *arguments):
        calls.append(self)
        return learn(self, *arguments)

    monkeypatch.setattr(kernel_set.KernelSet, "learn", counted)
    return calls


def fed(shape):
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


def outputs(device, monkeypatch, less):
    """Return outputs at SHAPES, and which of them the set for other batches computes."""
    monkeypatch.setattr(repeat, "LESS", less)
    with clnn.compile_model(model(), device, OPTIONS) as session:
        session(fed(FIRST))
        assert session._gears.wait(600)
        made, built = session._compile_at._family, session.build_counts[1]
        assert made.has_many
        found, which = [], []
        for shape in SHAPES:
            found.append(next(iter(session(fed(shape)).values())))
            which.append(made._planned.chosen is made._many)
        assert session.build_counts[1] == built
        assert set(which) == {made._many is not None and less > 1}
        return found, made._many is not None


def test_their_kernels_are_made_ahead_and_kept(device, monkeypatch, learned):
    other, there = outputs(device, monkeypatch, 1e9)
    count = len(learned)
    first, again = outputs(device, monkeypatch, 0.0)
    assert len(learned) == count and again == there
    for shape, one, two in zip(SHAPES, other, first, strict=True):
        with clnn.compile_model(model(), device, shapes={"x": shape}) as alone:
            want = next(iter(alone(fed(shape)).values()))
        assert gears.alike(one, want, 1e-5) and gears.alike(two, want, 1e-5)
    assert there or device != "pocl"  # which kernels are there differs between drivers


def test_no_set_is_made_where_there_is_little_to_gain(device, monkeypatch, learned):
    monkeypatch.setattr(family, "WORTH", 1e9)
    with clnn.compile_model(model(), device, OPTIONS) as session:
        session(fed(FIRST))
        assert session._gears.wait(600)
        made = session._compile_at._family
        assert made.has_many and made._many is None and made.knows_many


@pytest.mark.parametrize(
    ("extents", "wanted"),
    [
        ({"batch": 1, "height": 64}, [{"batch": FEW, "height": 64}]),
        ({"batch": 5, "height": 64}, [{"batch": 1, "height": 64}]),
        ({"batch": SMALL, "height": 64}, []),
        ({"batch": 1, "boxes": 6}, [{"batch": FEW, "boxes": FEW}]),
    ],
)
def test_batches_are_extents_of_few(extents, wanted):
    assert [*other_counts(extents)] == wanted
