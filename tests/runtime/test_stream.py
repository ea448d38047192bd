from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness import normal
from test_session import SHAPE, close_to, small_graph

import clnn
from clnn.errors import (
    DeviceLostError,
    InputNameError,
    OutOfDeviceMemoryError,
    SettingError,
    ShapeError,
)
from clnn.runtime.run.stream import Lane, Stream

INPUTS = [normal(SHAPE, seed) for seed in range(7)]


@pytest.fixture(scope="module")
def sessions():
    """Sessions by device, each with one state for calls."""
    made: dict[str, clnn.Session] = {}
    yield lambda device: made.setdefault(device, clnn.compile_model(small_graph(), device))
    for session in made.values():
        session.close()


@pytest.fixture
def session(device, sessions):
    return sessions(device)


@pytest.fixture
def states(session, monkeypatch) -> list[weakref.ref]:
    """The states that the session makes for streams."""
    make, made = session._stream_state, []

    def noted():
        state = make()
        made.append(weakref.ref(state))
        return state

    monkeypatch.setattr(session, "_stream_state", noted)
    return made


def alive(states: list[weakref.ref]) -> bool:
    assert states
    return any(state() is not None for state in states)


class Source:
    """Feeds that count how many were taken; an exception among the items is raised."""

    def __init__(self, items) -> None:
        self.items, self.taken = list(items), 0

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for item in self.items:
            self.taken += 1
            if isinstance(item, Exception):
                raise item
            yield item


def feeds(count: int = len(INPUTS)) -> list[dict[str, np.ndarray]]:
    return [{"x": x} for x in INPUTS[:count]]


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_outputs_are_those_of_calls_in_the_same_order(session, depth, pinned):
    wanted = [session(f)["y"].tobytes() for f in feeds()]
    outs = list(Stream(session, iter(feeds()), depth, pinned)())
    assert [o["y"].tobytes() for o in outs] == wanted
    assert close_to(outs[3]["y"], INPUTS[3])
    assert [o["y"].tobytes() for o in session.stream(feeds(), depth)] == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_than_depth_feeds_are_taken_ahead(session, depth):
    source = Source(feeds())
    stream = session.stream(source, depth)
    assert source.taken == 0
    for yielded, _ in enumerate(stream):
        assert source.taken == min(yielded + depth, len(INPUTS))


@pytest.mark.parametrize("pinned", [False, True])
def test_the_source_may_fill_one_array_again_and_again(session, pinned):
    def again() -> Iterator[dict[str, np.ndarray]]:
        array = np.empty(SHAPE, np.float32)
        for x in INPUTS:
            array[...] = x
            yield {"x": array}
            array[...] = np.nan

    outs = list(Stream(session, again(), 3, pinned)())
    assert [o["y"].tobytes() for o in outs] == [session(f)["y"].tobytes() for f in feeds()]


def test_the_next_item_starts_before_the_last_one_ends_and_runs_behind_it(session, monkeypatch):
    """What overlaps, by the order of calls: copies of the next, never its launches."""
    said: list[str] = []
    numbers: dict[int, int] = {}
    begin, end = Lane.start, Lane.finish

    def start(lane, arrays, after):
        numbers[id(lane)] = len([s for s in said if s.startswith("start")])
        said.append(f"start {numbers[id(lane)]}{'' if after is None else ' behind'}")
        return begin(lane, arrays, after)

    def finish(lane):
        said.append(f"finish {numbers[id(lane)]}")
        return end(lane)

    monkeypatch.setattr(Lane, "start", start)
    monkeypatch.setattr(Lane, "finish", finish)
    stream = session.stream(feeds(4))
    for _ in range(4):
        next(stream)
    assert said == [
        "start 0",
        "start 1 behind",
        "finish 0",
        "start 2 behind",
        "finish 1",
        "start 3 behind",
        "finish 2",
        "finish 3",
    ]


def test_only_the_first_launch_of_an_item_waits_for_the_item_before(session, monkeypatch):
    state_class = type(session._call_states[0])
    waits: list[object] = []
    enqueue = state_class.enqueue

    def noted(state, ready, events=None):
        done = enqueue(state, ready, events)
        waits.append((events, done))
        return done

    monkeypatch.setattr(state_class, "enqueue", noted)
    list(session.stream(feeds(4)))
    launches = len(session._call_states[0].launches)
    third, fourth = waits[-2 * launches : -launches], waits[-launches:]
    assert fourth[0][0] == [third[-1][1]] and len(third[0][0]) == 1
    assert all(events is None for events, _ in third[1:] + fourth[1:])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "bad,error",
    [
        (RuntimeError("no more pictures"), RuntimeError),
        ({"x": np.zeros((1, 4, 8, 8), np.float32)}, ShapeError),
        ({"z": INPUTS[0]}, InputNameError),
        (INPUTS[0], InputNameError),
    ],
)
def test_errors_arrive_in_the_place_of_their_item(session, states, depth, bad, error):
    source = Source([*feeds(3), bad, *feeds(2)])
    stream = session.stream(source, depth)
    outs = [next(stream)["y"].tobytes() for _ in range(3)]
    assert outs == [session(f)["y"].tobytes() for f in feeds(3)]
    with pytest.raises(error):
        next(stream)
    assert source.taken == 4
    assert next(stream, None) is None and not alive(states)


