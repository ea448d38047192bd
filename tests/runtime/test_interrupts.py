"""KeyboardInterrupt anywhere in a run: the next call is right, and nothing hangs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import threading
import time
import weakref

import numpy as np
import pytest
from harness import normal
from interrupts import at_every_place, at_random_times
from small_graphs import Builder

import clnn
from clnn.graph.ir import Graph
from clnn.runtime.run.open_session import OpenSession, OpenTensorInfo
from clnn.runtime.run.session import Session

# Python notes an exception in a finaliser, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SHAPE = (1, 16, 64, 64)
INPUTS = [normal(SHAPE, seed) for seed in range(3)]


def chain() -> Graph:
    """Convolutions in a row: later ones write where the input was, in some milliseconds."""
    b = Builder(x=SHAPE)
    value = "x"
    for _ in range(6):
        value = b.post_ops("relu", b.conv(value, 16))
    return b.graph(value)


class Right:
    """Checks that calls give what they gave without interrupts."""

    def __init__(self, session: Session) -> None:
        self.session, self.turn = session, 0
        self.wanted = [session({"x": x})["out0"].tobytes() for x in INPUTS]

    def __call__(self, where: str) -> None:
        """Two calls, the first right after what was interrupted, with another input than that."""
        for _ in range(2):
            self.turn = (self.turn + 1) % len(INPUTS)
            got = self.session({"x": INPUTS[self.turn]})["out0"].tobytes()
            assert got == self.wanted[self.turn], f"wrong after an interrupt at {where}"


@pytest.fixture(scope="module", params=["merged", "launches", "watched"])
def session(request, any_device):
    timeout = 100.0 if request.param == "watched" else None
    options = clnn.Options(merge=request.param != "launches", winograd=False, timeout=timeout)
    with clnn.compile_model(chain(), any_device, options) as made:
        yield made


def feed(k: int = 0) -> dict[str, np.ndarray]:
    return {"x": INPUTS[k]}


def test_at_every_place_of_a_call(session):
    right = Right(session)
    assert at_every_place(lambda: session(feed()), right) > 10
    assert len(session._call_states) == 1


def test_at_every_place_while_the_state_is_lent_anew(session):
    """The borrower lost it, as in a call that was left between two instructions."""
    right = Right(session)

    def work() -> None:
        session._states.take(session._call_state)
        session(feed())

    assert at_every_place(work, right) > 30
    assert len(session._call_states) == 1


def test_errors_that_are_kept_do_not_keep_the_state(session):
    """As an interactive shell keeps the last one, with the frames of its traceback."""
    right, kept = Right(session), []

    def work() -> None:
        try:
            session(feed())
        except KeyboardInterrupt as err:
            kept.append(err)
            raise

    at_every_place(work, right)
    assert len(kept) > 10


@pytest.mark.parametrize("most", [150, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_at_random_times_of_calls(session, most):
    right = Right(session)
    began = time.perf_counter()
    session(feed())
    longest = 1.2 * (time.perf_counter() - began)
    inside = Session.__call__.__code__
    assert at_random_times(lambda: session(feed()), right, inside, longest, most) == most
    assert len(session._call_states) == 1


@pytest.mark.parametrize("most", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_exceptions_from_other_threads(any_device, most):
    """Three threads, two states: each result is right, and all threads get through."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    with clnn.compile_model(chain(), any_device, clnn.Options(states=2, winograd=False)) as session:
        wanted = [session(feed(k))["out0"].tobytes() for k in range(len(INPUTS))]
        wrong, calls, over = [], [0], threading.Event()

        def work(k: int) -> None:
            while not over.is_set():
                if session(feed(k))["out0"].tobytes() != wanted[k]:
                    wrong.append(k)
                calls[0] += 1

        def start(k: int) -> threading.Thread:
            thread = threading.Thread(target=quietly, args=(work, k), daemon=True)
            thread.start()
            return thread

        threads, dice = [start(k) for k in range(3)], random.Random(2)
        for _ in range(most):
            k = dice.randrange(3)
            time.sleep(dice.uniform(0, 0.005))
            for _again in range(60):  # Python drops what it raises in a finaliser
                raise_in(ctypes.c_ulong(threads[k].ident or 0), ctypes.py_object(KeyboardInterrupt))
                threads[k].join(2)
                if not threads[k].is_alive():
                    break
            assert not threads[k].is_alive()
            threads[k] = start(k)
        before = calls[0]
        while calls[0] < before + 6:  # a state that is lost for good ends here, by the time limit
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join(120)
        assert not wrong and not any(thread.is_alive() for thread in threads)
        assert len(session._call_states) <= 2


