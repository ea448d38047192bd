"""A model with open dimensions: sessions at extents, which share kernels, constants and memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clnn.graph.ir import Graph
from clnn.graph.mapped import mapped_files, one_of_each, require_unchanged
from clnn.graph.replayed import Graphs
from clnn.graph.variations import alike, halves, larger, other_counts, smaller, uneven
from clnn.options import Options
from clnn.runtime.build.program import Device
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.process.collector import paused
from clnn.runtime.run.family import Family, NoSetFitsError, NothingToGainError
from clnn.runtime.run.gears import Gears
from clnn.runtime.run.kept_sets import KeptSets
from clnn.runtime.run.not_ready import KernelsNotReadyError
from clnn.runtime.run.parts import Build
from clnn.runtime.run.session import Session
from clnn.settings import setting
from clnn.tune.choose import chooser, measured

if TYPE_CHECKING:
    from clnn.importers.onnx.load import Loaded

MOST_FAMILIES = 4  # besides the first, of extents that its kernels do not fit
OTHERS = 2  # extents besides the first ones, from which is learned what differs between kernels

Shapes = Mapping[str, tuple[int, ...]]  # of inputs


class OpenModel:
    """A model with open dimensions: makes sessions at extents, which share what they can."""

    def __init__(
        self,
        model: Any,
        device: str | int | None,
        options: Options,
        dims: Mapping[str, tuple[int | str, ...] | None],
        opened: Device | None,
        read: Callable[[Loaded, Shapes], Graph],
        alone: Callable[[Shapes], Session],
        close: bool = False,
    ) -> None:
        """dims: of each input, numbers and names; None where even their number is open.

        opened: has the context to use. read: returns the graph to plan. alone: compiles for one shape,
        which shares nothing. close: whether calls follow each other closely, so that threads may help the
        one that calls.
        """
        self._model, self._device, self._options, self._opened = model, device, options, opened
        self._read_loaded, self._alone = read, alone
        self._dims, self._graphs = dims, Graphs(self._read, dims)
        self._close = close
        self._loaded: Loaded | None = None
        self._family: Family | None = None
        # Families besides the first, and which dimensions were 1 at the first extents of each.
        self._further: list[tuple[frozenset[str], Family]] = []
        self._ones: frozenset[str] = frozenset()
        self._adding = threading.Lock()

    @property
    def _specialise(self) -> str:
        return self._options.specialise or str(setting("CLNN_SPECIALISE"))

    @property
    def shares(self) -> bool:
        """Whether the sessions of all shapes share kernels."""
        alone = self._options.tune in ("quick", "full") or self._specialise == "always"
        return not alone and None not in self._dims.values()

    def gears(self) -> Gears | None:
        """Return what makes kernels while calls go on, if anything is to."""
        if not self.shares or self._specialise != "background":
            return None
        made = Gears(self.special, self.ahead, self.lacking, self.room, self._options.dtype)
        self.defer_to(made)
        return made

    def defer_to(self, gears: Gears) -> None:
        """Have what calls do not wait for done there."""
        self._graphs.defer(gears.later)

    def close(self) -> None:
        """Free the memory of runs at once, whoever else still refers to the model."""
        if self._family is not None:
            self._family.arenas.idle.clear()

    def __call__(self, shapes: Shapes, wait: bool = True) -> Session:
        """Return the session for inputs of these shapes. wait: as in Family.patience."""
        if not self.shares:
            return self._alone(shapes)
        if self._family is None:
            return self._session_at(shapes)
        with paused, self._family.patience(wait):
            return self._session_at(shapes)

    def _session_at(self, shapes: Shapes) -> Session:
        graph = self._at(shapes)
        if self._family is None:
            self._family, self._ones = self._made_family(graph, shapes), self._ones_of(shapes)
            self._family.refers = True
        session, family = self._fitting(graph, shapes)
        if session is None and self._family.is_impatient:
            raise KernelsNotReadyError(graph)
        if session is None:
            session, family = self._in_further(graph, shapes)
            family.small_is_made.set()  # by whoever asks for some
        return session

    def _fitting(
        self, graph: Graph, shapes: Shapes, build: Build | None = None
    ) -> tuple[Session | None, Family]:
        """Return the session of a graph and its family, no session where no family has kernels that fit."""
        assert self._family is not None
        for family in self._families(shapes):
            with suppress(NoSetFitsError):
                return self._session_of(graph, family, build), family
        return None, self._family

    def _families(self, shapes: Shapes) -> Iterator[Family]:
        """Yield the families, first those at whose first extents the same dimensions were 1."""
        assert self._family is not None
        ones, every = self._ones_of(shapes), [(self._ones, self._family), *self._further]
        yield from (family for _, family in sorted(every, key=lambda row: len(row[0] ^ ones)))

    def _ones_of(self, shapes: Shapes) -> frozenset[str]:
        return frozenset(name for name, extent in self._extents(shapes).items() if extent == 1)

    def _extents(self, shapes: Shapes) -> dict[str, int]:
        return {
            name: extent
            for key, dims in self._dims.items()
            for name, extent in zip(dims or (), shapes[key], strict=True)
            if isinstance(name, str)
        }

    def _session_of(self, graph: Graph, family: Family, build: Build | None = None) -> Session:
        options, info = self._options, select_device(self._device)
        with chooser(info, options.tune) as choose:
            return Session(graph, info, options, choose, family=family, build=build)

    def _made_family(self, graph: Graph, shapes: Shapes) -> Family:
        options, info = self._options, select_device(self._device)
        extents = self._extents(shapes)
        return Family(
            lambda: alike(graph, self._with, larger(extents), OTHERS),
            lambda: alike(graph, self._with, smaller(extents), 1),
            lambda: alike(graph, self._with, halves(extents), 1),
            lambda: alike(graph, self._with, uneven(extents), OTHERS),
            lambda: alike(graph, self._with, other_counts(extents), 1),
            device=self._opened and self._opened.beside(),
            kept=KeptSets.of(graph, info, options, extents, measured(info, options.tune)),
            at=self._at,
            graphs=self._graphs,
            close=self._close,
        )

    def _in_further(
        self, graph: Graph, shapes: Shapes, build: Build | None = None
    ) -> tuple[Session, Family]:
        """Return the session of a graph that no family's kernels fit, and the new family that it begins.

        Where there are many, kernels are chosen for the shape alone.
        """
        assert self._family is not None
        with self._adding:
            session, family = self._fitting(graph, shapes, build)
            if session is not None:
                return session, family
            if len(self._further) == MOST_FAMILIES:
                self._family.refers = False
                return self._session_of(graph, self._family, build), self._family
            family = self._family.beside(self._made_family(graph, shapes))
            session = self._session_of(graph, family, build)
            family.refers = True
            self._further.append((self._ones_of(shapes), family))  # others plan from here on
            return session, family

    def special(self, shapes: Shapes, build: Build) -> Session:
        """Return the session for these shapes alone, on the context that all have."""
        options, info = self._options, select_device(self._device)
        graph, family = self._at(shapes), self._family
        opened = self._opened if family is None else family.open(info)
        with chooser(info, options.tune) as choose:
            device = opened.beside() if opened else Device.open(info)
            return Session(graph, info, options, choose, device=device, build=build)

    def ahead(self, build: Build) -> None:
        """Make the kernels that small images and other batches need, where there are such."""
        assert self._family is not None
        self._ahead(self._family, build)

    def _ahead(self, family: Family, build: Build) -> None:
        try:
            for graph in () if family.has_small else family.small():
                with suppress(NoSetFitsError):  # extents of another family
                    self._session_of(graph, family, build).close()
            family.keep(small=True)
        finally:
            family.small_is_made.set()
        family.rehearse()
        if not family.has_many:
            with suppress(NothingToGainError), family.with_many():
                self._session_of(family.first, family, build).close()
            family.keep(many=True)

    def room(self, stop: Callable[[], bool]) -> None:
        """Make room in memory for larger shapes, in the thread of Gears."""
        if self._family is not None:
            self._family.arenas.make_room(stop)

    def lacking(self, shapes: Shapes, build: Build) -> None:
        """Make the kernels for all shapes that these lack."""
        with paused:
            graph = self._at(shapes)
            session, family = self._fitting(graph, shapes, build)
            if session is None:
                session, family = self._in_further(graph, shapes, build)
            session.close()  # its kernels and constants stay
        if not family.small_is_made.is_set():
            self._ahead(family, build)

    def _with(self, extents: Mapping[str, int]) -> Graph:
        """Return the network at extents of its open dimensions."""

        def shape(dims: tuple[int | str, ...]) -> tuple[int, ...]:
            return tuple(extents[d] if isinstance(d, str) else d for d in dims)

        return self._at({name: shape(dims or ()) for name, dims in self._dims.items()})

    def _at(self, shapes: Shapes) -> Graph:
        from clnn.importers.onnx.load import load_parts

        if self._loaded is None:
            self._loaded = load_parts(self._model, mapped=True)
        graph = self._graphs.at(shapes)
        require_unchanged(one_of_each(mapped_files(graph.consts.values())))
        return graph

    def _read(self, shapes: Shapes) -> Graph:
        assert self._loaded is not None
        return self._read_loaded(self._loaded, shapes)
