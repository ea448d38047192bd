"""Live progress of a tuning run: a bar and two lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clnn.runtime.build.progress import BuildProgress
    from clnn.tune.tuner import Progress

EVERY_S, BAR = 10.0, 30


class PlainProgress:
    """A line when something new begins, and one every ten seconds."""

    def __init__(self) -> None:
        self._last, self._what = 0.0, ""

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __call__(self, where: Progress) -> None:
        """Show a step."""
        now, what = time.monotonic(), where.note or where.title
        if what != self._what or now - self._last >= EVERY_S:
            self._last, self._what = now, what
            print(f"{where.done}/{where.total}  {line(where)}", file=sys.stderr, flush=True)


class RichProgress:
    """rich's live display on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)

    def __enter__(self) -> RichProgress:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._live.stop()

    def __call__(self, where: Progress) -> None:
        """Show a step."""
        self._live.update(self._page(where))

    def _page(self, where: Progress) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        head = f"problems {where.done}/{where.total}   time left {where.left:.0f} s"
        last = f"  {where.name}: {where.fault or 'right'}" if where.name else ""
        bar = ProgressBar(total=max(where.total, 1), completed=where.done, width=60)
        return Group(Text(head), bar, Text(line(where)), Text(last[:200]))


def line(where: Progress) -> str:
    """Return what a step is about: problem, candidates, best time, gain over the ranked variant."""
    if where.note or not where.title:
        return f"{where.note}, {where.left:.0f} s left"
    text = f"{where.title}: {where.tried}/{where.of} candidates"
    if where.best:
        gain = f", {where.ranked / where.best:.2f} x the ranked" if where.ranked else ""
        text += f", best {where.best * 1e6:.1f} us{gain}"
    return f"{text}, {where.left:.0f} s left"


def progress() -> PlainProgress | RichProgress:
    """Return the display that suits standard error; plain where rich is not installed."""
    if not sys.stderr.isatty():
        return PlainProgress()
    try:
        return RichProgress()
    except ImportError:
        return PlainProgress()


def building(where: BuildProgress) -> None:
    """Show on one line of a terminal how far the building of kernels is; the last step clears it."""
    text = f"building kernels: {where.done} of {where.total}  {where.title}"[:100]
    shown = text if where.done < where.total else ""
    print(f"\r{shown}\x1b[K", end="", file=sys.stderr, flush=True)


class Counting:
    """How many of how many are done of one thing after another: a bar on a terminal, else a line every ten seconds."""

    def __init__(self) -> None:
        self._is_live, self._told = sys.stderr.isatty(), time.monotonic()

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far a thing is."""
        if self._is_live:
            filled = BAR * done // max(total, 1)
            bar = "#" * filled + "-" * (BAR - filled)
            print(f"\r{what} [{bar}] {done}/{total}\x1b[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._told >= EVERY_S:
            self._told = time.monotonic()
            print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)
