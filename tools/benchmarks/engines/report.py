"""The figures of compare_engines.py as text, as a Markdown table and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from about import About, new_figure, save_figure

from engines import DTYPES, dtype_of, name_of
from engines.rounds import Result, Row

WIDE = 34  # of the column of engines
HEAD = (
    f"{'engine':<{WIDE}} {'median':>9} {'device':>9} {'spread':>7} {'runs':>5} {'x clnn':>7} "
    f"{'error':>8} {'memory':>9} {'cold load+first':>17} {'warm load+first':>17}"
)


def table(results: Sequence[Result], *, summary: bool = False) -> str:
    """Return a block of lines per model, or with `summary` one line per model and the mean."""
    if not summary:
        return "\n".join(_block(r) for r in results)
    lines = [f"{'model':<40} {'clnn ms':>9} {'best peer':>34} {'ratio':>7}"]
    for r in results:
        mine, pair = _mine(r), r.best("f32")
        best = "-" if pair is None else f"{pair[1].engine} {_ms(pair[1].median)}"
        ratio = "-" if r.ratio is None else f"{r.ratio:.3f}"
        lines.append(f"{named(r):<40} {_ms(mine.median) if mine else '-':>9} {best:>34} {ratio:>7}")
    return "\n".join([*lines, *means(results), *by_kind(results), *behind(results)])


def by_kind(results: Sequence[Result]) -> list[str]:
    """Return a line per kind of network with the geometric mean of its float32 ratios."""
    kinds: dict[str, list[float]] = {}
    for r in results:
        if r.kind and r.ratio is not None:
            kinds.setdefault(r.kind, []).append(r.ratio)
    return [
        f"{kind}: {statistics.geometric_mean(found):.3f} ({len(found)})"
        for kind, found in sorted(kinds.items(), key=lambda x: statistics.geometric_mean(x[1]))
    ]


def behind(results: Sequence[Result]) -> list[str]:
    """Return what there is to say of networks on which a peer is faster, the furthest behind first."""
    slow = [(r.ratio, r) for r in results if r.ratio is not None and r.ratio < 1]
    lines = []
    for ratio, r in sorted(slow, key=lambda x: x[0]):
        mine = _mine(r)
        lines += [f"behind: {named(r)} {ratio:.3f}", *(_short(mine) if mine else ())]
    return lines


def means(results: Sequence[Result]) -> list[str]:
    """Return a line per kind of numbers with the geometric mean of its ratios."""
    lines = []
    for dtype in DTYPES:
        for device in (False, True):
            ratios = [x for r in results if (x := r.ratio_of(dtype, device=device)) is not None]
            if not ratios or (device and not any(x.device for r in results for x in r.measured)):
                continue
            mean = statistics.geometric_mean(ratios)
            of = "" if dtype == "f32" and not device else f" {dtype}"
            of += " on the device" if device else ""
            lines.append(
                f"geometric mean of {len(ratios)}{of} ratios (best peer / clnn): {mean:.3f}"
            )
    return lines


def named(result: Result) -> str:
    """Return the model's name, with its batch unless that is 1."""
    return result.model + (f" b{result.batch}" if result.batch > 1 else "")


def _mine(result: Result) -> Row | None:
    rows = [r for r in result.measured if r.ours]
    return min(rows, default=None, key=lambda r: list(DTYPES).index(dtype_of(r.engine)))


def _block(result: Result) -> str:
    shapes = "  ".join(f"{n}:{'x'.join(map(str, s))}" for n, s in result.shapes.items())
    mine = _mine(result)
    lines = [f"\n{result.model}  {shapes}", HEAD]
    lines += [_line(row, mine) for row in result.rows]
    if mine is not None and "flops" in mine.facts:
        lines += [_shares(mine), *_short(mine)]
    for dtype in DTYPES:
        found = result.ratio_of(dtype)
        if found is not None:
            of = "" if dtype == "f32" else f", {dtype}"
            lines.append(f"best peer / clnn{of}: {found:.3f}")
    return "\n".join(lines)


