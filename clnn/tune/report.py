"""What tuning did: per layer before and after, and the whole network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from clnn.records import dataclass


@dataclass(frozen=True)
class TunedLayer:
    """One problem: its title, nodes, variants and seconds before and after, faults by variant.

    Seconds are those inside the network where both were measured there, else of the kernels alone.
    state: "tuned", "kept" (the estimate's choice stays), "known" (a stored result), "skipped" (no
    time was left) or "failed" (no candidate was right).
    """

    title: str
    nodes: tuple[str, ...]
    share: float
    before: str
    after: str
    seconds_before: float
    seconds_after: float
    tried: int
    state: str
    faults: dict[str, str]


@dataclass(frozen=True)
class Report:
    """Outcome of a tuning run: layers by falling share, seconds of a run before and after.

    finished: whether it was not interrupted. budget, spent: seconds. spent_on: what the seconds went
    to, without what came before (reading the model, finding the device).
    """

    device: str
    layers: tuple[TunedLayer, ...]
    network_before: float
    network_after: float
    budget: float
    spent: float
    finished: bool
    spent_on: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """Return the report as a table."""
        wide = max([len(x.title) for x in self.layers] + [5])
        lines = [
            f"{'layer':<{min(wide, 52)}} {'nodes':>5} {'share':>6} {'tried':>5}"
            f" {'before us':>10} {'after us':>10} {'speed-up':>8}  variant"
        ]
        lines += [_row(layer, min(wide, 52)) for layer in self.layers]
        lines += [
            f"  failed: {name}: {fault}" for x in self.layers for name, fault in x.faults.items()
        ]
        return "\n".join([*lines, self.closing()])

    def closing(self) -> str:
        """Return the line about the whole network."""
        states = [layer.state for layer in self.layers]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        text = f"{len(states)} problems ({counts}) in {self.spent:.0f} of {self.budget:.0f} s"
        if self.spent_on:
            text += f" ({', '.join(f'{what} {s:.0f}' for what, s in self.spent_on.items())})"
        if states and set(states) == {"skipped"}:
            text += "; the budget went before any kernel was tried: give it more"
        if self.network_before and self.network_after:
            text += (
                f"; network {self.network_before * 1e3:.3f} -> {self.network_after * 1e3:.3f} ms"
                f" ({self.network_before / self.network_after:.2f} x), in turns"
            )
        return text + ("" if self.finished else "; interrupted: what was measured is kept")


def _row(layer: TunedLayer, wide: int) -> str:
    ratio = layer.seconds_before / layer.seconds_after if layer.seconds_after else 0.0
    change = f"{layer.before} -> {layer.after}" if layer.after != layer.before else layer.before
    times = f"{layer.seconds_before * 1e6:>10.1f} {layer.seconds_after * 1e6:>10.1f} {ratio:>8.2f}"
    if not layer.seconds_after:
        times = f"{'-':>10} {'-':>10} {'-':>8}"
    return (
        f"{layer.title[:wide]:<{wide}} {len(layer.nodes):>5} {layer.share:>6.1%} {layer.tried:>5}"
        f" {times}  {change} ({layer.state})"
    )
