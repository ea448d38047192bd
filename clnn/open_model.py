"""A model with open dimensions: sessions at extents, which share kernels, constants and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from clnn.runtime.run.family import Family, NothingToGainError
from clnn.runtime.run.gears import Gears
from clnn.runtime.run.kept_sets import KeptSets
from clnn.runtime.run.parts import Build
from clnn.runtime.run.session import Session
from clnn.settings import setting
from clnn.tune.choose import chooser, measured

if TYPE_CHECKING:
    from clnn.importers.onnx.load import Loaded

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
        options, info, graph = self._options, select_device(self._device), self._at(shapes)
        if self._family is None:
            extents = {
                name: extent
                for key, dims in self._dims.items()
                for name, extent in zip(dims or (), shapes[key], strict=True)
                if isinstance(name, str)
            }
            self._family = Family(
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
        with chooser(info, options.tune) as choose:
            return Session(graph, info, options, choose, family=self._family)

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
        family = self._family
        assert family is not None
        try:
            for graph in () if family.has_small else family.small():
                self._made_ahead(graph, family, build)
            family.keep(small=True)
        finally:
            family.small_is_made.set()
        family.rehearse()
        if not family.has_many:
            with suppress(NothingToGainError), family.with_many():
                self._made_ahead(family.first, family, build)
            family.keep(many=True)

    def room(self, stop: Callable[[], bool]) -> None:
        """Make room in memory for larger shapes, in the thread of Gears."""
        if self._family is not None:
            self._family.arenas.make_room(stop)

    def lacking(self, shapes: Shapes, build: Build) -> None:
        """Make the kernels for all shapes that these lack."""
        assert self._family is not None
        with paused:
            self._made_ahead(self._at(shapes), self._family, build)

    def _made_ahead(self, graph: Graph, family: Family, build: Build) -> None:
        """Make a session, whose kernels and constants stay."""
        options, info = self._options, select_device(self._device)
        with chooser(info, options.tune) as choose:
            Session(graph, info, options, choose, family=family, build=build).close()

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
