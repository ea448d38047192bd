"""The figures of a sweep as text, as a Markdown table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from about import About, new_figure, save_figure

from sweeps.measure import F32, Ceilings, Row

COLUMNS = (
    "layer",
    "numbers",
    "variant",
    "us",
    "GFLOP/s",
    "GB/s",
    "of",
    "of rate",
    "of bandwidth",
    "of bound",
    "error",
)


def line(row: Row) -> str:
    """Return one row as text."""
    if row.fault:
        return f"{row.label:<36} {row.dtype:<5} {row.fault}"
    return (
        f"{row.label:<36} {row.dtype:<5} {row.seconds * 1e6:>10.1f} us {row.gflops:>9.1f} GFLOP/s "
        f"{row.gbytes:>7.1f} GB/s  {_share(row.of_rate):>5} of {row.ceiling or '-':<5}"
        f"{_share(row.of_bandwidth):>5} of bandwidth  {row.variant}"
    )


def ceiling_lines(most: Ceilings) -> list[str]:
    """Return what the device reaches at most as lines of Markdown."""
    lines = []
    if most.bandwidth:
        lines.append(f"- device memory, copied: {most.bandwidth / 1e9:.1f} GB/s read and written")
    for kind, rate in most.rates.items():
        of = "multiply-adds in float32" if kind == F32 else f"tensor cores (mma.sync), {kind}"
        lines.append(f"- {of}: {rate / 1e9:.1f} GFLOP/s")
    if most.launch:
        lines.append(f"- an empty kernel: {most.launch * 1e6:.2f} us")
    return lines + [f"- {kind} unknown: {why}" for kind, why in most.missing.items()]


def markdown_table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as a Markdown table, faults below it."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for r in (r for r in rows if not r.fault):
        cells = [
            r.label,
            r.dtype,
            r.variant,
            f"{r.seconds * 1e6:.1f}",
            f"{r.gflops:.1f}",
            f"{r.gbytes:.1f}",
            r.ceiling or "-",
            _share(r.of_rate),
            _share(r.of_bandwidth),
            _share(r.of_bound),
            f"{r.error:.0e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    faults = [f"- {r.label}, {r.dtype}: {r.fault}" for r in rows if r.fault]
    return [*lines, "", *faults] if faults else lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def plot(rows: Sequence[Row], path: Path, about: About) -> None:
    """Draw the share of the device's bound that each layer reaches, a bar per kind of numbers."""
    rows = [r for r in rows if r.of_bound is not None]
    labels = list(dict.fromkeys(r.label for r in rows))
    dtypes = list(dict.fromkeys(r.dtype for r in rows))
    figure, axes = new_figure(9.0, 1.6 + 0.13 * max(len(labels), 6) * max(len(dtypes), 2))
    height = 0.8 / max(len(dtypes), 1)
    for k, dtype in enumerate(dtypes):
        mine = {r.label: r for r in rows if r.dtype == dtype}
        places = [at + k * height for at, label in enumerate(labels) if label in mine]
        shares = [100 * (mine[label].of_bound or 0) for label in labels if label in mine]
        axes.barh(places, shares, height, label=dtype)
    middle = [at + 0.4 - height / 2 for at in range(len(labels))]
    axes.set_yticks(middle, labels, fontsize="x-small")
    axes.invert_yaxis()
    axes.axvline(100, color="black", linewidth=0.8)
    axes.set_xlabel("% of what measured arithmetic or bandwidth allows")
    if dtypes:
        axes.legend(fontsize="small")
    save_figure(figure, path, about)
