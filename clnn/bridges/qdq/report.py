"""What quantisation of an ONNX model costs, node by node, as Markdown, HTML or plain data."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from clnn.records import dataclass

COLUMNS = ("node", "op", "alone, dB", "without, dB", "weights, dB", "values, dB", "state")


@dataclass(frozen=True)
class NodeCost:
    """One node that can be quantised, with the clipping behind it.

    Signal to noise in dB, NaN where there is none: alone: of the network's outputs, were this node alone
    quantised; without: were all but this node; weights: of its weights; values: of its result as bytes.
    excluded: why it stays float32, or "". equalised: its channels were scaled. corrected: so many of its
    biases were.
    """

    name: str
    op: str
    alone: float
    without: float
    weights: float
    values: float
    excluded: str = ""
    equalised: bool = False
    corrected: int = 0

    @property
    def state(self) -> str:
        """What became of the node, in words."""
        if self.excluded:
            return f"float32: {self.excluded}"
        parts = ["equalised"] if self.equalised else []
        parts += [f"{self.corrected} biases corrected"] if self.corrected else []
        return ", ".join(parts) or "quantised"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        numbers = (_decibels(x) for x in (self.alone, self.without, self.weights, self.values))
        return self.name, self.op, *numbers, self.state


@dataclass(frozen=True)
class QdqReport:
    """What a quantised file keeps of the float32 network over samples, in dB.

    plain: rounded to nearest alone. before: equalised and corrected, nothing excluded. after: the file.
    outputs: of each output, the file. way: of equalisation, "" where there was none. nodes: in order.
    """

    samples: int
    method: str
    per_channel: bool
    way: str
    plain: float
    before: float
    after: float
    outputs: dict[str, float]
    nodes: tuple[NodeCost, ...]

    @property
    def excluded(self) -> list[str]:
        """The nodes that stay float32."""
        return [n.name for n in self.nodes if n.excluded]

    @property
    def summary(self) -> list[str]:
        """What the tables are about, in sentences."""
        scales = "a scale for each output channel" if self.per_channel else "one scale for a weight"
        corrected = sum(n.corrected > 0 for n in self.nodes)
        lines = [
            f"{len(self.nodes)} nodes by {self.samples} samples ({self.method}), {scales}.",
            f"Signal to noise of all outputs: {_decibels(self.plain)} dB rounded to nearest,"
            f" {_decibels(self.before)} dB before exclusion, {_decibels(self.after)} dB in the file.",
            "alone: of the outputs with this node alone quantised; without: with all but this node;"
            " weights, values: of its weights and its result, rounded.",
            *(f"Output {name}: {_decibels(snr)} dB." for name, snr in self.outputs.items()),
            f"Equalised: {self.way or 'no'}. Nodes with corrected biases: {corrected}.",
        ]
        if self.excluded:
            lines.append(f"Left in float32: {', '.join(self.excluded)}.")
        return lines

    def markdown(self) -> str:
        """Return the report as Markdown."""
        head = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"
        rows = [f"| {' | '.join(c.replace('|', '/') for c in n.cells)} |" for n in self.nodes]
        return "\n\n".join(self.summary) + "\n\n" + "\n".join([head, *rows]) + "\n"

    def html(self) -> str:
        """Return the report as a page of HTML."""

        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        texts = "".join(f"<p>{html.escape(text)}</p>" for text in self.summary)
        rows = "\n".join(line(n.cells, "td") for n in self.nodes)
        return (
            "<!doctype html><html><head><meta charset='utf-8'><title>Quantised nodes</title><style>"
            "body{font-family:sans-serif}td,th{padding:.2em .8em;text-align:left}</style></head><body>"
            f"<h1>Quantised nodes</h1>{texts}<table>{line(COLUMNS, 'th')}\n{rows}</table></body></html>\n"
        )

    def data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        made = {f.name: getattr(self, f.name) for f in fields(self)}
        nodes = [{f.name: getattr(n, f.name) for f in fields(n)} for n in self.nodes]
        return made | {"nodes": nodes}


def _decibels(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.1f}" if math.isfinite(value) else ("exact" if value > 0 else "lost")
