"""Session.stream: feeds in, outputs out in the same order, copies of some during runs of others."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np

from clnn.errors import ClnnError, DeviceLostError, InputNameError, OutOfDeviceMemoryError
from clnn.logs import log
from clnn.plan.plan import Port
from clnn.records import dataclass
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import keep
from clnn.runtime.run.commands import Memory
from clnn.runtime.run.constants import allocate
from clnn.runtime.run.state import ExecutionState
from clnn.types import Array

Outputs = dict[str, Array]


class Streamed(Protocol):
    """What a stream needs of a session."""

    def __call__(self, feeds: Mapping[str, Any]) -> Outputs:
        """Run once."""

    def _alive(self) -> None:
        """Raise DeviceLostError where it is closed."""

    def _check(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], Mapping[str, Memory]]:
        """Return the arrays of a run by host value, and the memory of what is bound.

        Raises where they do not fit.
        """

    def _stream_state(self) -> ExecutionState:
        """Return a new state for a stream."""

    def _explain(self, err: Exception) -> NoReturn:
        """Raise what an error of the driver or a MemoryError means to a caller."""

    @property
    def _is_bound(self) -> bool:
        """Whether an input is read from a buffer of the caller."""

    @property
    def _is_profiled(self) -> bool:
        """Whether runs of this thread are timed launch by launch."""


class PinnedArray:
    """Host memory that a device copies from and to by itself, mapped for as long as this lives."""

    def __init__(self, state: ExecutionState, port: Port) -> None:
        cl = load()
        dtype = port.type.dtype.numpy
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        nbytes = max(port.type.nbytes, dtype.itemsize)
        context = state.device.context
        self._buffer = allocate(lambda: cl.Buffer(context, flags, nbytes), nbytes, state.device)
        access = cl.map_flags.READ | cl.map_flags.WRITE
        flat, _ = cl.enqueue_map_buffer(
            state.queue,
            self._buffer,
            access,
            0,
            (nbytes // dtype.itemsize,),
            dtype,
            is_blocking=True,
        )
        self.array: Array = flat[: port.type.size].reshape(port.type.shape)


class Lane:
    """An execution state and host memory for one item at a time.

    pinned: copy inputs and outputs through pinned memory; else from and to the caller's arrays.
    """

    def __init__(self, state: ExecutionState, pinned: bool) -> None:
        keep(self)
        self.state, self.device = state, state.device
        plan = state.plan
        self._staged = {p.host: PinnedArray(state, p) for p in plan.inputs} if pinned else {}
        self._landed = {p.host: PinnedArray(state, p) for p in plan.outputs} if pinned else {}
        self._outs: Outputs = {}
        self._copies: list[Any] = []
        self._reads: tuple[Any, ...] = ()

    def start(self, feeds: Mapping[str, Array], after: Any) -> Any:
        """Enqueue a run on `feeds` (host value -> array), its launches behind the event `after`.

        Returns an event that the launches of the next item wait for.
        """
        state, waits, last = self.state, None if after is None else [after], after
        self._send(feeds)
        for ready in state.launches:
            last, waits = state.enqueue(ready, waits), None
        self._receive()
        state.queue.flush()
        return last

    def _send(self, feeds: Mapping[str, Array]) -> None:
        """Upload, through pinned memory where there is some."""
        for value, array in feeds.items():
            if value in self._staged:
                np.copyto(self._staged[value].array, array)
                array = self._staged[value].array
            self._copies.append(self.state.upload(value, array))
        self._reads = () if self._staged else tuple(self._copies)

    def release(self) -> None:
        """Wait until the arrays given to start have been read."""
        _wait_for(self._reads)
        self._reads = ()

    def _receive(self) -> None:
        for port in self.state.plan.outputs:
            if port.host in self._landed:
                out = self._landed[port.host].array
            else:
                out = np.empty(port.type.shape, port.type.dtype.numpy)
            self._outs[port.name] = out
            self._copies.append(self.state.download(port.host, out, wait=False))

    def finish(self) -> Outputs:
        """Wait for the item and return its outputs, in memory of their own."""
        _wait_for(self._copies)
        self._copies.clear()
        self.state.finish()
        outs, self._outs = self._outs, {}
        return {n: a.copy() for n, a in outs.items()} if self._landed else outs

    def free(self) -> None:
        """Wait for what is in flight and let go of all memory; no use afterwards.

        Of a lost device nothing goes: an event of a copy waits for that when it is freed.
        """
        with contextlib.suppress(load().Error, DeviceLostError):
            self.state.watch(self.finish)
        if self.device.lost:
            return
        self._copies.clear()
        self._reads = ()
        self._staged.clear()
        self._landed.clear()
        del self.state


def _wait_for(copies: Iterable[Any]) -> None:
    """Wait for copies; raises where one of them or what it waited for failed."""
    for event in copies:
        if event is not None:
            event.wait()


@dataclass(frozen=True)
class _Item:
    """What the stream owes: an item that runs on a lane, outputs that are there, or an error."""

    lane: Lane | None = None
    outs: Outputs | None = None
    error: Exception | None = None


class Stream:
    """The lanes of one stream and what it owes. Used by one thread at a time.

    pinned: as Lane has it.
    """

    def __init__(
        self,
        session: Streamed,
        source: Iterator[Mapping[str, Any]],
        depth: int,
        pinned: bool,
    ) -> None:
        self._session, self._source, self._depth = session, source, depth
        self._pinned = pinned
        self._lanes: list[Lane] = []
        self._free: list[Lane] = []
        self._owed: deque[_Item] = deque()
        self._last: Any = None
        self._taken = 0
        self._ended = False

    def __call__(self) -> Generator[Outputs, None, None]:
        """Yield the outputs of each item; see Session.stream."""
        try:
            while True:
                self._session._alive()
                while not self._ended and len(self._owed) < self._most():
                    self._take()
                if not self._owed:
                    return
                yield self._finish(self._owed.popleft())
        finally:
            self._close()

    def _most(self) -> int:
        """Return how many items may be in flight now."""
        session = self._session
        return 1 if session._is_bound or session._is_profiled else self._depth

    def _take(self) -> None:
        """Take one feed and start it; an error is owed in its place, and ends the source."""
        try:
            profiled = self._session._is_profiled
            lane = None if profiled else self._lane()
            if lane is None and not profiled:
                return
            last = self._owed[-1].lane if self._owed else None
            if last is not None:
                last.state.watch(last.release)
            for feeds in self._source:
                self._owed.append(self._begin(lane, feeds))
                self._taken += 1
                return
        except Exception as err:
            self._owed.append(_Item(error=self._told(err)))
        self._ended = True

    def _told(self, err: Exception) -> Exception:
        """Return what is raised for an error."""
        try:
            if isinstance(err, (load().Error, MemoryError)):
                self._session._explain(err)
        except ClnnError as told:
            return told
        return err

    def _lane(self) -> Lane | None:
        """Return a free lane, a new one, or None and a smaller depth where memory is short."""
        if self._free:
            return self._free[-1]
        count = len(self._lanes)
        try:
            state = self._session._stream_state()
            lane: Lane = state.watch(Lane, state, self._pinned)
        except OutOfDeviceMemoryError as err:
            if not count:
                raise
            text = str(err)  # not itself: who keeps the record would keep the lane
            log.warning("stream: %d items at once instead of %d: %s", count, self._depth, text)
            self._depth = count
            return None
        self._lanes.append(lane)
        self._free.append(lane)
        return lane

    def _begin(self, lane: Lane | None, feeds: Mapping[str, Any]) -> _Item:
        if not isinstance(feeds, Mapping):
            raise InputNameError(
                f"item {self._taken} of the stream is a {type(feeds).__name__}. It must be a mapping "
                "of input names to arrays."
            )
        if lane is None:
            return _Item(outs=self._session(feeds))
        arrays, bound = self._session._check(feeds)
        self._free.remove(lane)
        lane.state.watch(lane.state.begin, bound)
        self._last = lane.state.watch(lane.start, arrays, self._last)
        return _Item(lane)

    def _finish(self, item: _Item) -> Outputs:
        if item.error is not None:
            raise item.error
        if item.lane is None:
            assert item.outs is not None
            return item.outs
        lane = item.lane
        try:
            outs: Outputs = lane.state.watch(lane.finish)
        except (load().Error, MemoryError) as err:
            self._session._explain(err)
        self._free.append(lane)
        return outs

    def _close(self) -> None:
        """Wait for what is in flight, drop it, and free the lanes."""
        self._owed.clear()
        self._free.clear()
        for lane in self._lanes:
            lane.free()
        self._lanes.clear()
        self._last = None
