"""Extents that no kernels of the first ones fit: further sets, learned there once, for all such shapes."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal
from onnx_models import run
from sequences import NETWORKS, WIDTH

import clnn
from clnn import open_model
from clnn.compile import load_graph
from clnn.plan.repeat import Choices

FIRST, OTHERS = (1, 1, WIDTH), [(1, 7, WIDTH), (1, 16, WIDTH), (1, 33, WIDTH)]
LAST = [(1, 6, WIDTH), (1, 21, WIDTH), (1, 50, WIDTH)]


def fed(shape):
    return {"x": normal(shape, sum(shape)).astype(np.float32)}


@pytest.fixture
def misfits(monkeypatch, tmp_path):
    """Have products that were chosen for one row fit one row alone, others none of it; return who chose."""
    monkeypatch.setenv("CLNN_CACHE_DIR", str(tmp_path))
    chosen: dict[int, bool] = {}
    repeat, chooser = Choices.repeat, Choices.chooser

    def is_one(problem):
        return problem.outputs[0].type.shape[-2] == 1

    def repeated(self, node, problem):
        found = repeat(self, node, problem)
        if node.spec.kind != "gemm" or found is None or id(self) not in chosen:
            return found
        return found if is_one(problem) == chosen[id(self)] else None

    def choosing(self, choose):
        made = chooser(self, choose)

        def here(node, problem, variants):
            if node.spec.kind == "gemm":
                chosen.setdefault(id(self), is_one(problem))
                kept.append(self)
            return made(node, problem, variants)

        return here

    kept: list[Choices] = []  # so that no other has its identity
    monkeypatch.setattr(Choices, "repeat", repeated)
    monkeypatch.setattr(Choices, "chooser", choosing)
    return chosen


def right(session, model, shape):
    got, want = session(fed(shape)), run(load_graph(model, {"x": shape}), **fed(shape))
    return all(np.allclose(got[n], w, rtol=1e-4, atol=1e-4) for n, w in want.items())


@pytest.fixture
def model():
    return next(iter(NETWORKS.values()))()


@pytest.mark.parametrize("specialise", ["never", "background"])
def test_one_further_set_serves_all_lengths(device, misfits, model, specialise):
    with clnn.compile_model(model, device, clnn.Options(specialise=specialise)) as session:
        assert right(session, model, FIRST) and right(session, model, OTHERS[0])
        for _ in range(2):  # kernels for small images are looked at before a further set
            assert session.ready(300)
            assert right(session, model, OTHERS[0])
        for shape in OTHERS[1:]:  # of which some may take the further family's second set
            assert session.ready(300) and right(session, model, shape)
        assert session.ready(300)
        further, built = session._compile_at._further, session.build_counts[1]
        assert [family.small_is_made.is_set() for _, family in further] == [True]
        for shape in LAST:
            assert right(session, model, shape)
        assert session.ready(300) and len(further) == 1
        assert session.build_counts[1] == built
        first, (_, other) = session._compile_at._family, further[0]
        assert other.arenas is first.arenas and other.device is first.device


def test_behind_a_number_of_them_kernels_are_chosen_for_each(device, misfits, model, monkeypatch):
    monkeypatch.setattr(open_model, "MOST_FAMILIES", 0)
    with clnn.compile_model(model, device, clnn.Options(specialise="never")) as session:
        assert right(session, model, FIRST)
        assert all(right(session, model, shape) for shape in OTHERS)
        assert not session._compile_at._further and not session._compile_at._family.refers
