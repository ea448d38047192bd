"""What the sessions of one network at different extents share: device, kernels, choices, constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from itertools import islice

from clnn.errors import ClnnError
from clnn.graph.ir import Graph
from clnn.graph.replayed import Graphs, OfShapes
from clnn.plan.open_extents import opened
from clnn.plan.plan import Plan
from clnn.plan.repeat import Problems, Rivals
from clnn.plan.schedule import Chooser, DoesNotFitError, LaidOut, Repeat, lay_out
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import require
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.kept_sets import Kept, KeptSet, KeptSets
from clnn.runtime.run.kernel_set import KernelSet, PlanBy, planned, shapes_of
from clnn.runtime.run.lent_arena import Arenas
from clnn.runtime.run.not_ready import KernelsNotReadyError
from clnn.runtime.run.parts import Build
from clnn.target import Target

MOST_ONES = 4  # open dimensions that are looked at where they are 1
WORTH = 1.05  # what the first set must cost for other batches, of the best there, for a set of their own


class NothingToGainError(Exception):
    """The kernels for other batches would be little faster than those that are there."""


class NoSetFitsError(Exception):
    """No set of kernels fits the network at some extents."""


@dataclass
class Family:
    """Sessions of one network.

    others: return the network at extents that differ from the first session's in every open
    dimension, from which is learned what differs between launches. small: the same at as small
    extents as the network takes, none where that is not known; half: at half of the first ones;
    uneven: at extents that strides divide with a rest and without, from which is learned only;
    many: at the first extents but for batches, which are larger, or 1 where the first are large.
    kept: where sets are kept for later processes, and taken from, so that nothing is learned. at:
    returns the network for inputs of other shapes; graphs: the same, of extents that are noted.
    There are up to three sets of kernels: those that are best at the first session's extents; where
    these do not fit an image, those that are best at half of them and fit small ones, too; and those
    that are best for other batches, once `with_many` made them, where they are estimated to be. Any
    thread may plan once the first plan is made; others wait only for the set that they need, unless
    their `patience` is short. device: the one that all use; without it the first session opens one.
    small_is_made: set once nobody makes kernels for small images any more. close: whether calls follow
    each other closely, so that threads may help the one that calls. refers: whether plans raise
    NoSetFitsError, so that such extents get a family of their own (`beside`); else kernels are chosen for each.
    """

    others: Callable[[], Iterable[Graph]]
    small: Callable[[], Iterable[Graph]] = list
    half: Callable[[], Iterable[Graph]] = list
    uneven: Callable[[], Iterable[Graph]] = list
    many: Callable[[], Iterable[Graph]] = list
    kept: KeptSets | None = None
    at: Callable[[Mapping[str, tuple[int, ...]]], Graph] | None = None
    graphs: Graphs | None = None
    knows_small: bool = False  # whether it is known that small images need a second set, or do not
    arenas: Arenas = field(default_factory=Arenas)
    device: Device | None = None
    knows_many: bool = False  # the same of other batches, and a third set
    close: bool = False
    refers: bool = False
    helpers: int | None = None  # how many threads may help: of all sessions as of the first
    _sets: list[KernelSet] = field(default_factory=list)
    _many: KernelSet | None = None
    _unlike: list[Graph] = field(default_factory=list)
    _more_unlike: Iterator[Graph] = field(default_factory=lambda: iter(()))
    _there: Kept = field(default_factory=Kept)  # in the cache
    _as_kept: object = None
    _first: Graph | None = None
    _laid_out: tuple[Target, OfShapes[LaidOut]] | None = None
    _target: Target | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    small_is_made: threading.Event = field(default_factory=threading.Event)
    _patience: threading.local = field(default_factory=threading.local)
    _planned: threading.local = field(default_factory=threading.local)  # with which set

    @property
    def has_small(self) -> bool:
        """Whether nothing is left to make for small images: not even of what another process learned."""
        return self.knows_small and (len(self._sets) > 1 or len(self._there.sets) < 2)

    @property
    def has_many(self) -> bool:
        """The same for other batches."""
        return self.knows_many and (self._many is not None or self._there.many is None)

    def beside(self, other: Family) -> Family:
        """Return `other`, which shares this one's device, memory of runs and patience."""
        other.device, other.arenas, other._patience = self.device, self.arenas, self._patience
        return other

    @property
    def first(self) -> Graph:
        """The network at the extents of the first session."""
        assert self._first is not None
        return self._first

    def open(self, info: DeviceInfo) -> Device:
        """Return the device that all sessions use."""
        if self.device is None:
            self.device = Device.open(info)
        return self.device

    def alive(self) -> None:
        """Raise DeviceLostError where that device is lost."""
        if self.device is not None:
            require(self.device)

    @contextmanager
    def patience(self, wait: bool) -> Iterator[None]:
        """Have this thread's sessions `wait` for kernels, or raise KernelsNotReadyError instead."""
        self._patience.is_short = not wait
        try:
            yield
        finally:
            self._patience.is_short = False

    @property
    def is_impatient(self) -> bool:
        """Whether this thread's sessions do not wait for kernels."""
        return getattr(self._patience, "is_short", False)

    def builder(self, graph: Graph) -> Build | None:
        """Return what builds a session's programs in this thread as `patience` says, None in the usual way."""
        if not self.is_impatient:
            return None

        def build(device: Device, sources: Mapping[str, str]) -> None:
            if not all(map(device.has, sources.values())):
                raise KernelsNotReadyError(graph)
            device.build(sources)

        return build

    def plan(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of the network at some extents, as like the plans before as can be.

        Raises DeviceLostError where the sessions' device is lost, NoSetFitsError where `refers` says so, and
        as `patience` says.
        """
        self.alive()
        if self._first is None:
            self._first, self._more_unlike = graph, iter(self.others())
            self._unlike = [*islice(self._more_unlike, 1)]
        if getattr(self._planned, "is_many", False):
            made = self._with_many(plan_by, graph, choose)
        elif self._sets:
            made = self._repeated(plan_by, graph, choose)
        else:
            graph = self._opened(graph)
            made = self._recall(plan_by, graph, choose) or self._learn(plan_by, graph, choose)
        self.keep()
        self._target = made.target
        return made

    def _learn(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the first plan, made with what is learned at other extents."""
        first = KernelSet()
        half = [*map(self._opened, self.half())]
        plan = first.learn(plan_by, graph, choose, self._others(), self._uneven_ones(), half)
        self._sets.append(first)
        self._planned.chosen = first
        return first.with_texts(plan)

    def _recall(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan | None:
        """Return the first plan, made with the set of another process; None where there is none that fits."""
        kept = self.kept.load() if self.kept is not None else Kept()
        if not kept.sets:
            return None
        try:
            first = self._recalled_set(kept.sets[0], plan_by, choose, graph)
            choices = first.choices
            plan = plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat_or_raise)
        except (DoesNotFitError, ClnnError):
            return None
        self._there, self.knows_small, self.knows_many = kept, kept.small, kept.looked_at_many
        if kept.small:
            self.small_is_made.set()
        self._sets.append(first)
        self._planned.chosen = first
        return first.with_texts(plan)

    def _recalled_set(
        self, kept: KeptSet, plan_by: PlanBy, choose: Chooser, graph: Graph
    ) -> KernelSet:
        """Return a set of another process, its choices found where they were made.

        Raises DoesNotFitError where they are not there, or as the network does for these shapes.
        """
        made = KernelSet.recalled(kept)
        if kept.shapes != shapes_of(graph):
            if self.at is None:
                raise DoesNotFitError("another shape")
            there = self._opened(self.at(kept.shapes))
            problems, _ = Problems.of(partial(planned, plan_by, there, choose))
            for node, problem in problems.problems.values():
                made.choices.repeat_or_raise(node, problem)
        return made

    def keep(self, small: bool = False, many: bool = False) -> None:
        """Keep what is learned, where that is more than before.

        small: small images were looked at. many: other batches were.
        """
        self.knows_small |= small
        self.knows_many |= many
        sizes = () if self._many is None else self._many.size
        state = self.knows_small, self.knows_many, sizes, *(one.size for one in self._sets)
        if self.kept is not None and state != self._as_kept:
            self._as_kept = state
            sets = [one.kept() for one in self._sets]
            sets += self._there.sets[len(sets) :]
            third = self._there.many if self._many is None else self._many.kept()
            now = Kept(sets, self.knows_small, third, self.knows_many)
            if now != self._there:
                self._there = now
                self.kept.save(now)

    @contextmanager
    def with_many(self) -> Iterator[None]:
        """Have this thread's plans take the set for other batches, which all take from then on.

        Plans raise NothingToGainError where there is no need for one.
        """
        self._planned.is_many = True
        try:
            yield
            self._many = self._planned.chosen
        finally:
            self._planned.is_many = False

    def _with_many(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return a plan with the set that is best for other batches."""
        made, kept = None, self._there.many
        if kept is not None:
            with suppress(DoesNotFitError, ClnnError):
                made = self._recalled_set(kept, plan_by, choose, graph)
        for other in self.many() if made is None else ():
            there = self._opened(other)
            problems, _ = Problems.of(partial(planned, plan_by, there, choose))
            if self._sets[0].choices.over_best(problems) < WORTH:
                break
            made, first = KernelSet(), self._opened(graph)
            made.learn(plan_by, there, choose, [*self._others(), first], self._uneven_ones())
        if made is None:
            raise NothingToGainError
        self._planned.chosen = made
        choices = made.choices
        return made.with_texts(
            plan_by(graph, choose=choices.chooser(choose), repeat=choices.repeat, lay=self._lay_out)
        )

    def _repeated(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> Plan:
        """Return the plan of a graph as like those before as can be."""
        chosen = self._sets[0]
        rivals, many = self._rivals(chosen)
        left = [many, chosen]  # in place of the two at once; where these do not fit, small ones do
        refers, is_last = self.refers, False

        def of_another_set() -> tuple[Chooser, Repeat]:
            nonlocal chosen, is_last
            if is_last:
                raise NoSetFitsError
            if rivals.is_other and left:
                chosen = left.pop(0)
                return chosen.choices.chooser(choose), chosen.choices.repeat_or_raise
            if self.is_impatient and not self.small_is_made.is_set():
                raise KernelsNotReadyError(graph, self.small_is_made)
            chosen, is_last = self._for_small(plan_by, graph, choose), refers
            choices = chosen.choices
            return choices.chooser(choose), choices.repeat_or_raise if refers else choices.repeat

        plan = plan_by(
            graph,
            choose=choose,
            repeat=rivals.repeat,
            otherwise=of_another_set,
            doubtful=frozenset(chosen.choices.misfits | {name for name, _ in rivals.nodes}),
            lay=self._lay_out,
        )
        self._planned.chosen = chosen
        return chosen.with_texts(plan)

    def _rivals(self, chosen: KernelSet) -> tuple[Rivals, KernelSet]:
        """Return what chooses between a set and that for other batches, where there is one, and that."""
        many, own = self._many or chosen, chosen.choices
        return Rivals(own, many.choices, own.unlike(many.choices)), many

    def _lay_out(self, graph: Graph, target: Target) -> LaidOut:
        """Return a graph laid out, with open extents that are known as such."""
        known, shapes = self._noted(target), shapes_of(graph)
        if known is None or self.graphs is None or shapes.keys() != self.graphs.dims.keys():
            return lay_out(self._opened(graph), target)
        return known(shapes)

    def _noted(self, target: Target) -> OfShapes[LaidOut] | None:
        """Return what lays out the network at shapes, by notes."""
        graphs = self.graphs
        if graphs is not None and (self._laid_out is None or self._laid_out[0] != target):
            at = graphs.at
            made = OfShapes(
                lambda s: lay_out(self._opened(at(s)), target), graphs.dims, graphs.later
            )
            self._laid_out = target, made
        return None if graphs is None or self._laid_out is None else self._laid_out[1]

    def rehearse(self) -> None:
        """Take notes of shapes that are known, before a call asks for another."""
        if self._first is None or self._target is None or self.graphs is None:
            return
        known, first = self._noted(self._target), shapes_of(self._first)
        if known is None or first.keys() != self.graphs.dims.keys():
            return
        for shapes in (first, *map(shapes_of, self._unlike), *_with_ones(first, self.graphs.dims)):
            self.graphs.note(shapes)
            known.note(shapes)

    def forget(self) -> None:
        """Forget what is kept of shapes that were planned."""
        self._laid_out = None

    def _for_small(self, plan_by: PlanBy, graph: Graph, choose: Chooser) -> KernelSet:
        """Return the second set, which is learned once."""
        with self._lock:
            if len(self._sets) == 1 and len(self._there.sets) > 1:
                with suppress(DoesNotFitError, ClnnError):
                    found = self._recalled_set(self._there.sets[1], plan_by, choose, graph)
                    self._sets.append(found)
            if len(self._sets) == 1:
                small = [*map(self._opened, self.small())]
                made = KernelSet()
                usual = self._opened(next(iter(self.half()), graph))
                others = [*self._others(), *small]
                beside = [] if self._first is None else [self._opened(self._first)]
                made.learn(plan_by, usual, choose, others, self._uneven_ones(), beside)
                self._sets.append(made)
            return self._sets[1]

    def _others(self) -> list[Graph]:
        """Return the network at extents that differ from the first in every open dimension."""
        self._unlike += self._more_unlike
        return [*map(self._opened, self._unlike)]

    def _uneven_ones(self) -> list[Graph]:
        return [self._opened(graph) for graph in self.uneven()]

    def pack(self, device: Device, plan: Plan, together: bool) -> Constants:
        """Return the constants of the plan that this thread made last.

        Equal ones are those of the first plan with the same set of kernels.
        """
        chosen: KernelSet = self._planned.chosen
        made = Constants(device, plan, together, chosen.constants, True)
        with chosen.lock:
            if chosen.constants is None:
                chosen.constants = made
        return made

    def _opened(self, graph: Graph) -> Graph:
        """Return a graph whose open extents are known as such."""
        assert self._first is not None
        return opened(graph, self._unlike[0], self._first) if self._unlike else graph


def _with_ones(
    shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, tuple[int | str, ...] | None]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield shapes of which one open extent is 1, where networks decide otherwise than elsewhere."""
    names = {dim: None for row in dims.values() for dim in row or () if isinstance(dim, str)}
    for name in [*names][:MOST_ONES]:
        yield {
            key: tuple(
                1 if dim == name else n for dim, n in zip(dims[key] or (), shape, strict=True)
            )
            for key, shape in shapes.items()
        }
