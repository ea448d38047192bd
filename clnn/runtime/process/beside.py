"""Work that is done in a thread while the caller goes on, and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Beside(threading.Thread, Generic[Result]):
    """One call in a thread of its own; the end of the process waits for it."""

    def __init__(self, work: Callable[..., Result], *args: Any) -> None:
        super().__init__(name="clnn-beside")
        self._work, self._arguments = work, args
        self._result: Result | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Do it (in the thread)."""
        try:
            self._result = self._work(*self._arguments)
        except BaseException as err:
            self._error = err

    def result(self) -> Result:
        """Wait for what the call returns; raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]
