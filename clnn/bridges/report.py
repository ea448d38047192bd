"""What a simulation loses against the float network: per layer and in all, as Markdown or HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.bridges.layers import Layer
from clnn.qdq.signals import decibels
from clnn.records import dataclass
from clnn.types import Array

COLUMNS = ("layer", "op", "integers", "SNR, dB", "saturated", "share", "worst channel")


class LayerErrors:
    """Signal, noise and saturations of one layer, added up over samples."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.saturated, self.count = layer, 0, 0
        self._signal: Array | float = 0.0
        self._noise: Array | float = 0.0

    def see(self, real: Array, made: Array) -> None:
        """Add a sample: what the float network has, and the simulation's integers (or floats)."""
        grid = self.layer.grid
        values = made.astype(np.float64) if grid is None else grid.real(made)
        wanted = real.astype(np.float64).reshape(values.shape)
        axes = tuple(a for a in range(values.ndim) if a != 1) if values.ndim > 1 else ()
        self._signal = self._signal + (wanted**2).sum(axis=axes)
        self._noise = self._noise + ((values - wanted) ** 2).sum(axis=axes)
        self.saturated += 0 if grid is None else int(grid.saturated(made).sum())
        self.count += made.size

    @property
    def row(self) -> LayerRow:
        """The sums as they are reported."""
        signal, noise = (np.atleast_1d(x) for x in (self._signal, self._noise))
        ratios = [decibels(float(s), float(n)) for s, n in zip(signal, noise, strict=True)]
        heard = [k for k, s in enumerate(signal) if s > 0] or [0]
        worst = min(heard, key=lambda k: ratios[k])
        total = decibels(float(signal.sum()), float(noise.sum()))
        layer = self.layer
        grid = "float32" if layer.grid is None else str(layer.grid)
        parts = (layer.name, layer.op, grid, total, self.saturated, self.count)
        return LayerRow(*parts, worst, ratios[worst])


@dataclass(frozen=True)
class LayerRow:
    """One layer: signal to noise in dB, elements at an end of their type, the worst channel and its dB."""

    name: str
    op: str
    grid: str
    snr: float
    saturated: int
    count: int
    worst_channel: int
    worst_snr: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        if self.grid == "float32":
            return self.name, self.op, self.grid, "", "", "", ""
        share = f"{100 * self.saturated / max(self.count, 1):.3f} %"
        worst = f"{self.worst_channel}: {self.worst_snr:.1f} dB"
        middle = (f"{self.snr:.1f}", str(self.saturated), share)
        return self.name, self.op, self.grid, *middle, worst


@dataclass(frozen=True)
class Report:
    """A simulation against the float network over samples.

    outputs: output -> SNR in dB, and the share of rows whose largest element stays where it is.
    """

    target: str
    samples: int
    layers: tuple[LayerRow, ...]
    outputs: dict[str, tuple[float, float]]

    @property
    def floats(self) -> list[str]:
        """The layers that the target does not have; they were computed in float32."""
        return [row.name for row in self.layers if row.grid == "float32"]

    def _summary(self) -> list[str]:
        lines = [f"Target {self.target}, {self.samples} samples, against the float network."]
        for name, (snr, same) in self.outputs.items():
            lines.append(
                f"Output {name}: SNR {snr:.1f} dB, largest element kept {100 * same:.2f} %."
            )
        if self.floats:
            lines.append(
                f"Computed in float32, since the target has no such layer: {', '.join(self.floats)}."
            )
        return lines

    def markdown(self) -> str:
        """Return the report as Markdown."""
        head = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"
        rows = [f"| {' | '.join(c.replace('|', '/') for c in row.cells)} |" for row in self.layers]
        return "\n\n".join(self._summary()) + "\n\n" + "\n".join([head, *rows]) + "\n"

    def html(self) -> str:
        """Return the report as a page of HTML."""

        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        texts = "".join(f"<p>{html.escape(text)}</p>" for text in self._summary())
        rows = "\n".join(line(row.cells, "td") for row in self.layers)
        title = html.escape(f"{self.target}: layers")
        return (
            f"<!doctype html><html><head><meta charset='utf-8'><title>{title}</title><style>"
            "body{font-family:sans-serif}td,th{padding:.2em .8em;text-align:left}</style></head><body>"
            f"<h1>{title}</h1>{texts}<table>{line(COLUMNS, 'th')}\n{rows}</table></body></html>\n"
        )

    def data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        layers = [dict(zip(COLUMNS, row.cells, strict=True)) for row in self.layers]
        outputs = {n: {"snr": s, "same": share} for n, (s, share) in self.outputs.items()}
        return {
            "target": self.target,
            "samples": self.samples,
            "layers": layers,
            "outputs": outputs,
        }
