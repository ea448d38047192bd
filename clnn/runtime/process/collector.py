"""Planning without the collector of cyclic garbage: it would look through all of a network's objects.

A plan makes some hundred thousand objects that stay. Python counts them, and searches everything that the
process has for cycles, again and again: up to half the time of a plan. What a plan made goes to the oldest
generation unsearched: else every tenth plan would pay for a search of all ten.
"""

from __future__ import annotations

import gc
import threading


class _Pause:
    """How many `with` blocks of `paused` run now, and whether the collector was on before them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks, self._was_on = 0, False

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            self._was_on = gc.isenabled() or (self._blocks > 1 and self._was_on)
            gc.disable()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._was_on:
                if (
                    not gc.get_freeze_count()
                ):  # unfreeze would give back what the process has frozen
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


paused = _Pause()  # a context manager, of any number of threads
