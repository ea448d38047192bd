"""Sessions of one model at several shapes, or values, kept in the cache: what a process before met needs no plan.

An entry of a shape has the sections of a network's file (clnn.runtime.run.saved) but for those that many
shapes have alike, texts and packed constants. These are entries of their own, keyed by their content. The
entry of a model says what its inputs and outputs are. What is damaged, or gone, counts as none.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from clnn.cache.envelope import page_meta
from clnn.cache.keys import fields_key
from clnn.cache.sections import BadSectionsError, decoded, encoded
from clnn.cache.store import Store
from clnn.errors import ClnnError
from clnn.logs import log
from clnn.options import Options
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import LARGE, host_buffer, pages
from clnn.runtime.drivers.trim import trim_behind
from clnn.runtime.process.background import Jobs
from clnn.runtime.run.constants import allocate
from clnn.runtime.run.kept import BEHIND_S, LARGEST, MissingError, find, keep_parts, programs_kept
from clnn.runtime.run.lent_arena import Arenas
from clnn.runtime.run.loaded import OtherCoresError, session_among
from clnn.runtime.run.open_ports import KnownPorts, OpenTensorInfo
from clnn.runtime.run.parts import Parts
from clnn.runtime.run.plan_rows import BadPlanError
from clnn.runtime.run.saved import network_of, network_sections
from clnn.runtime.run.session import Session
from clnn.settings import setting
from clnn.types import Array

SHAPES, PIECES, MODELS = "shapes", "pieces", "open"  # kinds of entries
COMMON = ("programs", "kernels", "first")  # sections that many shapes have alike
MOST_SHAPES = 32  # that one process keeps of a model
Shapes = Mapping[str, tuple[int, ...]]
Ports = tuple[Sequence[OpenTensorInfo], Sequence[OpenTensorInfo]]


class KeptShapes:
    """What is kept of one model whose dimensions are open. Any thread may use it."""

    def __init__(self, key: str, info: DeviceInfo, options: Options) -> None:
        """key: of the model's file, as clnn.runtime.run.kept.key_of returns it."""
        self.specialise = options.specialise or str(setting("CLNN_SPECIALISE"))
        self._key = fields_key("clnn open", [key, self.specialise])
        self._info, self._options = info, options
        self._lock = threading.Lock()
        self._device: Device | None = None
        self._arenas = Arenas()
        self._pieces: dict[str, Array] = {}
        self._firsts: dict[str, tuple[Any, Array | None]] = {}
        self._written: dict[int, tuple[Array, str]] = {}  # by id of what is held here
        self._jobs = Jobs(needed=True)
        self._kept: set[str] = set()
        self._is_known = False

    @property
    def device(self) -> Device:
        """The device that all sessions from the cache use."""
        with self._lock:
            if self._device is None:
                self._device = Device.open(self._info)
            return self._device

    def ports(self) -> KnownPorts | None:
        """Return inputs and outputs of the model, None where it is not known to run at open shapes."""
        entry = Store(kind=MODELS).get(self._key)
        known = None if entry is None else KnownPorts.read(entry.payload)
        self._is_known = known is not None
        return known

    def find(self, shapes: Shapes) -> Session | None:
        """Return the session for inputs of these shapes, None where there is none, or a program is to be built."""
        if not self._is_known:  # what is made now is kept, the model's entry with it
            return None
        special = find(self._of("alone", shapes), self._info, self._options, programs_kept)
        return special or self._general(self._of("shape", shapes))

    def keep(self, ports: Ports, shapes: Shapes, session: Session) -> None:
        """Keep the session for inputs of these shapes, while calls go on. The first shapes are kept as such."""
        key = self._of("shape" if session.is_of_many else "alone", shapes)
        self._add(key, KnownPorts(*ports, shapes), session)

    def _add(self, key: str, known: KnownPorts, session: Session) -> None:
        if key in self._kept or len(self._kept) >= MOST_SHAPES or Store(kind=SHAPES).mode != "rw":
            return
        self._kept.add(key)
        write = self._write if session.is_of_many else self._write_alone
        self._jobs.add(partial(write, key, known, session.all_parts), BEHIND_S)

    def find_for(self, values: Mapping[str, Array], shapes: Shapes) -> Session | None:
        """Return the session for values of deciding inputs, and shapes of the others, as find does."""
        key = self._of("values", shapes, values)
        return find(key, self._info, self._options, programs_kept) if self._is_known else None

    def keep_for(
        self, known: KnownPorts, values: Mapping[str, Array], shapes: Shapes, session: Session
    ) -> None:
        """Keep the session for values of deciding inputs, and shapes of the others, as keep does."""
        self._add(self._of("values", shapes, values), known, session)

    def close(self) -> None:
        """Free the memory of runs, and of constants that no session has, at once."""
        self._arenas.idle.clear()
        self._firsts.clear()
        self._pieces.clear()

    def _of(self, what: str, shapes: Shapes, values: Mapping[str, Array] | None = None) -> str:
        given = [(n, a.dtype.str, a.shape, a.tobytes()) for n, a in sorted((values or {}).items())]
        return fields_key(f"clnn {what}", [self._key, repr(sorted(shapes.items())), repr(given)])

    def _general(self, key: str) -> Session | None:
        entry = Store(kind=SHAPES).mapped(key)
        if entry is None:
            return None
        try:
            sections = decoded(np.frombuffer(entry, np.uint8), proven=True)
            common = json.loads(sections.pop("common").tobytes())
            found = {name: self._piece(str(common[name])) for name in COMMON}
            network = network_of({**sections, **found})
            first = self._first(str(common["first"]), found["first"])
            parts = network, first, self.device, self._arenas, self._options, programs_kept
            session = session_among(*parts)
        except (MissingError, OtherCoresError):
            return None
        except (BadSectionsError, BadPlanError, KeyError, ValueError, TypeError) as err:
            log.info("a shape in the cache was passed over: it %s", err)
            return None
        trim_behind(self._info.driver)
        return session

    def _piece(self, key: str) -> Array:
        """Return what several shapes have alike. Raises MissingError."""
        if key not in self._pieces:
            entry = Store(kind=PIECES).mapped(key)
            if entry is None:
                raise MissingError
            self._pieces[key] = _in_large_pages(np.frombuffer(entry, np.uint8))
        return self._pieces[key]

    def _first(self, key: str, data: Array) -> tuple[Any, Array | None]:
        """Return constants on the device, and the host's memory that they are."""
        if key not in self._firsts:
            device = self.device
            is_cpu = device.info.type == "cpu"
            made = (
                partial(host_buffer, device.context, data)
                if is_cpu
                else partial(_copied, device, data)
            )
            buffer = allocate(made, data.size, device) if data.size else None
            self._firsts[key] = buffer, data if is_cpu and data.size else None
        return self._firsts[key]

    def _write(self, key: str, known: KnownPorts, parts: Parts) -> None:
        """Keep a network at one of several shapes, unless it cannot be."""
        if parts.constants.nbytes > LARGEST:
            return
        try:
            sections = network_sections(parts, programs=False, check=False)
        except ClnnError as err:
            log.info("a shape is not kept: %s", err)
            return
        lasting = parts.constants.first[1]
        common = {name: self._put(sections.pop(name), lasting) for name in COMMON}
        sections["common"] = np.frombuffer(json.dumps(common).encode(), np.uint8)
        if Store(kind=SHAPES).put(key, encoded(sections), page_meta()):
            self._know(known)

    def _write_alone(self, key: str, known: KnownPorts, parts: Parts) -> None:
        """Keep a network that shares nothing."""
        keep_parts(key, parts)
        self._know(known)

    def _know(self, known: KnownPorts) -> None:
        """Keep what the model is, unless it is there."""
        models = Store(kind=MODELS)
        if models.get(self._key) is None:
            models.put(self._key, known.written(), {})

    def _put(self, data: Array, lasting: Array | None) -> str:
        """Keep what several shapes have alike, once; return its key. lasting: that sessions have anyway."""
        known = self._written.get(id(data))
        if known is not None and known[0] is data:
            return known[1]
        key = fields_key("clnn piece", [hashlib.sha256(data.data).digest()])
        store = Store(kind=PIECES)
        if store.mapped(key) is None:  # or what is there is damaged
            store.put(key, [data.data.cast("B")], page_meta())
        if data is lasting:
            self._written[id(data)] = data, key
        return key


def _in_large_pages(data: Array) -> Array:
    """Return data where large pages hold it, which files cannot have: kernels read constants in each call."""
    if data.size < LARGE:
        return data
    copy = pages(data.size)[: data.size]
    np.copyto(copy, data)
    return copy


def _copied(device: Device, data: Array) -> Any:
    cl = load()
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(device.context, flags, hostbuf=data)
