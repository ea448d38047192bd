"""A session of known shapes that begins on the universal set and changes to kernels made for its model.

Calls run on one session, and from some call on on another: that of the model's own kernels, once child
processes have built them and both gave the same. A stream, a profile and a bound input stay with the session
that they began with.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

from clnn.errors import DeviceLostError
from clnn.logs import log
from clnn.ops.universal.functions import set_of
from clnn.plan.plan import Plan
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.process import forked
from clnn.runtime.process.background import Jobs
from clnn.runtime.run.binding import InputBinding
from clnn.runtime.run.gears import SOON, TOLERANCE, beside, different
from clnn.runtime.run.parts import Build, Parts
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.profile import Profile
from clnn.runtime.run.session import Session
from clnn.runtime.run.tensor_info import TensorInfo
from clnn.types import Array

BEGIN_S = (
    1.0  # that the first calls have for themselves; a process that ends by then builds nothing
)


class GearedSession(Session):
    """A Session of which the inside is exchanged once between two calls. Safe to call from several threads.

    `ready` waits for that. Results before and after differ by rounding; those of each are the same in every run.
    """

    def __init__(self, first: Session, own: Callable[[Device, Build], Session]) -> None:
        """first: what calls run on at first. own: returns the session of the model's own kernels.

        own takes a device for its programs, and what builds them.
        """
        self._now, self.cost = first, first.cost
        self._next: Session | None = None  # taken, when nothing holds what is there
        self._own: Session | None = None
        self._lock = threading.RLock()
        self._profiles, self._closed = 0, False
        self._before = (0, 0)
        self._waiting: list[Callable[[Session], object]] = []
        self._output_names = [port.name for port in first.outputs]
        self._jobs = Jobs()
        self._jobs.add(partial(_make, weakref.ref(self), self._jobs, first, own), BEGIN_S)
        weakref.finalize(self, self._jobs.close).atexit = False

    def take(self, own: Session) -> None:
        """Have calls run on another session, once no profile and no bound input holds this one."""
        with self._lock:
            if self._closed:
                own.close()
                return
            self._next = self._own = own
            waiting, self._waiting = self._waiting, []
            self._change()
        for then in waiting:
            then(own)

    def _change(self) -> None:
        """Take what is there to be taken; the lock is held."""
        if self._next is not None and not self._profiles and not self._now._is_bound:
            self._before = self._now.build_counts
            self._now, self.cost, self._next = self._next, self._next.cost, None

    def once_settled(self, then: Callable[[Session], object]) -> None:
        """Call `then` with the session of the model's own kernels, once and if that is taken."""
        with self._lock:
            own = self._own
            if own is None:
                self._waiting.append(then)
        if own is not None:
            then(own)

    def ready(self, timeout: float | None = None) -> bool:
        """Wait until the model's own kernels are taken, or were found wrong; whether that came in time.

        A bound input or a profile puts that off beyond this.
        """
        forked.refuse()
        return self._jobs.wait(timeout)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return {output name: array} for {input name: array}. Raises as a Session does."""
        return self._now(feeds)

    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int = 2
    ) -> Generator[dict[str, Array], None, None]:
        """Return a generator of outputs for an iterable of feeds, as a Session does: all of one gear."""
        return self._now.stream(feeds, depth)

    def apart(self, feeds: Mapping[str, Any]) -> Callable[[], Mapping[str, Array]]:
        """Return what runs these feeds, of bound inputs too, and returns outputs, beside all calls."""
        return self._now.apart(feeds)

    @contextmanager
    def profile(
        self, trace: str | PathLike[str] | None = None, separate: bool = False
    ) -> Iterator[Profile]:
        """Measure every launch of the runs of this thread in the `with` block, all of one gear."""
        forked.refuse()
        with self._lock:
            self._profiles += 1
            now = self._now
        try:
            with now.profile(trace, separate) as profile:
                yield profile
        finally:
            with self._lock:
                self._profiles -= 1
                self._change()

    def bind_input(self, name: str) -> InputBinding:
        """Return a device buffer for input `name`, as a Session does; it holds the gear until it is unbound."""
        forked.refuse()
        with self._lock:
            return self._now.bind_input(name)

    def unbind_input(self, name: str) -> None:
        """Take input `name` from `feeds` again."""
        forked.refuse()
        with self._lock:
            self._now.unbind_input(name)
            self._change()

    @property
    def plan(self) -> Plan:
        """The plan of what calls run on now."""
        return self._now.plan

    @property
    def parts(self) -> Parts:
        """What the session that calls run on now is made of."""
        return self._now.parts

    @property
    def device(self) -> DeviceInfo:
        """The device this session runs on."""
        return self._now.device

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more (every call says so), empty while it can."""
        return self._now.lost

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model wants."""
        return self._now.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model gives."""
        return self._now.outputs

    @property
    def is_lent(self) -> bool:
        """False: calls run in memory of this session alone."""
        return False

    @property
    def placement(self) -> Placement:
        """Device, chosen variant per node, memory and compile times of what calls run on now."""
        return self._now.placement

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built, for both gears so far."""
        with self._lock:
            (cached, built), (before, more) = self._now.build_counts, self._before
            return cached + before, built + more

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        if not forked.process.refusal:
            self._jobs.close()
            with self._lock:
                self._closed = True
                if self._next is not None:
                    self._next.close()
                self._next, self._own, self._waiting = None, None, []
        self._now.close()

    def __repr__(self) -> str:
        return repr(self._now).replace("clnn.Session", "clnn.GearedSession", 1)


def _make(
    geared: weakref.ref[GearedSession],
    jobs: Jobs,
    first: Session,
    own: Callable[[Device, Build], Session],
) -> None:
    """Make a model's own kernels while calls go on, and give them to the session where they are right."""

    def build(device: Device, sources: Mapping[str, str]) -> None:
        device.build_ahead(sources, jobs.stop, SOON, share=1)
        if jobs.stop.is_set():
            raise DeviceLostError("this session is closed.")
        device.build(sources)

    made = own(first._device.beside(), build)
    kinds = {set_of(one.launch) for one in first.plan.launches}
    limit = TOLERANCE[
        "int8" if "bytes" in kinds else "f32"
    ]  # a step of bytes is more than rounding
    if other := different(beside(made, first), limit):
        log.warning(
            "the universal set stays in use: the model's own kernels gave another %s", other
        )
        made.close()
        return
    session = geared()
    if session is None or jobs.stop.is_set():
        made.close()
    else:
        session.take(made)
