"""Calls that a coroutine awaits, for sessions of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AwaitableCalls:
    """A session that can be called from a coroutine."""

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once."""
        raise NotImplementedError

    async def call_async(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return what session(feeds) returns, and let other coroutines go on meanwhile.

        The call runs in a thread of the event loop's executor and raises what the call raises. As many
        run at once as the session has states (Options.states); others wait. A run that is cancelled
        goes on to its end in its thread, and what it returns is dropped: feeds must stay as they are
        until then. Threads are not those of a `profile`.
        """
        import asyncio  # which is slow to import, and there where it is needed

        return await asyncio.to_thread(self, feeds)
