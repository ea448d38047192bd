"""A crash-safe, content-addressed store on disk for built programs and tuning results."""

from __future__ import annotations

from clnn.cache.envelope import Entry
from clnn.cache.keys import fields_key, program_key
from clnn.cache.privacy import CacheWarning
from clnn.cache.store import Store, cache_dir

__all__ = ["CacheWarning", "Entry", "Store", "cache_dir", "fields_key", "program_key"]
