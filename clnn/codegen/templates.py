"""Templates as the Python code that Mako makes of them, which is kept from process to process.

To parse a template takes longer than most else of a short program's start.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

import mako
from mako.exceptions import TopLevelLookupException
from mako.lookup import TemplateLookup
from mako.template import ModuleTemplate, Template

from clnn.records import dataclass

SETTINGS: dict[str, Any] = {
    "strict_undefined": True,
    "default_filters": ["cl_text"],
    "imports": ["from clnn.codegen.filters import cl_text"],
}


class CodeStore(Protocol):
    """Where marshalled code is kept, by keys of 64 digits. Neither call ever fails."""

    def get(self, key: str) -> bytes | None:
        """Return what was put in, whole, or None."""

    def put(self, key: str, code: bytes) -> None:
        """Keep code."""


@dataclass(frozen=True)
class _Found:
    """A template, and the time and size of its file when it was read."""

    template: Any
    filename: str
    stamp: tuple[int, int]


class KeptLookup(TemplateLookup):  # type: ignore[misc]
    """Templates of some folders, first match first; each file is read again when it has changed."""

    def __init__(self, folders: tuple[str, ...], store: CodeStore) -> None:
        super().__init__(directories=list(folders), **SETTINGS)
        self._store = store
        self._found: dict[str, _Found] = {}

    def get_template(self, uri: str) -> Any:
        """Return a template by its path below the folders. Raises TopLevelLookupException."""
        found = self._found.get(uri)
        try:
            if found is None or found.stamp != _stamp(found.filename):
                found = self._found[uri] = self._read(uri)
        except FileNotFoundError:
            self._found.pop(uri, None)
            raise TopLevelLookupException(f"there is no template {uri!r}") from None
        return found.template

    def _read(self, uri: str) -> _Found:
        paths = (os.path.join(folder, uri.lstrip("/")) for folder in self.directories)
        filename = next((p for p in paths if os.path.isfile(p)), uri)
        stamp, text = _stamp(filename), Path(filename).read_bytes()
        key = _key(uri, text)
        kept = self._store.get(key)
        if kept is not None:
            return _Found(self._of_code(marshal.loads(kept), filename, text), filename, stamp)
        made = Template(text, uri=uri, filename=filename, lookup=self, **SETTINGS)
        self._store.put(key, marshal.dumps(compile(made.code, made.module_id, "exec")))
        return _Found(made, filename, stamp)

    def _of_code(self, code: CodeType, filename: str, text: bytes) -> Any:
        module = ModuleType(f"kept_{code.co_filename}")  # Mako knows lines by these names
        exec(code, module.__dict__)
        return ModuleTemplate(
            module, template_filename=filename, template_source=text.decode(), lookup=self
        )


@cache
def plain_lookup(folders: tuple[str, ...]) -> Any:
    """Return Mako's own lookup, whose errors know the lines of templates."""
    return TemplateLookup(directories=list(folders), **SETTINGS)


def _stamp(filename: str) -> tuple[int, int]:
    status = os.stat(filename)
    return status.st_mtime_ns, status.st_size


def _key(uri: str, text: bytes) -> str:
    """Return what code depends on: Python, Mako, how it is asked, and the template."""
    how = mako.__version__, sorted(SETTINGS.items()), uri
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER + repr(how).encode())
    digest.update(b"\0" + text)
    return digest.hexdigest()
