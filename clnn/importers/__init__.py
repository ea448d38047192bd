"""Model files in: the only room that reads untrusted input."""

from __future__ import annotations