def test_an_error_of_the_device_arrives_in_the_place_of_its_item(session, states, monkeypatch):
    begin, count = Lane.start, iter(range(9))

    def start(lane, arrays, after):
        if next(count) == 2:
            raise MemoryError("the device is gone")
        return begin(lane, arrays, after)

    monkeypatch.setattr(Lane, "start", start)
    stream = session.stream(feeds())
    assert close_to(next(stream)["y"], INPUTS[0]) and close_to(next(stream)["y"], INPUTS[1])
    with pytest.raises(MemoryError, match="gone"):
        next(stream)
    assert not alive(states)


def test_closing_early_frees_the_states_and_leaves_the_session_as_it_was(session, states):
    before = list(session._call_states)
    stream = session.stream(feeds(), 3)
    first = next(stream)
    assert len(states) == 3 and all(s() is not None for s in states)
    stream.close()
    gc.collect()
    assert not alive(states)
    assert close_to(first["y"], INPUTS[0])
    assert session._call_states == before and close_to(session({"x": INPUTS[4]})["y"], INPUTS[4])


def test_an_error_that_is_kept_does_not_keep_the_states(session, states):
    stream = session.stream(Source([*feeds(2), RuntimeError("over")]))
    next(stream)
    next(stream)
    assert alive(states)
    with pytest.raises(RuntimeError, match="over") as kept:
        next(stream)
    gc.collect()
    assert kept.value and not alive(states)


def test_calls_and_other_streams_go_on_beside_a_stream(session):
    """One state for calls: a stream that took it would wait for itself here."""
    assert session._options.states == 1
    inner = session.stream(feeds(), 3)
    for x, outs, other in zip(INPUTS, session.stream(feeds()), inner, strict=True):
        assert session({"x": x})["y"].tobytes() == outs["y"].tobytes()
        assert close_to(other["y"], x)


def test_streams_of_several_threads_get_their_own_answers(session, states):
    wanted = [session(f)["y"].tobytes() for f in feeds()]

    def read(shift: int) -> bool:
        order = [(k + shift) % len(INPUTS) for k in range(3 * len(INPUTS))]
        outs = session.stream(({"x": INPUTS[k]} for k in order), 1 + shift % 3)
        return [o["y"].tobytes() for o in outs] == [wanted[k] for k in order]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(6)))
    assert not alive(states)


def test_short_memory_makes_a_stream_narrower(session, monkeypatch, caplog):
    make, made = session._stream_state, []

    def short():
        if made:
            raise OutOfDeviceMemoryError("no room")
        made.append(make())
        return made[0]

    monkeypatch.setattr(session, "_stream_state", short)
    outs = list(session.stream(feeds(), 3))
    assert len(outs) == len(INPUTS) and close_to(outs[-1]["y"], INPUTS[-1])
    assert "1 items at once instead of 3: no room" in caplog.text
    with pytest.raises(OutOfDeviceMemoryError):
        next(session.stream(feeds()))


def test_with_a_bound_input_items_run_one_by_one(device):
    with clnn.compile_model(small_graph(), device) as session:
        buffer = session.bind_input("x")

        def filled() -> Iterator[dict[str, np.ndarray]]:
            for x in INPUTS:
                buffer.copy_from(x)
                yield {}

        outs = list(session.stream(filled(), 3))
        assert all(close_to(o["y"], x) for o, x in zip(outs, INPUTS, strict=True))
        stream = session.stream(filled(), 3)
        next(stream)
        session.unbind_input("x")
        with pytest.raises(InputNameError, match="input 'x' is missing"):
            next(stream)


def test_binding_an_input_reaches_the_states_of_a_stream(session):
    items = [{"x": INPUTS[0]}, {}, {}]
    stream = session.stream(items, 1)
    assert close_to(next(stream)["y"], INPUTS[0])
    session.bind_input("x").copy_from(INPUTS[1])
    assert close_to(next(stream)["y"], INPUTS[1])
    session.unbind_input("x")
    stream.close()


def test_a_profile_holds_the_items_of_a_stream(session):
    with session.profile() as profile:
        outs = list(session.stream(feeds(3)))
    assert len(profile.runs) == 3
    assert [o["y"].tobytes() for o in outs] == [session(f)["y"].tobytes() for f in feeds(3)]


def test_a_closed_session_ends_its_streams(device):
    session = clnn.compile_model(small_graph(), device)
    stream = session.stream(feeds())
    next(stream)
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        next(stream)
    with pytest.raises(DeviceLostError, match="closed"):
        session.stream(feeds())


def test_wrong_arguments_are_named_at_once(session):
    with pytest.raises(SettingError, match=r"stream\(depth=0\): depth must be at least 1"):
        session.stream(feeds(), 0)
    with pytest.raises(InputNameError, match="an iterable of feeds"):
        session.stream(feeds()[0])
    with pytest.raises(InputNameError, match="item 1 of the stream is a str"):
        list(session.stream([feeds()[0], "x"]))
    with pytest.raises(TypeError):
        session.stream(3)
    assert list(session.stream([])) == []
