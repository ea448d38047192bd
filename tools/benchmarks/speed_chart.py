#!/usr/bin/env python3
"""Draw docs/benchmarks/speed.svg from the first table of docs/benchmarks/cpu.md (--check: only compare).

A row per network, a mark per engine: its latency as a multiple of clnn's. The last row is the
geometric mean over the networks.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

BENCHMARKS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
TABLE, CHART = BENCHMARKS / "cpu.md", BENCHMARKS / "speed.svg"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f7f7f")
TICKS = (1, 1.5, 2, 3, 4, 5, 6, 8)
WIDTH, LEFT, RIGHT, TOP, ROW, FOOT = 860, 150, 90, 104, 26, 34  # pixels


@dataclass(frozen=True)
class Table:
    """Latencies in milliseconds: heading above the table, engines (clnn first), network -> row."""

    heading: str
    engines: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]

    def multiples(self) -> dict[str, tuple[float, ...]]:
        """Return network -> latency of each peer over clnn's, and their geometric means last."""
        found = {name: tuple(ms / row[0] for ms in row[1:]) for name, row in self.rows.items()}
        means = (statistics.geometric_mean(column) for column in zip(*found.values(), strict=True))
        return found | {"geometric mean": tuple(means)}


def read(text: str) -> Table:
    """Return the first table whose columns are networks, clnn and its peers, up to "ratio..."."""
    heading, head, rows = "", [], {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            heading = line[3:]
        elif cells[:2] == ["network", "clnn"]:
            head = cells[1 : next(k for k, cell in enumerate(cells) if cell.startswith("ratio"))]
        elif head and line.startswith("|") and re.match(r"[\d.]+$", cells[1]):
            rows[cells[0]] = tuple(float(cell) for cell in cells[1 : len(head) + 1])
        elif rows:
            return Table(heading, tuple(head), rows)
    raise ValueError("no table of networks and engines.")


def svg(table: Table) -> str:
    """Return the chart."""
    multiples = table.multiples()
    height = TOP + ROW * len(multiples) + FOOT
    most = max(max(row) for row in multiples.values())
    ticks = [t for t in TICKS if t <= most * 1.1]
    scale = (WIDTH - LEFT - RIGHT) / math.log(max(most, ticks[-1]) * 1.03)

    def x(multiple: float) -> float:
        return round(LEFT + scale * math.log(multiple), 1)

    bottom = TOP + ROW * len(multiples)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff"/>',
        _text(16, 26, "Latency as a multiple of clnn's (further right is slower)", "start", 16),
        _text(16, 46, table.heading, "start"),
        _text(WIDTH - RIGHT + 12, TOP - 10, "clnn, ms", "start"),
    ]
    for k, engine in enumerate(table.engines[1:]):
        at = LEFT + 128 * k
        lines += [_mark(at, 70, k, engine), _text(at + 10, 74, engine, "start")]
    for tick in ticks:
        width = 2 if tick == 1 else 0.5
        lines.append(
            f'<path d="M{x(tick)} {TOP - 4}V{bottom}" stroke="#888" stroke-width="{width}"/>'
        )
        lines.append(_text(x(tick), bottom + 18, "clnn" if tick == 1 else f"{tick:g} x"))
    for at, (network, row) in enumerate(multiples.items()):
        y = TOP + ROW * at + ROW // 2
        lines.append(_text(LEFT - 12, y + 4, network, "end"))
        if network in table.rows:
            lines.append(_text(WIDTH - RIGHT + 12, y + 4, f"{table.rows[network][0]:g}", "start"))
        else:
            lines.append(
                f'<path d="M16 {y - ROW // 2}H{WIDTH - 16}" stroke="#888" stroke-width="1"/>'
            )
        for k, multiple in enumerate(row):
            told = f"{network}, {table.engines[k + 1]}: {multiple:.2f} x"
            lines.append(_mark(x(multiple), y, k, told))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 13) -> str:
    return (
        f'<text x="{x:g}" y="{y}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
    )


def _mark(x: float, y: float, engine: int, told: str) -> str:
    """Return a disc in the colour of an engine; told: shown where the pointer rests on it."""
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="5.5" fill="{COLOURS[engine]}" fill-opacity="0.85">'
        f"<title>{escape(told)}</title></circle>"
    )


def main() -> int:
    text = svg(read(TABLE.read_text("utf-8")))
    if "--check" in sys.argv[1:]:
        current = CHART.exists() and CHART.read_text("utf-8") == text
        if not current:
            print("speed.svg is not current: run tools/benchmarks/speed_chart.py", file=sys.stderr)
        return 0 if current else 1
    CHART.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
