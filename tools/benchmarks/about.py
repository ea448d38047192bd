"""What every report says of itself: device, driver, date, commands; and how pictures are written."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NO_PLOT = "no picture: matplotlib is not installed (pip install matplotlib)"


@dataclass(frozen=True)
class About:
    """device, driver: as OpenCL names them. date: with the time, UTC. commands: what was run."""

    device: str = ""
    driver: str = ""
    date: str = ""
    commands: tuple[str, ...] = ()
    machine: str = ""

    def lines(self) -> list[str]:
        """Return what is known as lines of Markdown."""
        known = {
            "Device": self.device,
            "Driver": self.driver,
            "Date": self.date,
            "Machine": self.machine,
        }
        lines = [f"- {name}: {text}" for name, text in known.items() if text]
        return lines + [f"- Command: `{command}`" for command in self.commands]

    def caption(self, width: int = 110) -> str:
        """Return what is known as lines of at most `width` characters, to go under a picture."""
        known = [self.device, f"driver {self.driver}" if self.driver else "", self.date]
        texts = [", ".join(text for text in known if text), *self.commands[:1]]
        lines = [line for text in texts for line in textwrap.wrap(text, width)]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return asdict(self)


def now() -> str:
    """Return date and time in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> str:
    """Return the processor's name and the number of cores."""
    names: list[str] = []
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        names = re.findall(r"(?m)^model name\s*:\s*(.+)$", text)
    except OSError:
        pass
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def shown(command: Sequence[str], replaced: Mapping[str, str] | None = None) -> str:
    """Return a command as text, without the folders of this machine (see `plain`)."""
    words = list(command)
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        words[0] = "python"
    return plain(shlex.join(words), replaced)


def plain(text: str, replaced: Mapping[str, str] | None = None) -> str:
    """Return text without the folders of this machine.

    replaced: further folders and what stands for them. The checkout is left out, the environment
    of Python becomes ENV, the user's folder ~, and what lies in the temporary folder TMP.
    """
    places = {**(replaced or {}), str(ROOT): "", sys.prefix: "ENV", str(Path.home()): "~"}
    for place, sign in sorted(places.items(), key=lambda pair: -len(pair[0])):
        if len(place) > 1:
            text = re.sub(rf"{re.escape(place)}/", f"{sign}/" if sign else "", text)
            text = re.sub(rf"{re.escape(place)}(?![\w.-])", sign or ".", text)
    folder = re.escape(tempfile.gettempdir().rstrip("/"))
    return re.sub(rf"{folder}/[\w.-]+", "TMP", text)


def plot_refusal() -> str:
    """Return why no picture can be drawn, or ''."""
    return "" if importlib.util.find_spec("matplotlib") else NO_PLOT


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure and its axes; matplotlib must be there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    return figure, axes


def save_figure(figure: Any, path: Path, about: About) -> None:
    """Write a figure as PNG, with what it shows below it."""
    from matplotlib import pyplot

    width = max(40, int(14 * figure.get_figwidth()))
    figure.supxlabel(about.caption(width), fontsize="x-small", color="0.35")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
