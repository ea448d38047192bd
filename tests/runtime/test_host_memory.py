"""Inputs and outputs in memory that device and host share: the same results, and no copy commands."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from harness import normal
from small_graphs import GRAPHS, Builder

import clnn
from clnn.errors import OutOfDeviceMemoryError
from clnn.graph.passes import optimise
from clnn.options import Options
from clnn.plan import batch_split
from clnn.runtime.device import probe_child
from clnn.runtime.device.device import open_context, select
from clnn.runtime.device.probe import Capability
from clnn.runtime.drivers.loader import cl
from clnn.runtime.run import given, state
from clnn.runtime.run.session import Session
from clnn.runtime.run.state import ExecutionState


@pytest.fixture
def shared(device):
    """A device's description; the test is skipped where it shares no memory with the host."""
    info = select(device)
    if not info.caps.host_memory:
        pytest.skip(f"no memory shared with the host: {info.caps.host_memory.reason}")
    return info


def feeds_of(session, seed=0):
    return {i.name: (normal(i.shape, seed) * 4).astype(i.dtype) for i in session.inputs}


def forbidden(*_args, **_kw):
    raise AssertionError("a copy command was enqueued")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_those_of_copies(shared, name, dtype, monkeypatch):
    def results():
        with clnn.compile_model(GRAPHS[name](), shared.index, Options(dtype=dtype)) as session:
            outs = session(feeds_of(session))
            return bool(session._call_states[0]._seen), {n: a.tobytes() for n, a in outs.items()}

    with monkeypatch.context() as apart:
        apart.setattr(ExecutionState, "_views", lambda self: ())
        seen, wanted = results()
        assert not seen
    monkeypatch.setattr(ExecutionState, "upload", forbidden)
    monkeypatch.setattr(ExecutionState, "download", forbidden)
    assert results() == (True, wanted)


def test_outputs_stay_as_they_are(shared):
    """They are memory of the caller's: later runs do not change them, nor they later runs."""
    with Session(GRAPHS["classifier"](), shared, Options()) as session:
        first = session(feeds_of(session, 1))
        kept = {n: a.copy() for n, a in first.items()}
        session(feeds_of(session, 2))
        assert all(np.array_equal(first[n], kept[n]) for n in kept)
        for array in first.values():
            array[...] = np.nan
        again = session(feeds_of(session, 1))
        assert all(np.array_equal(again[n], kept[n]) for n in kept)


def test_runs_profiles_and_streams_take_turns(shared):
    with Session(GRAPHS["classifier"](), shared, Options()) as session:
        every = [feeds_of(session, seed) for seed in range(4)]
        wanted = [session(feeds) for feeds in every]

        def same(outs, k):
            return all(np.array_equal(outs[n], wanted[k][n]) for n in outs)

        for _ in range(2):
            with session.profile():
                assert same(session(every[0]), 0)
            assert same(session(every[1]), 1)
            assert all(same(outs, k) for k, outs in enumerate(session.stream(every)))
            assert same(session(every[2]), 2)


@pytest.fixture
def in_parts(shared, monkeypatch):
    """A session of a batch in parts, whose input may be read in the caller's memory."""
    monkeypatch.setattr(batch_split, "LARGE_BYTES", 8000)
    monkeypatch.setattr(batch_split, "PART_BYTES", 1)
    monkeypatch.setattr(given, "LEAST_BYTES", 1)
    b = Builder(x=(4, 3, 12, 12))
    with Session(optimise(b.graph(b.conv(b.conv("x", 8), 8))), shared, Options()) as session:
        yield session


def results(session, x):
    return [array.tobytes() for array in session({"x": x}).values()]