def quietly(work, *arguments) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        work(*arguments)


@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_at_every_place_of_a_stream(session, monkeypatch, share):
    right, states, make = Right(session), [], session._stream_state

    def noted():
        state = make()
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(session, "_stream_state", noted)

    def check(where: str) -> None:
        right(where)
        outs = [o["out0"].tobytes() for o in session.stream(map(feed, (2, 1, 0)))]
        assert outs == right.wanted[::-1], where
        gc.collect()
        assert not any(state() is not None for state in states), where
        states.clear()

    step = share * (7 if session._fused else 61) | 1  # each launch of each state has places
    assert at_every_place(lambda: list(session.stream(map(feed, range(3)))), check, step) > 100


def test_at_every_place_of_a_binding(session):
    right = Right(session)

    def work() -> None:
        session.bind_input("x").copy_from(INPUTS[0])
        session({})
        session.unbind_input("x")
        session(feed())

    def check(where: str) -> None:
        if session._is_bound:
            session.bind_input("x").copy_from(INPUTS[1])
            assert session({})["out0"].tobytes() == right.wanted[1], where
            session.unbind_input("x")
        right(where)
        session.bind_input("x").copy_from(INPUTS[2])
        assert session({})["out0"].tobytes() == right.wanted[2], where
        session.unbind_input("x")
        right(where)

    assert at_every_place(work, check, 3 if session._fused else 11) > 50


@pytest.mark.parametrize("separate", [False, True])
def test_at_every_place_of_a_profile(session, separate):
    right = Right(session)

    def work() -> None:
        with session.profile(separate=separate) as profile:
            session(feed())
        assert profile.rows()

    def check(where: str) -> None:
        with session.profile(separate=separate) as profile:
            right(where)
        assert len(profile.runs) == 2, where
        right(where)
        assert len(profile.runs) == 2, where

    few = session._fused and not separate  # launches, each of which has places
    at_every_place(work, check, 25 if few else 101)
    assert not session._is_profiled


def test_a_profile_that_was_left_in_the_middle_is_over(session):
    """Also where its context manager never hears of it."""
    block = session.profile()
    profile = block.__enter__()
    session(feed())
    assert len(profile.runs) == 1
    with session.profile() as inner:
        session(feed())
        del block
        session(feed())
    assert len(inner.runs) == 2 and len(profile.runs) == 1
    session(feed())
    assert len(profile.runs) == 1


def test_at_every_place_of_a_session_for_any_shape(session):
    opened = OpenSession(
        [OpenTensorInfo("x", (1, 16, "h", "w"), np.dtype(np.float32))],
        [OpenTensorInfo("out0", None, None)],
        lambda shapes: session,
    )
    right = Right(session)

    def check(where: str) -> None:
        assert opened(feed(1))["out0"].tobytes() == right.wanted[1], where
        opened._sessions.clear()

    assert at_every_place(lambda: opened(feed()), check, 2) > 30


def test_a_state_that_goes_while_it_computes_waits_for_the_device(any_device):
    """Else the device would go on in memory that is not there any more."""
    session = clnn.compile_model(chain(), any_device)
    state = session._new_state()
    finished = []

    class Queue:
        def finish(self) -> None:
            finished.append(True)

    state.queue.finish()
    state.queue = Queue()
    del state
    gc.collect()
    assert finished
