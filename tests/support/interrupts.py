"""Raises KeyboardInterrupt where CPython may: at each such place in turn, and at random moments.

CPython looks for signals and for exceptions from other threads where a function begins, after a
call, and where a loop goes back.
"""

from __future__ import annotations

import dis
import random
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from common import ROOT

RUN = f"{ROOT / 'clnn' / 'runtime' / 'run'}/"
_LOOKS_AFTER = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME")


def handler(code: CodeType, at: int) -> int:
    """Return where an exception of an instruction is handled, -1 where that is not in `code`.

    A tracer raises at the instruction after a call, CPython at the call: places where the two are
    handled in different ways, such as the end of a `with` block, cannot be tried by tracing.
    """
    if sys.version_info < (3, 11):
        return -1
    spans = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((span.target for span in spans if span.start <= at < span.end), -1)


class Counter:
    """Traces the files of `folder`, and raises at the place with number `at`."""

    def __init__(self, at: int, folder: str = RUN) -> None:
        self.at, self.folder, self.seen, self.where = at, folder, 0, ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        before = [("", 0)]

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "opcode":
                code, at = frame.f_code, frame.f_lasti
                (name, last), before[0] = before[0], (dis.opname[code.co_code[at]], at)
                if name.startswith(_LOOKS_AFTER) and handler(code, last) == handler(code, at):
                    self._place(frame)
            return local

        self._place(frame)
        return local

    def _place(self, frame: FrameType) -> None:
        self.seen += 1
        if self.seen == self.at:
            code = frame.f_code
            self.where = f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}"
            raise KeyboardInterrupt


def at_every_place(work: Callable[[], Any], check: Callable[[str], None], step: int = 1) -> int:
    """Do `work` with an interrupt at every `step`-th place, `check(place)` each time; return places."""
    at = 0
    while True:
        at += step
        counter = Counter(at)
        try:
            sys.settrace(counter)
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if not counter.where:
            assert counter.seen, "nothing of clnn.runtime.run ran"
            return counter.seen
        in_time(check, counter.where)


def at_random_times(
    work: Callable[[], Any],
    check: Callable[[str], None],
    inside: CodeType,
    longest: float,
    most: int,
) -> int:
    """Interrupt `work` `most` times, within `inside` and `longest` seconds of its begin."""
    armed, count = [False], 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        while armed[0] and frame is not None:
            if frame.f_code is inside:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    dice = random.Random(1)
    try:
        while count < most:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, longest))
            try:
                work()
            except KeyboardInterrupt:
                count += 1
            armed[0] = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            check(f"interrupt {count}")
    finally:
        signal.signal(signal.SIGALRM, before)
    return count


def in_time(check: Callable[[str], None], where: str, seconds: float = 120.0) -> None:
    """Do `check(where)` in another thread; fail where it does not end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            check(where)
        except BaseException as err:
            errors.append(err)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"hangs after an interrupt at {where}"
    if errors:
        raise errors[0]