def test_an_input_is_read_where_the_caller_has_it(in_parts, monkeypatch):
    """Whatever its address, and whether it may be written to; arrays that lie between bytes are copied."""
    x, taken = normal((4, 3, 12, 12)), []
    take = given.GivenInput.take
    monkeypatch.setattr(
        given.GivenInput, "take", lambda self, array: taken.append(take(self, array)) or taken[-1]
    )
    with monkeypatch.context() as apart:
        apart.setattr(given.GivenInput, "take", lambda self, array: False)
        want, other = results(in_parts, x), results(in_parts, x + 1)
    for shift, fits in ((0, True), (4, True), (36, True), (1, False)):
        array = np.zeros(x.nbytes + 64, np.uint8)[shift : shift + x.nbytes].view(x.dtype)
        array = array.reshape(x.shape)
        array[...] = x
        array.flags.writeable = shift != 4
        assert results(in_parts, array) == want and taken.pop() is fits
        assert results(in_parts, x + 1) == other
    x += 1  # the same array, with other values
    assert results(in_parts, x) == other


def test_an_input_is_not_kept(in_parts):
    x = normal((4, 3, 12, 12))
    kept = weakref.ref(x)
    in_parts({"x": x})
    del x
    gc.collect()
    assert kept() is None


def test_a_run_that_was_left_early_forgets_its_input(in_parts, monkeypatch):
    x = normal((4, 3, 12, 12))
    want = results(in_parts, x)
    state = in_parts._call_states[0]
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(state, "_enqueues", [*state._enqueues, interrupted])
        results(in_parts, x + 1)
    assert state._given["x"]._given is not None
    assert results(in_parts, x) == want and state._given["x"]._given is None


def interrupted():
    raise KeyboardInterrupt


def test_a_bound_input_in_parts_is_read_from_its_buffer(in_parts):
    x = normal((4, 3, 12, 12))
    want = results(in_parts, x)
    in_parts.bind_input("x").copy_from(x)
    found = in_parts({})
    assert [array.tobytes() for array in found.values()] == want
    in_parts.unbind_input("x")
    assert results(in_parts, x) == want


def test_profiles_and_streams_of_a_batch_in_parts(in_parts):
    x = normal((4, 3, 12, 12))
    want = results(in_parts, x)
    with in_parts.profile():
        assert results(in_parts, x) == want
    streamed = in_parts.stream([{"x": x}] * 3)
    assert all([a.tobytes() for a in outs.values()] == want for outs in streamed)
    assert results(in_parts, x) == want


def test_arrays_of_any_pitch(shared):
    with Session(GRAPHS["classifier"](), shared, Options()) as session:
        feeds = feeds_of(session)
        wanted = session(feeds)
        turned = {n: np.asfortranarray(a) for n, a in feeds.items()}
        assert all(np.array_equal(a, wanted[n]) for n, a in session(turned).items())


def test_a_bound_input_is_read_from_its_buffer(shared):
    with Session(GRAPHS["classifier"](), shared, Options()) as session:
        feeds = feeds_of(session)
        wanted = session(feeds)
        (name,) = feeds
        binding = session.bind_input(name)
        binding.copy_from(feeds[name])
        found = session({})
        assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


def test_guards_have_buffers_of_their_own(shared):
    with Session(GRAPHS["classifier"](), shared, Options(guard=64)) as session:
        assert not session._call_states[0]._seen


def test_a_device_that_shares_nothing(shared):
    apart = replace(shared, caps=replace(shared.caps, host_memory=Capability(False, "for a test")))
    with Session(GRAPHS["classifier"](), apart, Options()) as session:
        assert not session._call_states[0]._seen
        assert all(np.isfinite(a).all() for a in session(feeds_of(session)).values())


def test_a_host_without_memory_is_an_error_of_clnn(shared, monkeypatch):
    def full(nbytes):
        raise MemoryError("4096 bytes were refused (Cannot allocate memory)")

    monkeypatch.setattr(state, "pages", full)
    with pytest.raises(OutOfDeviceMemoryError, match="Cannot allocate memory"):
        clnn.compile_model(GRAPHS["classifier"](), shared.index)


def test_a_device_that_copies_is_found_out(shared, monkeypatch):
    """The probe refuses a device that takes lent memory for something to copy once."""

    def copied(context, host):
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(context, flags, hostbuf=host)

    _, handle = open_context(shared)
    bench = probe_child.ProbeBench(cl, handle, [shared.cl_std])
    assert probe_child.step_host_memory(bench) == 1
    monkeypatch.setattr(probe_child, "host_buffer", copied)
    with pytest.raises(probe_child.RefusedError, match="wrong result"):
        probe_child.step_host_memory(bench)
