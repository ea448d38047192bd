"""The turns of loops: step by step, and as written functions where they do the same again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

from clnn.importers.onnx.stages.program import Program
from clnn.logs import log
from clnn.ops.host.lines import DeviatesError
from clnn.ops.host.registry import Value
from clnn.runtime.stages.prepared import Prepared, Values
from clnn.runtime.stages.written import Bind, Room, Seen, Turn, can_be_written, watched, write

FIRST = 4  # turn that is watched: of a loop of fewer it would not be worth its while
MOST_KEPT = 8  # functions for a body: each for other extents
CREDIT = 4  # functions that may be written before any is of use
WORTH = 100  # turns that pay for another one
MOST_DEVIATIONS = 4  # of a loop's turns, and one in so many of them


class Turning:
    """A loop's body, and the functions that were written for its turns. Any thread may use it."""

    def __init__(self, body: Program, ready: Prepared, room: Room, *, may_write: bool) -> None:
        self.body, self.ready, self.room = body, ready, room
        self.written: list[Bind] = []
        self._left = float(CREDIT if may_write and can_be_written(body) else 0)
        self._lock = threading.Lock()

    @property
    def may_write(self) -> bool:
        """Whether another function may be written."""
        return self._left >= 1

    def functions(self, begin: Values) -> Iterator[Turn]:
        """Yield functions for the turns of a loop with these values, as far as they show it."""
        for bind in self.written:
            with suppress(DeviatesError):
                yield bind(begin)

    def write(self, begin: Values, turns: Sequence[Seen]) -> Turn | None:
        """Write a function after two turns."""
        with self._lock:
            if not self.may_write:
                return None
            self._left -= 1
            try:
                made = write(self.body, self.ready, begin, turns, self.room)
            except (ArithmeticError, LookupError, TypeError, ValueError) as err:
                log.info("turns of loop %s run step by step: %s", self.body.name, err)
                self._left = 0
                return None
            self.written = [made, *self.written][:MOST_KEPT]
        return next(self.functions(begin), None)

    def pay(self, turns: int) -> None:
        """Let more functions be written for turns that some were of use in."""
        with self._lock:
            if self._left < CREDIT and self.written:
                self._left = min(CREDIT, self._left + turns / WORTH)


class Turns:
    """The turns of one loop. begin: values that are the same in all of them; the first turn adds what it makes."""

    def __init__(self, turning: Turning, begin: Values) -> None:
        self._turning, self._begin = turning, begin
        self._count = self._used = self._deviations = 0
        self._seen: list[Seen] = []
        self._quick: Turn | None = None
        self._others: Iterator[Turn] = iter(())

    def run(self, inputs: Sequence[Value]) -> Sequence[Value]:
        """Return the outputs of the next turn."""
        self._count += 1
        if self._quick is not None:
            try:
                found = self._quick(*inputs)
                self._used += 1
                return found
            except Exception:  # of lines; where steps raise one, too, the turn below does
                self._deviate()
        return self._stepped(inputs)

    def end(self) -> None:
        """Note how many turns a function was of use in."""
        if self._used:
            self._turning.pay(self._used)

    def _deviate(self) -> None:
        """Take another function where this one was of no use, none where too many turns deviate."""
        self._deviations += 1
        if not self._used:
            self._quick = next(self._others, None)
        elif self._deviations > MOST_DEVIATIONS + self._count // MOST_DEVIATIONS:
            self._quick = None

    def _stepped(self, inputs: Sequence[Value]) -> list[Value]:
        body, ready = self._turning.body, self._turning.ready
        values = self._begin.copy()
        values.update(zip(body.inputs, inputs, strict=True))
        if self._count == 1:
            for act, ended, stay in ready.steps:
                act(values)
                for name in stay:
                    self._begin[name] = values[name]
                for name in ended:
                    values.pop(name, None)
            self._others = self._turning.functions(self._begin)
            self._quick = next(self._others, None)
        elif self._is_watched():
            self._watch(values)
        else:
            for act, ended in ready.later:
                act(values)
                for name in ended:
                    values.pop(name, None)
        return [values[name] for name in body.outputs]

    def _is_watched(self) -> bool:
        ready = self._quick is None and not self._used and self._count >= FIRST
        return ready and self._turning.may_write

    def _watch(self, values: Values) -> None:
        """Run a turn, and write a function after the second that is watched."""
        self._seen.append(watched(self._turning.ready, values, self._turning.room))
        if len(self._seen) == 2:
            self._quick = self._turning.write(self._begin, self._seen)
            self._seen, self._others = [], iter(())
