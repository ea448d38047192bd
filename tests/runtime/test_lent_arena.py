"""Shapes of one network share memory: borders are filled anew where another shape has been."""

from __future__ import annotations

import gc
import threading
import types
import weakref

import numpy as np
import pytest
from interrupts import at_every_place
from open_images import resizing, segmentation, separable

import clnn
from clnn.runtime.drivers.pages import LARGE, fill_in, pages
from clnn.runtime.run import lent_arena

BACKGROUND = clnn.Options(specialise="background")
SHAPES = [(1, 3, 64, 48), (2, 3, 40, 72), (1, 3, 96, 32), (3, 3, 36, 36)]

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def fed(shape, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def faults():
    """How often the system had to find a page for this process."""
    resource = pytest.importorskip("resource")
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def text(outs):
    return {name: array.tobytes() for name, array in outs.items()}


def arenas_of(session):
    return session._compile_at._family.arenas


@pytest.fixture(params=["merged", "launches"])
def options(request):
    return clnn.Options(merge=request.param == "merged")


@pytest.mark.parametrize("net", [segmentation, resizing])
def test_shapes_in_turn_use_one_arena_whatever_was_in_it(device, options, net):
    wanted = {}
    for shape in SHAPES:
        with clnn.compile_model(net(), device, options) as session:
            session(fed(SHAPES[0]))  # which kernels are chosen for
            wanted[shape] = text(session(fed(shape)))
    with clnn.compile_model(net(), device, options) as session:
        for turn in range(3):
            for shape in SHAPES:
                assert text(session(fed(shape))) == wanted[shape], (turn, shape)
            (arena,) = arenas_of(session).idle
            if turn and arena.host is not None:
                arena.host[...] = 0xFF  # NaN in every place
                arena.filled_for = None


def test_a_larger_shape_frees_the_memory_of_smaller_ones(device, options):
    with clnn.compile_model(segmentation(), device, options) as session:
        small = session(fed((1, 3, 32, 32)))
        gone = weakref.ref(arenas_of(session).idle[0])
        session(fed((2, 3, 320, 320)))
        gc.collect()
        assert gone() is None and len(arenas_of(session).idle) == 1
        assert text(session(fed((1, 3, 32, 32)))) == text(small)


def test_a_somewhat_larger_shape_takes_no_new_memory(device):
    """All pages of which the system would have to find and clear."""
    with clnn.compile_model(segmentation(), device) as session:
        session(fed((1, 3, 64, 64)))
        (arena,) = arenas_of(session).idle
        if arena.host is None:
            pytest.skip("its driver takes no memory of the host")
        session(fed((2, 3, 96, 96)))
        assert [*arenas_of(session).idle] == [arena]


def test_less_is_reserved_where_the_system_has_no_more(monkeypatch):
    asked: list[int] = []

    def short(nbytes):
        asked.append(nbytes)
        if nbytes > 1000:
            raise MemoryError("no more")
        return pages(nbytes)

    monkeypatch.setattr(lent_arena, "pages", short)
    assert lent_arena._roomy(300, 3000).size >= 750 and asked == [3000, 1500, 750]
    with pytest.raises(MemoryError):
        lent_arena._roomy(1001, 5000)
    assert asked[-1] == 1001


def test_memory_for_larger_shapes_is_there_before_they_come(device):
    """Once another shape was met, and no more than is allowed."""
    with clnn.compile_model(segmentation(), device, BACKGROUND) as session:
        session(fed((1, 3, 64, 64)))
        (arena,) = arenas_of(session).idle
        if arena.host is None or not fill_in(pages(LARGE), 0, LARGE):
            pytest.skip("its driver takes no memory of the host, or the system finds none ahead")
        assert arena.there == 0
        assert session._gears.wait(600)
        want = min(lent_arena.AHEAD * arena.used, arena.host.nbytes)
        assert want <= arena.there < want + LARGE
        before = faults()
        arena.host[arena.used : arena.there] = 1
        assert faults() - before < 16
        session(fed((2, 3, 96, 96)))
        assert session._gears.wait(600)
        assert arena.there >= min(lent_arena.AHEAD * arena.used, arena.host.nbytes)


def test_room_is_bounded(monkeypatch):
    """By what was used, by all arenas of the process, by what the system has, and by who stops it."""
    asked: list[tuple[int, int]] = []

    def filled(memory, begin, end):
        asked.append((begin, end))
        return True

    def made(used, **more):
        arena = types.SimpleNamespace(host=np.empty(64 * LARGE, np.uint8), used=used, there=0)
        vars(arena).update(more)
        lent_arena.make_room(arena, lambda: len(asked) > 40)
        return arena.there // LARGE

    monkeypatch.setattr(lent_arena, "fill_in", filled)
    monkeypatch.setattr(lent_arena, "_every", [types.SimpleNamespace(there=5 * LARGE, used=LARGE)])
    monkeypatch.setattr(lent_arena, "free_bytes", lambda: 2**40)
    monkeypatch.setattr(lent_arena, "MOST_AHEAD", 30 * LARGE)
    assert made(2 * LARGE) == 16 and asked[:2] == [(0, LARGE), (LARGE, 2 * LARGE)]
    assert made(20 * LARGE) == 25  # of 46: it was stopped
    asked.clear()
    assert made(20 * LARGE, there=40 * LARGE) == 46
    monkeypatch.setattr(lent_arena, "free_bytes", lambda: 3 * lent_arena.SHARE * LARGE)
    assert made(2 * LARGE) == 5
    monkeypatch.setattr(lent_arena, "fill_in", lambda *where: False)
    assert made(2 * LARGE) == 0


def test_runs_pass_before_memory_is_found(monkeypatch):
    """But not without end."""
    asked: list[object] = []
    monkeypatch.setattr(lent_arena, "fill_in", lambda *where: asked.append(where) is None)
    monkeypatch.setattr(lent_arena, "_every", [])
    monkeypatch.setattr(lent_arena, "free_bytes", lambda: 2**40)
    monkeypatch.setattr(lent_arena, "AHEAD", 2)

    def is_lent():
        asked.append("run")
        return asked.count("run") % 4 != 0

    def arena():
        return types.SimpleNamespace(host=np.empty(8 * LARGE, np.uint8), used=LARGE, there=0)

    lent_arena.make_room(arena(), bool, is_lent)
    pages_found = [(0, LARGE), (LARGE, 2 * LARGE)]
    runs = ["run"] * 4
    assert [a if a == "run" else a[1:] for a in asked] == [
        *runs,
        pages_found[0],
        *runs,
        pages_found[1],
    ]
    asked.clear()
    monkeypatch.setattr(lent_arena, "PATIENCE_S", 0.01)
    lent_arena.make_room(arena(), bool, lambda: True)
    assert [a[1:] for a in asked] == pages_found


def test_closing_frees_it(device):
    session = clnn.compile_model(segmentation(), device)
    session(fed(SHAPES[0]))
    session(fed(SHAPES[1]))
    gone = weakref.ref(arenas_of(session).idle[0])
    session.close()
    assert gone() is None


def test_threads_with_other_shapes_have_arenas_of_their_own(device, options):
    with clnn.compile_model(segmentation(), device, options) as session:
        wanted = {shape: text(session(fed(shape))) for shape in SHAPES}
        wrong = []

        def calls(start):
            for turn in range(12):
                shape = SHAPES[(start + turn) % len(SHAPES)]
                if text(session(fed(shape))) != wanted[shape]:
                    wrong.append((start, turn))

        threads = [threading.Thread(target=calls, args=(start,)) for start in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not wrong and 1 <= len(arenas_of(session).idle) <= 3


def test_interrupts_at_every_place_of_calls_with_other_shapes(device, options):
    with clnn.compile_model(segmentation(), device, options) as session:
        wanted = [text(session(fed(shape))) for shape in SHAPES]
        turn = [0]

        def work():
            turn[0] = (turn[0] + 1) % len(SHAPES)
            session(fed(SHAPES[turn[0]]))

        def right(where):
            for k in (turn[0], (turn[0] + 2) % len(SHAPES)):
                assert text(session(fed(SHAPES[k]))) == wanted[k], f"after {where}"

        assert at_every_place(work, right) > 30


@pytest.mark.parametrize("net", [segmentation, resizing, separable])
def test_only_borders_that_stay_are_filled_when_an_arena_is_borrowed(device, options, net):
    """Others lie where inputs may have been written; each run fills them in its own time."""
    channels = 16 if net is separable else 3
    with clnn.compile_model(net(), device, options) as session:
        for shape in ((1, channels, 48, 48), (2, channels, 40, 32)):
            session(fed(shape))
            state = session.at({"x": shape})._call_states[0]
            arena, plan = arenas_of(session).idle[0], state.plan
            if arena.host is None:
                pytest.skip("the device's memory is not the host's")
            arena.host[...], arena.filled_for = 0xAB, None
            state._borrow()
            state.queue.finish()
            touched = arena.host != 0xAB
            for fill in plan.first_fills:
                start = plan.memory.offsets[fill.args[0].storage]
                size = plan.block_bytes[fill.args[0].storage]
                assert fill.idle or touched[start : start + size].any()
                touched[start : start + (0 if fill.idle else size)] = False
            assert not touched.any()
            state._give_back()