def _line(row: Row, mine: Row | None) -> str:
    if row.missing:
        return f"{row.engine:<{WIDE}} left out: {row.missing}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    times = f"{row.over(mine):.3f}" if mine else "-"
    device = "-" if row.device is None else _ms(row.device)
    memory = f"{row.memory / 1e6:.0f} MB" if row.memory else "-"
    cold = f"{row.cold_load:.2f}+{row.cold_first:.2f} s" if row.cold_load else "-"
    warm = f"{row.warm_load:.2f}+{row.warm_first:.2f} s"
    return (
        f"{row.title:<{WIDE}.{WIDE}} {_ms(row.median):>9} {device:>9} {row.spread:>6.1%} "
        f"{row.runs:>5} {times:>7} {error:>8} {memory:>9} {cold:>17} {warm:>17}"
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


def _short(row: Row) -> list[str]:
    """Return a line for each layer that takes the most time beyond what the device's rates ask for."""
    return [
        f"falls short: {layer['node']}, {_ms(layer['seconds'])} ms, {layer['of_peak']:.0%} of the "
        f"measured peak, {layer['of_bandwidth']:.0%} of the bandwidth"
        for layer in row.facts.get("short", ())
    ]


def _ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def about_of(results: Sequence[Result], date: str, command: str, machine: str) -> About:
    """Return what the results are of: the device as clnn named it."""
    facts = next((r.facts for x in results for r in x.measured if r.ours), {})
    return About(
        str(facts.get("device", "")), str(facts.get("driver", "")), date, (command,), machine
    )


def markdown(results: Sequence[Result], about: About) -> str:
    """Return a Markdown document: a table of medians in ms, and what was left out and why."""
    engines = engines_of(results)
    lines = ["# Engines compared", "", *about.lines(), "", *markdown_tables(results), ""]
    lines += [f"{text[0].upper()}{text[1:]}.  " for text in [*means(results), *by_kind(results)]]
    wrong = [
        f"{named(r)}: {x.engine}, error {x.error:.1e}"
        for r in results
        for x in r.measured
        if not x.right
    ]
    lines += [
        "",
        "Errors beyond what their numbers may have: " + ("; ".join(wrong) or "none") + ".",
    ]
    lines += ["", *left_out(results, engines)]
    return "\n".join(lines).rstrip() + "\n"


def markdown_tables(results: Sequence[Result]) -> list[str]:
    """Return the medians of whole calls, and of the device alone where it is known, as tables."""
    engines = engines_of(results)
    if not engines:
        return ["Nothing was measured."]
    lines = ["Median of a call with arrays of the host, in ms:", ""]
    lines += _grid(results, engines, device=False)
    if any(r.device for x in results for r in x.measured):
        lines += ["", "Median on the device alone, without copies from and to the host, in ms:", ""]
        lines += _grid(results, engines, device=True)
    return lines


def engines_of(results: Sequence[Result]) -> list[str]:
    """Return the engines that ran on any model, in the order of rows."""
    return list(dict.fromkeys(r.engine for x in results for r in x.measured))


def _grid(results: Sequence[Result], engines: Sequence[str], *, device: bool) -> list[str]:
    if device:
        engines = [
            e
            for e in engines
            if any(x.engine == e and x.device for r in results for x in r.measured)
        ]
    dtypes = [d for d in DTYPES if any(x.ratio_of(d, device=device) for x in results)]
    head = ["network", *engines, *(f"ratio, {d}" for d in dtypes)]
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    for r in results:
        rows = {x.engine: x.device if device else x.median for x in r.measured}
        cells = [_ms(t) if (t := rows.get(e)) else "-" for e in engines]
        ratios = [r.ratio_of(d, device=device) for d in dtypes]
        cells += ["-" if x is None else f"{x:.3f}" for x in ratios]
        lines.append(f"| {' | '.join([named(r), *cells])} |")
    return lines


def left_out(results: Sequence[Result], engines: Sequence[str]) -> list[str]:
    """Return a line for each engine that was left out, with the reason and the models."""
    found: dict[tuple[str, str], list[str]] = {}
    for r in results:
        for row in r.rows:
            if row.missing:
                found.setdefault((row.engine, row.missing), []).append(named(r))
    lines = []
    for (engine, reason), models in found.items():
        where = (
            ""
            if len(models) == len(results) and engine not in engines
            else (f" ({', '.join(models)})")
        )
        lines.append(f"- {engine} left out{where}: {reason}")
    return lines


def plot(results: Sequence[Result], path: Path, about: About | None = None) -> None:
    """Draw each engine's speed relative to clnn's in float32, a group of bars per model.

    Times on the device alone are compared where every engine of a model has them.
    """
    engines = engines_of(results)
    figure, axes = new_figure(3 + max(0.12 * len(engines), 1.0) * len(results), 5.0)
    width = 0.8 / max(len(engines), 1)
    for k, engine in enumerate(engines):
        places, heights = [], []
        for at, result in enumerate(results):
            rows, mine = _comparable(result), _mine(result)
            if engine in rows and mine is not None:
                places.append(at + (k - (len(engines) - 1) / 2) * width)
                heights.append(rows[mine.engine] / rows[engine])
        hatch = "//" if name_of(engine) == "clnn" else None
        axes.bar(places, heights, width, label=engine, hatch=hatch)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(np.arange(len(results)), [named(r) for r in results], rotation=30, ha="right")
    axes.set_ylabel("speed relative to clnn (higher is faster)")
    figure.legend(loc="outside upper center", ncols=min(len(engines), 4), fontsize="small")
    save_figure(figure, path, about or About())


def _comparable(result: Result) -> dict[str, float]:
    """Return engine -> time on the device, or of whole calls where some engine lacks the first."""
    rows = result.measured
    alone = all(r.device for r in rows)
    return {r.engine: (r.device or r.median) if alone else r.median for r in rows}
