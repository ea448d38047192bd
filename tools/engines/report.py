"""The figures of compare_engines.py as text and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from engines.rounds import Result, Row

HEAD = (
    f"{'engine':<26} {'median':>9} {'spread':>7} {'runs':>5} {'x clnn':>7} {'error':>8} "
    f"{'memory':>9} {'cold load+first':>17} {'warm load+first':>17}"
)


def table(results: Sequence[Result], *, summary: bool = False) -> str:
    """Return a block of lines per model, or with `summary` one line per model and the mean."""
    if not summary:
        return "\n".join(_block(r) for r in results)
    lines = [f"{'model':<20} {'clnn ms':>9} {'best peer':>22} {'ratio':>7}"]
    for r in results:
        mine = next((x for x in r.measured if x.engine == "clnn"), None)
        peer = min((x for x in r.measured if x.engine != "clnn"), default=None,
                   key=lambda x: x.median)  # fmt: skip
        best = "-" if peer is None else f"{peer.engine} {_ms(peer.median)}"
        ratio = "-" if r.ratio is None else f"{r.ratio:.3f}"
        lines.append(f"{r.model:<20} {_ms(mine.median) if mine else '-':>9} {best:>22} {ratio:>7}")
    ratios = [r.ratio for r in results if r.ratio is not None]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines.append(f"geometric mean of {len(ratios)} ratios (best peer / clnn): {mean:.3f}")
    return "\n".join(lines)


def _block(result: Result) -> str:
    shapes = "  ".join(f"{n}:{'x'.join(map(str, s))}" for n, s in result.shapes.items())
    mine = next((r for r in result.measured if r.engine == "clnn"), None)
    lines = [f"\n{result.model}  {shapes}", HEAD]
    lines += [_line(row, mine) for row in result.rows]
    if mine is not None and "flops" in mine.facts:
        lines.append(_shares(mine))
    if result.ratio is not None:
        lines.append(f"best peer / clnn: {result.ratio:.3f}")
    return "\n".join(lines)


def _line(row: Row, mine: Row | None) -> str:
    if row.missing:
        return f"{row.engine:<26} left out: {row.missing}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    times = f"{row.median / mine.median:.3f}" if mine else "-"
    cold, warm = (f"{a:.2f}+{b:.2f} s" for a, b in (
        (row.cold_load, row.cold_first), (row.warm_load, row.warm_first)))  # fmt: skip
    return (
        f"{row.title:<26.26} {_ms(row.median):>9} {row.spread:>6.1%} {row.runs:>5} {times:>7} "
        f"{error:>8} {row.memory / 1e6:>6.0f} MB {cold:>17} {warm:>17}"
    )


def _shares(row: Row) -> str:
    facts = row.facts
    flops = facts["flops"] / row.median
    rate = facts["bytes"] / row.median
    return (
        f"clnn: {facts['device']}; {flops / 1e9:.0f} GFLOP/s = {flops / facts['peak_flops']:.0%} of "
        f"the measured peak; {rate / 1e9:.1f} GB/s = {rate / facts['peak_bandwidth']:.0%} of the "
        f"measured bandwidth; kernels {_ms(facts['kernels_s'])} ms, gaps {_ms(facts['gap_s'])} ms"
    )


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw each engine's speed relative to clnn's, a group of bars per model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    engines = list(dict.fromkeys(r.engine for x in results for r in x.measured))
    figure, axes = pyplot.subplots(figsize=(2 + 1.2 * len(results), 4.5), layout="constrained")
    width = 0.8 / max(len(engines), 1)
    for k, engine in enumerate(engines):
        places, heights = [], []
        for at, result in enumerate(results):
            rows = {r.engine: r.median for r in result.measured}
            if engine in rows and "clnn" in rows:
                places.append(at + (k - (len(engines) - 1) / 2) * width)
                heights.append(rows["clnn"] / rows[engine])
        axes.bar(places, heights, width, label=engine)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [r.model for r in results], rotation=30, ha="right")
    axes.set_ylabel("speed relative to clnn (higher is faster)")
    axes.legend(ncols=len(engines), fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
