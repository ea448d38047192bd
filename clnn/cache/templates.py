"""Code of templates in the cache folder, beside the programs that it makes."""

from __future__ import annotations

from clnn.cache.store import Store
from clnn.codegen.render import keep_code

KIND = "templates"


class _Code:
    """The store of the cache folder that is set when it is asked."""

    def get(self, key: str) -> bytes | None:
        entry = Store(kind=KIND).get(key)
        return None if entry is None else entry.payload

    def put(self, key: str, code: bytes) -> None:
        Store(kind=KIND).put(key, code, {})


def use_cache() -> None:
    """Have templates rendered from here on by code that is kept in the cache folder."""
    keep_code(_Code())
