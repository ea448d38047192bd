"""What a comparison found, as data and as text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from clnn.records import dataclass
from clnn.verification.compare import Difference


@dataclass(frozen=True)
class Layer:
    """One value of the network.

    total: its difference after all layers before it. own: that of its node alone, whose reference
    gets the device's own inputs (None where only the other engine's values are known).
    """

    number: int
    node: str
    op: str
    variant: str
    total: Difference
    own: Difference | None

    @property
    def passed(self) -> bool:
        """Whether this node computes what it should from what it gets."""
        return (self.own or self.total).passed


@dataclass(frozen=True)
class Bisection:
    """The first node of the fused network whose result is wrong, and what tells why.

    alone: its difference when it runs by itself on right inputs. unshared: whether the same nodes
    are right when no two tensors share memory. None: there was nothing to search for.
    """

    node: str
    op: str
    origin: str
    variant: str
    total: Difference
    alone: Difference
    unshared: bool
    compiled: int

    @property
    def verdict(self) -> str:
        """The part of clnn that is at fault."""
        if self.unshared:
            return "memory is shared wrongly: with a buffer for each tensor it is right"
        if not self.alone.passed:
            return "its kernel is wrong: it fails alone, on right inputs"
        return (
            "it is right alone: its layouts or borders in this network are wrong, or small errors"
            " of the nodes before it add up"
        )


@dataclass(frozen=True)
class VerifyReport:
    """Result of a comparison. True when everything asked for is within its tolerance."""

    model: str
    device: str
    against: str
    seed: int
    outputs: tuple[Difference, ...]
    layers: tuple[Layer, ...]
    bisection: Bisection | None
    command: str

    @property
    def passed(self) -> bool:
        """Whether all outputs, and all layers where asked for, are within their tolerances."""
        return all(d.passed for d in self.outputs) and all(layer.passed for layer in self.layers)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def first_diverging(self) -> Layer | None:
        """The first layer beyond its tolerance."""
        return next((layer for layer in self.layers if not layer.passed), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with the verdicts."""
        first = self.first_diverging
        data = {**asdict(self), "passed": self.passed, "first_diverging": first and first.node}
        if self.bisection:
            data["bisection"]["verdict"] = self.bisection.verdict
        return data

    def text(self) -> str:
        """Return the report as text."""
        lines = [f"{self.model} on {self.device} against {self.against}, seed {self.seed}"]
        lines += self._outputs() + self._layers() + self._bisection()
        lines.append("PASSED" if self.passed else f"FAILED\nreproduce: {self.command}")
        return "\n".join(lines)

    def _outputs(self) -> list[str]:
        head = f"{'output':<28} {_HEAD}"
        return [head, *(f"{_cut(d.name, 28):<28} {_numbers(d)}" for d in self.outputs)]

    def _layers(self) -> list[str]:
        if not self.layers:
            return []
        lines = ["", f"{'#':>4} {'node':<32} {'op':<11} {'relative':>9} {'own':>9} {'tol':>8}"]
        for layer in self.layers:
            own = f"{layer.own.relative:9.2e}" if layer.own else f"{'-':>9}"
            limit = (layer.own or layer.total).tolerance
            lines.append(
                f"{layer.number:>4} {_cut(layer.node, 32):<32} {layer.op[:11]:<11}"
                f" {layer.total.relative:9.2e} {own} {limit:8.1e} {_mark(layer.passed)}"
            )
        first = self.first_diverging
        if first is None:
            return [*lines, "no layer diverges"]
        worst = first.own or first.total
        return [
            *lines,
            f"first diverging: {first.node} ({first.variant}) -> {worst.name}: {_place(worst)}",
        ]

    def _bisection(self) -> list[str]:
        first = self.bisection
        if first is None:
            return []
        return [
            "",
            f"bisection ({first.compiled} networks compiled): first wrong node {first.node}"
            f" ({first.op}, {first.variant})",
            f"  made from  {first.origin or '-'}",
            f"  in place   {_numbers(first.total)}",
            f"  alone      {_numbers(first.alone)}",
            f"  verdict    {first.verdict}",
        ]


_HEAD = f"{'shape':<18} {'max abs':>9} {'relative':>9} {'ulp':>9} {'tol':>8}"


def _numbers(d: Difference) -> str:
    shape = "x".join(map(str, d.shape)) or "scalar"
    line = f"{shape:<18} {d.max_abs:9.2e} {d.relative:9.2e} {d.ulp:9.1f} {d.tolerance:8.1e}"
    return f"{line} {_mark(d.passed)}" + ("" if d.passed else f"  {_place(d)}")


def _place(d: Difference) -> str:
    return f"element {d.at} is {d.got:.7g}, must be {d.want:.7g}"


def _mark(passed: bool) -> str:
    return "ok" if passed else "FAIL"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"~{text[1 - width :]}"
