"""The model of a session: what the cache knows of it, and the whole of it once something needs that."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.importers.onnx.port_info import Known
from clnn.runtime.run.held_model import HeldModel
from clnn.settings import setting

if TYPE_CHECKING:
    from clnn.importers.onnx.load import Loaded

KIND = "interfaces"


class Source:
    """A model's file, or its bytes. folder: where data of bytes may lie in other files."""

    def __init__(self, given: str | bytes, folder: str | None = None) -> None:
        self.held, self._lock = HeldModel(given), threading.Lock()
        self._folder = folder if isinstance(given, bytes) else None
        self._loaded: Loaded | None = None
        self._key: str | None = None
        if self.held.is_whole:
            from clnn.runtime.run.kept import own_files  # which the first session needs, no sooner

            about = own_files(str(setting("CLNN_KERNEL_PATH"))), _inference(), self.held.digest
            self._key = fields_key("clnn interface", about)

    def told(self) -> Hashable:
        """Return what tells this model from others."""
        return self.held.told(), self._folder

    def known(self) -> Known | None:
        """Return what the cache has of the model, None where it has nothing."""
        entry = None if self._key is None else Store(kind=KIND).get(self._key)
        return None if entry is None else Known.read(entry.payload)

    def keep(self, known: Known) -> None:
        """Keep that for later processes."""
        if self._key is not None:
            Store(kind=KIND).put(self._key, known.written(), {})

    def loaded(self) -> Loaded:
        """Return the whole model, which is read once. Raises ModelError."""
        from clnn.importers.onnx.load import Loaded, load_model

        with self._lock:
            if self._loaded is None:
                proto, folder = load_model(self.held.readable())
                self._loaded = Loaded(proto, Path(self._folder) if self._folder else folder)
            return self._loaded


def _inference() -> str:
    """Return what tells the installed package that infers shapes from others."""
    found = find_spec("onnx")
    origin = found and found.origin
    status = os.stat(origin) if origin and os.path.exists(origin) else None
    return repr(status and (origin, status.st_mtime_ns, status.st_size))
